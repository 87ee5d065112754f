"""A machine with cards that are none: an `nvidia-smi` on PATH, and interpreters in a worker's place that note what they do."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.cards import VISIBLE
from flows.execution.run_stage import Spec

UUID = "GPU-00000000-0000-0000-0000-{0:03d}{1:09d}"


@dataclass(frozen=True)
class Noted:
    """What one process noted: `start` or `step`, under which name it was started, the card that it saw, and its number."""

    what: str
    name: str
    card: str
    pid: int


class Machine:
    """The cards, and what was started on them. Its interpreters answer every order after a moment."""

    def __init__(self, folder: Path, count: int, memory_mb: int = 81559) -> None:
        self.folder, self.log = folder, folder / "log"
        self.log.touch()
        self._uuids = [UUID.format(number, os.getpid()) for number in range(count)]  # no other test's, at the same time
        self.keep(*range(count), memory_mb=memory_mb)
        smi = folder / "nvidia-smi"
        smi.write_text(f'#!/bin/sh\nwhile read line; do echo "$line"; done < {folder}/cards\n')
        smi.chmod(0o755)
        self.engine, self.trainer = self.interpreter("engine"), self.interpreter("trainer")

    def keep(self, *numbers: int, memory_mb: int = 81559) -> None:
        """From now on, these are the cards that are there."""
        lines = [f"{number}, {self._uuids[number]}, {memory_mb}\n" for number in numbers]
        (self.folder / "cards").write_text("".join(lines))

    def uuid(self, number: int) -> str:
        """The identifier of a card."""
        return self._uuids[number]

    def interpreter(self, name: str, work: str = "sleep 0.3") -> str:
        """A program that notes its start and every order that it takes, does some work, and answers."""
        made = self.folder / name
        note = f'echo "$what {name} ${{{VISIBLE}-unset}} $$" >> {self.log}'
        answer = '{"done": {"stage": "noted", "samples": [], "beyond": []}}'
        made.write_text(f"#!/bin/sh\nwhat=start; {note}\nwhile read order; do what=step; {note}; {work}; echo '{answer}'; done\n")
        made.chmod(0o755)
        return str(made)

    def noted(self, what: str, name: str = "") -> list[Noted]:
        """What was noted of that kind, in its order."""
        rows = [line.split() for line in self.log.read_text().splitlines()]
        found = [Noted(kind, who, card, int(pid)) for kind, who, card, pid in rows]
        return [one for one in found if one.what == what and name in ("", one.name)]


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, memory_mb: int = 81559) -> Machine:
    """Make this process's machine one with so many cards, whose own interpreter is the one that notes."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Machine(folder, count, memory_mb)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(sys, "executable", made.trainer)
    return made


def step(stage: str, generation: int | None = 0, part: str | None = None, run_id: str = "r") -> Spec:
    """The spec of a step; the interpreters that note look at nothing of it."""
    return Spec("file:///nowhere", run_id, stage, generation, part, 1, 3)
