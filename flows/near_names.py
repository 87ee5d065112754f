"""The name that a user may have meant: messages about an unknown name end with it. Imports nothing of the project."""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 3
LISTED = 8


def hint(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` for the known name closest to `name`; empty if none is close."""
    return _question(get_close_matches(name, list(known), 1))


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names close to `name`, the closest first."""
    return get_close_matches(name, list(known), SHOWN)


def near_or_all(name: str, known: Iterable[str]) -> str:
    """Return `hint`; if no known name is close, `; there is A`, or `; there are A, B and 3 more`. Empty if none is known."""
    names = list(known)
    return hint(name, names) or (f"; there {'are' if names[1:] else 'is'} {_some(names)}" if names else "")


def key_hint(key: str, known: Iterable[str]) -> str:
    """Return the same for a dotted key. Without a group, or in a wrong one, it may name up to three keys that end alike.

    In a group that exists, only what follows it is compared: the group alone makes no two keys alike. It may also be a word of a
    key, such as `batch` of `micro_batch_tokens`; if nothing fits, the group's keys are listed.
    """
    by_last: dict[str, list[str]] = {}
    keys = list(known)
    for one in keys:
        by_last.setdefault(one.rpartition(".")[2], []).append(one)
    group, dot, last = key.rpartition(".")
    inside = {one.rpartition(".")[2]: one for one in keys if dot and one.rpartition(".")[0] == group}
    if inside and last not in by_last:
        alike = get_close_matches(last, inside, 1) or [name for name in inside if last in name.split("_")][:SHOWN]
        return _question([inside[name] for name in alike]) or _listed(group, list(inside))
    whole = get_close_matches(key, by_last.get(last) or keys, 1) if dot else []
    near = [last] if last in by_last else get_close_matches(last, by_last, 1)
    return _question(whole or [one for name in near for one in by_last[name]][:SHOWN])


def _listed(group: str, names: list[str]) -> str:
    return f"; {group} has {_some(names)}"


def _some(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _question(names: list[str]) -> str:
    if not names:
        return ""
    return f"; did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?"
