"""`populora bench update --model PATH --samples FILE`: an update on samples that a run stored, role by role.

FILE is a generation's samples.parquet. All of a role's adapters are updated together, groups without an advantage left out, with
new factors: the arithmetic does not depend on their values. Tokens are response tokens, counted once per completion on all sides,
each of which is a process of its own; medians of turns are compared. Rivals:

- `row_per_completion`: the same trainer with `learning.row_tokens = 0`, so that nothing of a prompt or completion is shared.
- `peft_set_adapter`: PEFT adapters, made active in turn, a row for each completion (flows.bench.peft_rival).
- `checkout`: the trainer of another checkout of this project, if `--checkout` names one.

The bench ends with an error if the norms of this project's gradients and a rival's differ. A side is this file, run in the
checkout that it belongs to: except for PEFT's, which runs in this one, it uses only what older checkouts have, too.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NEARLY = 0.05  # of a gradient's norm: sums in bfloat16 are rounded, and the sides add in different orders
RIVALS = ("row_per_completion", "peft_set_adapter")

Norms = Callable[[], list[float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that count with `--samples`."""
    parser.add_argument("--samples", type=_existing, help="with --model: a generation's samples.parquet to update on")
    parser.add_argument("--row-tokens", type=int, default=1024, help="with --samples: as learning.row_tokens")
    parser.add_argument(
        "--rival", choices=RIVALS, action="append", help="with --samples: one to measure (repeatable; default: all)"
    )
    parser.add_argument("--checkout", type=_existing, help="with --samples: another checkout, whose trainer is a rival, too")


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} does not exist")
    return path.resolve()


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield tokens per second of each role's update against each rival; `ratio` over 1: ours is better."""
    from flows.bench.side import Side
    from flows.bench.turns import in_turns

    spec = {"model": str(Path(arguments.model).resolve()), "device": arguments.device, "samples": str(arguments.samples)}
    spec |= {"rank": arguments.rank, "threads": arguments.threads, "budget": arguments.micro_batch_tokens}
    our_spec = spec | {"side": "trainer", "row_tokens": arguments.row_tokens}
    rival_specs = (our_spec | {"row_tokens": 0}, spec | {"side": "peft"})
    asked = arguments.rival or RIVALS
    rivals = {name: (PROJECT, rival_spec) for name, rival_spec in zip(RIVALS, rival_specs, strict=True) if name in asked}
    if arguments.checkout:
        rivals["checkout"] = (arguments.checkout, our_spec)
    for name, (checkout, rival_spec) in rivals.items():  # two at a time: each holds the model and a pass
        with ExitStack() as stack:
            ours = stack.enter_context(Side(__file__, sys.executable, PROJECT, our_spec))
            rival = stack.enter_context(Side(__file__, sys.executable, checkout, rival_spec))
            warm, rival_warm = ours.turn(), rival.turn()
            if name in RIVALS:
                check_norms(name, warm["norms"], rival_warm["norms"])
            found = in_turns(arguments.repeats, {"ours": ours.turn, name: rival.turn})
        for role, tokens in found["ours"][0]["tokens"].items():
            seconds = {side: statistics.median(turn["seconds"][role] for turn in turns) for side, turns in found.items()}
            figure = {"name": "update.tokens_per_s", "value": round(tokens / seconds["ours"], 2), "unit": "tokens/s"}
            where = {"model": Path(arguments.model).name, "role": role, "adapters": len(warm["norms"][role])}
            paired = {"response_tokens": tokens, "against": name, "rival": round(tokens / seconds[name], 2)}
            yield figure | where | paired | {"ratio": round(seconds[name] / seconds["ours"], 3)}


