"""Which Docker daemons can run sandboxes. Only the standard library: `populora doctor` asks before packages are installed."""

import os


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
