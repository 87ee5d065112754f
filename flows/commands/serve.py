"""`populora serve`: Prefect's server and UI, a worker, the deployments and the artifact browser."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, absolute, add_store


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("serve", "Prefect server and UI, a worker, the deployments and the artifact browser.", serve)
    parser.add_argument("--port", type=int, default=4200, help="of the Prefect UI (default: 4200)")
    parser.add_argument("--browser-port", type=int, default=8750, help="of the artifact browser (default: 8750)")
    parser.add_argument("--home", type=Path, help="folder of the server's database and logs (default: .cache/serve)")
    add_store(parser, run=False)


def serve(arguments: Namespace) -> int:
    """Serve until stopped."""
    from flows.prefect_ops import serve as service
    from flows.storage import open_store

    home = arguments.home.absolute() if arguments.home else service.HOME
    store = absolute(arguments.store)
    open_store(store)  # an invalid address is rejected immediately
    return service.serve(service.Plan(store, port=arguments.port, browser_port=arguments.browser_port, home=home))
