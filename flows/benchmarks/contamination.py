"""The contamination report: a run's tasks and seed rows compared with a suite's problems; scores with and without matches."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.benchmarks.suite_score import problems_of
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.suites.own_suites import PROBE
from flows.suites.program_keys import program_keys
from stages.core import tables
from stages.core.suites.contamination import MATCHES, SHORTEST, SPAN, matches
from stages.core.suites.problems import Problem, digest
from stages.core.suites.scores import Contestant, probe_scores, suite_scores

Key = tuple[str, str, str, str]  # what was scored, adapter, group, measure


@dataclass(frozen=True)
class Contamination:
    """Matches, what was compared, and the scores (mean, standard error, problems) on all problems and without those matched."""

    suite: str
    problems: int
    tasks: int
    matches: pa.Table
    scores: Mapping[Key, tuple[dict[str, Any], dict[str, Any] | None]]
    folder: str

    def text(self) -> str:
        """Return readable text: counts, matches, and every overall score with and without the problems that matched."""
        touched = sorted(set(self.matches["problem_id"].to_pylist()))
        lines = [f"{self.suite}: {self.tasks} tasks and seed rows compared with {self.problems} problems: {len(touched)} match"]
        for row in self.matches.to_pylist()[:20]:
            shared = row["shared"] if row["rule"] == "program" else f"“{row['shared']}”"
            lines.append(f"  {row['problem_id']}  {row['task_id']}  {row['rule']}: {shared[:100]}")
        if self.matches.num_rows > 20:
            lines.append(f"  … and {self.matches.num_rows - 20} more in {self.folder}/matches.parquet")
        for (where, member, _, measure), (whole, clean) in self.scores.items():
            lines.append(f"  {where} {member} {measure}: {_score(whole)}; without matches {_score(clean)}")
        return "\n".join([*lines, f"stored under {self.folder}"])


def _score(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "no problems left"
    error = "" if row["stderr"] is None else f" ± {100 * row['stderr']:.2f}"
    return f"{100 * row['score']:.2f}{error} (n = {row['problems']})"


def contamination(run: Run, suite: str, data: Path | None) -> Contamination:
    """Compare and stores; an equal comparison is not stored twice. Raises ConfigError for an unknown suite."""
    problems = problems_of(suite, data, 0)
    tasks = list(_tasks(run))
    found = matches(problems, _keys(problems), tasks)
    scored = list(_scored(run, suite))
    touched = found["problem_id"].unique()
    rows = [row for one in scored for row in _both(run, one, touched)]
    folder = _folder(run, suite, problems, [one.answers.sha256 for one in scored])
    outputs = [
        run.write_table_at(f"benchmarks/{folder}/matches.parquet", found, MATCHES),
        run.write_table_at(f"benchmarks/{folder}/without.parquet", _clean_table(rows), tables.SCORES),
    ]
    inputs = [one.answers for one in scored]
    counts = {"problems": len(problems), "tasks": len(tasks), "matches": found.num_rows}
    run.commit_benchmark(folder, inputs, outputs, counts, {"suite": digest(problems), "span": SPAN}, {})
    scores = {key: (whole, clean) for key, whole, clean in rows}
    return Contamination(suite, len(problems), len(tasks), found, scores, f"{run.run_id}/benchmarks/{folder}")


def _tasks(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield seed rows as generation -1, then all proposed tasks of every generation that has stored its tasks."""
    names = ["task_id", "program", "message", "program_key"]
    yield from ((-1, row) for row in run.read_table(None, "seeds").select(names).to_pylist())
    for generation in run.history.generations():
        if run.manifest("verify", generation) is not None:
            yield from ((generation, row) for row in run.read_table(generation, "tasks").select(names).to_pylist())


# a whole line each, or lines in brackets
_FOR_ANNOTATIONS = re.compile(
    r"^(?:from typing import [\w, ]+(?:#[^\n]*)?|from typing import \([^)]*\)|import typing(?: as \w+)?)[ \t]*(?:\n|\Z)", re.M
)


def _keys(problems: tuple[Problem, ...]) -> dict[str, list[str]]:
    """Return program keys of each problem's visible code and of its reference, both the publisher's texts.

    Keys ignore annotations, so the same texts without what is imported for annotations have keys of their own.
    """
    texts = [(one.problem_id, text) for one in problems for text in (one.program, one.reference) if text]
    pairs = list(dict.fromkeys(pair for name, text in texts for pair in ((name, text), (name, _FOR_ANNOTATIONS.sub("", text)))))
    found: dict[str, list[str]] = {}
    for (name, _), key in zip(pairs, program_keys([text for _, text in pairs]), strict=True):
        if key:
            found.setdefault(name, []).append(key)
    return found


@dataclass(frozen=True)
class _Scored:
    """One benchmark of the suite: the name of its folder, and its tables."""

    where: str
    answers: Ref
    scores: Ref


def _scored(run: Run, suite: str) -> Iterator[_Scored]:
    """Yield every benchmark of the suite made outside the chain, then those that the run made itself."""
    own = (run.manifest("benchmark", generation) for generation in run.history.generations())
    for manifest in (*run.history.benchmarks(), *filter(None, own)):
        refs = {ref.uri: ref for ref in manifest.outputs}
        for uri, ref in refs.items():
            folder, _, name = uri.rpartition("/")
            if name == "answers.parquet" and folder.startswith(f"benchmarks/{suite}/"):
                where = folder.removeprefix(f"benchmarks/{suite}/").removeprefix("asked/")
                yield _Scored(where, ref, refs[f"{folder}/scores.parquet"])


def _both(run: Run, scored: _Scored, touched: pa.Array) -> Iterator[tuple[Key, dict[str, Any], dict[str, Any] | None]]:
    """Yield every overall score of one benchmark, and the same without the problems that matched."""
    answers = run.read_table(scored.answers, "answers")
    whole = run.read_table(scored.scores, "scores").to_pylist()
    who = {(row["member_id"], row["adapter_id"]): row for row in whole}
    contestants = [Contestant(member, row["role"], adapter, row["adapter_sha256"]) for (member, adapter), row in who.items()]
    left = answers.filter(pc.invert(pc.is_in(answers["problem_id"], touched)))
    score = probe_scores if answers.num_rows and answers["suite"][0].as_py() in PROBE else suite_scores
    clean = score(left, contestants).to_pylist() if left.num_rows else []
    by_key = {(row["member_id"], row["adapter_id"], row["measure"]): row for row in clean if row["group"] == "all"}
    for row in whole:
        if row["group"] == "all":
            key = (scored.where, row["adapter_id"], row["group"], row["measure"])
            yield key, row, by_key.get((row["member_id"], row["adapter_id"], row["measure"]))


def _clean_table(rows: list[tuple[Key, dict[str, Any], dict[str, Any] | None]]) -> pa.Table:
    return tables.table([clean for _, _, clean in rows if clean is not None], tables.SCORES)


def _folder(run: Run, suite: str, problems: tuple[Problem, ...], answers: list[str]) -> str:
    """Return a folder named by what was compared, so that a later report does not replace an earlier one."""
    generations = [one for one in run.history.generations() if run.manifest("verify", one) is not None]
    text = json.dumps([digest(problems), SPAN, SHORTEST, len(generations), sorted(answers)])
    return f"{suite}/contamination/{len(generations):04d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
