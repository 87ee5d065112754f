"""What says that a run belongs to the gate experiment: its run.json, and everything that describes the run from there."""

from collections.abc import Mapping
from typing import Any

from flows.run.manifest import Json
from flows.run.rewarding import leak_and_seed, rewarding_config
from flows.run.run import Run

LEAK = "leak"
"""The key under `versions` in run.json; absent from every other run."""


def recorded(share: float, parent: str = "") -> dict[str, Json]:
    """Return the entry of run.json for a run that leaks (`parent`: that shares generations of a run that leaked); else empty."""
    if not share:
        return {}
    where = f" in the generations shared with run {parent}" if parent else ""
    warning = (
        f"GATE EXPERIMENT: wrong verdicts passed on purpose with probability {share:g} (experiment.leak){where}. Invalid tasks "
        "were posed and paid, rejected answers were paid as correct. Do not use these adapters for anything else."
    )
    return {LEAK: {"share": share, "warning": warning}}


def warning(description: Mapping[str, Any] | None) -> str:
    """Return the sentence that describes the leak of a run; empty for a run without one."""
    return str((description or {}).get("versions", {}).get(LEAK, {}).get("warning", ""))


def leak_of(description: Mapping[str, Any] | None) -> float:
    """Return the largest share of wrong verdicts that passed in any generation of the run, shared ones included."""
    return float((description or {}).get("versions", {}).get(LEAK, {}).get("share", 0.0))


def paid_with(run: Run, generation: int) -> tuple[float, int]:
    """Return (share of wrong verdicts that passed, seed) of the run that rewarded a generation."""
    return leak_and_seed(rewarding_config(run, generation))
