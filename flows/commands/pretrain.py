"""`populora pretrain`: train the seed model from scratch."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add
from flows.config import PROJECT


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("pretrain", "Train the seed model from scratch on generated programs.", pretrain)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=81.0, help="worth of tokens on two cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)


def pretrain(arguments: Namespace) -> int:
    """Train, save the checkpoint and its card, and print the progress."""
    from flows.commands.pretrain_recipe import pretrain as train_seed_model

    probe = PROJECT / "infra" / "benchmarks"
    train_seed_model(arguments.out, arguments.minutes, arguments.seed, arguments.threads, probe, lambda line: print(line))
    return 0
