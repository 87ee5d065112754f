"""Whether a run can say that its members got better: that takes scores of the start, which not every run makes by itself."""

from flows.monitoring.run_tables import RunTables
from flows.monitoring.scored import scored_generations
from flows.run.suite_versions import is_one_version


def unscored_start(watch: RunTables) -> str:
    """Return a sentence with the command that scores the start as the run's own benchmark scored later members.

    Empty if nothing is scored yet, or the start is, on the version of the suite on which the newest scores are.
    """
    config = (watch.run.history.description() or {}).get("config", {}).get("benchmark", {})
    suite, run_id = str(config.get("suite", "")), watch.run.run_id
    scored = [one for one in scored_generations(watch) if one.asked.suite == suite]
    starts, last = [one for one in scored if one.generation < 0], max((one.generation for one in scored), default=-1)
    newest = [one.version for one in scored if one.generation == last]
    if last < 0 or any(is_one_version((one.version, version)) for one in starts for version in newest):
        return ""
    limit = f" --limit {config['limit']}" if config.get("limit") else ""
    command = f"populora benchmark {run_id} --suite {suite}{limit} --generation -1"
    how = "scored on another version of the suite only" if starts else "not scored"
    return f"The start of {run_id} is {how}, so nothing says what its members gained since then. To score it: {command}"
