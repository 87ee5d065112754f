"""The comparison of children and clones as text, tables and a figure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from flows.experiments.clones import MEASURE, ClonePair
from flows.report.report import write_whole
from stages.core.statistics.paired import over_runs, p_paired
from stages.figures import comparison as figures
from stages.figures.plates import svg

ALPHA = 0.05
PAIRS = pa.schema(
    [
        ("run", pa.string()),
        ("generation", pa.int64()),
        *((name, pa.string()) for name in ("member", "operator")),
        ("age", pa.int64()),
        *((name, pa.string()) for name in ("child_adapter", "clone_adapter")),
        *((name, pa.float64()) for name in ("child", "clone", "difference", "stderr")),
        ("problems", pa.int64()),
        ("note", pa.string()),
    ]
)


def pairs_text(pairs: Sequence[ClonePair]) -> str:
    """Return a line for each pair and age, then the mean over runs at each age, as aligned lines in percent."""
    head = (
        f"{'run':24} {'event':>5} {'child':7} {'by':6} {'age':>4} {'child':>7} {'clone':>7} {'differ':>7} {'± s.e.':>7} {'n':>5}"
    )
    lines = [f"{MEASURE}, child minus clone, paired by problem", head]
    for one in pairs:
        start = f"{one.run:24} {one.generation:>5} {one.member:7} {one.operator.rpartition('/')[2]:6} {one.age:>4}"
        if one.difference is None or one.child is None or one.clone is None:
            lines.append(f"{start} {one.note}")
            continue
        error = "" if one.stderr is None else f"{100 * one.stderr:.2f}"
        shown = f"{100 * one.child:>7.2f} {100 * one.clone:>7.2f} {100 * one.difference:>+7.2f} {error:>7} {one.problems:>5}"
        lines.append(f"{start} {shown}")
    return "\n".join([*lines, "", *_means(pairs)])


def _means(pairs: Sequence[ClonePair]) -> Iterator[str]:
    """Yield the mean difference at each age, pairs averaged within their run, with its t interval over runs."""
    for age in sorted({one.age for one in pairs}):
        born = [one for one in pairs if one.age == age]
        apart = [(one.run, one.difference) for one in born if one.difference is not None]
        found = over_runs(apart, ALPHA)
        if not found.n:
            yield f"age {age:>3}: no pair has scores"
            continue
        said = f"age {age:>3}: {100 * found.mean:+.2f}"
        if found.stderr is not None and found.low is not None and found.high is not None:
            said += f" ± {100 * found.stderr:.2f} points, 95 % {100 * found.low:+.2f} to {100 * found.high:+.2f}"
            said += f", p = {p_paired(found):.3g}"
        runs, many = "run" if found.n == 1 else "runs", "pair" if len(born) == 1 else "pairs"
        yield f"{said}, n = {found.n} {runs}; {len(apart)} of {len(born)} {many}, both survived"


def write_pairs(pairs: Sequence[ClonePair], folder: Path) -> list[str]:
    """Write the pairs (CSV, Parquet) and their figure (SVG) to a folder, and return the paths."""
    rows = [asdict(one) for one in pairs]
    table = pa.Table.from_pylist(rows, schema=PAIRS)
    parquet, text = pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(table, parquet)
    csv.write_csv(table, text)
    written = [
        write_whole(folder / f"pairs.{end}", out.getvalue().to_pybytes()) for end, out in (("parquet", parquet), ("csv", text))
    ]
    plate = figures.clones(rows, ALPHA)
    if plate.figure is not None:
        written.append(write_whole(folder / f"{plate.name}.svg", svg(plate.figure, plate.name).encode()))
    return [str(path) for path in written]
