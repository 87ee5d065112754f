"""Access to a Prefect server: whether it answers, its version, and the settings of its clients."""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import certifi

from flows.config import ConfigError
from flows.prefect_password import PASSWORD, authorization

WORKER_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PREFECT_CLI_PROMPT": "false",
}
"""Settings of every worker. The environment does not override them, because the automations depend on them."""


BUSY_SECONDS = 30.0
"""How long a server that accepts a connection may be busy before it counts as gone. One that is down refuses immediately."""


class ServerUnreachable(Exception):
    """No Prefect server answers at the address. The message states how to start one."""

    exit_code = 3


def installed_version() -> str:
    """Return the installed version of Prefect."""
    return version("prefect")


def numbers(text: str) -> tuple[int, ...]:
    """Return a version's numbers, for comparison; empty for None."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def version_of(url: str, patience: float = 5.0) -> str | None:
    """Return the version of the Prefect server whose API is at `url`, which is sent the password; None if there is no answer."""
    return _version(_get(f"{url}/admin/version", patience, authorization()))


def version_of_stranger(url: str) -> str | None:
    """Return the version of a Prefect server that may be anybody's, and so is sent no password; None if it does not say."""
    return _version(_get(f"{url}/admin/version"))


def _version(text: str | None) -> str | None:
    return text.strip('"\n ') if text is not None and re.fullmatch(r'"?\d+\.\d+\.\d+\S*"?\s*', text) else None


def answers(url: str) -> bool:
    """Return whether the API at `url` is healthy. Health is told to everybody, so nobody is sent the password for it."""
    return (_get(f"{url}/health") or "").strip() == "true"


def require(url: str) -> None:
    """Raise ServerUnreachable or ConfigError unless a server of our version answers at `url`."""
    found = version_of(url, BUSY_SECONDS)
    if found is None and answers(url):
        raise ConfigError(f"the Prefect server at {url} refuses the password: set {PASSWORD} to its user:password")
    if found is None:
        raise ServerUnreachable(f"no Prefect server answers at {url}; start one with populora serve, or set PREFECT_API_URL")
    if numbers(found)[:2] != numbers(installed_version())[:2]:
        raise ConfigError(f"the Prefect server at {url} is {found}, this project has {installed_version()}: versions must match")


@contextmanager
def client_of_environment() -> Iterator[None]:
    """Ask the server of the environment's PREFECT_API_URL, with its password, while the block runs.

    Prefect reads both when it is imported, which may have been before they were set.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings  # noqa: PLC0415  only clients wait

    found = {PREFECT_API_URL: os.environ["PREFECT_API_URL"], PREFECT_API_AUTH_STRING: os.environ.get(PASSWORD)}
    with temporary_settings(found):
        yield


def settings_without_tls(url: str, home: Path) -> dict[str, str]:
    """Return settings for clients of a server without TLS: one certificate, in a file in `home`. Nothing for a server with TLS.

    Prefect reads 140 certificates for each client that it creates, once per generation: a tenth of the time of its server calls.
    """
    if not url.startswith("http://"):
        return {}
    file, end = home / "certificate.pem", "-----END CERTIFICATE-----\n"
    if not file.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = home / f"certificate-{os.getpid()}"
        made.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
        made.replace(file)
    return {"PREFECT_API_SSL_CERT_FILE": str(file)}


def _get(url: str, patience: float = 5.0, headers: Mapping[str, str] = MappingProxyType({})) -> str | None:
    request = urllib.request.Request(url, headers=dict(headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=patience) as answer:
            return answer.read(100_000).decode(errors="replace")
    except (OSError, urllib.error.URLError, ValueError):
        return None
