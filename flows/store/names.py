"""Names in a store: which run ids and artifact names there are."""

import re

from flows.store.errors import StoreRefused

Uris = list[str]

RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_PART = re.compile(r"[A-Za-z0-9._=+@-]{1,200}")


def check_run_id(run_id: str) -> str:
    """Return `run_id`. Raises StoreRefused unless it consists of at most 40 lower-case letters, digits and hyphens."""
    if not RUN_ID.fullmatch(run_id):
        raise StoreRefused(
            f"run id {run_id[:60]!r}: use 1 to 40 lower-case letters, digits and hyphens, not starting with a hyphen"
        )
    return run_id


def check_uri(uri: str) -> str:
    """Return `uri`. Raises StoreRefused unless it is a plain relative path."""
    parts = uri.split("/")
    if len(uri) > 900 or any(not _PART.fullmatch(part) or not part.strip(".") for part in parts):
        raise StoreRefused(f"artifact name {uri[:120]!r} is not a plain relative path")
    return uri
