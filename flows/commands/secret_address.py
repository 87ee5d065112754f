"""Addresses that may hold a password: from the environment or standard input, which other users of the machine do not see."""

import os
import sys

from flows.config import ConfigError


def read_address(asking: str, variable: str | None) -> str:
    """Return the address in this environment variable, or on the first line of standard input if it is None.

    Raises ConfigError, which begins with `asking`, if there is none.
    """
    address = sys.stdin.readline() if variable is None else os.environ.get(variable, "")
    if not address.strip():
        where = "standard input" if variable is None else f"the variable {variable}"
        raise ConfigError(f"{asking}: {where} holds no address")
    return address.strip()
