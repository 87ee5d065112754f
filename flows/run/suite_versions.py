"""Versions of a suite: an upgrade may change problems under the same ids, and older scores do not compare with newer ones."""

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from flows.run.history import question_of
from flows.run.manifest import Manifest

_Item = TypeVar("_Item")


def suite_version(scored: Manifest) -> str:
    """Return a digest of the problems that scores are of, and of a public suite's wording; empty if it is not recorded."""
    suite, wording = (str(scored.versions.get(name, "")) for name in ("suite", "prompt"))
    return hashlib.sha256(f"{suite} {wording}".encode()).hexdigest() if suite and wording else suite


def is_one_version(versions: Iterable[str]) -> bool:
    """Return whether scores of these versions of a suite compare. A version that is not recorded counts as any."""
    return len({*versions} - {""}) < 2


def by_version(items: Iterable[_Item], version: Callable[[_Item], str]) -> dict[str, list[_Item]]:
    """Return the items that compare, by version. Those whose version is not recorded are with each of them."""
    listed = list(items)
    known = dict.fromkeys(found for item in listed if (found := version(item)))
    return {one: [item for item in listed if is_one_version((one, version(item)))] for one in known or [""]}


def version_text(version: str) -> str:
    """Return how a version is written where a suite has several."""
    return f"version {version[:8] or 'not recorded'}"


def own_suites_with_versions(scored: Iterable[Manifest]) -> set[str]:
    """Return those of the project's own suites that these benchmarks have scored in several versions.

    A public suite's scores record the problems that were asked, which may be a part of the suite.
    """
    found: dict[str, set[str]] = {}
    for manifest in scored:
        if not question_of(manifest):
            for suite in {ref.uri.split("/")[1] for ref in manifest.outputs if ref.uri.startswith("benchmarks/")}:
                found.setdefault(suite, set()).add(suite_version(manifest))
    return {suite for suite, versions in found.items() if not is_one_version(versions)}
