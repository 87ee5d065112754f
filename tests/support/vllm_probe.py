"""Run by the vLLM environment's interpreter: `vllm_probe.py SPEC OUT` answers the spec's requests and writes them as JSON.

With `"kill": true`, it then kills vLLM's process in the middle of a call and writes what the call and the next one raised.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]


def listener(heard: list[Any]) -> Any:
    """A callback that notes each completion with its place."""
    return lambda *one: heard.append(one)


def plain(completion: Any) -> list[Any]:
    """A completion as JSON values."""
    return [completion.token_ids, np.float64(completion.logprobs).tolist(), completion.truncated]


def killed(engine: Any) -> list[Any]:
    """What two calls raise, and the seconds they took: the process is killed when the first completion of the first call ends."""
    from stages.core.engines.protocol import EngineUnavailable, Request

    def kill(*_: Any) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    engine.ends = frozenset()
    raised = []
    for _ in range(2):
        started = time.monotonic()
        try:
            engine.generate([Request((5, 6, 7), None, 0, length) for length in (1, 100)], 1.0, kill)
        except EngineUnavailable as error:
            raised.append([str(error), time.monotonic() - started])
    return raised


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from stages.core.engines.protocol import Request
    from stages.core.engines.vllm_engine import EngineLimits, VLLMEngine

    spec = json.loads(Path(sys.argv[1]).read_text())
    adapters = {name: load_file(path) for name, path in spec["adapters"].items()}
    window = spec["window"]  # batch_tokens as small as it may be: prompts come in several batches
    limits = EngineLimits(spec["rank"], spec["alpha"], 4, window, batch_tokens=window, dtype="float32", compile=False)
    engine = VLLMEngine(spec["model"], limits, {})
    answers, reported = [], []
    for turn in spec["turns"]:
        engine.set_adapters({name: adapters[file] for name, file in turn["adapters"].items()})
        stops = turn.get("stops", [[]] * len(turn["requests"]))
        rows = zip(turn["requests"], stops, strict=True)
        asked = [Request(tuple(ids), name, seed, length, tuple(stop)) for (ids, name, seed, length), stop in rows]
        heard: list[Any] = []
        completions = engine.generate(asked, turn["temperature"], listener(heard) if turn.get("early") else None)
        answers.append([plain(c) for c in completions])
        reported.append([[place, plain(c)] for place, c in heard])
    text = engine.decode(engine.encode("def f(x):\n    return x"))
    folder = engine._folders.folder
    published = 0 if folder is None else sum(one.is_dir() for one in folder.iterdir())
    found = {"answers": answers, "reported": reported, "text": text, "published": published, "versions": engine.versions}
    found |= {"children": len(multiprocessing.active_children())}
    if spec.get("kill"):
        found["killed"] = killed(engine)
    engine.close()
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
