"""`populora bench update --model PATH --samples FILE`: an update on samples that a run stored, role by role.

FILE is a generation's samples.parquet. All of a role's adapters are updated together, groups without an advantage left out, with
fresh factors: the arithmetic does not depend on their values. Tokens are response tokens, counted once per completion on all
sides, each of which is a process of its own; medians of turns are compared. Rivals:

- `peft_set_adapter`: PEFT adapters, made active in turn, a row for each completion (flows.bench.peft_rival).
- `row_per_completion`: the same trainer with `learning.row_tokens = 0`, so that nothing of a prompt or completion is shared.
- `checkout`: the trainer of another checkout of this project, if `--checkout` names one.

A side is this file, run in the checkout that it belongs to: it uses only what older checkouts have, too.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that count with `--samples`."""
    parser.add_argument("--samples", type=_existing, help="with --model: a generation's samples.parquet to update on")
    parser.add_argument("--row-tokens", type=int, default=1024, help="with --samples: as learning.row_tokens")
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
    shared = spec | {"row_tokens": arguments.row_tokens}
    rivals = {"peft_set_adapter": (PROJECT, spec | {"peft": True}), "row_per_completion": (PROJECT, spec | {"row_tokens": 0})}
    if arguments.checkout:
        rivals["checkout"] = (arguments.checkout, shared)
    for name, (checkout, of_rival) in rivals.items():  # two at a time: each holds the model and a pass
        with ExitStack() as stack:
            ours = stack.enter_context(Side(__file__, sys.executable, PROJECT, shared))
            rival = stack.enter_context(Side(__file__, sys.executable, checkout, of_rival))
            for side in (ours, rival):
                side.turn()  # warm-up
            found = in_turns(arguments.repeats, {"ours": ours.turn, name: rival.turn})
        for role, tokens in found["ours"][0]["tokens"].items():
            seconds = {side: statistics.median(turn["seconds"][role] for turn in turns) for side, turns in found.items()}
            figure = {"name": "update.tokens_per_s", "value": round(tokens / seconds["ours"], 2), "unit": "tokens/s"}
            where = {"model": Path(arguments.model).name, "role": role, "response_tokens": tokens}
            paired = {"against": name, "rival": round(tokens / seconds[name], 2)}
            yield figure | where | paired | {"ratio": round(seconds[name] / seconds["ours"], 3)}


class _Trained:
    """Ours: the trainer over the base model."""

    def __init__(self, model: Any, spec: dict[str, Any], objective: Any) -> None:
        from stages.core.training.grouped_lora import attach
        from stages.core.training.settings import Settings
        from stages.core.training.torch_trainer import TorchTrainer

        self._budget, self._rank = spec["budget"], spec["rank"]
        self._lora = attach(model, TARGETS, self._rank, self._rank, 1)
        settings = Settings(objective, micro_batch_tokens=self._budget, row_tokens=spec["row_tokens"])
        self._trainer = TorchTrainer(self._lora, 0, settings)

    def load(self, num_adapters: int) -> None:
        """Hold that many new adapters."""
        from stages.core.lora.adapter_files import initial_adapter

        self._lora.load([initial_adapter(self._lora.shapes(), self._rank, seed).weights for seed in range(num_adapters)])

    def gradient_norms(self, rows: Any) -> list[float]:
        """Compute the gradients of all adapters, and return their norms."""
        self._trainer.accumulate(rows, self._budget)
        norms: list[float] = self._lora.gradients_NP.norm(dim=1).tolist()
        self._lora.clear_gradients()
        return norms


class _Peft:
    """The rival: PEFT adapters on the base model."""

    def __init__(self, model: Any, spec: dict[str, Any], objective: Any, most: int) -> None:
        from flows.bench.peft_rival import PeftInTurn

        self._budget = spec["budget"]
        self._peft = PeftInTurn(model, TARGETS, spec["rank"], most, objective)

    def load(self, num_adapters: int) -> None:
        """Nothing: all are there, and each is made active in its turn."""

    def gradient_norms(self, rows: Any) -> list[float]:
        """Compute the gradients of one adapter after the other, and return their norms."""
        return self._peft.gradient_norms(rows, self._budget)


class _Timed:
    """A side with the samples of each role that learn."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from stages.core.engines.hf_engine import load_model
        from stages.core.training.loss import Objective

        self._rows = dict(_rows_by_role(spec["samples"]))
        model, objective = load_model(spec["model"], spec["device"], "bfloat16"), Objective(entropy_bonus=0.0, importance_cap=2.0)
        most = max((len(rows.names) for rows in self._rows.values()), default=1)
        self._side = _Peft(model, spec, objective, most) if spec.get("peft") else _Trained(model, spec, objective)

    def turn(self) -> dict[str, Any]:
        """Compute the gradients of each role's adapters."""
        seconds, tokens = dict[str, float](), dict[str, int]()
        for role, rows in self._rows.items():
            self._side.load(len(rows.names))
            started = time.perf_counter()
            self._side.gradient_norms(rows)
            seconds[role], tokens[role] = time.perf_counter() - started, sum(map(len, rows.completions))
        return {"seconds": seconds, "tokens": tokens}


def _rows_by_role(file: str) -> Iterator[tuple[str, Any]]:
    """Yield each role with the samples of its adapters that have an advantage, if there are any."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from stages.core.training.packing import columns, response_tokens, with_advantage

    stored = pq.read_table(file)
    for role in pc.unique(stored["role"]).to_pylist():
        samples = stored.filter(pc.equal(stored["role"], role))
        learning = with_advantage(samples)
        if names := sorted(set(learning["adapter_id"].to_pylist())):
            yield role, columns(names, learning, response_tokens(samples))


def serve(spec: dict[str, Any]) -> None:
    """Build the side, then answer each line of standard input with one turn."""
    from stages.core.training.cpu import use_cpu

    use_cpu(spec["threads"])
    side = _Timed(spec)
    for _ in sys.stdin:
        print(f"\nside: {json.dumps(side.turn())}", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
