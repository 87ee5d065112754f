"""`populora publish`: an adapter as a folder ready for the Hugging Face hub, uploaded if asked."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, add_store, open_run
from flows.config import ConfigError


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("publish", "Write an adapter as a folder for the Hugging Face hub, and upload it if asked.", publish)
    add_store(parser)
    parser.add_argument("adapter", metavar="ADAPTER", help="id of the adapter")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="where to write it (default: RUN-ADAPTER)")
    parser.add_argument("--to", metavar="OWNER/NAME", help="upload it there, as a private repository unless it exists")
    parser.add_argument("--public", action="store_true", help="make the repository public, or add to a public one")
    parser.add_argument("--license", default="", metavar="ID", help="licence of the weights (default: the base model's)")
    parser.add_argument("--base-model", default="", metavar="OWNER/NAME", help="hub name of a base that was a folder")


def publish(arguments: Namespace) -> int:
    """Write the folder, upload it if asked, and print where it is."""
    from flows.export.publish import hub, upload, write_folder

    if arguments.public and not arguments.to:
        raise ConfigError("--public: give --to OWNER/NAME as well")
    api = hub(arguments.to) if arguments.to else None  # what cannot be uploaded is said before anything is written
    found = open_run(arguments.store, arguments.run)
    folder = arguments.folder or Path(f"{arguments.run}-{arguments.adapter}")
    print(write_folder(found, arguments.adapter, folder, arguments.to or "", arguments.base_model, arguments.license))
    if api is not None:
        print(upload(api, folder, arguments.to, arguments.public))
    return 0
