"""The section of a report about what the run has cost."""

from collections.abc import Mapping

from flows.monitoring.cost import RunCost
from flows.monitoring.cost_text import HEADER, cells, point_text, remarks
from flows.monitoring.spending import Spent, total
from flows.report.report_page import Html, details, escape, joined, table


def cost_section(cost: RunCost) -> Html:
    """Return the cost by stage, by generation, and of a point gained on each benchmark."""
    generations = {"start" if number is None else str(number): used for number, used in cost.by_generation.items()}
    if not generations:
        return Html('<p class="none">Nothing is finished yet.</p>')
    twice = cost.unpaired or cost.changed
    none = [] if twice else [Html('<p class="none">No benchmark was scored twice: no cost of a point.</p>')]
    points = [Html(f"<p>{escape(point_text(point))}.</p>") for point in cost.points]
    said = "".join(f'<p class="small">{escape(text)}</p>' for text in remarks(cost))
    parts = [
        _table("stage", cost.stages),
        *(points or none),
        details("By generation", _table("generation", generations)),
        Html(f'{said}<p class="small">From <a href="#artifacts">the manifests\' clocks and <code>metrics</code></a>.</p>'),
    ]
    return joined(parts)


def _table(what: str, rows: Mapping[str, Spent]) -> Html:
    listed = [*rows.items(), ("total", total(rows.values()))]
    return table((what, *HEADER), [[escape(cell) for cell in (name, *cells(used))] for name, used in listed])
