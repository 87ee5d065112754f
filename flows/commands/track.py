"""`populora track`: send a run's numbers to an experiment tracker."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("track", "Send a run's numbers to TensorBoard, MLflow or Weights & Biases, too.", track)
    parser.add_argument("--to", required=True, metavar="WHERE", help="tensorboard:FOLDER, mlflow:URI or wandb:FOLDER")
    parser.add_argument("--follow", action="store_true", help="keep sending until the run has finished")
    add_store(parser)


def track(arguments: Namespace) -> int:
    """Send every finished generation that the tracker does not have yet."""
    from flows.monitoring.tracking import track as send
    from flows.monitoring.tracking_secrets import without_secrets
    from flows.run.run import Run
    from flows.storage import open_store

    sent = send(Run(open_store(arguments.store), arguments.run), arguments.to, arguments.follow)
    print(f"{sent} generations sent to {without_secrets(arguments.to)}")
    return 0
