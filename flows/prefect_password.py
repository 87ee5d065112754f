"""The password of a Prefect server, for whoever asks its API. Imports nothing of the project."""

import os
from base64 import b64encode

PASSWORD = "PREFECT_API_AUTH_STRING"
"""The environment variable that has it, as user:password."""


def authorization() -> dict[str, str]:
    """Return the header that a server with a password requires; empty if the environment has no password."""
    secret = os.environ.get(PASSWORD)
    return {"Authorization": f"Basic {b64encode(secret.encode()).decode()}"} if secret else {}
