"""What a run has learned: the change of its members' score from the start to the newest benchmark."""

from collections.abc import Sequence

from flows.benchmarks.schedule import start_folder
from flows.config import RunConfig
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.run.suite_versions import is_one_version, suite_version
from flows.suites.own_suites import STAIRCASE
from stages.core.number_text import signed
from stages.core.suites.changes import ScoreChange, score_changes
from stages.core.suites.scores import by_band, without_teachers

GREEDY, SAMPLED = "pass@1 greedy", "pass@1"
BAND = " band "


def learned_text(run: Run, config: RunConfig) -> str | None:
    """Return the change since the start, paired problem by problem, members averaged within each; None if either is not scored.

    Where the suite has changed in between, the text says so instead.

    The suite is the project's own one, `benchmark.suite`, all kinds together, answered greedily and, with
    `benchmark.attempts`, also by one sample at temperature 1. Where all problems are of one kind, a second line has the share
    that one sample solves of each band or depth.
    """
    suite = config.benchmark.suite
    before = _answers(run, 0, f"{start_folder(suite)}/answers.parquet")
    scored = ((at, _answers(run, at, f"benchmarks/{suite}/generation={at:04d}/answers.parquet")) for at in _newest_first(run))
    generation, after = next(((at, ref) for at, ref in scored if ref is not None), (None, None))
    if before is None or after is None:
        return None
    made = [manifest for at in (0, generation) if (manifest := run.manifest("benchmark", at)) is not None]
    if not is_one_version(map(suite_version, made)):
        return f"not known: {suite} has changed since the start was scored, so that its scores do not compare with those of now"
    answers = without_teachers(run.read_table(after, "answers"), run.read_table(_scores(run, generation, after), "scores"))
    changes = list(score_changes(answers, run.read_table(before, "answers"), by_band))
    of = {change.measure: change for change in changes if change.group == "all"}
    members = len(set(answers["member_id"].to_pylist()))
    who = "one member" if members == 1 else f"mean of {members} members"
    sampled = f"; one sample: {_change(of[SAMPLED])}, {_levels(of[SAMPLED])}" if SAMPLED in of else ""
    levels = "".join(f"\n{line}" for line in _by_level(changes, "depth" if suite in STAIRCASE else "band"))
    return (
        f"{_change(of[GREEDY])} points on {of[GREEDY].found.problems} held-out problems ({suite}): "
        f"{_levels(of[GREEDY])} after generation {generation} ({who}, greedy){sampled}{levels}"
    )


def _by_level(changes: Sequence[ScoreChange], step: str) -> list[str]:
    """Return a line with the sampled levels by band or depth, if the problems are of one kind."""
    sampled = [one for one in changes if one.measure == SAMPLED]
    kinds = [one.group for one in sampled if one.group != "all" and BAND not in one.group]
    fine = [(one.group.partition(BAND)[2], one) for one in sampled if BAND in one.group]
    if len(kinds) != 1 or len(fine) < 2:
        return []
    levels = "  ".join(f"{level}: {100 * one.before:.0f} → {100 * one.after:.0f}" for level, one in fine)
    return [f"           {kinds[0]} by {step}, percent that one sample solves: {levels}"]


def _scores(run: Run, generation: int | None, answers: Ref) -> Ref:
    """Return the scores that the same benchmark wrote."""
    done = run.manifest("benchmark", generation)
    assert done is not None, answers
    return done.output(answers.uri.replace("answers.parquet", "scores.parquet"))


def _change(one: ScoreChange) -> str:
    error = "" if one.found.stderr is None else f" ± {100 * one.found.stderr:.1f}"
    return f"{signed(100 * one.found.difference, 1)}{error}"


def _levels(one: ScoreChange) -> str:
    return f"{100 * one.before:.1f} → {100 * one.after:.1f} %"


def _newest_first(run: Run) -> list[int]:
    return sorted(run.history.generations(), reverse=True)


def _answers(run: Run, generation: int, uri: str) -> Ref | None:
    """Return the answers that a generation's benchmark wrote there; None if it wrote none."""
    done = run.manifest("benchmark", generation)
    return next((ref for ref in done.outputs if ref.uri == uri), None) if done is not None else None
