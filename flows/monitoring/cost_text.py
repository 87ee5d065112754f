"""The cost of a run as text: cells of a table, one line, and sentences about what the numbers leave out."""

import math
from collections.abc import Iterator, Mapping

from flows.monitoring.cost import ChangedSuite, PointCost, RunCost
from flows.monitoring.meter import duration
from flows.monitoring.spending import Spent
from stages.core.highlight import visible
from stages.core.number_text import signed

HEADER = ("machine time", "prompt tokens", "generated", "trained", "energy", "money")
SOURCES = {"cards": "the cards", "processor": "the processor (everything on its machine)", "estimate": "an estimate"}
NOT_COUNTED = (
    "Not counted: attempts that failed or were killed, waiting between stages, and benchmarks outside the run. "
    "Machine time is paid once per machine, however many cards or parts are at work."
)


def cells(used: Spent) -> list[str]:
    """Return one text for each column of HEADER; a dash for what is not recorded."""
    counts = (used.prompt_tokens, used.generated_tokens, used.trained_tokens)
    return [_time(used.machine_seconds), *(count_text(count) for count in counts), energy_text(used), money_text(used.money)]


def cost_line(used: Spent) -> str:
    """Return what is recorded as one line: `13 s of machine time, 4,210 tokens generated, 0.9 Wh (estimated), 0.02 EUR`."""
    parts = [f"{_time(used.machine_seconds)} of machine time"]
    named = (("generated", used.generated_tokens), ("trained", used.trained_tokens))
    parts += [f"{count:,} tokens {name}" for name, count in named if count is not None]
    parts += [energy_text(used)] if used.joules else []
    parts += [money_text(used.money)] if used.money else []
    return ", ".join(parts)


def count_text(count: int | None) -> str:
    """Format a number of tokens."""
    return "–" if count is None else f"{count:,}"


def energy_text(used: Spent) -> str:
    """Format energy, marked unless all of it is measured."""
    if used.kwh is None:
        return "–"
    mark = "" if used.energy_source == "measured" else f" ({used.energy_source})"
    return f"{kwh_text(used.kwh)}{mark}"


def kwh_text(kwh: float) -> str:
    """Format energy in Wh or kWh."""
    return f"{_figures(kwh)} kWh" if kwh >= 1 else f"{_figures(1000 * kwh)} Wh"


def money_text(money: Mapping[str, float]) -> str:
    """Format amounts by currency, whose label is the user's own text."""
    return " + ".join(f"{_figures(amount)} {visible(currency)}".rstrip() for currency, amount in money.items()) or "–"


def point_text(point: PointCost) -> str:
    """Return a sentence about the cost of a point on one benchmark."""
    if not point.sure:
        return f"{gain_text(point)}; no cost of a point: no gain beyond the error (95 %)"
    return f"{gain_text(point)}; a point cost {', '.join(_each(point))}"


def gain_text(point: PointCost) -> str:
    """Return a sentence about what the members gained on one benchmark, paired problem by problem."""
    return f"{_asked(point)}: {change_text(point)} points {span_text(point)} ({point.problems:,} problems)"


def changed_text(one: ChangedSuite) -> str:
    """Return a sentence about a benchmark whose change is not known."""
    return f"{_asked(one)}: no change {span_text(one)} can be given: the two were scored on different versions of the suite"


def span_text(point: PointCost | ChangedSuite) -> str:
    """Return the two scored states."""
    since = "the start" if point.first < 0 else f"generation {point.first}"
    return f"from {since} to generation {point.last}"


def _asked(point: PointCost | ChangedSuite) -> str:
    return point.suite + (f" ({point.question})" if point.question else "")


def change_text(point: PointCost) -> str:
    """Return the gain in points with its standard error."""
    return signed(point.gain, 2) + ("" if point.stderr is None else f" ± {point.stderr:.2f}")


def _each(point: PointCost) -> Iterator[str]:
    """Yield every amount for a point gained, with its standard error."""
    used = point.spent
    for currency, amount in used.money.items():
        yield _with_error(point, amount, visible(currency))
    if used.kwh is not None:
        mark = "" if used.energy_source == "measured" else f" ({used.energy_source})"
        scale, unit = (1, "kWh") if used.kwh >= point.gain else (1000, "Wh")
        yield _with_error(point, scale * used.kwh, unit) + mark
    yield _with_error(point, used.machine_seconds / 60, "min of machine time")
    if used.generated_tokens is not None:
        yield _with_error(point, float(used.generated_tokens), "generated tokens")


def _with_error(point: PointCost, amount: float, unit: str) -> str:
    each = point.of_a_point(amount)
    assert each is not None, point
    return f"{measured_text(*each)} {unit}".rstrip()


def measured_text(value: float, error: float) -> str:
    """Format a value with its standard error, both to the error's second significant digit."""
    if not error:
        return f"{_figures(value)} ± 0"
    places = 1 - math.floor(math.log10(error))
    shown = (round(one, places) for one in (value, error))
    return " ± ".join(f"{one:,.{max(places, 0)}f}" for one in shown)


def remarks(cost: RunCost) -> list[str]:
    """Return sentences about where the numbers come from and what they leave out."""
    used, said = cost.total, []
    if used.joules:
        shares = [f"{SOURCES[name]} {kwh_text(joules / 3.6e6)}" for name, joules in used.joules.items()]
        said.append(f"Energy by source: {', '.join(shares)}{_coverage(used.energy_seconds, used)}.")
    else:
        said.append("No energy: this machine measures none, and cost.watts is not set.")
    if used.money:
        said.append(f"Money: {money_text(used.money)}{_coverage(used.priced_seconds, used)}.")
    else:
        said.append("No money: set cost.machine_hour or POPULORA_COST_MACHINE_HOUR.")
    if cost.inherited.machine_seconds:
        said.append(f"Taken over from {', '.join(cost.parents)} and not counted again: {cost_line(cost.inherited)}.")
    said += [
        f"{suite}: no cost of a point: its first and last scores are not of the same readable problems."
        for suite in cost.unpaired
    ]
    said += [f"{changed_text(one)}." for one in cost.changed]
    said += [f"Not counted, since it cannot be read: {fault}. `populora fsck {cost.run_id}` says more." for fault in cost.unread]
    return [*said, NOT_COUNTED]


def _coverage(covered: float, used: Spent) -> str:
    """Return for how much of the machine time an amount is known, unless for all of it."""
    share = covered / used.machine_seconds if used.machine_seconds else 1.0
    return "" if share > 0.999 else f", for {100 * share:.0f} % of the machine time"


def table(rows: Mapping[str, Spent]) -> list[str]:
    """Return aligned lines: a name and the columns of HEADER, each row, and their sum."""
    listed = [["", *HEADER], *([name, *cells(used)] for name, used in rows.items())]
    listed.append(["total", *cells(sum(rows.values(), Spent()))])
    widths = [max(len(row[column]) for row in listed) for column in range(len(listed[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in listed
    ]


def cost_text(cost: RunCost, rows: Mapping[str, Spent]) -> str:
    """Return the whole answer of `populora cost`: a table of these rows, the points gained, and the remarks."""
    points = [f"point      {point_text(point)}" for point in cost.points]
    return "\n".join([*table(rows), "", *points, *remarks(cost)])


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _figures(value: float) -> str:
    """Format an amount: two significant figures below 1, two decimals below 1000, otherwise none."""
    if value == 0:
        return "0"
    if value < 1:
        return f"{value:.2g}"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
