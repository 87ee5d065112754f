"""`populora pretrain`: train a seed model from scratch."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from flows.commands.arguments import Add


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("pretrain", "Train a seed model from scratch on generated programs.", pretrain)
    parser.add_argument("--out", type=Path, required=True)
    said = "seed: answers directly, the shipped model (default); reasoner: shows its steps, resumes and can be extended"
    parser.add_argument("--recipe", choices=("seed", "reasoner"), default="seed", help=said)
    parser.add_argument("--minutes", type=float, default=81.0, help="worth of tokens on two cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)


def pretrain(arguments: Namespace) -> int:
    """Train, save the checkpoint and its card, and print the progress."""
    from flows.suites.own_suites import SUITES

    log = partial(print, flush=True)
    if arguments.recipe == "reasoner":
        from flows.pretraining.reasoner_recipe import pretrain as pretrain_reasoner

        pretrain_reasoner(arguments.out, arguments.minutes, arguments.seed, arguments.threads, SUITES, log)
    else:
        from flows.pretraining.seed_recipe import pretrain as pretrain_seed

        pretrain_seed(arguments.out, arguments.minutes, arguments.seed, arguments.threads, SUITES, log)
    return 0
