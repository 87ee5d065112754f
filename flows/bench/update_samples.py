"""`populora bench update --model PATH --samples FILE`: an update on samples that a run stored, role by role.

FILE is a generation's samples.parquet. All of a role's adapters are updated together, groups without an advantage left out, with
fresh factors: the arithmetic does not depend on their values. Tokens are response tokens, counted once per completion on all
sides, each of which is a process of its own; medians of turns are compared. Rivals:

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
    rivals = {"row_per_completion": (PROJECT, 0)}
    if arguments.checkout:
        rivals["checkout"] = (arguments.checkout, arguments.row_tokens)
    for name, (checkout, row_tokens) in rivals.items():  # two at a time: each holds the model and a pass
        with ExitStack() as stack:
            ours = stack.enter_context(Side(__file__, sys.executable, PROJECT, spec | {"row_tokens": arguments.row_tokens}))
            rival = stack.enter_context(Side(__file__, sys.executable, checkout, spec | {"row_tokens": row_tokens}))
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
    """The trainer over the base model, with the samples of each role."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from stages.core.engines.hf_engine import load_model
        from stages.core.training.grouped_lora import attach
        from stages.core.training.loss import Objective
        from stages.core.training.settings import Settings
        from stages.core.training.torch_trainer import TorchTrainer

        self._spec = spec
        model = load_model(spec["model"], spec["device"], "bfloat16")
        self._lora = attach(model, TARGETS, spec["rank"], spec["rank"], 1)
        objective = Objective(entropy_bonus=0.0, importance_cap=2.0)
        settings = Settings(objective, micro_batch_tokens=spec["budget"], row_tokens=spec["row_tokens"])
        self._trainer = TorchTrainer(self._lora, 0, settings)
        samples = pq.read_table(spec["samples"])
        self._roles = {role: samples.filter(pc.equal(samples["role"], role)) for role in pc.unique(samples["role"]).to_pylist()}

    def turn(self) -> dict[str, Any]:
        """Compute the gradients of each role's adapters."""
        from stages.core.lora.adapter_files import initial_adapter
        from stages.core.training.packing import columns, response_tokens, with_advantage

        seconds, tokens = dict[str, float](), dict[str, int]()
        for role, samples in self._roles.items():
            learning = with_advantage(samples)
            names = sorted(set(learning["adapter_id"].to_pylist()))
            if not names:  # nobody of this role has an advantage
                continue
            shapes, rank = self._lora.shapes(), self._spec["rank"]
            self._lora.load([initial_adapter(shapes, rank, seed).weights for seed in range(len(names))])
            rows = columns(names, learning, response_tokens(samples))
            started = time.perf_counter()
            self._trainer.accumulate(rows, self._spec["budget"])
            self._lora.gradients_NP.norm(dim=1).tolist()
            seconds[role], tokens[role] = time.perf_counter() - started, sum(map(len, rows.completions))
            self._lora.clear_gradients()
        return {"seconds": seconds, "tokens": tokens}


def serve(spec: dict[str, Any]) -> None:
    """Build the side, then answer each line of standard input with one turn."""
    from stages.core.training.cpu import use_cpu

    use_cpu(spec["threads"])
    side = _Trained(spec)
    for _ in sys.stdin:
        print(f"\nside: {json.dumps(side.turn())}", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
