"""What of a setting's value is for others: of a path outside the project's folder, or of an address, its last part only."""

GATE = "propose.gate."
"""Begins the name of a metric that ends with a gate's name (stages/analysis/measure.py)."""


def is_place(value: object) -> bool:
    """Return whether a setting is a path from outside the project's folder or an address, also as part of a metric's name."""
    return isinstance(value, str) and apart(value)[1] != ""


def apart(text: str) -> tuple[str, str, str]:
    """Return what stands before a place in the text, the part of the place that is nobody else's business, and its last part."""
    before = GATE if text.startswith(GATE) else ""
    place = text.removeprefix(before)
    if "/" not in place or not (place.startswith(("/", "~", "../")) or "://" in place):
        return text, "", ""
    folder, slash, last = place.rpartition("/")
    return before, folder + slash, last


def for_others(text: str) -> str:
    """Return the text as reports, notes and messages show it: `/home/ann/op.py:mine` is `op.py:mine`, and `M1` stays."""
    before, _, last = apart(text)
    return before + last
