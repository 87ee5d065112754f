"""Which Docker daemons can run sandboxes. Only the standard library: `populora doctor` asks before packages are installed."""

import os
from collections.abc import Mapping


def unsuited() -> str:
    """Return why the daemon that the environment names cannot run sandboxes, and what to do; empty if it may.

    A container's streams are read as a plain socket.
    """
    if not (os.environ.get("DOCKER_HOST", "").startswith("ssh://") or os.environ.get("DOCKER_TLS_VERIFY")):
        return ""
    return (
        "the Docker daemon is reached through TLS or SSH, which sandboxes cannot use; forward its socket (ssh -nNT -o "
        "StreamLocalBindUnlink=yes -L /tmp/docker.sock:/var/run/docker.sock HOST), unset DOCKER_TLS_VERIFY, and set "
        "DOCKER_HOST=unix:///tmp/docker.sock"
    )


SOCKET = "unix:///var/run/docker.sock"
START = "`populora doctor` prints the command that starts it"


def unreachable(error: BaseException, environment: Mapping[str, str] = os.environ) -> str:
    """Return where the daemon was expected and why it does not answer, in words: the system's own reason behind the error.

    The client wraps that reason several times, and prints it as Python shows it.
    """
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    address = environment.get("DOCKER_HOST") or SOCKET
    return f"{address}: {_reason(found, address.startswith('unix://'))}"


def _reason(chain: list[BaseException], local: bool) -> str:
    """Return the innermost error in words."""
    for error in reversed(chain):
        if isinstance(error, FileNotFoundError) and local:
            return "no such socket"
        if isinstance(error, ConnectionRefusedError):
            return "nothing listens there"
        if isinstance(error, PermissionError) and local:
            return "this user may not use the socket"
        if "Timeout" in type(error).__name__:
            return "no answer in time"
        if isinstance(error, OSError) and error.errno is not None and error.strerror:
            return error.strerror.lower()
    return (str(chain[0]).splitlines() or [type(chain[0]).__name__])[0]