def check_norms(name: str, ours: Mapping[str, list[float]], rival: Mapping[str, list[float]]) -> None:
    """Raise RuntimeError unless a rival's gradients have nearly the norms of ours, adapter by adapter."""
    for role, norms in ours.items():
        if not all(abs(one - other) <= NEARLY * one for one, other in zip(norms, rival[role], strict=True)):
            raise RuntimeError(
                f"{name} has other gradients of the {role} role than our trainer: norms {rival[role]}, ours {norms}"
            )


def new_adapters(shapes: Mapping[str, tuple[int, int]], rank: int, count: int) -> list[Any]:
    """Return the weights of that many new adapters, the same in every process."""
    from stages.core.lora.adapter_files import initial_adapter

    return [initial_adapter(shapes, rank, seed).weights for seed in range(count)]


class _Side:
    """The base model, and the samples of each role that have a gradient."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from stages.core.engines.hf_engine import load_model
        from stages.core.training.loss import Objective

        self._rows = dict(_rows_by_role(spec["samples"]))
        model, objective = load_model(spec["model"], spec["device"], "bfloat16"), Objective(entropy_bonus=0.0, importance_cap=2.0)
        self._ready = {"trainer": _trainer, "peft": _peft}[spec["side"]](model, spec, objective)

    def turn(self) -> dict[str, Any]:
        """Compute the gradients of each role's adapters."""
        seconds, tokens, norms = dict[str, float](), dict[str, int](), dict[str, list[float]]()
        for role, rows in self._rows.items():
            work = self._ready(rows)
            started = time.perf_counter()
            norms[role] = work()
            seconds[role], tokens[role] = time.perf_counter() - started, sum(map(len, rows.completions))
        return {"seconds": seconds, "tokens": tokens, "norms": norms}


def _trainer(model: Any, spec: dict[str, Any], objective: Any) -> Callable[[Any], Norms]:
    from stages.core.training.grouped_lora import attach
    from stages.core.training.settings import Settings
    from stages.core.training.torch_trainer import TorchTrainer

    lora = attach(model, TARGETS, spec["rank"], spec["rank"], 1)
    trainer = TorchTrainer(lora, 0, Settings(objective, micro_batch_tokens=spec["budget"], row_tokens=spec["row_tokens"]))

    def gradient_norms(rows: Any) -> list[float]:
        trainer.accumulate(rows, spec["budget"])
        norms: list[float] = lora.gradients_NP.norm(dim=1).tolist()
        lora.clear_gradients()
        return norms

    def ready(rows: Any) -> Norms:
        lora.load(new_adapters(lora.shapes(), spec["rank"], len(rows.names)))
        return partial(gradient_norms, rows)

    return ready


def _peft(model: Any, spec: dict[str, Any], objective: Any) -> Callable[[Any], Norms]:
    from flows.bench.peft_rival import PeftInTurn
    from stages.core.training.grouped_lora import target_shapes

    most_adapters = max(len(rows.names) for _, rows in _rows_by_role(spec["samples"]))
    stack = new_adapters(target_shapes(model, TARGETS), spec["rank"], most_adapters)
    peft = PeftInTurn(model, TARGETS, spec["rank"], stack, objective)
    return lambda rows: partial(peft.gradient_norms, rows, spec["budget"])


def _rows_by_role(file: str) -> Iterator[tuple[str, Any]]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from stages.core.training.packing import columns, response_tokens, with_advantage

    stored = pq.read_table(file)
    for role in pc.unique(stored["role"]).to_pylist():
        samples = stored.filter(pc.equal(stored["role"], role))
        learning = with_advantage(samples)
        if names := sorted(set(learning["adapter_id"].to_pylist())):  # empty: nobody of this role has an advantage
            yield role, columns(names, learning, response_tokens(samples))


def serve(spec: dict[str, Any]) -> None:
    """Build the side, then answer each line of standard input with one turn."""
    from stages.core.training.cpu import use_cpu

    use_cpu(spec["threads"])
    side = _Side(spec)
    for _ in sys.stdin:
        print(f"\nside: {json.dumps(side.turn())}", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
