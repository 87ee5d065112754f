"""The plan's hours on this machine's own processor, and what they cost."""

from pathlib import Path

import pytest

from flows.config import load
from flows.plan.estimate import cpu_dtype, hours, plan, price_of, span_text, uncorrected


def test_bfloat16_without_its_units_is_computed_in_float32(tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("flags\t\t: fpu sse2 avx512f avx512_bf16\n")
    assert cpu_dtype("bfloat16", listed) == "bfloat16"
    listed.write_text("vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx512f avx512_bf16\n")
    assert cpu_dtype("bfloat16", listed) == "float32"
    listed.write_text("vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx512f avx512_bf16 amx_bf16\n")
    assert cpu_dtype("bfloat16", listed) == "bfloat16"
    listed.write_text("flags\t\t: fpu sse2 avx2\n")
    assert cpu_dtype("bfloat16", listed) == "float32"
    assert cpu_dtype("bfloat16", tmp_path / "absent") == "float32"
    assert cpu_dtype("float32", listed) == "float32"


def test_hours_are_those_of_a_card_for_each_shard() -> None:
    one, eight = (load(name) for name in ("paper", "paper-8gpu"))
    assert list(hours(one)) == ["one 80 GB GPU"] and list(hours(eight)) == ["8 x 80 GB GPUs"]
    (table,) = (line.split() for line in plan(eight).splitlines() if line.endswith("if they have all of them"))
    assert hours(eight)["8 x 80 GB GPUs"] == pytest.approx(float(table[1].replace(",", "")) * eight.generations / 3600, rel=0.01)


def test_parts_on_a_cpu_share_its_cores() -> None:
    by_rows = ["propose.groups=8", "learning.divide=rows"]
    (whole,), (parts,) = (hours(load("smoke", [*by_rows, *more])).values() for more in ([], ["engine.shards=2"]))
    assert parts == whole


def test_hours_have_a_price_only_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MACHINE_HOUR", "KWH", "CURRENCY", "WATTS"):
        monkeypatch.delenv(f"POPULORA_COST_{name}", raising=False)
    free, priced = load("smoke"), load("smoke", ["cost.machine_hour=2", "cost.currency=EUR", "cost.kwh=0.5", "cost.watts=200"])
    assert price_of(free, 3.0) is None and "money" not in plan(free)
    assert price_of(load("smoke", ["cost.kwh=0.5"]), 3.0) is None, "without watts, no energy is known in advance"
    assert price_of(priced, 3.0) == pytest.approx(3 * (2 + 0.1))
    for shards, machines in ((1, 1), (8, 1), (9, 2), (64, 8), (512, 24)):  # 8 cards in a machine, at most 192 with prompts
        many = load("paper-8gpu", [f"engine.shards={shards}", "cost.machine_hour=20"])
        assert price_of(many, 3.0) == 3 * machines * 20
        how = f"on {machines} machines, each at 20 an hour" if machines > 1 else ", at 20 an hour"
        assert plan(many).splitlines()[-1].endswith(how)
    on_cpu = load("smoke", ["cost.machine_hour=2", "engine.shards=64"])
    assert price_of(on_cpu, 3.0) == 6 and plan(on_cpu).splitlines()[-1].endswith(" on two CPU cores, at 2 an hour"), "one machine"
    assert list(hours(load("paper-8gpu", ["engine.shards=512"]))) == ["192 x 80 GB GPUs"]
    (needed,) = hours(priced).values()
    told = plan(priced).splitlines()[-1]
    assert told.startswith("money ") and told.endswith("EUR on two CPU cores, at 2 an hour and 200 W at 0.5 a kWh")
    assert needed > 0 and plan(priced).splitlines()[:-1] == plan(free).splitlines()
    monkeypatch.setenv("POPULORA_COST_MACHINE_HOUR", "4")
    assert price_of(free, 3.0) == 12.0


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        (["engine.kind=vllm", "learning.importance_cap=0"], True),
        (["engine.kind=vllm", "learning.importance_cap=2"], False),
        (["engine.kind=transformers", "learning.importance_cap=0"], False),
    ],
)
def test_vllm_without_importance_correction_is_advised_of_it(settings: list[str], advised: bool) -> None:
    config = load("paper", settings)
    assert ("start with learning.importance_cap=2" in uncorrected(config)) == advised
    assert ("\nadvice           learning.importance_cap=0: " in plan(config)) == advised


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (0.001, 0.01, "about 1 minute"),
        (0.12, 0.77, "7 to 46 minutes"),
        (0.5, 3.2, "30 minutes to 3.20 hours"),
        (26.0, 1815.2, "26 to 1,815 hours"),
    ],
)
def test_times_below_an_hour_are_in_minutes(least: float, most: float, text: str) -> None:
    assert span_text(least, most) == text
