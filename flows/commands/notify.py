"""`populora notify`: e-mail, Slack or a webhook about crashes, ends and alarms of runs."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.commands.arguments import Add
from flows.commands.secret_address import read_address
from flows.config import ConfigError
from flows.program import program

if TYPE_CHECKING:
    from flows.prefect_ops.notify import Told

ACTIONS = ("slack", "webhook", "email", "test", "list", "remove")
EVENTS = ("crash", "end", "alarm")


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command(
        "notify", "Tell of crashes, ends and alarms by e-mail, Slack or a webhook: set up, test, list, remove.", notify
    )
    parser.add_argument("what", choices=ACTIONS, metavar="ACTION", help="slack, webhook or email to set up; test, list, remove")
    parser.add_argument("--name", default="", help="name of the address (default: slack, webhook or email; test: every one)")
    parser.add_argument("--on", default="crash,end,alarm", metavar="EVENTS", help="crash, end, alarm, with commas (default: all)")
    _add_secret(parser)
    parser.add_argument("--home", type=Path, help="folder of populora serve (default: .cache/serve)")


def _add_secret(parser: ArgumentParser) -> None:
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--url-from-env", metavar="NAME", help="environment variable with the address")
    secret.add_argument("--url-from-stdin", action="store_true", help="read the address from standard input")


def notify(arguments: Namespace) -> int:
    """Do what was asked, on the server of `populora serve` and on the one of plain runs."""
    from flows.prefect_ops.every_server import on_every_server, quiet
    from flows.prefect_ops.serve import HOME

    quiet()
    from flows.prefect_ops import notify as addresses

    name, action, home = arguments.name, arguments.what, arguments.home.absolute() if arguments.home else HOME
    if name:
        addresses.check_name(name)
    if action == "list":
        return _print_listed(on_every_server(addresses.listed, home))
    if action == "test":
        return _print_tested(on_every_server(lambda: addresses.try_out(name), home), name)
    if action == "remove":
        if not name:
            raise ConfigError(f"remove: say which one with --name; {program('notify', 'list')} shows them")
        if not any(on_every_server(lambda: addresses.remove(name), home).values()):
            raise ConfigError(f"--name {name}: nobody of that name is told of anything")
        print(f"removed    {name}")
        return 0
    secret, events = _secret(arguments), _events(arguments.on)
    addresses.apprise_address(action, secret)  # an invalid one is refused before a server is started
    for server in on_every_server(lambda: addresses.add(action, name or action, secret, events), home):
        print(f"set up     {name or action}, told of {', '.join(events)} of runs of {server}")
    print(f"try it     {program('notify', 'test')}")
    return 0


def _print_listed(found: "dict[str, list[Told]]") -> int:
    for server, addresses in found.items():
        for one in addresses:
            print(f"{server}: {one.name} ({one.kind}) is told of {', '.join(one.events)}")
        if not addresses:
            print(f"{server}: nobody is told of anything")
    return 0


def _print_tested(found: dict[str, dict[str, str]], name: str) -> int:
    if not any(found.values()):
        raise ConfigError(f"--name {name}: nobody of that name is told of anything" if name else "nobody is told of anything yet")
    for server, faults in found.items():
        for one, fault in faults.items():
            print(f"{server}: {one}: {fault or 'sent'}")
    return 1 if any(fault for faults in found.values() for fault in faults.values()) else 0


def _secret(arguments: Namespace) -> str:
    """Return the address. It is never an argument: other users of the machine see those."""
    if not (arguments.url_from_stdin or arguments.url_from_env):
        raise ConfigError(f"{arguments.what}: give the address with --url-from-env NAME or --url-from-stdin")
    return read_address(arguments.what, None if arguments.url_from_stdin else arguments.url_from_env)


def _events(text: str) -> list[str]:
    events = [one.strip() for one in text.split(",") if one.strip()]
    wrong = [one for one in events if one not in EVENTS]
    if wrong or not events:
        raise ConfigError(f"--on {text}: write some of {', '.join(EVENTS)}, with commas")
    return list(dict.fromkeys(events))
