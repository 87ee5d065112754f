"""`make bench` gives no options: `bench scoring` then measures on the committed sample of MBPP+."""

import pytest

from flows.bench.scoring import main


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_without_options_the_committed_sample_is_scored() -> None:
    (line,) = main(["--limit", "1", "--turns", "1"])
    assert (line["name"], line["unit"], line["solutions"]) == ("scoring.mbpp-plus", "solutions/min", 1)
    assert line["value"] > 0
