"""What a check found, and the page and file that show it."""

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flows.monitoring.meter import duration


@dataclass(frozen=True)
class CheckFinding:
    """One line of the page. `figures` are its numbers with their units in the names; None for `good`: stated, not judged.

    `elapsed_s` are the seconds from the start of the page to this line.
    """

    name: str
    good: bool | None
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        mark = "stated" if self.good is None else "ok" if self.good else "FAILED"
        return f"{self.elapsed_s:5.0f} s  {mark:7} {self.name:22} {self.detail}"


def guarded(name: str, check: Callable[[], Iterator[CheckFinding]]) -> Iterator[CheckFinding]:
    """Yield a check's findings; a check that breaks is a finding itself, and the checks after it still run."""
    try:
        yield from check()
    except Exception as error:
        text = str(error).strip().splitlines()
        yield CheckFinding(name, False, f"{type(error).__name__}: {text[0][:300] if text else 'no message'}")


def summary(findings: Sequence[CheckFinding]) -> str:
    """Return the page's last line."""
    judged = [finding for finding in findings if finding.good is not None]
    failed = [finding.name for finding in judged if not finding.good]
    spent = f"in {duration(max((finding.elapsed_s for finding in findings), default=0.0))}"
    if not failed:
        return f"All {len(judged)} checks passed {spent}."
    return f"{len(failed)} of {len(judged)} checks failed {spent}: {', '.join(dict.fromkeys(failed))}."


def write_json(path: Path, config: dict[str, Any], findings: Sequence[CheckFinding]) -> None:
    """Write all findings and the configuration as one JSON file. It holds no secret and no name of a person or host."""
    held = {"system": platform.platform(), "config": config, "findings": [asdict(finding) for finding in findings]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
