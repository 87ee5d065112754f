"""`populora publish`: an adapter's folder, and its upload to the Hugging Face hub.

The token is the one that huggingface_hub finds (HF_TOKEN, or its own log-in). It is neither stored nor printed. Files go up in
one commit, so that nobody downloads half an adapter.
"""

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.base_model.hub import http_faults
from flows.config import ConfigError
from flows.export.adapter import CARD_FILE, described, export_adapter, peft_card, published_config, read_files
from flows.export.base_model import BaseModel, base_of, check_repository, licence_in
from flows.export.card import is_unedited
from flows.run.manifest import sha256_hex
from flows.run.run import Run
from flows.storage import StoreRefused
from stages.core.lora.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from stages.core.unavailable import Unavailable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FILES = (CARD_FILE, CONFIG_FILE, WEIGHTS_FILE)


class HubUnavailable(Unavailable):
    """The hub does not answer, or not now. The folder is complete; the same command tries again."""


def write_folder(run: Run, adapter_id: str, folder: Path, repository: str = "", hub_base: str = "", licence: str = "") -> str:
    """Write the folder and return a one-line summary.

    A folder that holds this adapter already is kept. Its card is written anew unless someone edited it; without `licence` or
    `hub_base` it keeps the licence and the base model that the folder states. `repository` is OWNER/NAME on the hub, `hub_base`
    the base model's. Raises StoreRefused if the folder holds anything else or the adapter is unknown, ConfigError for an invalid
    name, or for another licence or base model than that of an edited card.
    """
    model = described(run)["config"]["model"]
    base = base_of(model, hub_base, licence)
    held = _holds(run, adapter_id, folder, base)
    named = _named_base(folder) if held else ""
    if "/" in named and not base.on_hub:
        base = base_of(model, named, licence)
    stated = licence_in(folder / CARD_FILE) if held else None
    if stated is not None and not licence:
        base = replace(base, licence=stated)
    if base.licence is None:
        print("populora: the licence of the base model is not known; --license states one", file=sys.stderr)
    if not base.on_hub:
        said = f"note: the base model is a folder, {base.name}; to upload, name it on the hub with --base-model OWNER/NAME"
        print(f"populora: {said}", file=sys.stderr)
    if not held:
        return export_adapter(run, adapter_id, folder, False, base, repository)
    card = folder / CARD_FILE
    if is_unedited(card.read_bytes().decode("utf-8", "replace")):
        _rewrite(folder / CONFIG_FILE, _config(run, adapter_id, base).decode())
        _rewrite(card, peft_card(run, adapter_id, base, repository or folder.name))
        return f"{folder} holds this adapter already; its {CARD_FILE} had no edits and was written again"
    if licence and (stated is None or stated.identifier != licence):
        raise ConfigError(f"--license {licence}: {card} was edited and is kept; state the licence there, or remove the folder")
    if base.name != named:
        raise ConfigError(f"--base-model {base.name}: {card} was edited and is kept; remove the folder, or leave the option out")
    return f"{folder} holds this adapter already; its {CARD_FILE} was edited and is kept"


def _rewrite(file: Path, text: str) -> None:
    """Replace a file's text at once: a kill leaves the old one or the new one. Raises StoreRefused."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(file)
    except OSError as error:
        raise StoreRefused(f"{file}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _holds(run: Run, adapter_id: str, folder: Path, base: BaseModel) -> bool:
    """Return whether the folder holds this adapter's weights and configuration, with any name of the base model."""
    try:
        if not all((folder / name).is_file() for name in FILES):
            return False
    except OSError as error:
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    weights = read_files(run, adapter_id, (WEIGHTS_FILE,))[WEIGHTS_FILE]
    named = replace(base, name=_named_base(folder))
    wanted = {CONFIG_FILE: _config(run, adapter_id, named), WEIGHTS_FILE: weights}
    return all(sha256_hex((folder / name).read_bytes()) == sha256_hex(data) for name, data in wanted.items())


def _config(run: Run, adapter_id: str, base: BaseModel) -> bytes:
    return published_config(json.loads(read_files(run, adapter_id, (CONFIG_FILE,))[CONFIG_FILE]), base)


def _named_base(folder: Path) -> str:
    """Return the base model that the folder's adapter_config.json names; empty if that is not such a file."""
    try:
        found = json.loads((folder / CONFIG_FILE).read_bytes())
    except (OSError, ValueError):
        return ""
    return str(found.get("base_model_name_or_path", "")) if isinstance(found, dict) else ""


def hub(repository: str) -> "HfApi":
    """Return the hub with this machine's token. Raises ConfigError for an invalid repository name, or if there is no token."""
    check_repository("--to", repository)
    from huggingface_hub import HfApi, get_token  # noqa: PLC0415  half a second

    token = get_token()
    if not token:
        raise ConfigError("--to: there is no token for the hub; set HF_TOKEN, or log in once with: hf auth login")
    return HfApi(token=token, library_name="populora")


def upload(api: "HfApi", folder: Path, repository: str, public: bool) -> str:
    """Put the folder's files into the repository in one commit and return a one-line summary. A new repository is private.

    Raises ConfigError if the hub refuses, or if the repository is public and `public` is not set; HubUnavailable if it does not
    answer.
    """
    from huggingface_hub import CommitOperationAdd  # noqa: PLC0415
    from huggingface_hub.errors import RepositoryNotFoundError  # noqa: PLC0415
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # noqa: PLC0415

    if not sys.stderr.isatty():
        disable_progress_bars()
    with _one_line(api, repository, folder):
        try:
            private = bool(api.model_info(repository).private)
        except RepositoryNotFoundError:
            private = not public
            api.create_repo(repository, private=private, exist_ok=True)
        if not private and not public:
            raise ConfigError(f"--to {repository}: it exists and is public; give --public to add to it")
        operations = [CommitOperationAdd(name, folder / name) for name in FILES]
        message = f"Adapter from {folder.name}"
        done = api.create_commit(repository, operations, commit_message=message)
    return f"uploaded   {done.commit_url} ({'private' if private else 'public'})"


@contextmanager
def _one_line(api: "HfApi", repository: str, folder: Path) -> Iterator[None]:
    """Turn the hub's errors into ConfigError (it refuses) and HubUnavailable (it does not answer)."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    silent: tuple[type[Exception], ...] = (*http_faults(), OSError, RuntimeError)
    where = f"--to {repository} at {api.endpoint}"
    kept = f"the folder {folder} is complete, and the same command tries again"
    try:
        yield
    except ConfigError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        reason = _reason(api, error.server_message or error)
        if status in (401, 403):
            raise ConfigError(
                f"{where}: the hub refuses the token (status {status}); it needs the right to write there"
            ) from None
        if 400 <= status < 500 and status != 429:
            raise ConfigError(f"{where}: the hub refuses it (status {status}): {reason}") from None
        raise HubUnavailable(f"{where}: {reason}; {kept}") from None
    except silent as error:  # RuntimeError: the uploader of large files
        raise HubUnavailable(f"{where}: {_reason(api, error)}; {kept}") from None
    except ValueError as error:  # the card's metadata
        raise ConfigError(f"{where}: {_reason(api, error)}") from None


def _reason(api: "HfApi", error: object) -> str:
    """Return the first line of an error, without the token whatever the hub echoes."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.replace(str(api.token), "…")[:200]
