"""A parser whose errors are one line, with the name that may be meant: that of every command and bench."""

import argparse
import sys
from typing import Any, NoReturn

from flows.near_names import hint

USAGE = 2
"""Exit code for invalid usage or input."""


class OneLineParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one line instead of a page."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with `USAGE`."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, and let optional positionals follow options: `publish RUN ADAPTER --license mit DIR`.

        argparse gives an optional positional its default as soon as an option comes, and has no place for a later word.
        """
        found, rest = super().parse_known_args(args, namespace)
        if rest and not any(word.startswith("-") for word in rest):
            for action in self._get_positional_actions():
                if rest and action.nargs == argparse.OPTIONAL and getattr(found, action.dest) == action.default:
                    setattr(found, action.dest, self._later(action, rest.pop(0)))
        return found, rest

    def _later(self, action: argparse.Action, word: str) -> Any:
        """Return the value of a positional's word as argparse would; a word that it cannot be ends the program."""
        try:
            return self._get_values(action, [word])
        except argparse.ArgumentError as error:
            self.error(str(error))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject a command or choice that does not exist, with the one that may be meant."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"{value!r} is not one of {', '.join(known)}{hint(str(value), known)}")
