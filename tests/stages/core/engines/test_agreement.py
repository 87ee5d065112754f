"""Engine and trainer compute the same policy, or the run stops."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flows.backend import Backend
from flows.config import dump, load
from flows.execution.agreement import compared, probed
from flows.execution.run_stage import Spec
from flows.execution.stage_process import Workers
from flows.plan.memory_plan import PROBE
from flows.run import lease
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core import tables
from stages.core.engines.agreement import (
    BOUNDS,
    LEAST,
    MORE_ROUNDS,
    PROMPTS,
    ROUNDS,
    Disagreement,
    check_agreement,
    check_drift,
    compare,
    probe,
)
from stages.core.engines.precision import fast_bfloat16
from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import adapter_bytes, weights_sha256
from stages.core.training.protocol import Drift
from tests.support.example_run import CLOCK


def metrics(**drift: float):
    rows = [
        {"name": "update.drift_mean", "value": value, "member_id": member, "role": "student", "kind": None}
        for member, value in drift.items()
    ]
    rows.append({"name": "update.drift_max", "value": 9.0, "member_id": "s0", "role": "student", "kind": None})
    return tables.table(rows, tables.METRICS)


def test_small_drift_passes_and_large_drift_names_the_members():
    check_drift(metrics(s0=0.01, s1=0.2), 0.2)
    with pytest.raises(Disagreement, match=r"more than 0.2 nats per token: \{'s1': 0.31\}"):
        check_drift(metrics(s0=0.01, s1=0.31), 0.2)
    with pytest.raises(Disagreement, match="nan"):
        check_drift(metrics(s0=float("nan")), 0.2)


class Measured:
    """A scorer that has measured already."""

    def __init__(self, drift: dict[str, Drift]) -> None:
        self._drift = drift

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Drift]:
        return self._drift


def test_the_mean_and_the_largest_token_have_a_bound_each():
    """In bfloat16 a healthy engine is off by far more at its worst token than in the mean."""
    bounds, nan = Drift(0.1, 1.0), float("nan")
    samples = probe(Speaking(100), ANY, 1.0)
    healthy = {"s0-start": Drift(0.018, 0.6), "s1-start": Drift(0.006, 0.2)}
    assert compare(Measured(healthy), {}, samples, bounds) == healthy
    for bad in (Drift(0.11, 0.6), Drift(0.01, 1.1), Drift(nan, 0.1), Drift(0.01, nan)):
        stops = r"more than 0.1 nats per token in the mean or 1.0 at two tokens: \{'s1-start': 'mean"
        with pytest.raises(Disagreement, match=stops):
            compare(Measured(healthy | {"s1-start": bad}), {}, samples, bounds)


class Speaking:
    """An engine whose completions have so many tokens, as an adapter that soon ends them; notes what it is asked."""

    window = 1024

    def __init__(self, length: int) -> None:
        self._length = length
        self.asked: list[Request] = []

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        self.asked += requests
        lengths = [min(self._length, request.max_new_tokens) for request in requests]
        return [Completion((1,) * length, (-0.5,) * length, False) for length in lengths]


ANY = {name: Adapter({"lora_B": np.zeros((1, 1), np.float32)}, {}, 0) for name in ("s0-start", "s1-start")}


@pytest.mark.parametrize(("length", "rounds"), [(100, 1), (4, 2), (1, ROUNDS)])
def test_a_probe_has_prompts_and_seeds_enough_and_tokens_enough(length: int, rounds: int):
    engine = Speaking(length)
    samples = probe(engine, ANY, 1.0)
    prompts = {request.prompt_ids for request in engine.asked}
    assert len(prompts) == len(PROMPTS) > 2 and len({len(prompt) for prompt in prompts}) == len(PROMPTS)
    seeds = [request.seed for request in engine.asked]
    assert len(set(seeds)) == len(seeds) == 2 * rounds * len(PROMPTS), "no draw is that of another adapter or round"
    tokens = sum(map(len, samples["completion_ids"].to_pylist())) // 2
    assert tokens >= LEAST or rounds == ROUNDS
    again = Speaking(length)
    assert probe(again, ANY, 1.0) == samples and again.asked == engine.asked
    more = Speaking(length)
    assert probe(more, ANY, 1.0, ["s1-start"]).num_rows == MORE_ROUNDS * len(PROMPTS)
    assert {request.adapter_id for request in more.asked} == {"s1-start"}
    assert not {request.seed for request in more.asked} & set(seeds)


class Scored:
    """A scorer that finds these drifts in turn for the first adapter, and `FINE` for the other; notes what it is asked."""

    def __init__(self, *drifts: Drift) -> None:
        self._drifts = list(drifts)
        self.asked: list[tuple[list[str], dict[str, int]]] = []

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Drift]:
        tokens = Counter[str]()
        for name, ids in zip(samples["adapter_id"].to_pylist(), samples["completion_ids"].to_pylist(), strict=True):
            tokens[name] += len(ids)
        self.asked.append((list(adapters), dict(tokens)))
        return {name: self._drifts.pop(0) if name == "s0-start" else FINE for name in tokens}


FINE, WIDE, ODD, ALLOWED = Drift(0.04, 0.3), Drift(0.06, 0.3), Drift(0.04, 1.5), Drift(0.05, 1.0)


def checked(*drifts: Drift) -> tuple[Scored, dict[str, Drift]]:
    scorer = Scored(*drifts)
    return scorer, check_agreement(Speaking(100), scorer, ANY, 1.0, ALLOWED)


def test_a_run_stops_only_for_what_a_larger_sample_shows_too() -> None:
    assert checked(FINE)[1] == dict.fromkeys(ANY, FINE)
    for small in (WIDE, ODD):
        found = checked(small, *[FINE] * 7, WIDE)[1]
        assert found == {"s0-start": Drift(pytest.approx(0.0425), 0.3), "s1-start": FINE}
    with pytest.raises(Disagreement, match=r"\{'s0-start': 'mean 0.0600, 0.3000 or more at two of 512 tokens'\}"):
        checked(*[WIDE] * 9)


def test_one_token_beyond_the_bound_does_not_stop_a_run_and_two_do() -> None:
    """A larger sample has a larger maximum, also of a healthy engine."""
    assert checked(ODD, ODD, *[FINE] * 7)[1]["s0-start"] == Drift(pytest.approx(0.04), 0.3)
    with pytest.raises(Disagreement, match=r"\{'s0-start': 'mean 0.0400, 1.5000 or more at two of 512 tokens'\}"):
        checked(ODD, *[FINE] * 3, ODD, *[FINE] * 3, ODD)


def test_only_adapters_beyond_the_bounds_are_asked_again_and_no_pass_is_larger_than_the_plan_s() -> None:
    """The trainer keeps all of them in its stack."""
    scorer, _ = checked(ODD, *[FINE] * MORE_ROUNDS)
    assert scorer.asked == [([*ANY], dict.fromkeys(ANY, PROBE)), *[([*ANY], {"s0-start": PROBE})] * MORE_ROUNDS]
    short = Scored(*[FINE] * 3)
    check_agreement(Speaking(4), short, ANY, 1.0, ALLOWED)
    assert [tokens for _, tokens in short.asked] == [dict.fromkeys(ANY, 16)] * 2


def test_the_bounds_follow_the_arithmetic_unless_they_are_configured():
    assert Backend(load("smoke")).drift_bounds() == BOUNDS["float32"]
    assert Backend(load("one-gpu", ["model.device=cuda"])).drift_bounds() == BOUNDS["bfloat16"]
    on_cpu = Backend(load("laptop"))
    assert on_cpu.drift_bounds() == BOUNDS["bfloat16" if fast_bfloat16() else "float32"]
    assert on_cpu.engine_version()["dtype"] == ("bfloat16" if fast_bfloat16() else "float32")
    configured = load("one-gpu", ["engine.max_drift=0.3", "engine.max_token_drift=2.0"])
    assert Backend(configured).drift_bounds() == Drift(0.3, 2.0)


@pytest.mark.parametrize(("rate", "caught"), [("1e-3", True), ("1e-4", True), ("0", False)])
def test_a_stale_adapter_is_caught_after_one_step(rate: str, caught: bool):
    """The seed model in float32: the trainer has taken a step, the engine serves what was before it."""
    backend = Backend(load("chaos", [f"learning.learning_rate={rate}"]))
    old = {"s0-start": backend.initial_adapter()}
    samples = tables.join([probe(backend.engine(old), old, 1.0)] * 2, tables.SAMPLES)
    signs = np.repeat((1.5, -0.5), samples.num_rows // 2).tolist()
    rows = [row | {"centred": sign, "advantage": sign} for row, sign in zip(samples.to_pylist(), signs, strict=True)]
    new = {"s0-start": backend.trainer().update(old, tables.table(rows, tables.SAMPLES))["s0-start"].adapter}
    check_agreement(backend.engine(old), backend.scorer(), old, 1.0, backend.drift_bounds())
    check_agreement(backend.engine(new), backend.scorer(), new, 1.0, backend.drift_bounds())
    stale = probe(backend.engine(old), old, 1.0)
    claimed = probe(backend.engine(new), new, 1.0)["adapter_sha256"]
    stale = stale.set_column(stale.schema.get_field_index("adapter_sha256"), "adapter_sha256", claimed)
    if caught:
        with pytest.raises(Disagreement, match="'s0-start'"):
            compare(backend.scorer(), new, stale, backend.drift_bounds())
    else:
        compare(backend.scorer(), new, stale, backend.drift_bounds())


# across the processes of engine and trainer ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(load("chaos", ["population.teachers=1", "population.students=1"]))


@pytest.fixture(scope="module")
def stored(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, dict[str, Adapter]]:
    """A run whose next step is propose, and the adapter that its teacher plays with: B is not zero any more."""
    root = tmp_path_factory.mktemp("store")
    store, rng = FileStore(root), np.random.default_rng(0)
    fresh = backend.initial_adapter()
    trained = {
        name: rng.normal(0, 0.05, array.shape).astype(np.float32) if "lora_B" in name else array
        for name, array in fresh.weights.items()
    }
    names = {"match_id": "g0000-m00", "teacher_id": "t0", "student_id": "s0"}
    names |= {"teacher_adapter_id": "t0-g0000", "student_adapter_id": "s0-start"}
    row = names | dict.fromkeys(("teacher_mu", "teacher_sigma", "student_mu", "student_sigma", "expected"), 0.5)
    with lease.hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        run.describe(dump(backend.config), {}, CLOCK)
        refs = run.write_adapter("t0-g0000", adapter_bytes(Adapter(trained, {}, 0), "seed", backend.config.model.alpha))
        run.commit("start", None, [], refs, {}, {}, CLOCK)
        run.commit("match", 0, [], [run.write_table(0, "matches", tables.table([row], tables.MATCHES))], {}, {}, CLOCK)
    return Spec(root.as_uri(), "run", "propose", 0, None, None, 2), {"t0-g0000": Adapter(trained, {}, 0)}


def engine_that_serves(folder: Path, backend: Backend, served: dict[str, Adapter], named: dict[str, Adapter]) -> str:
    """An interpreter whose worker completes the probe with one set of weights under another's names, then does any step."""
    engine = backend.engine(served)
    answers: list[dict] = []
    for again in ([], [*served])[: 1 if served is named else 2]:
        rows = probe(engine, served, backend.config.engine.temperature, again).to_pylist()
        digests = {name: weights_sha256(adapter.weights) for name, adapter in named.items()}
        rows = [row | {"adapter_sha256": digests[row["adapter_id"]]} for row in rows]
        answers.append({"done": {"adapters": [*named], "samples": rows}})
    answers.append({"done": {"stage": "propose"}})
    python = folder / "python"
    (folder / "answers").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    python.write_text(f'#!/bin/sh\nexec 3<{folder}/answers\nwhile read order; do read answer <&3; echo "$answer"; done\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("served", ["right", "lost"])
def test_an_engine_in_another_process_is_checked_before_it_generates(backend, stored, tmp_path, served) -> None:
    spec, adapters = stored
    lost = {"t0-g0000": backend.initial_adapter()}  # the base model: B is zero
    python = engine_that_serves(tmp_path, backend, adapters if served == "right" else lost, adapters)
    with Workers(1) as workers:
        if served == "right":
            assert workers.run(spec, python) == {"stage": "propose"}
        else:
            with pytest.raises(Disagreement, match=r"engine and trainer differ by more than .*'t0-g0000'"):
                workers.run(spec, python)


@pytest.fixture
def two_teachers(backend, stored, tmp_path) -> Spec:
    """The propose of a run in which two teachers have a match."""
    _, adapters = stored
    store = FileStore(tmp_path)
    with lease.hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        config = backend.config
        run.describe(dump(config), {}, CLOCK)
        rows, refs = [], []
        for number in range(2):
            name = f"t{number}-g0000"
            refs += run.write_adapter(name, adapter_bytes(adapters["t0-g0000"], "seed", config.model.alpha))
            names = {"match_id": f"g0000-m0{number}", "teacher_id": f"t{number}", "student_id": "s0"}
            names |= {"teacher_adapter_id": name, "student_adapter_id": "s0-start"}
            rows.append(names | dict.fromkeys(("teacher_mu", "teacher_sigma", "student_mu", "student_sigma", "expected"), 0.5))
        run.commit("start", None, [], refs, {}, {}, CLOCK)
        run.commit("match", 0, [], [run.write_table(0, "matches", tables.table(rows, tables.MATCHES))], {}, {}, CLOCK)
    return Spec(tmp_path.as_uri(), "run", "propose", 0, None, None, 2)


def test_an_engine_in_another_process_probes_the_adapters_of_its_part_alone(backend, two_teachers) -> None:
    """Two shares, each the prompts of one of two teachers: of the other's adapter, it reads and publishes nothing."""
    for number in range(2):
        part = replace(two_teachers, part=f"{number:02d}of02")
        found = probed(part, lambda _: backend)
        assert {row["adapter_id"] for row in found["samples"]} == {f"t{number}-g0000"} == {*found["adapters"]}
        assert list(compared(part, found, lambda _: backend)["drift"]) == [f"t{number}-g0000"]


def test_a_part_without_work_compares_nothing(backend, stored, tmp_path) -> None:
    spec, _ = stored
    parts = [replace(spec, part=f"{number:02d}of99") for number in range(3)]  # more shares than prompts
    idle = next(part for part in parts if not probed(part, lambda _: backend)["samples"])
    assert compared(idle, probed(idle, lambda _: backend), lambda _: backend) == {"drift": {}, "beyond": []}


def test_only_adapters_beyond_the_bounds_are_asked_again_across_processes(stored, monkeypatch) -> None:
    orders: list[dict] = []
    answers = iter([{"samples": ["a"]}, {"beyond": ["t1"]}, {"samples": ["b"]}, {"beyond": []}, {"stage": "propose"}])

    def ask(self: Workers, order: dict, python: str, what: str, told: object = None) -> dict:
        orders.append(order)
        return next(answers)

    monkeypatch.setattr(Workers, "ask", ask)
    assert Workers(1).run(stored[0], "/another/python") == {"stage": "propose"}
    assert [order.get("again") for order in orders] == [[], [], ["t1"], ["t1"], None]
    assert [order["probe"] for order in orders if "compare" in order] == [{"samples": ["a"]}, {"samples": ["b"]}]


def test_the_larger_sample_is_that_of_one_adapter_and_the_engine_goes_on_serving_all(backend, two_teachers) -> None:
    found = probed(two_teachers, lambda _: backend, ["t1-g0000"])
    assert {row["adapter_id"] for row in found["samples"]} == {"t1-g0000"} and found["adapters"] == ["t0-g0000", "t1-g0000"]
    assert list(compared(two_teachers, found, lambda _: backend, ["t1-g0000"])["drift"]) == ["t1-g0000"]


@pytest.mark.parametrize(("python", "checked"), [("", False), (sys.executable, True), ("/another/python", True)])
def test_vllm_is_checked_in_whatever_interpreter_it_lives(stored, monkeypatch, python: str, checked: bool) -> None:
    asked: list[str] = []

    def ask(self: Workers, order: dict, python: str, what: str, told: object = None) -> dict:
        asked.append(what)
        return {"samples": [], "beyond": []}

    monkeypatch.setattr(Workers, "ask", ask)
    Workers(1).run(stored[0], python)
    assert asked == ["the probe before propose", "the check before propose"] * checked + ["stage propose"]
