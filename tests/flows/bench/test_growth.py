"""A generation late in a run asks the store for exactly what an early one does, on a folder and in a bucket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.bench.growth import growth
from flows.bench.growth_stages import STEPS, Sizes
from flows.bench.storage import main
from tests.support.servers import s3_servers

TINY = Sizes(members=1, proposals=6, valid=4, attempts=1, tokens=2, drawn=5)
EARLY = 5
"""Like 9, 17 and 33: 101, 1001, ... in binary, with two segments before and one of two generations after."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_servers.moto() as url:
        for name, value in s3_servers.environment(url).items():
            monkeypatch.setenv(name, value)
        s3_servers.make_bucket("growth")
        yield "s3://growth/runs"


def requests(url: str, late: int) -> dict[tuple[int, str, str], int]:
    lines = list(growth(url, [EARLY, late], 1, TINY))
    assert {line["stage"] for line in lines} == {*STEPS, "session", "generation"}
    return {(line["generation"], line["process"], line["stage"]): line["requests"] for line in lines}


def check(found: dict[tuple[int, str, str], int], late: int) -> None:
    for process in ("cold", "warm"):
        for stage in STEPS:
            assert found[late, process, stage] == found[EARLY, process, stage] > 0, (process, stage)


def test_requests_are_flat_in_a_folder(tmp_path: Path) -> None:
    found = requests(str(tmp_path), 33)
    check(found, 33)
    early, late = (found[generation, "cold", "session"] for generation in (EARLY, 33))
    assert late <= early + 8, "removals of the generation may differ, a walk through the run may not come back"


def test_requests_are_flat_in_a_bucket(bucket: str) -> None:
    check(requests(bucket, 9), 9)


def test_generations_that_do_not_rise_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("20,1", "a,2", "3,3"):
        with pytest.raises(SystemExit):
            list(main(["--growth", text]))
        assert "rising generations" in capsys.readouterr().err
