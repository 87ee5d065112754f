"""Models of the Hugging Face Hub: which commit a run uses, what its files are, and where they are on this machine.

A run names a model. The commit behind the name is looked up once, when the run begins, and kept in its configuration
(`model.revision`), so that every machine and every resume loads the same one. The same holds for the prompt style that
`model.style = "auto"` means. Digests are the hub's own: sha256 of a large file,
git's sha1 of a small one. Without a connection, the hub's cache on this machine is used.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from flows.base_model.folder import read_folder
from flows.config import PROJECT, ConfigError, RunConfig, dump, parse
from stages.core.engines.protocol import EngineUnavailable

SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken")  # what describes a model and its tokenizer
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")  # what loading a model may need
BASE_RULE, DIGEST_RULE = "base_model_rule", 2
"""Under `versions` at a run's start: the rule of its base model's digest. The first one had no number."""
UNLIKE_RULES = "some recorded its digest by an earlier rule, and digests compare only within one rule"
"""Why nobody knows whether runs have the same base model."""
FIRST_PATTERNS = ("*.json", "*.safetensors")
"""What the first rule counted: chat templates and some vocabularies were left out."""


class ModelMissing(ConfigError):
    """This machine has no folder of that name, or may not fetch the model from the hub."""


def local_folder(name: str) -> Path | None:
    """Return the folder if `name` is one (relative to the project), None for a hub name. Raises ModelMissing, ConfigError."""
    folder = Path(name) if Path(name).is_absolute() else PROJECT / name
    if folder.is_dir():
        return folder
    if folder.is_file():
        what = "GGUF file, which cannot be trained" if folder.suffix == ".gguf" else "file"
        raise ConfigError(
            f"model.name: {name} is a {what}; give the folder of a Hugging Face checkpoint (safetensors) or a hub name"
        )
    if name.count("/") != 1 or name.startswith((".", "/")):
        start = "" if Path(name).is_absolute() else "; a relative path starts at the project's folder"
        raise ModelMissing(f"model.name: folder {os.path.normpath(folder)} does not exist{start}")
    return None


def pinned(config: RunConfig, known: Mapping[str, Any] | None = None, elsewhere: bool = False) -> RunConfig:
    """Return the configuration with a hub model's commit and a chosen prompt style.

    Each is the configuration's own, else that of the run (`known`: its run.json), else the newest commit and the style that the
    model's files suggest. Raises EngineUnavailable, and ConfigError, for a new run also where its model cannot be trained. Where
    the model is `elsewhere`, whoever has it checks it.
    """
    here = local_folder(config.model.name)
    if known is not None:
        return as_begun(config, known)
    model = dict[str, Any]()
    if here is None and not config.model.revision:
        model["revision"] = _newest(config.model.name)
    if config.model.style == "auto" or not elsewhere:
        revision = model.get("revision", config.model.revision)
        found = read_folder(_described(config.model.name, revision), 1 if elsewhere else config.engine.window)
        model |= {"style": found.style} if config.model.style == "auto" else {}
    return _with_model(config, model)


def as_begun(config: RunConfig, known: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with the run's own commit and style where it leaves them open. Reads neither folder nor hub."""
    begun, model = known["config"]["model"], dict[str, Any]()
    if not config.model.revision and begun.get("revision"):
        model["revision"] = begun["revision"]
    if config.model.style == "auto":
        model["style"] = begun["style"]
    return _with_model(config, model)


def _with_model(config: RunConfig, model: Mapping[str, Any]) -> RunConfig:
    values = dump(config)
    return parse(values | {"model": values["model"] | model}) if model else config


def style_of(config: RunConfig) -> str:
    """Return the prompt style: the configuration's, or what `auto` means for its model. Raises ConfigError, EngineUnavailable."""
    style, name = config.model.style, config.model.name
    return read_folder(_described(name, config.model.revision), window=1).style if style == "auto" else style


def described(config: RunConfig) -> Path:
    """Return a folder with the files that describe the model; no weights are fetched. Raises ConfigError, EngineUnavailable."""
    return _described(config.model.name, config.model.revision)


def _described(name: str, revision: str) -> Path:
    return local_folder(name) or _fetched(name, revision, patterns=SMALL)


def folder_of(config: RunConfig) -> Path:
    """Return the model's folder; a hub model is downloaded once. Raises ConfigError and EngineUnavailable."""
    name = config.model.name
    return local_folder(name) or _fetched(name, config.model.revision)


def description(config: RunConfig) -> dict[str, Any]:
    """Return what run.json records of a hub model: its commit and a digest of every file loading may need; empty for a folder."""
    if local_folder(config.model.name) is not None or not config.model.revision:
        return {}
    return {"commit": config.model.revision, "files": _files(config.model.name, config.model.revision)}


