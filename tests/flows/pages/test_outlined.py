"""The figures of a run's own page are those of the report, from far fewer bytes."""

from pathlib import Path

import numpy as np
import pytest

from flows.monitoring.run_tables import RunTables
from flows.pages.outlined import run_figures
from flows.report.report_data import gather
from flows.report.report_figures import EVERY
from tests.support.report_run import made


def test_curves_from_the_metrics_are_those_from_every_task_and_attempt(tmp_path: Path) -> None:
    with made(tmp_path, "run", 12) as run:
        watch = RunTables(run).look()
        data = gather(run, watch)
    found = {figure["name"]: figure for figure in run_figures(watch)}
    assert list(found) == ["solve-rate", "ratings", "valid-share", "family"]
    for name in ("solve-rate", "ratings", "valid-share"):
        expected = EVERY[name](data).panels
        assert [panel["y"] for panel in found[name]["numbers"]["panels"]] == [panel.y for panel in expected]
        pairs = zip(found[name]["numbers"]["panels"], expected, strict=True)
        lines = [pair for one, other in pairs for pair in zip(one["lines"], other.lines, strict=True)]
        for line, drawn in lines:
            assert (line["name"], line["dashes"], tuple(line["x"]), tuple(line["n"])) == (
                drawn.name, drawn.dashes, drawn.x, drawn.n,
            )  # fmt: skip
            np.testing.assert_allclose(line["y"], drawn.y, rtol=1e-12)
            errors = [np.nan if error is None else error for error in line["error"]]
            np.testing.assert_allclose(errors, drawn.error, rtol=1e-9)
    family = EVERY["family"](data)
    assert found["family"]["caption"] == family.caption
    assert found["family"]["numbers"]["listing"] == [list(row) for row in family.listing]
    assert all(figure["picture"].startswith("<svg") for figure in found.values())


@pytest.mark.parametrize("until", ["match", "solve"])
def test_a_run_before_its_first_update_says_what_is_missing(tmp_path: Path, until: str) -> None:
    with made(tmp_path, "run", 1, until) as run:
        figures = run_figures(RunTables(run).look())
    assert [figure["picture"] for figure in figures] == [""] * 4
    assert "yet" in figures[0]["caption"] and "yet" in figures[3]["caption"]
