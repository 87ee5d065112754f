"""What says that a run belongs to the gate experiment: its run.json, and everything that describes the run from there."""

from collections.abc import Mapping
from typing import Any

from flows.run.manifest import Json, read_json
from flows.run.run import Run
from flows.storage import Damaged, NotStored

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
    """Return (share of wrong verdicts that passed, seed) of the run that rewarded a generation: a fork shares its parent's."""
    description = run.history.description() or {}
    manifest = run.manifest("reward", generation)
    origin = next((ref.origin for ref in manifest.outputs if ref.origin), "") if manifest else ""
    if origin:
        try:
            description = read_json(run.store.read(f"{origin}/run.json"), "run.json")
        except (NotStored, Damaged):
            return 0.0, 0
    config = description.get("config", {})
    return float(config.get("experiment", {}).get("leak", 0.0)), int(config.get("seed", 0))
