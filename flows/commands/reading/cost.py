"""`populora cost`: tokens, time, energy and money of a run."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import Add, add_settings, add_store, in_group, open_run, store_option
from flows.config import ConfigError, apply
from flows.program import Commands, called

if TYPE_CHECKING:
    from flows.monitoring.cost import PointCost, RunCost
    from flows.monitoring.spending import Spent


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("cost", "What a run has cost: tokens, time, energy and money.", cost)
    parser.add_argument("--by", choices=("stage", "generation"), default="stage", help="rows of the table (default: stage)")
    parser.add_argument("--generation", type=int, help="the stages of this generation only; -1: the start")
    add_settings(parser, "other prices than those recorded, e.g. machine_hour=2.5 or currency=EUR", "cost")
    parser.add_argument("--json", action="store_true", help="everything as JSON, by generation and stage")
    add_store(parser)


def cost(arguments: Namespace) -> int:
    """Print the table, or JSON."""
    from flows.monitoring.cost import run_cost
    from flows.monitoring.cost_text import cost_text
    from flows.storage import StoreRefused

    if arguments.by == "generation" and arguments.generation is not None:
        raise ConfigError("--by generation cannot be combined with --generation, whose table has the stages of one generation")
    prices = apply({}, in_group(arguments.set, "cost")).cost if arguments.set else None
    found = run_cost(open_run(arguments.store, arguments.run), prices)
    if arguments.json:
        print(json.dumps(_values(found), indent=1, ensure_ascii=False))
        return 0
    rows = found.stages
    if arguments.by == "generation":
        rows = {"start" if number is None else f"generation {number}": used for number, used in found.by_generation.items()}
    if arguments.generation is not None:
        wanted = None if arguments.generation < 0 else arguments.generation
        chosen = next((one for one in found.generations if one.generation == wanted), None)
        if chosen is None or arguments.generation < -1:
            there = [-1 if one.generation is None else one.generation for one in found.generations]
            known = f"its generations are {min(there)} to {max(there)}; -1 is the start" if there else "it has none yet"
            raise StoreRefused(f"run {found.run_id} has no generation {arguments.generation}; {known}")
        rows = dict(chosen.stages)
    print(Commands(called(), store_option(arguments.store)).named(cost_text(found, rows)))
    return 0


def _values(found: "RunCost") -> dict[str, Any]:
    """Return the cost as plain values."""
    generations = [
        {"generation": one.generation, "done": one.done, "from": dict(one.origins)}
        | {"total": _spent(one.total), "stages": {name: _spent(used) for name, used in one.stages.items()}}
        for one in found.generations
    ]
    return {
        "run": found.run_id,
        "total": _spent(found.total),
        "inherited": _spent(found.inherited),
        "stages": {name: _spent(used) for name, used in found.stages.items()},
        "generations": generations,
        "points": [_point(point) for point in found.points],
        "unpaired": list(found.unpaired),
        "changed": [one._asdict() for one in found.changed],
        "unread": list(found.unread),
    }


def _spent(used: "Spent") -> dict[str, Any]:
    return {
        "seconds": round(used.seconds, 3),
        "machine_seconds": round(used.machine_seconds, 3),
        "prompt_tokens": used.prompt_tokens,
        "generated_tokens": used.generated_tokens,
        "trained_tokens": used.trained_tokens,
        "joules": dict(used.joules),
        "kwh": used.kwh,
        "energy": used.energy_source or None,
        "energy_seconds": round(used.energy_seconds, 3),
        "money": dict(used.money),
        "priced_seconds": round(used.priced_seconds, 3),
    }


def _point(point: "PointCost") -> dict[str, Any]:
    used = point.spent
    amounts = {"machine_seconds": used.machine_seconds, "kwh": used.kwh, "generated_tokens": used.generated_tokens}
    each = {name: point.of_a_point(amount) for name, amount in amounts.items() if amount is not None}
    money = {currency: point.of_a_point(amount) for currency, amount in used.money.items()}
    return {
        "suite": point.suite,
        "question": point.question or None,
        "first": point.first,
        "last": point.last,
        "gain": point.gain,
        "stderr": point.stderr,
        "problems": point.problems,
        "spent": _spent(used),
        "a_point": {**each, "money": money} if point.sure else None,
    }
