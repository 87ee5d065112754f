"""`populora verify` and `populora grade`: the judge on its own, JSON lines in and out."""

import sys
from argparse import Namespace

from flows.commands.arguments import Add, add_settings
from flows.config import load

FIELDS = {
    "verify": "A line has id, program and input (comma-separated literals, as in a call); its verdict has id, status, output and "
    "detail.",
    "grade": "A line has id, kind (deduction, abduction or induction), program, input, output, answer and examples (pairs of "
    "input and output); what its kind does not use may be missing. Its verdict has id, status and detail.",
}
SUMMARIES = {"verify": "Judge tasks: JSON lines in, JSON lines out.", "grade": "Grade answers: JSON lines in and out."}


def add(command: Add) -> None:
    """Add both commands and their options."""
    for name, summary in SUMMARIES.items():
        parser = command(name, summary, judge)
        parser.description = f"{summary} {FIELDS[name]}"
        parser.add_argument("--strict", action="store_true", help="exit with 2 at an unreadable line, before anything runs")
        parser.add_argument("--sandbox", choices=("docker", "local"), default="docker")
        add_settings(parser, "a limit, e.g. cpu_seconds=1", "sandbox")


def judge(arguments: Namespace) -> int:
    """Read standard input and write a verdict a line."""
    from flows.backend import Backend
    from flows.judging import stream as judge_stream

    settings = [f"sandbox.{setting}" for setting in arguments.set] + [f"sandbox.kind={arguments.sandbox}"]
    backend = Backend(load("smoke", settings))
    try:
        stream = judge_stream.verify if arguments.command == "verify" else judge_stream.grade
        return stream(backend.sandbox(), sys.stdin.buffer, sys.stdout, arguments.strict)
    finally:
        backend.close()
