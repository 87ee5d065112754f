"""This program's name in the commands that it suggests. Imports nothing of the project.

The project's sentences say `populora`; a served page, like a terminal, has commands that can be copied.
"""

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

NAME = "populora"
CALLED = "POPULORA_PROGRAM"
"""The environment variable with which `populora serve` tells its children, which it starts as modules, how it was called."""
SAID = ("run", "benchmark", "report", "browse", "fsck", "gc", "fork", "compare", "inspect", "export", "doctor", "serve", "watch")
"""Commands that sentences of the project name. Any other word behind `populora` follows a run of that name."""
_COMMAND = re.compile(rf"(?<![\w/.-]){NAME} ({'|'.join(SAID)})\b")


def program(*arguments: str) -> str:
    """Return a command to suggest, with this program as the user called it, such as `.venv/bin/populora`."""
    return shlex.join([called(), *arguments])


def called() -> str:
    """Return the program as the user called it, not quoted."""
    if handed := os.environ.get(CALLED):
        return handed
    own = sys.argv[0]
    return NAME if Path(own).name != NAME or shutil.which(NAME) == own else own


@dataclass(frozen=True)
class Commands:
    """How this machine calls the program, and the option that names the store, if commands need it."""

    program: str = NAME
    store: tuple[str, ...] = ()

    def named(self, text: str) -> str:
        """Return a sentence of the project with its commands as this machine calls them. Not for anybody else's text."""
        return _COMMAND.sub(lambda found: shlex.join([self.program, found[1], *self.store]), text)


PLAIN = Commands()
"""The commands of pages that leave this machine."""
