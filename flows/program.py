"""This program's name in the commands that it suggests. Imports nothing of the project."""

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "populora"
CALLED = "POPULORA_PROGRAM"
"""The environment variable with which `populora serve` tells its children, which it starts as modules, how it was called."""


def program(*arguments: str) -> str:
    """Return a command to suggest, with this program as the user called it, such as `.venv/bin/populora`."""
    return shlex.join([called(), *arguments])


def called() -> str:
    """Return the program as the user called it, not quoted."""
    if handed := os.environ.get(CALLED):
        return handed
    own = sys.argv[0]
    return NAME if Path(own).name != NAME or shutil.which(NAME) == own else own
