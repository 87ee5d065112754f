"""`populora publish`: an adapter as a folder ready for the Hugging Face hub, uploaded if asked."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.commands.arguments import Add, add_store, open_run
from flows.config import ConfigError

if TYPE_CHECKING:
    from flows.run.run import Run


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("publish", "Write an adapter as a folder for the Hugging Face hub, and upload it if asked.", publish)
    add_store(parser)
    best = "id of the adapter (default: the student with the best rating of the last generation)"
    parser.add_argument("adapter", metavar="ADAPTER", nargs="?", help=best)
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
    adapter = arguments.adapter or _best_student(found)
    folder = arguments.folder or Path(f"{arguments.run}-{adapter}")
    print(write_folder(found, adapter, folder, arguments.to or "", arguments.base_model, arguments.license))
    if api is not None:
        print(upload(api, folder, arguments.to, arguments.public))
    return 0


def _best_student(run: "Run") -> str:
    """Return the adapter of the student with the best rating of the last generation, and print which it is.

    A single agent is its own student. Raises ConfigError before the first generation is rated.
    """
    from flows.compare.best_members import best_members
    from flows.monitoring.run_tables import RunTables

    best = next((one for one in best_members(RunTables(run).look()) if one.role != "teacher"), None)
    if best is None:
        raise ConfigError(f"run {run.run_id} has no rated generation yet; give RUN ADAPTER, such as {run.run_id} s0-start")
    rating = f"mu {best.mu:.2f}, sigma {best.sigma:.2f}"
    print(f"adapter    {best.adapter_id}: the best-rated of {best.rivals} students after generation {best.generation} ({rating})")
    return best.adapter_id
