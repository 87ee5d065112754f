"""Counted work, for tests of cost: lines of ours that run, and steps of a regular expression. Never seconds."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

OURS = tuple(str(Path(__file__).resolve().parents[2] / folder) for folder in ("stages", "flows"))


def lines_run(work: Callable[[], object], *expected: type[Exception]) -> int:
    """How many lines of `stages` and `flows` run while `work` does; the expected errors are taken for an end."""
    count = 0

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        with suppress(*expected):
            work()
    finally:
        sys.settrace(before)
    return count
