"""Commands on pages. The project's sentences say `populora`; a served page, like a terminal, has commands that can be copied."""

import re
import shlex
from dataclasses import dataclass

from flows.program import NAME

SAID = ("run", "benchmark", "report", "browse", "fsck", "gc", "fork", "compare", "inspect", "export", "doctor", "serve", "watch")
"""Commands that sentences of the project name. Any other word behind `populora` follows a run of that name."""
_COMMAND = re.compile(rf"(?<![\w/.-]){NAME} ({'|'.join(SAID)})\b")


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
