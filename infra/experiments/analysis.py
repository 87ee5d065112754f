"""Exploratory tables of docs/evidence-seed-model.md that no comparison page has. Reads a store of finished runs, writes nothing.

    .venv/bin/python infra/experiments/analysis.py STORE EXPERIMENT ARM [ARM ...] [FIRST:SECOND ...]

`answers`: the share of the probe's answers that has the asked form, and the share of those that is right, by generations trained.
`specialisation`: do students solve more of some teachers' tasks than their own strength and the teachers' difficulty explain?
`children`: mean reward less what the parents earned in the generation before the birth (gain), and less what the role earns now
(lead), by age, with the standard error over children.
`contrast`: FIRST minus SECOND at their last scored state in each seed, with the standard error over problems. It speaks of other
problems of the kind, not of other seeds.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy import special

WINDOW = 10  # generations between two evolution events of infra/runs/evidence.toml: the same members throughout
FACTORS = ("teacher", "student", "teacher × student")
AGES = ((1, 3), (4, 10), (11, 20), (21, 60))
Task = tuple[str, str, str, float]  # kind, teacher, student, share of attempts that are correct


def answers(runs: list[Path]) -> Iterator[str]:
    """A line for each number of generations trained; means over runs."""
    found = defaultdict(list)
    for run in runs:
        for trained, file in _scored(run):
            rows = pq.read_table(file, columns=["greedy", "status", "correct"]).to_pylist()
            for greedy in (True, False):
                own = [row for row in rows if row["greedy"] == greedy]
                formed = [row["correct"] for row in own if row["status"] != "format"]
                found[trained, greedy].append((len(formed) / len(own), np.mean(formed)))
    for (trained, greedy), values in sorted(found.items()):
        form, right = np.mean(values, axis=0)
        how = "greedy " if greedy else "sampled"
        said = f"formed {form:6.1%}  right of those {right:6.1%}  product {form * right:6.1%}  runs {len(values)}"
        yield f"after {trained:2d}  {how}  {said}"


def _scored(run: Path) -> Iterator[tuple[int, Path]]:
    """The answers of the members as trained, by generations trained; 0: what every member starts with."""
    probe = run / "benchmarks/probe-test"
    yield from (
        (0, file) for place in ("start", "asked/*-start-*", "asked/start-*") for file in probe.glob(f"{place}/answers.parquet")
    )
    for file in sorted(probe.glob("generation=*/answers.parquet")):
        yield int(file.parent.name.partition("=")[2]) + 1, file


def specialisation(runs: list[Path]) -> str:
    """Mean F of each factor over windows, and the share of windows with p < 0.05. Tasks of one prompt are alike, so F of members
    that do not differ lies above 1: the arm with learning rate 0 says how far."""
    found = [_tests(list(_tasks(run, start))) for run in runs for start in _windows(run)]
    said = [
        f"{factor}: F {np.mean([one[place][0] for one in found]):.2f}, {np.mean([one[place][1] < 0.05 for one in found]):.0%}"
        for place, factor in enumerate(FACTORS)
    ]
    return f"{len(found)} windows  " + "  ".join(said)


def _steady(run: Path) -> bool:
    """Whether there are pairs to tell apart, the same ones throughout a window."""
    config = json.loads((run / "run.json").read_text())["config"]
    pairs = min(config["population"]["students"], config["population"]["teachers"])
    return pairs > 1 and config["evolution"]["every"] in (0, WINDOW)


def _windows(run: Path) -> range:
    return range(0, len(list(run.glob("generation=*/rate.json"))) - WINDOW + 1, WINDOW)


def _tasks(run: Path, start: int) -> Iterator[Task]:
    for generation in range(start, start + WINDOW):
        folder = run / f"generation={generation:04d}"
        teachers = {row["match_id"]: row["teacher_id"] for row in pq.read_table(folder / "matches.parquet").to_pylist()}
        shares = defaultdict(list)
        for row in pq.read_table(folder / "grades.parquet").to_pylist():
            if row["match_id"] in teachers:
                shares[row["task_id"], row["kind"], teachers[row["match_id"]], row["student_id"]].append(row["correct"])
        yield from ((kind, teacher, student, float(np.mean(own))) for (_, kind, teacher, student), own in shares.items())


def _tests(tasks: list[Task]) -> list[tuple[float, float]]:
    """(F, p) of each factor, added in order to a least-squares model that has the kind."""
    share = np.array([task[3] for task in tasks])
    design, found = _dummies(task[0] for task in tasks), []
    for names in ([task[1] for task in tasks], [task[2] for task in tasks], [task[1] + task[2] for task in tasks]):
        before, design = design, np.hstack([design, _dummies(names)])
        ranks = [int(np.linalg.matrix_rank(one)) for one in (before, design)]
        rests = [float(((share - one @ np.linalg.lstsq(one, share, rcond=None)[0]) ** 2).sum()) for one in (before, design)]
        more, left = ranks[1] - ranks[0], len(share) - ranks[1]
        f = (rests[0] - rests[1]) / more / (rests[1] / left)
        found.append((f, float(special.fdtrc(more, left, f))))
    return found


def _dummies(names: Iterable[str]) -> np.ndarray:
    column = np.array(list(names))
    return (column[:, None] == np.unique(column)[None, :]).astype(float)


def children(runs: list[Path]) -> Iterator[str]:
    """A line for each role and range of ages."""
    found = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for file in run.glob("generation=*/metrics.parquet"):
            rows = [row for row in pq.read_table(file).to_pylist() if row["name"].startswith("child.")]
            ages = {row["member_id"]: row["value"] for row in rows if row["name"] == "child.age"}
            for row in rows:
                for low, high in AGES:
                    if row["name"] != "child.age" and low <= ages[row["member_id"]] <= high:
                        found[row["role"], low, high, row["name"]][run, row["member_id"]].append(row["value"])
    for (role, low, high, name), own in sorted(found.items()):
        means = [np.mean(values) for values in own.values()]
        error = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
        yield f"{role}s aged {low:2d} to {high:2d}  {name}  {np.mean(means):+.3f} ± {error:.3f}  children {len(means)}"


def contrast(first: list[Path], second: list[Path]) -> Iterator[str]:
    """A line for each seed that both have, and each way of sampling."""
    others = {run.name.rpartition("-s")[2]: run for run in second}
    for run in first:
        seed = run.name.rpartition("-s")[2]
        if seed not in others:
            continue
        for greedy, how in ((True, "greedy "), (False, "sampled")):
            ours, theirs = _by_problem(run, greedy), _by_problem(others[seed], greedy)
            apart = 100 * np.array([ours[problem] - theirs[problem] for problem in sorted(ours)])
            error = apart.std(ddof=1) / len(apart) ** 0.5
            means = [100 * np.mean(list(one.values())) for one in (ours, theirs)]
            said = f"{means[0]:5.2f} - {means[1]:5.2f} = {apart.mean():+5.2f} ± {error:.2f} over {len(apart)} problems"
            yield f"seed {seed}  {how}  {said}"


def _by_problem(run: Path, greedy: bool) -> dict[str, float]:
    """The share of correct answers to each problem, over all students and samples of the run's last scored state."""
    last = max((run / "benchmarks/probe-test").glob("generation=*/answers.parquet"))
    shares = defaultdict(list)
    for row in pq.read_table(last, columns=["problem_id", "greedy", "correct"]).to_pylist():
        if row["greedy"] == greedy:
            shares[row["problem_id"]].append(row["correct"])
    return {problem: float(np.mean(own)) for problem, own in shares.items()}


def main(store: str, experiment: str, *arms: str) -> None:
    """Prints the tables of each arm."""
    for arm in arms:
        one, _, other = arm.partition(":")
        runs = sorted(Path(store).glob(f"{experiment}-{one}-s*"))
        print(f"{arm}: {len(runs)} runs")
        if other:
            for line in contrast(runs, sorted(Path(store).glob(f"{experiment}-{other}-s*"))):
                print(f"  {line}")
            continue
        for line in answers(runs):
            print(f"  {line}")
        if runs and _steady(runs[0]):
            print(f"  {specialisation(runs)}")
        for line in children(runs):
            print(f"  {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
