"""What is asked of the list of runs: filters, one order, one page. Pure but for the scores and sizes that it is given."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from flows.compare.run_list import RunEntry
from flows.compare.scores import MeanScore
from flows.compare.settings_diff import value_text
from flows.monitoring.run_state import RunState
from flows.near_names import hint

PAGE = 50
PATIENCE_SECONDS = 0.3  # for sizes that are only shown
DAY, MEGABYTE = 86_400.0, 1e6
SORTS = ("run", "state", "done", "score", "age", "size")
Scores = Callable[[Sequence[RunEntry]], Mapping[str, MeanScore]]
Sizes = Callable[[Sequence[RunEntry], float | None], Mapping[str, int]]


class BadQuery(ValueError):
    """A filter or an order that does not exist, as one sentence."""


@dataclass(frozen=True)
class RunQuery:
    """Filters and order of the list. Empty texts filter nothing.

    `name` is a part of run ids. `setting` has one or more words: `key=value`, where the key may be shortened to its last names,
    or any part of `key=value`. Scores are in percent, ages in days, sizes in MB. `sort` is one of SORTS, with a leading minus for
    the greatest first.
    """

    name: str = ""
    state: str = ""
    setting: str = ""
    score_from: str = ""
    score_to: str = ""
    age_from: str = ""
    age_to: str = ""
    size_from: str = ""
    size_to: str = ""
    sort: str = "age"
    page: int = 1

    def given(self) -> dict[str, Any]:
        """Return what differs from a query without filters, for addresses."""
        usual = RunQuery()
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in own.items() if value != getattr(usual, name)}

    def filters(self) -> bool:
        """Return whether any run may be left out."""
        return bool(self.given().keys() - {"sort", "page"})


@dataclass(frozen=True)
class RunPage:
    """One page of the list: its rows, how many runs the filters leave, and how many there are."""

    rows: tuple[RunEntry, ...]
    found: int
    total: int
    pages: int
    scores: Mapping[str, MeanScore]
    sizes: Mapping[str, int]


def select(entries: Sequence[RunEntry], query: RunQuery, scores_of: Scores, sizes_of: Sizes, now: float) -> RunPage:
    """Return the page of the list that a query asks for. Raises BadQuery.

    `scores_of` and `sizes_of` are asked for all runs that the other filters leave if the query needs them, else for the page's;
    sizes that the query does not need are waited for PATIENCE_SECONDS.
    """
    _check(query)
    order = query.sort.removeprefix("-")
    found = [entry for entry in entries if query.name.lower() in entry.run_id and query.state in ("", entry.state)]
    found = _by_setting(found, entries, query.setting)
    ages = {entry.run_id: (now - entry.began) / DAY for entry in found if entry.began is not None}
    found = _within(found, ages, "age", query)
    by_score = order == "score" or bool(query.score_from or query.score_to)
    by_size = order == "size" or bool(query.size_from or query.size_to)
    scores: Mapping[str, MeanScore] = {}
    sizes: Mapping[str, int] = {}
    if by_score:
        scores = scores_of(found)
        found = _within(found, {run_id: 100 * one.score for run_id, one in scores.items()}, "score", query)
    if by_size:
        sizes = sizes_of(found, None)
        found = _within(found, {run_id: size / MEGABYTE for run_id, size in sizes.items()}, "size", query)
    keys: dict[str, Callable[[RunEntry], Any]] = {
        "run": lambda entry: entry.run_id,
        "state": lambda entry: list(RunState).index(entry.state),
        "done": lambda entry: (entry.share, entry.done),
        "score": lambda entry: scores[entry.run_id].score if entry.run_id in scores else None,
        "age": lambda entry: ages.get(entry.run_id),
        "size": lambda entry: sizes.get(entry.run_id),
    }
    ordered = _ordered(found, keys[order], query.sort.startswith("-"))
    pages = max(1, math.ceil(len(ordered) / PAGE))
    if query.page > pages:
        raise BadQuery(f"There is no page {query.page}: the list has {pages}.")
    rows = ordered[(query.page - 1) * PAGE : query.page * PAGE]
    scores = scores if by_score else scores_of(rows)
    sizes = sizes if by_size else sizes_of(rows, PATIENCE_SECONDS)
    return RunPage(tuple(rows), len(found), len(entries), pages, scores, sizes)


def _check(query: RunQuery) -> None:
    if query.sort.removeprefix("-") not in SORTS:
        raise BadQuery(f"{query.sort[:60]!r} is not one of {', '.join(SORTS)}{hint(query.sort[:60], SORTS)}")
    states = [str(state) for state in RunState]
    if query.state and query.state not in states:
        raise BadQuery(f"{query.state[:60]!r} is not one of {', '.join(states)}{hint(query.state[:60], states)}")


def _ordered(entries: Sequence[RunEntry], key: Callable[[RunEntry], Any], descending: bool) -> list[RunEntry]:
    """Return the entries by key and name; those without a key come last in either order."""
    known = sorted((entry for entry in entries if key(entry) is not None), key=lambda entry: entry.run_id)
    known.sort(key=key, reverse=descending)
    return known + [entry for entry in entries if key(entry) is None]


def _within(entries: Sequence[RunEntry], values: Mapping[str, float], name: str, query: RunQuery) -> list[RunEntry]:
    """Return the entries whose value lies within the query's limits. With a limit, those without a value are left out."""
    low = _number(f"{name}_from", getattr(query, f"{name}_from"))
    high = _number(f"{name}_to", getattr(query, f"{name}_to"))
    if low is None and high is None:
        return list(entries)
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return [entry for entry in entries if entry.run_id in values and least <= values[entry.run_id] <= most]


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise BadQuery(f"{name}: {text[:60]!r} is not a number of zero or more.")
    return value


def _by_setting(entries: list[RunEntry], all_entries: Sequence[RunEntry], wanted: str) -> list[RunEntry]:
    for word in wanted.split():
        key, equals, value = word.partition("=")
        if not equals:
            entries = [entry for entry in entries if any(word.lower() in line for line in _lines(entry))]
            continue
        keys = {name for entry in all_entries for name in entry.settings if name == key or name.endswith(f".{key}")}
        if not keys:
            known = {name for entry in all_entries for name in entry.settings}
            raise BadQuery(f"No run has a setting {key[:60]!r}{hint(key[:60], known)}")
        entries = [entry for entry in entries if any(_is(entry.settings[name], value) for name in keys & entry.settings.keys())]
    return entries


def _lines(entry: RunEntry) -> list[str]:
    return [f"{key}={value_text(value)}".lower() for key, value in entry.settings.items()]


def _is(value: object, text: str) -> bool:
    """Return whether a stored value is what a user wrote: the same text, or the same number (`1e-4` is 0.0001)."""
    if value_text(value).lower() == text.lower():
        return True
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and float(text) == value
    except ValueError:
        return False
