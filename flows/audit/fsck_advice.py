"""The command that fixes what fsck found: for this run, with the options that the damaged artifact was made with."""

import re
import shlex
from collections.abc import Callable

from flows.run.fork import fixed_id
from flows.run.history import CHOSEN
from flows.run.manifest import Manifest
from flows.run.resume import Obstacle
from flows.run.scan import RunScan

_PROBE = re.compile(r"benchmarks/([^/]+)/(?:asked|chosen)/(.+)-n(\d+)-k(\d+)(?:-p[0-9a-f]{8})?(?:-s[0-9a-f]{8})?/[^/]+")
_PUBLIC = re.compile(r"benchmarks/([^/]+)/(?:asked|chosen)/(.+)-[0-9a-f]{12}/.+")
_PART_TABLE = re.compile(r"(generation=\d{4,}/\w+)\.parts/[^/]+\.parquet")
_MEMBERS = re.compile(r"(?:start|generation=(\d+))(?:-(all|top\d+))?")
_ADAPTER = r"[tsa]\d+-(?:start|g\d{4,})"


def is_spent(survey: RunScan, uri: str) -> bool:
    """Return whether an artifact is a table that only the join of a stage's parts read, and that stage is complete."""
    found = _PART_TABLE.fullmatch(uri)
    whole = survey.manifests.get(f"{found[1]}.json") if found else None
    wrong = {place for place, _, bytes_wrong in survey.wrong if bytes_wrong}
    return found is not None and whole is not None and wrong.isdisjoint({f"{found[1]}.json", *(one.uri for one in whole.outputs)})


def advice(
    survey: RunScan,
    uri: str,
    holder: str,
    bytes_wrong: bool,
    obstacle: Obstacle | None,
    usable: Callable[[int], int | None],
) -> str:
    """Return the command for a finding; empty if none helps. `holder` is the run that a fork borrows the artifact from.

    Resuming the run restores lost or damaged bytes, unless there is an obstacle. Wrong contents with correct digests remain; only
    a fork leaves them behind: from the generation that `usable` finds before the given one. What is spent is not made again.
    """
    run_id, store = survey.run.run_id, f"--store {survey.run.store.url}"
    if holder:
        return f"populora fsck {holder} {store}"
    if uri == "run.json" or is_spent(survey, uri):
        return ""
    resume = f"populora run --resume {run_id} {store}"
    if obstacle is not None:
        fork = obstacle.fork(run_id)
        resume = f"{fork} {store}" if fork else ""
    if bytes_wrong and (not uri.startswith("benchmarks/") or _of_a_generation(survey, uri)):
        return resume
    if bytes_wrong:
        again = _benchmark(survey, uri)
        words = f"populora benchmark {run_id} {again} {store}" if again else ""
        return (
            f"{resume} && {words}" if words and uri.endswith(".json") and obstacle is None else words
        )  # the start of a run removes damaged manifests
    if uri.startswith("generation="):
        generation = int(uri.partition("/")[0].removeprefix("generation="))
        before = usable(generation)
        return "" if before is None else f"populora fork {run_id} --generation {before} --run-id {fixed_id(run_id)} {store}"
    return ""


def _of_a_generation(survey: RunScan, uri: str) -> bool:
    """Return whether a stage of the run made this benchmark artifact, and will make it again."""
    return any(one.generation is not None for one in _makers(survey, uri))


def _makers(survey: RunScan, uri: str) -> list[Manifest]:
    return [one for place, one in survey.manifests.items() if place == uri or any(ref.uri == uri for ref in one.outputs)]


def _benchmark(survey: RunScan, uri: str) -> str:
    """Return the options that repeat the benchmark; empty if the name does not determine them, or nothing would be scored."""
    if found := _PROBE.fullmatch(uri):
        suite, who, limit, attempts = found.groups()
        rest = _options({"--limit": limit, "--attempts": attempts}) + _problems(_makers(survey, uri))
    elif found := _PUBLIC.fullmatch(uri):
        (suite, who), folder = found.groups(), uri.partition("/shards/")[0]
        if folder != uri and f"{folder}/benchmark.json" in survey.manifests:
            return ""  # a shard of a complete benchmark: its answers are in the whole table, too
        rest = _question(_makers(survey, uri))
    else:
        return ""
    asked = _who(who)
    if CHOSEN in uri and "--problems" not in rest:
        return ""  # the manifest that says which problems is lost
    return f"--suite {suite} {asked}{rest}" if asked else ""


def _who(who: str) -> str:
    """Return the options that choose the members which a folder is named after."""
    if re.fullmatch(f"{_ADAPTER}(?:-{_ADAPTER})*", who):
        return " ".join(f"--adapter {name}" for name in re.findall(_ADAPTER, who))
    found = _MEMBERS.fullmatch(who)
    if found is None:
        return ""
    generation, rule = found.groups()
    members = f" --members {rule.replace('top', 'top:')}" if rule else ""
    return f"--generation {-1 if generation is None else int(generation)}{members}"


def _question(makers: list[Manifest]) -> str:
    """Return the options recorded in the manifest of a public suite's scores."""
    if not makers:
        return ""
    rule = makers[0].versions.get("question", {})
    names = {"--style": "style", "--attempts": "attempts", "--max-new-tokens": "max_new_tokens"}
    limit = {} if "shards" not in makers[0].counts else {"--limit": str(makers[0].counts["problems"])}
    return _options(limit | {option: str(rule[name]) for option, name in names.items() if name in rule}) + _problems(makers)


def _problems(makers: list[Manifest]) -> str:
    """Return the option that chooses problems by id, as recorded; empty if none were chosen."""
    pattern = next((one.versions["question"]["problems"] for one in makers if "problems" in one.versions.get("question", {})), "")
    return f" --problems {shlex.quote(pattern)}" if pattern else ""


def _options(values: dict[str, str]) -> str:
    return "".join(f" {option} {value}" for option, value in values.items() if value != "0")
