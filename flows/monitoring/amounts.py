"""What the stages of one generation processed: tokens and programs. Telemetry, the live page and costs count with these."""

from collections import Counter
from collections.abc import Iterable

from flows.run.manifest import Manifest
from stages.analysis.summary import Values

SAMPLED = {"propose": "proposals", "solve": "rollouts"}
JUDGED = {"verify": "tasks", "grade": "grades"}
RESPONSES = "update.response_tokens"


def amounts(values: Values, manifests: Iterable[Manifest]) -> Counter[tuple[str, str]]:
    """Return how much each stage processed, by unit (`tokens`, `programs`) and stage. What is not known is absent.

    The metrics (`RunTables.numbers`) have the mean tokens of a completion, and the manifests the number of completions.
    """
    refs = [ref for one in manifests for ref in one.outputs if ref.rows is not None]
    rows = {ref.uri.rpartition("/")[2].removesuffix(".parquet"): ref.rows or 0 for ref in refs}
    found: Counter[tuple[str, str]] = Counter()
    for stage, table in SAMPLED.items():
        tokens = values.get((f"{stage}.completion_tokens", None, None, None))
        if tokens is not None and table in rows:
            found["tokens", stage] = round(tokens * rows[table])
    trained = [value for (name, member, *_), value in values.items() if name == RESPONSES and member]
    if trained:
        found["tokens", "update"] = round(sum(trained))
    for stage, table in JUDGED.items():
        if table in rows:
            found["programs", stage] = rows[table]
    return found
