"""The list of runs as asked: every filter, every order, pages, and what is asked for scores and sizes."""

from collections.abc import Sequence

import pytest

from flows.compare.run_list import RunEntry
from flows.compare.run_query import DAY, PAGE, BadQuery, RunQuery, select
from flows.compare.scores import MeanScore
from flows.monitoring.run_state import RunState

NOW = 1000 * DAY
SETTINGS = {"model.name": "seed", "population.teachers": 3, "learning.learning_rate": 0.0001, "retention.on": True}


def entry(
    run_id: str, state: RunState = RunState.FINISHED, days: float | None = 1.0, done: int = 3, **settings: object
) -> RunEntry:
    began = None if days is None else NOW - days * DAY
    return RunEntry(run_id, "stamp", state, "", done - 1, done, 4, "", began, SETTINGS | settings)


ENTRIES = [
    entry("alpha", days=1),
    entry("beta", RunState.RUNNING, days=3, done=1),
    entry("gamma", RunState.STOPPED, days=2, done=2, **{"population.teachers": 4}),
    entry("delta", RunState.CRASHED, days=None, done=4),
]
SCORES = {"alpha": 0.2, "gamma": 0.5}
SIZES = {"alpha": 30_000_000, "beta": 10_000_000, "gamma": 20_000_000, "delta": 40_000_000}


class Asked:
    """Answers for scores and sizes, and the runs that they were asked for."""

    def __init__(self) -> None:
        self.scores: list[list[str]] = []
        self.sizes: list[list[str]] = []

    def scores_of(self, entries: Sequence[RunEntry]) -> dict[str, MeanScore]:
        names = [one.run_id for one in entries]
        self.scores.append(names)
        return {name: MeanScore("s", 1, "m", SCORES[name], None, 0, 1, 1, 1) for name in names if name in SCORES}

    def sizes_of(self, entries: Sequence[RunEntry], patience: float | None) -> dict[str, int]:
        names = [one.run_id for one in entries]
        self.sizes.append(names)
        return {name: SIZES.get(name, 0) for name in names}


def names(asked: Asked | None = None, **query: object) -> list[str]:
    asked = asked or Asked()
    found = select(ENTRIES, RunQuery(**query), asked.scores_of, asked.sizes_of, NOW)  # type: ignore[arg-type]
    return [one.run_id for one in found.rows]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("run", "alpha beta delta gamma"),
        ("-run", "gamma delta beta alpha"),
        ("state", "beta alpha gamma delta"),
        ("done", "beta gamma alpha delta"),
        ("-score", "gamma alpha beta delta"),
        ("score", "alpha gamma beta delta"),
        ("age", "alpha gamma beta delta"),
        ("-age", "beta gamma alpha delta"),
        ("-size", "delta alpha gamma beta"),
    ],
)
def test_every_order_puts_the_unknown_last(sort: str, expected: str) -> None:
    assert names(sort=sort) == expected.split()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"name": "ALP"}, "alpha"),
        ({"state": "crashed"}, "delta"),
        ({"setting": "population.teachers=4"}, "gamma"),
        ({"setting": "teachers=3 seed"}, "alpha beta delta"),
        ({"setting": "learning_rate=1e-4 on=true"}, "alpha beta delta gamma"),
        ({"setting": "nowhere"}, ""),
        ({"score_from": "20"}, "alpha gamma"),
        ({"score_to": "20.0"}, "alpha"),
        ({"age_from": "1.5", "age_to": "2.5"}, "gamma"),
        ({"size_to": "20"}, "beta gamma"),
        ({"size_from": "20", "score_from": "30"}, "gamma"),
    ],
)
def test_every_filter_keeps_what_it_says(query: dict[str, str], expected: str) -> None:
    assert sorted(names(**query)) == sorted(expected.split())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"sort": "scores"}, "'scores' is not one of run, state, done, score, age, size; did you mean score?"),
        ({"state": "crash"}, "did you mean crashed?"),
        ({"score_from": "much"}, "score_from: 'much' is not a number of zero or more."),
        ({"age_to": "-1"}, "age_to: '-1' is not a number"),
        ({"size_to": "nan"}, "size_to: 'nan' is not a number"),
        ({"setting": "teacher=3"}, "No run has a setting 'teacher'"),
        ({"page": 2}, "There is no page 2: the list has 1."),
    ],
)
def test_a_query_that_cannot_be_is_said(query: dict[str, object], said: str) -> None:
    with pytest.raises(BadQuery) as error:
        names(**query)
    assert said in str(error.value)


def test_scores_and_sizes_are_read_for_one_page_unless_the_query_needs_them() -> None:
    many = [entry(f"run-{number:03d}") for number in range(PAGE + 5)]
    asked = Asked()
    found = select(many, RunQuery(sort="run", page=2), asked.scores_of, asked.sizes_of, NOW)
    assert (found.found, found.total, found.pages, len(found.rows)) == (PAGE + 5, PAGE + 5, 2, 5)
    assert [len(one) for one in (*asked.scores, *asked.sizes)] == [5, 5]
    asked = Asked()
    select(many, RunQuery(sort="-score", size_from="0"), asked.scores_of, asked.sizes_of, NOW)
    assert [len(one) for one in (*asked.scores, *asked.sizes)] == [PAGE + 5, PAGE + 5]


def test_a_query_gives_its_address_without_what_is_usual() -> None:
    assert RunQuery().given() == {} and not RunQuery(sort="run", page=2).filters()
    assert RunQuery(state="running", sort="-age").given() == {"state": "running", "sort": "-age"}
    assert RunQuery(size_to="1").filters()
