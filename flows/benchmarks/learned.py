"""What a run has learned, in one line: the change of its members' score from the start to the newest benchmark."""

from flows.benchmarks.schedule import start_folder
from flows.config import RunConfig
from flows.run.manifest import Ref
from flows.run.run import Run
from stages.core.suites.changes import ScoreChange, score_changes
from stages.core.suites.scores import by_band, without_teachers

GREEDY, SAMPLED = "pass@1 greedy", "pass@1"


def learned_text(run: Run, config: RunConfig) -> str | None:
    """Return the change since the start, paired problem by problem, members averaged within each; None if either is not scored.

    The suite is the project's own one, `benchmark.suite`, all kinds together, answered greedily and, with
    `benchmark.attempts`, also by one sample at temperature 1.
    """
    suite = config.benchmark.suite
    before = _answers(run, 0, f"{start_folder(suite)}/answers.parquet")
    scored = ((at, _answers(run, at, f"benchmarks/{suite}/generation={at:04d}/answers.parquet")) for at in _newest_first(run))
    generation, after = next(((at, ref) for at, ref in scored if ref is not None), (None, None))
    if before is None or after is None:
        return None
    answers = without_teachers(run.read_table(after, "answers"), run.read_table(_scores(run, generation, after), "scores"))
    changes = score_changes(answers, run.read_table(before, "answers"), by_band)
    of = {change.measure: change for change in changes if change.group == "all"}
    members = len(set(answers["member_id"].to_pylist()))
    who = "one member" if members == 1 else f"mean of {members} members"
    sampled = f"; one sample: {_change(of[SAMPLED])}, {_levels(of[SAMPLED])}" if SAMPLED in of else ""
    return (
        f"{_change(of[GREEDY])} points on {of[GREEDY].found.problems} held-out problems ({suite}): "
        f"{_levels(of[GREEDY])} after generation {generation} ({who}, greedy){sampled}"
    )


def _scores(run: Run, generation: int | None, answers: Ref) -> Ref:
    """Return the scores that the same benchmark wrote."""
    done = run.manifest("benchmark", generation)
    assert done is not None, answers
    return done.output(answers.uri.replace("answers.parquet", "scores.parquet"))


def _change(one: ScoreChange) -> str:
    error = "" if one.found.stderr is None else f" ± {100 * one.found.stderr:.1f}"
    return f"{100 * one.found.difference:+.1f}{error}"


def _levels(one: ScoreChange) -> str:
    return f"{100 * one.before:.1f} → {100 * one.after:.1f} %"


def _newest_first(run: Run) -> list[int]:
    return sorted(run.history.generations(), reverse=True)


def _answers(run: Run, generation: int, uri: str) -> Ref | None:
    """Return the answers that a generation's benchmark wrote there; None if it wrote none."""
    done = run.manifest("benchmark", generation)
    return next((ref for ref in done.outputs if ref.uri == uri), None) if done is not None else None
