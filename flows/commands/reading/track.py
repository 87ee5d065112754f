"""`populora track`: send a run's numbers to an experiment tracker."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store
from flows.commands.secret_address import read_address
from flows.config import ConfigError


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("track", "Send a run's numbers to TensorBoard, MLflow or Weights & Biases, too.", track)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="WHERE", help="tensorboard:FOLDER, mlflow:URI or wandb:FOLDER")
    where.add_argument("--to-from-env", metavar="NAME", help="environment variable with WHERE: for an URI with a password")
    where.add_argument("--to-from-stdin", action="store_true", help="read WHERE from standard input")
    parser.add_argument("--follow", action="store_true", help="keep sending until the run has finished")
    add_store(parser)


def track(arguments: Namespace) -> int:
    """Send every finished generation that the tracker does not have yet."""
    from flows.run.run import Run
    from flows.storage import open_store
    from flows.tracking.secrets import without_secrets
    from flows.tracking.tracking import track as send

    to = _destination(arguments)
    sent = send(Run(open_store(arguments.store), arguments.run), to, arguments.follow)
    print(f"{sent} generations sent to {without_secrets(to)}")
    return 0


def _destination(arguments: Namespace) -> str:
    """Return where to send. Raises ConfigError for a password among the arguments: other users of the machine see those."""
    from flows.tracking.secrets import has_password, without_secrets

    if arguments.to is None:
        return read_address("track", None if arguments.to_from_stdin else arguments.to_from_env)
    if has_password(arguments.to):
        raise ConfigError(
            f"--to {without_secrets(arguments.to)}: other users of this machine see a password among the arguments; give the "
            "whole address with --to-from-env NAME or --to-from-stdin"
        )
    return str(arguments.to)
