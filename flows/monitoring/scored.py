"""Benchmarks of a run's members as trained, and which of them ask the same question, so that their greedy answers compare."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from flows.monitoring.run_tables import RunTables
from flows.run.history import question_of
from flows.run.manifest import Manifest, Ref
from flows.run.suite_versions import suite_version

_OWN = re.compile(r"(?:^|-)n(\d+)-k\d+(?:-s[0-9a-f]{8})?$")
"""The end of a request to one of the project's own suites: the problems, the samples, and the version if it is not the first."""
_BEST = re.compile(r"top(\d+)-")


class Asked(NamedTuple):
    """What greedy answers depend on, besides weights and the version of the suite.

    Attributes:
        suite: The benchmark.
        who: The best of the members, such as `top 2`; empty: all of them.
        problems: How many problems, or which.
        question: How a public suite was asked, as in `question_of`.
    """

    suite: str
    who: str
    problems: str
    question: str


class Scored(NamedTuple):
    """A benchmark of the members as trained.

    Attributes:
        asked: Its question.
        request: The name of the whole request: benchmarks with equal ones differ in weights and version only.
        generation: The generation after which they were scored; -1: the start.
        version: That of the suite, as in `suite_version`; empty: not recorded.
        answers: The ANSWERS.
        scores: The SCORES, if they are stored.
    """

    asked: Asked
    request: str
    generation: int
    version: str
    answers: Ref
    scores: Ref | None


def scored_generations(watch: RunTables) -> list[Scored]:
    """Return what scored the members as trained: the run's own benchmarks, and those made later."""
    config = (watch.run.history.description() or {}).get("config", {}).get("benchmark", {})
    rule = "" if config.get("members", "students") == "students" else f"{config['members']}-"
    inside = f"{rule}n{config.get('limit', 0)}-k{config.get('attempts', 0)}"  # as `populora benchmark` names the same request
    found = []
    for manifest in watch.run.history.benchmarks():
        for ref in manifest.outputs:
            _, suite, *rest = ref.uri.split("/")
            if len(rest) == 3 and rest[0] == "asked" and rest[2] == "answers.parquet":
                place, _, request = rest[1].partition("-")
                number = "-1" if place == "start" else place.removeprefix("generation=")
                if number.removeprefix("-").isdigit():  # else adapters that were asked for by name
                    found.append(_scored(manifest, ref, suite, request, int(number)))
    for generation in watch.generations:
        for manifest in watch.manifests(generation):
            for ref in manifest.outputs if manifest.stage == "benchmark" else ():
                _, suite, *rest = ref.uri.split("/")
                if rest in (["start", "answers.parquet"], [f"generation={generation:04d}", "answers.parquet"]):
                    found.append(_scored(manifest, ref, suite, inside, -1 if rest[0] == "start" else generation))
    return found


def limit_of(request: str) -> int | None:
    """Return how many problems (0: all) of one of the project's own suites a request of this name asks; None for other suites."""
    found = _OWN.search(request)
    return int(found[1]) if found else None


def by_question(scored: Iterable[Scored]) -> dict[Asked, list[Scored]]:
    """Return the benchmarks by what they asked, in order."""
    found: dict[Asked, list[Scored]] = {}
    for one in scored:
        found.setdefault(one.asked, []).append(one)
    return dict(sorted(found.items()))


def ends(scored: Iterable[Scored]) -> tuple[Scored, Scored]:
    """Return a benchmark of the first and one of the last generation: two of the same request if there are such."""
    listed = list(scored)
    first, last = (choose(one.generation for one in listed) for choose in (min, max))
    firsts, lasts = ([one for one in listed if one.generation == generation] for generation in (first, last))
    pairs = [(one, other) for one in firsts for other in lasts]
    return max(pairs, key=lambda pair: (pair[0].request == pair[1].request, pair[0].version == pair[1].version))


def _scored(manifest: Manifest, answers: Ref, suite: str, request: str, generation: int) -> Scored:
    best, question, limit = _BEST.match(request), question_of(manifest), limit_of(request)
    problems = str(manifest.counts.get("problems", "")) if question else request if limit is None else str(limit)
    uri = answers.uri.replace("answers.parquet", "scores.parquet")
    scores = next((ref for ref in manifest.outputs if ref.uri == uri), None)
    asked = Asked(suite, f"top {best[1]}" if best else "", problems, question)
    return Scored(asked, request, generation, suite_version(manifest), answers, scores)