def check_files(folder: Path, described: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the first file that differs from run.json."""
    for name, wanted in described.get("files", {}).items():
        file = folder / name
        if not file.is_file() or _digest(file, wanted) != wanted:
            raise ConfigError(
                f"model.name: {file} differs from the file recorded in run.json ({wanted[:12]}…); remove it to download it again"
            )


def _newest(name: str) -> str:
    from huggingface_hub import HfApi  # noqa: PLC0415  half a second, and most runs need no hub

    try:
        return str(_asking(name, lambda: HfApi().model_info(name).sha))
    except EngineUnavailable:
        cached = _fetched(name, "", offline=True)
        return cached.name  # the cache names a snapshot by its commit


def _files(name: str, commit: str) -> dict[str, str]:
    """Return the hub's digest of every file of the commit."""
    from huggingface_hub import HfApi  # noqa: PLC0415

    try:
        told = _asking(name, lambda: HfApi().model_info(name, revision=commit, files_metadata=True))
    except EngineUnavailable:
        folder = _fetched(name, commit, offline=True)
        return {file.name: _digest(file, file.resolve().name) for file in sorted(folder.iterdir()) if file.is_file()}
    listed = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in told.siblings or ()}
    return {
        file: str(digest)
        for file, digest in sorted(listed.items())
        if "/" not in file and any(fnmatch(file, p) for p in PATTERNS)
    }


def _digest(file: Path, like: str) -> str:
    """Return the sha256 of the file, or git's sha1 if `like` has the length of one."""
    if len(like) != 40:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _fetched(name: str, commit: str, offline: bool = False, patterns: Sequence[str] = PATTERNS) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    wanted = list(patterns)
    kept = _asking(
        name, lambda: snapshot_download(name, revision=commit or None, allow_patterns=wanted, local_files_only=offline)
    )
    return Path(kept)


def http_faults() -> tuple[type[Exception], ...]:
    """Return the faults of an unreachable hub: huggingface_hub speaks through httpx2 from 2.4 on, through httpx before."""
    found = list[type[Exception]]()
    for library in ("httpx2", "httpx"):
        with suppress(ImportError):
            found.append(import_module(library).HTTPError)
    return tuple(found)


def _asking(name: str, ask: Any) -> Any:
    """Return the hub's answer. Raises ModelMissing if it has no such model, EngineUnavailable if it does not answer."""
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"model.name: {name} from https://huggingface.co/{name}"
    silent: tuple[type[Exception], ...] = (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, *http_faults(), OSError)
    try:
        return ask()
    except GatedRepoError as error:
        raise ModelMissing(
            f"{where}: the model is gated; accept its terms on that page, then set HF_TOKEN to your token"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelMissing(f"{where}: the model does not exist or requires a token (HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise ModelMissing(
            f"{where}: the model has no such commit, branch or tag; check model.revision, or leave it empty for the newest"
        ) from error
    except HFValidationError as error:
        raise ModelMissing(f"model.name: {name} is neither a folder here nor a name on the hub, which is OWNER/NAME") from error
    except silent as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise EngineUnavailable(
            f"{where}: {reason}; check the network, or download the model elsewhere and give its folder"
        ) from error


def digest(config: RunConfig) -> str:
    """Return a sha256 of the base model: of all files that loading may need, or of a hub model's name and commit."""
    return _digest_of(config, PATTERNS)


def is_digest_of(config: RunConfig, versions: Mapping[str, Any]) -> bool:
    """Return whether a run that recorded these `versions` at its start recorded the digest of this model, or none."""
    recorded = versions.get("base_model")
    if recorded is None or recorded == digest(config):
        return True
    return BASE_RULE not in versions and recorded == _digest_of(config, FIRST_PATTERNS)


class RecordedBase(NamedTuple):
    """The digest of a base model as a run recorded it at its start (empty: not recorded), and the rule of that digest."""

    digest: str
    rule: int


NO_BASE = RecordedBase("", 1)


def recorded_base(versions: Mapping[str, Any]) -> RecordedBase:
    """Return the base model among the `versions` of a run's start."""
    return RecordedBase(str(versions.get("base_model", "")), int(versions.get(BASE_RULE, 1)))


def bases_differ(found: Iterable[RecordedBase]) -> bool | None:
    """Return whether base models differ; None if that is not known, since digests compare only within one rule."""
    by_rule: dict[int, set[str]] = {}
    for one in found:
        by_rule.setdefault(one.rule, set()).update({one.digest} - {""})
    if any(len(digests) > 1 for digests in by_rule.values()):
        return True
    return None if len(set().union(*by_rule.values())) > 1 else False


def _digest_of(config: RunConfig, patterns: Sequence[str]) -> str:
    folder, rule = local_folder(config.model.name), config.model
    if folder is None:
        return hashlib.sha256(f"{rule.name}@{rule.revision}".removesuffix("@").encode()).hexdigest()
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in patterns):
            total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
