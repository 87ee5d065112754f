"""Whether a run's own suite has changed since the run was last scored."""

from flows.run.run import Run
from flows.run.suite_versions import is_one_version, suite_version
from flows.storage import Damaged
from flows.suites.own_suites import OwnSuites


def suite_change(run: Run, suite: str) -> str | None:
    """Return a sentence if the suite is not of the version on which the run's newest benchmark was scored; else None."""
    for number in reversed(run.history.generations()):
        try:
            done = run.manifest("benchmark", number)
        except Damaged:  # a resume makes it again, or says why not
            continue
        if done is not None and any(ref.uri.startswith(f"benchmarks/{suite}/") for ref in done.outputs):
            if is_one_version((suite_version(done), OwnSuites().digest(suite))):
                return None
            return f"{suite} has changed since generation {number} was scored: later scores do not compare with earlier ones"
    return None
