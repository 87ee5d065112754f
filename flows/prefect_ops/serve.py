"""`populora serve`: run Prefect's server and UI, a worker, the deployments and the artifact browser until Ctrl-C.

The server keeps a SQLite database and its password in the home folder, which only its owner may read, and listens on this machine
only, unless another address is given. Children stop in reverse order: the worker first, so that the runs it ends can still
report to the server, and the server last.
"""

import fcntl
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from flows import allowed, form_links
from flows.config import PROJECT, ConfigError
from flows.execution import orphan_guard
from flows.prefect_ops import prefect_api, supervised
from flows.prefect_password import PASSWORD
from flows.program import CALLED, called, program
from flows.servers import gate, login_link

HOME = PROJECT / ".cache" / "serve"
WORKER = "serve"
"""Name of its worker, which ends with the server."""
START_SECONDS = 400.0
WATCH_SECONDS = 1.0
PATIENCE = {"worker": 16.0, "browser": 4.0, "server": 10.0}


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, and where."""

    store: str
    host: str = "127.0.0.1"
    port: int = 4200
    browser_port: int = 8750
    home: Path = HOME
    functions: tuple[Path, ...] = ()
    """Folders whose functions runs may name."""
    naming_store: tuple[str, ...] = ()
    """The option with which a suggested command names the store; empty for the default one."""

    @property
    def url(self) -> str:
        """Address of the UI, as this machine reaches it."""
        return f"http://{self.name}:{self.port}"

    @property
    def browser_url(self) -> str:
        """Address of the artifact browser, as this machine reaches it."""
        return f"http://{self.name}:{self.browser_port}"

    @property
    def name(self) -> str:
        """Name under which this machine reaches the servers: who listens on all addresses is reached on the first of them."""
        return gate.LOOPBACK[0] if self.host in gate.ANY else self.host


def serve(plan: ServeOptions) -> int:
    """Serve until a signal and return the exit code. Raises ConfigError for a port in use, another version, a second start."""
    _make_home(plan.home)
    with _only_one(plan), _until_told():
        _check_database_version(plan.home)
        _check_addresses(plan)
        listening = _listen(plan, "--port", plan.port)
        orphan_guard.start()
        running: list[supervised.Child] = []
        try:
            _bring_up(plan, running, listening)
            _print_addresses(plan)
            while True:
                time.sleep(WATCH_SECONDS)
                for name in supervised.keep(running):
                    print(f"the {name} exited and was restarted; see {plan.home / 'logs' / name}.log", flush=True)
        except _Told:
            with suppress(OSError):  # the terminal may be what has ended
                print("stopping: runs in progress can be retried from the UI", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a second Ctrl-C must not leave some of them running
                signal.signal(number, signal.SIG_IGN)
            for child in reversed(running):
                child.end(PATIENCE[child.name])
            listening.close()
    return 0


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"--home {home}: {(error.strerror or str(error)).lower()}; choose a folder that you own") from None


def environment(plan: ServeOptions) -> dict[str, str]:
    """Return the children's environment: their own Prefect home, the server's address, and this Python first on PATH."""
    secret = password(plan.home)
    own = {
        PASSWORD: secret,
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        allowed.FOLDERS: os.pathsep.join(str(folder.resolve()) for folder in plan.functions),
        "PREFECT_HOME": str(plan.home / "prefect"),
        "PREFECT_API_URL": f"{plan.url}/api",
        "PREFECT_UI_URL": plan.url,
        form_links.URL: os.environ.get(form_links.URL, plan.url),
        CALLED: called(),
        "POPULORA_BROWSER_URL": os.environ.get("POPULORA_BROWSER_URL", plan.browser_url),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | prefect_api.WORKER_SETTINGS | own


def _bring_up(plan: ServeOptions, running: list[supervised.Child], listening: socket.socket) -> None:
    """Start server, deployments, worker and browser, each when the one before it answers."""
    variables, logs, python = environment(plan), plan.home / "logs", sys.executable
    given = listening.fileno()
    server = [python, "-m", "flows.prefect_ops.ui_server", "--host", plan.host, "--port", str(plan.port), "--fd", str(given)]
    running.append(supervised.start("server", server, variables, logs / "server.log", (given,)))
    _wait_for_server(plan, running[0])
    (plan.home / "prefect-version").write_text(prefect_api.installed_version())
    command = [python, "-m", "flows.prefect_ops.pool_worker", "setup", plan.store, "--own-worker", WORKER]
    _wait_for_setup(supervised.start("setup", command, variables, logs / "setup.log"))
    for name, words in (
        ("worker", ["worker", "cpu", "--name", WORKER]),
        ("browser", ["browse", "--port", str(plan.browser_port)]),
    ):
        more = ["--store", plan.store, "--host", plan.host] if name == "browser" else []
        command = [python, "-m", "flows.cli", *words, *more]
        running.append(supervised.start(name, command, variables, logs / f"{name}.log"))


def _wait_for_setup(setup: supervised.Child, seconds: float = START_SECONDS) -> None:
    try:
        code = setup.process.wait(seconds)
    except subprocess.TimeoutExpired:
        setup.end(0.0)
        raise supervised.ChildFailed(f"the deployments were not created within {seconds:.0f} s; see {setup.log}") from None
    if code:
        why = setup.last_words().rpartition("\n")[2]
        raise supervised.ChildFailed(f"the deployments could not be created: {why}; see {setup.log}")


def _wait_for_server(plan: ServeOptions, server: supervised.Child) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if not server.lives:
            raise supervised.ChildFailed(f"the Prefect server did not start; see {server.log}\n{server.last_words()}")
        if prefect_api.answers(f"{plan.url}/api"):
            return
        if time.monotonic() > deadline:
            raise supervised.ChildFailed(f"the Prefect server did not answer within {START_SECONDS:.0f} s; see {server.log}")
        time.sleep(0.2)


def _print_addresses(plan: ServeOptions) -> None:
    print(f"Prefect UI  {login_link.link(plan.url, password(plan.home))}")
    print(f"            (opens once, within an hour; get another link with: {program('serve', '--link', *_own_home(plan.home))})")
    print(f"browser     {plan.browser_url}")
    print(f"store       {plan.store}")
    print(f"start runs  in the UI under Deployments, or with: {_detach(plan)}")
    print(f"logs        {plan.home / 'logs'}")
    print("Press Ctrl-C to stop everything.", flush=True)
    _note(plan).write_text(json.dumps({"pid": os.getpid(), "url": plan.url, "store": plan.store}))


def _own_home(home: Path) -> list[str]:
    return [] if home == HOME else ["--home", str(home)]


def _detach(plan: ServeOptions) -> str:
    """Return the command that hands a run to this server; away from the defaults, it names server, password and store."""
    named = []
    if plan.home != HOME or plan.url != ServeOptions("").url:
        named.append(f"PREFECT_API_URL={plan.url}/api")
    if plan.home != HOME:
        named.append(f'{PASSWORD}="$(cat {shlex.quote(str(plan.home / "password"))})"')
    return " ".join([*named, program("run", "--detach", *plan.naming_store)])


class _Told(Exception):
    """SIGINT, SIGTERM or SIGHUP was received."""


@contextmanager
def _until_told() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into _Told.

    Children inherit an ignored SIGINT (as in `serve &`) or SIGHUP (as under nohup), but never a handler.
    """

    def told(_number: int, _frame: FrameType | None) -> None:
        raise _Told

    before = [(number, signal.signal(number, told)) for number in (signal.SIGINT, signal.SIGTERM, *orphan_guard.hang_ups())]
    try:
        yield
    except _Told:
        pass
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _only_one(plan: ServeOptions) -> Iterator[None]:
    """Raise ConfigError if this home is already being served: two servers on one database would undo each other's work."""
    lock: IO[str]
    with (plan.home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            there = address(plan.home) or {}
            where = f"process {there.get('pid', '?')}, {there.get('url', 'starting')}"
            raise ConfigError(f"populora serve is already running ({where}); stop it first, or give another --home") from None
        _note(plan).unlink(missing_ok=True)  # of a server that was killed: its port may be another process's by now
        try:
            yield
        finally:
            _note(plan).unlink(missing_ok=True)


def address(home: Path = HOME) -> dict[str, str] | None:
    """Return what the server of this home has recorded: pid, url, store; None if none is running.

    A server that was killed leaves its note behind, but no lock.
    """
    try:
        there = dict(json.loads((home / "serving.json").read_text()))
        with (home / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask must not take each other for a server
    except BlockingIOError:
        return there
    except (OSError, ValueError):
        pass
    return None


def password(home: Path = HOME) -> str:
    """Return the `user:password` of this home's server: created once and whole, readable by its owner only."""
    file = home / "password"
    if not (file.exists() and file.read_text().strip()):  # empty where an older version was killed as it wrote
        made = home / "password.new"
        made.unlink(missing_ok=True)
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as whole:
            whole.write(f"populora:{secrets.token_urlsafe(32)}\n")
            whole.flush()
            os.fsync(whole.fileno())
        made.replace(file)
    return file.read_text().strip()


def link(home: Path = HOME) -> str:
    """Return a new link to the UI of this home's server. Raises ServerUnreachable if none is running."""
    there = address(home)
    if there is None:
        raise prefect_api.ServerUnreachable(
            f"no populora serve is running on {home}; start it with: {program('serve', *_own_home(home))}"
        )
    return login_link.link(there["url"], password(home))


def sign_in(url: str, home: Path = HOME) -> None:
    """Give this process the password of this home's server, if that is the one at `url`. A password that is set stays."""
    there = address(home)
    if PASSWORD not in os.environ and there is not None and f"{there['url']}/api" == url:
        os.environ[PASSWORD] = password(home)


def _note(plan: ServeOptions) -> Path:
    return plan.home / "serving.json"


def _check_addresses(plan: ServeOptions) -> None:
    if ":" in plan.host:
        raise ConfigError(f"--host {plan.host}: IPv6 addresses are not supported; choose an IPv4 address or 0.0.0.0")
    for option, port in (("--port", plan.port), ("--browser-port", plan.browser_port)):
        if not 1 <= port <= 65535:
            raise ConfigError(f"{option} {port}: must be between 1 and 65535")
    if plan.port == plan.browser_port:
        raise ConfigError(f"--port and --browser-port are both {plan.port}; choose two")
    _listen(plan, "--browser-port", plan.browser_port).close()


def _listen(plan: ServeOptions, option: str, port: int) -> socket.socket:
    """Return a socket that listens on the port. Raises ConfigError if it is in use or the address is not this machine's.

    The server inherits it at each start, so nobody else can take the port before it and be sent the password.
    """
    try:
        return socket.create_server((plan.host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {plan.host}:{port}: {_whose(plan, port, error)}; choose another {option}") from None


def _whose(plan: ServeOptions, port: int, error: OSError) -> str:
    """Describe what is using the port: another Prefect server or anything else."""
    version = prefect_api.version_of_stranger(f"http://{plan.name}:{port}/api")
    if version is None:
        return (error.strerror or str(error)).partition(" (while attempting")[0].lower()
    return f"a Prefect server {version} is running there (this project has {prefect_api.installed_version()})"


def _check_database_version(home: Path) -> None:
    """Raise ConfigError if a newer Prefect wrote the database: an older one cannot read it, and its migrations would fail."""
    note = home / "prefect-version"
    written, here = note.read_text() if note.exists() else "", prefect_api.installed_version()
    if prefect_api.numbers(written) > prefect_api.numbers(here):
        raise ConfigError(f"{home} was written by Prefect {written}, but {here} is installed: run make setup, or set --home")
