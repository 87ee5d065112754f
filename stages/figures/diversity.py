"""Figures of diversity: whether proposals are still new by two independent measures, and whether members stay different."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core.statistics.estimates import only, series
from stages.figures.panels import INK, MUTED, ROLE
from stages.figures.plates import Plate, canvas, curve, label, legend, note


def novelty(metrics: pa.Table) -> Plate:
    """New cells of the problem space and novelty by compression, generation by generation."""
    plate = Plate("novelty", "Are proposals still new?", "No coverage has been measured yet.", ("metrics",))
    cells, texts = (only(metrics, name=f"coverage.{name}") for name in ("new_cells", "novelty"))
    cells = cells.filter(pc.greater(pc.fill_null(cells["n"], 0), 0))
    if not cells.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question)
    x, n = cells["generation"].to_numpy(), cells["n"].to_numpy().astype(np.float64)
    share = cells["value"].to_numpy() / n
    error = np.sqrt(share * (1 - share) / n)
    ax.fill_between(x, 100 * (share - error), 100 * (share + error), color=ROLE["teacher"], alpha=0.2, linewidth=0)
    ax.plot(x, 100 * share, color=ROLE["teacher"], linewidth=1.5, label="tasks that open a cell")
    ax.plot(texts["generation"], 100 * texts["value"].to_numpy(), color=INK, linewidth=1.2, linestyle="--", label="new text")
    note(ax, "tasks that open a cell", ROLE["teacher"], x, 100 * share, 100 * error, n)
    note(ax, "new text", INK, texts["generation"].to_pylist(), 100 * texts["value"].to_numpy(), dashes="--")
    ax.set_ylim(0, max(105.0, ax.get_ylim()[1]))
    label(ax, "new (%)")
    legend(ax, 2)
    caption = (
        "Two independent measures against all earlier generations: cells of (kind of syntax tree, types of values) that no "
        "task was in before, and the share of the programs' compressed size that earlier programs do not give. The "
        f"band is ±1 binomial standard error; novelty by compression is one number per generation, without error bars. "
        f"n = {int(n.min())} to {int(n.max())} valid tasks per generation."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def differences(metrics: pa.Table) -> Plate:
    """Distances between members of a role: of their adapters in delta W, and of the programs that teachers write."""
    plate = Plate("differences", "Do members stay different?", "No two members have been compared yet.", ("metrics",))
    apart = only(metrics, name="pair.adapter_distance")
    if not apart.num_rows:
        return plate
    figure, (above, below) = canvas(plate.question, 2, 1, 3.8)
    pairs = ["member_id", "opponent_id"]
    counts = []
    for role in ("teacher", "student"):
        found = series(only(apart, role=role), "value", pairs)
        curve(above, found, ROLE[role], f"{role}s", role)
        counts += [f"{found.clusters_text()} pairs of {role}s"] if found else []
    programs = series(only(metrics, name="pair.program_distance"), "value", pairs)
    curve(below, programs, ROLE["teacher"], "teachers' programs", "teacher")
    above.set_ylim(bottom=0)
    label(above, "distance of delta W")
    above.set_xlabel("")
    label(below, "distance of programs")
    below.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    legend(above)
    caption = (
        "Above: Frobenius norm of the difference of two members' delta W, mean over pairs of a role. Below: normalised "
        "compression distance of two teachers' programs of a generation; near 1 they share nothing. Bands are ±1 standard error "
        f"over pairs, which share members and so are not independent; n = {' and '.join(counts) or 'no pairs'}."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)
