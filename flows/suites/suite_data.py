"""Sources of a public suite's problems: a local folder (`--data DIR`), or the Hugging Face Hub, once, at a pinned revision.

Files from the hub are cached with a lock file that records the revision and the sha256 of every file. They must match what the
catalogue pins; what it does not pin is pinned by the first download. Every later use hashes the files again.
"""

import fnmatch
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.base_model.hub import http_faults
from flows.config import PROJECT, ConfigError
from flows.near_names import hint
from flows.storage import StoreUnavailable
from flows.suites import own_suites
from stages.core.suites import code_scoring, harness, problems, readers
from stages.core.suites.catalogue import SUITES, Suite
from stages.core.suites.code_scoring import Reference, Sandboxes
from stages.core.suites.harness import ReturnedValue
from stages.core.suites.problems import BadSuite, Problem

CACHE = PROJECT / ".cache" / "suites"
SAMPLES = own_suites.SUITES / "samples"


def suite_names() -> list[str]:
    """Return the names of all suites, the project's own first."""
    return [*own_suites.PROBE, *sorted(SUITES)]


def listed_suites() -> str:
    """Return the names for a message: of the single kinds of our own suites, one as an example."""
    return f"{', '.join([*own_suites.STORED, *sorted(SUITES)])}, nor one kind of ours, such as staircase-dev-deduction"


def suite_of(name: str) -> Suite:
    """The suite of that name. Raises ConfigError."""
    if name not in SUITES:
        raise ConfigError(f"suite {name!r} is not one of {listed_suites()}{hint(name, suite_names())}")
    return SUITES[name]


def suites_folder() -> Path | None:
    """Return the folder of the public suites on this machine if POPULORA_SUITES is set; otherwise they come from the hub."""
    folder = os.environ.get("POPULORA_SUITES")
    return Path(folder) if folder else None


def load(name: str, data: Path | None = None, cache: Path = CACHE) -> list[Problem]:
    """The problems of a suite: from `data`, else from the cache or the hub. Raises ConfigError, StoreUnavailable."""
    suite = suite_of(name)
    files = _local(suite, data) if data is not None else _cached(suite, cache)
    try:
        found = readers.read(suite.reader, (row for file in files for row in rows(file)))
    except BadSuite as error:
        raise ConfigError(f"suite {name}, {', '.join(file.name for file in files)}: {error}") from error
    if suite.digest and data is None and problems.digest(found) != suite.digest:
        raise ConfigError(f"suite {name}: the problems have digest {problems.digest(found)[:12]}…, not {suite.digest[:12]}…")
    return found


def check_suites(names: Iterable[str]) -> None:
    """Fetch and reads what a run will need, before training starts. Raises ConfigError, StoreUnavailable."""
    for name in names:
        load(name, suites_folder())


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON lines file (gzip or not) or a Parquet file. Raises ConfigError naming the file, or the line."""
    try:
        yield from _rows(file)
    except (UnicodeDecodeError, EOFError, OSError, zlib.error, pa.ArrowException) as error:
        raise ConfigError(f"{file.name}: cannot be read: {str(error).splitlines()[0][:120]}") from error


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".parquet":
        yield from pq.read_table(file).to_pylist()
        return
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{file.name}, line {number}: not JSON: {str(error)[:80]}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{file.name}, line {number}: not a JSON object")
            yield row


def _local(suite: Suite, data: Path) -> list[Path]:
    if not data.is_dir():
        raise ConfigError(f"--data {data}: the folder does not exist")
    found = {file.name: file for file in sorted(data.rglob("*")) if file.name in suite.files}
    if not found:
        raise ConfigError(
            f"--data {data}: the folder contains none of {', '.join(suite.files)}; download with: populora benchmark "
            f"--model MODEL --suite {suite.name} (without --data), from https://huggingface.co/datasets/{suite.repository}"
        )
    return [found[name] for name in suite.files if name in found]


# --- the hub


def _cached(suite: Suite, cache: Path) -> list[Path]:
    folder = cache / suite.name
    lock = folder / "lock.json"
    if not lock.is_file():
        _fetch(suite, folder)
    held = json.loads(lock.read_text())
    if suite.revision and held["revision"] != suite.revision:
        raise ConfigError(
            f"{lock}: revision {held['revision'][:12]}…, not {suite.revision[:12]}…; remove {folder} to download again"
        )
    for name, wanted in held["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != wanted:
            raise ConfigError(
                f"{folder / name}: its digest is not {wanted[:12]}…, as {lock} states; remove {folder} to download again"
            )
    return [folder / name for name in held["files"]]


def _fetch(suite: Suite, folder: Path) -> None:
    """Download the suite's files at the pinned revision (or the newest, which is then pinned), the lock file last."""
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 (half a second, and most commands need no hub)
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled  # noqa: PLC0415

    where = f"suite {suite.name} from https://huggingface.co/datasets/{suite.repository}"
    silent: tuple[type[Exception], ...] = (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, *http_faults(), OSError)
    try:
        revision = suite.revision or str(HfApi().dataset_info(suite.repository).sha)
        listed = sorted(HfApi().list_repo_files(suite.repository, repo_type="dataset", revision=revision))
        chosen = next((names for pattern in suite.patterns if (names := fnmatch.filter(listed, pattern))), [])
        chosen = [name for pattern in suite.patterns for name in fnmatch.filter(listed, pattern)] if suite.size == 880 else chosen
        if not chosen:
            raise ConfigError(f"{where}: no file matches {', '.join(suite.patterns)} at revision {revision[:12]}…")
        for name in chosen:
            hf_hub_download(suite.repository, name, repo_type="dataset", revision=revision, local_dir=folder)
    except silent as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise StoreUnavailable(f"{where}: {reason}; give a copy with --data DIR") from error
    files = {name: sha256(folder / name) for name in chosen}
    text = json.dumps({"repository": suite.repository, "revision": revision, "files": files}, indent=2)
    temporary = folder / f".lock-{os.getpid()}"
    temporary.write_text(text + "\n")
    temporary.replace(folder / "lock.json")


def sha256(file: Path) -> str:
    """Return the sha256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# --- what references return


def expected(found: list[Problem], sandboxes: Sandboxes, cache: Path = CACHE) -> code_scoring.Expected:
    """Return what the references of these problems return: from the cache, else from the sandbox. Raises ConfigError."""
    asked = [problem for problem in found if problem.reference]
    place = cache / "expected" / harness.version()
    known, missing = {}, []
    for problem in asked:
        file = place / f"{problems.digest([problem])}.json"
        if file.is_file():
            held = json.loads(file.read_text())
            groups = tuple(tuple(ReturnedValue(*one) for one in group) for group in held["groups"])
            known[problem.problem_id] = Reference(groups, held["slow"])
        else:
            missing.append(problem)
    try:
        made = code_scoring.expected_values(missing, sandboxes) if missing else {}
    except BadSuite as error:
        raise ConfigError(str(error)) from error
    place.mkdir(parents=True, exist_ok=True)
    for problem in missing:
        one = made[problem.problem_id]
        text = json.dumps({"slow": one.slow, "groups": [[[value.tag, value.text] for value in group] for group in one.groups]})
        temporary = place / f".{os.getpid()}-{problem.entry_point}"
        temporary.write_text(text)
        temporary.replace(place / f"{problems.digest([problem])}.json")
    return known | made
