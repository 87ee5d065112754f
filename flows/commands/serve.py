"""`populora serve`: Prefect's server and UI, a worker, the deployments and the artifact browser."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, absolute, add_functions, add_store, function_folders, store_option


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("serve", "Prefect server and UI, a worker, the deployments and the artifact browser.", serve)
    parser.add_argument("--port", type=int, default=4200, help="of the Prefect UI (default: 4200)")
    parser.add_argument("--browser-port", type=int, default=8750, help="of the artifact browser (default: 8750)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; beyond this machine, put a proxy with TLS before it"
    )
    parser.add_argument("--home", type=Path, help="folder of the server's database and logs (default: .cache/serve)")
    parser.add_argument("--link", action="store_true", help="print a new link to the UI of the running server, and return")
    add_functions(parser)
    add_store(parser, run=False)


def serve(arguments: Namespace) -> int:
    """Serve until stopped, or print a link to the UI of the server that is running."""
    from flows.prefect_ops import serve as service
    from flows.storage import open_store

    home = arguments.home.absolute() if arguments.home else service.HOME
    if arguments.link:
        print(service.link(home))
        return 0
    store = absolute(arguments.store)
    open_store(store)  # an invalid address is rejected immediately
    functions = function_folders(arguments.functions)
    named = store_option(arguments.store)
    ports = {"port": arguments.port, "browser_port": arguments.browser_port}
    return service.serve(service.ServeOptions(store, arguments.host, **ports, home=home, functions=functions, naming_store=named))
