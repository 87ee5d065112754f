"""What a published adapter says about its base model: a name that means something elsewhere, the commit, and the licence."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.base_model.hub import http_faults, local_folder
from flows.config import ConfigError

_LICENCE = frozenset(string.ascii_letters + string.digits + "-._")


@dataclass(frozen=True)
class Licence:
    """A licence as the hub names it. `name` and `link` belong to the identifier `other`."""

    identifier: str
    name: str = ""
    link: str = ""


@dataclass(frozen=True)
class BaseModel:
    """The base of an adapter. `name` is the hub's id if `on_hub`, else the name of a folder, never a path of this machine."""

    name: str
    on_hub: bool
    revision: str = ""
    licence: Licence | None = None


def base_of(model: Mapping[str, Any], hub_name: str = "", licence: str = "") -> BaseModel:
    """Return the base of a run with these settings of `model`.

    `hub_name` says which model of the hub a local folder is, `licence` overrides the base's own.
    The licence is read from the model card in the base's folder, or asked of the hub; None if neither knows. Raises ConfigError
    for an invalid name.
    """
    if licence and not _LICENCE.issuperset(licence):
        raise ConfigError(f"--license {licence!r}: give an identifier such as mit, apache-2.0 or other")
    if hub_name:
        check_repository("--base-model", hub_name)
    given, revision = str(model["name"]), str(model.get("revision", ""))
    pinned = bool(revision)  # a run on a model of the hub records its commit
    folder = None if pinned else _folder(given)
    found = Licence(licence) if licence else None
    if found is None and folder is not None:
        found = licence_in(folder / "README.md")
    if found is None and (hub_name or pinned):
        found = _licence_on_hub(hub_name or given, "" if hub_name else revision)
    if hub_name:
        return BaseModel(hub_name, True, "", found)
    return BaseModel(public_name(model), pinned, revision, found)


def public_name(model: Mapping[str, Any]) -> str:
    """Return the base model's name for others: the hub's id, or the last part of a folder's path."""
    given = str(model["name"])
    return given if model.get("revision") else Path(given).name


def check_repository(option: str, name: str) -> None:
    """Raise ConfigError unless `name` is OWNER/NAME as the hub allows it."""
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # noqa: PLC0415  half a second

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{option} {name!r}: {str(error).splitlines()[0]}") from error
    if name.count("/") != 1:
        raise ConfigError(f"{option} {name!r}: give OWNER/NAME, such as your-name/my-adapter")


def _folder(name: str) -> Path | None:
    """Return the base's folder if it is on this machine."""
    try:
        return local_folder(name)
    except ConfigError:
        return None  # the run was made elsewhere


def licence_in(card: Path) -> Licence | None:
    """Return the licence in a model card's metadata."""
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  what huggingface_hub reads cards with
    from huggingface_hub import metadata_load  # noqa: PLC0415

    try:
        data = metadata_load(card) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return None
    known = data.get("license")
    if not isinstance(known, str) or not known:
        return None
    return Licence(known, str(data.get("license_name") or ""), str(data.get("license_link") or ""))


def _licence_on_hub(name: str, revision: str) -> Licence | None:
    """Return the licence in the hub's card of a model: from the cache of this machine, else from the hub if it answers."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    silent: tuple[type[Exception], ...] = (HfHubHTTPError, *http_faults(), OSError, ValueError)
    try:
        return licence_in(Path(hf_hub_download(name, "README.md", revision=revision or None)))
    except silent:
        return None
