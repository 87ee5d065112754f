"""Whether a run can say that its members got better: that takes scores of the start, which not every run makes by itself."""

from flows.monitoring.cost import scored_generations
from flows.monitoring.run_tables import RunTables


def unscored_start(watch: RunTables) -> str:
    """Return a sentence with the command that scores the start as the run's own benchmark scored later members.

    Empty if nothing is scored yet, or the start is.
    """
    config = (watch.run.history.description() or {}).get("config", {}).get("benchmark", {})
    suite, run_id = str(config.get("suite", "")), watch.run.run_id
    scored = {number for (name, _), states in scored_generations(watch).items() if name == suite for number in states}
    if not scored or -1 in scored:
        return ""
    limit = f" --limit {config['limit']}" if config.get("limit") else ""
    command = f"populora benchmark {run_id} --suite {suite}{limit} --generation -1"
    return f"The start of {run_id} is not scored, so nothing says what its members gained since then. To score it: {command}"
