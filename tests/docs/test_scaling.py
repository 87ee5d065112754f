"""docs/scaling.md shows what the plan computes."""

import re

import pytest

from flows.config import PROJECT, load
from flows.plan.card_rates import CARDS, TWO_CORES
from flows.plan.decoder_shape import KNOWN
from flows.plan.estimate import MEAN, hours, plan, rounded
from flows.plan.stage_plan import generation_seconds, spread, stage_times, update_rows, workload
from flows.plan.update_flops import update_flops

PAGE = (PROJECT / "docs" / "scaling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["paper", "one-gpu"])
def test_the_tables_are_the_plan(name: str) -> None:
    shown = PAGE.split(f"`populora run -c {name} --dry-run`")[-1].split("```")[1].strip()
    assert shown in plan(load(name, []))


def test_the_row_of_an_update_beside_the_rollouts_is_the_plan_s() -> None:
    shown = PAGE.split("--dry-run --set learning.off_policy_steps=1`")[-1].split("```")[1].strip("\n")
    assert shown in plan(load("paper", ["learning.off_policy_steps=1"]))


def test_the_table_of_memory_is_the_plan() -> None:
    heading, *moments = re.findall(r"^\| (.+) \|$", PAGE.split("## Planned memory")[1].split("\n## ")[0], flags=re.MULTILINE)
    columns = [column.split(", ") for column in heading.split(" | ")[1:]]
    assert len(columns) == 4 and len(moments) == 6
    plans = {name: plan(load(name, [])) for name in {name for name, _ in columns}}
    for row in moments:
        moment, *peaks = row.split(" | ")
        for (name, card), peak in zip(columns, peaks, strict=True):
            assert re.search(rf"^memory {card} +{moment} {peak} GiB ", plans[name], flags=re.MULTILINE), (name, card, moment)
    assert "fits             1 x 24 GB, 1 x 80 GB" in plans["one-gpu"] and "fits             1 x 80 GB" in plans["paper"]


def test_the_costs_follow_from_the_seconds() -> None:
    config, shape = load("paper", []), KNOWN["Qwen2.5-Coder-7B"]
    rows = re.findall(r"^\| (\d+) \| ([\d,]+) \| ([\d,.]+) \|", PAGE, flags=re.MULTILINE)
    assert [int(cards) for cards, _, _ in rows] == [1, 8, 64, 512]
    for cards, seconds, spent in rows:
        planned = generation_seconds(stage_times(spread(config, int(cards)), shape, CARDS[-1], int(cards), MEAN))
        assert seconds == f"{planned:,.0f}" and spent == f"{int(cards) * planned / 3600:,.2f}"


def test_the_comparison_shows_the_plan() -> None:
    times = stage_times(load("laptop", []), KNOWN["Qwen2.5-Coder-0.5B"], TWO_CORES["float32"], 1, MEAN)
    planned = {time.stage: f"{time.seconds:.0f}" for time in times}
    for stage, seconds in re.findall(r"^\| (propose|solve|update) \| (\d+) \|", PAGE, flags=re.MULTILINE):
        assert planned[stage] == seconds


def test_the_table_of_an_update_is_its_arithmetic() -> None:
    shape = KNOWN["Qwen2.5-Coder-7B"]
    rows = re.findall(r"^\| (\d,\d+)[^|]* \| (yes|no) \| ([\d.]+) M \|((?: \d+ \|){5}) ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    assert [(tokens, again) for tokens, again, *_ in rows] == [
        ("1,024", "yes"),
        ("4,096", "yes"),
        ("1,024", "no"),
        ("4,096", "no"),
    ]
    for tokens, again, positions, parts, seconds in rows:
        size = tokens.replace(",", "")
        config = load("paper", [f"learning.row_tokens={size}", f"learning.gradient_checkpointing={str(again == 'yes').lower()}"])
        packed = update_rows(config, workload(config, MEAN))
        flops = update_flops(config, shape, packed)
        values = (flops.blocks, flops.adapters, flops.attention, flops.head, flops.total)
        assert positions == f"{sum(one.positions for one in packed) / 1e6:.1f}"
        assert parts.split(" |")[:5] == [f" {value / 1e15:.0f}" for value in values]
        [update] = [one for one in stage_times(config, shape, CARDS[-1], 1, MEAN) if one.stage == "update"]
        assert seconds == f"{update.seconds:,.0f}"


def test_the_hours_of_a_first_run_are_the_plan_s() -> None:
    page = (PROJECT / "docs" / "first-real-run.md").read_text(encoding="utf-8")
    table = page.split("| seconds of a generation | hours of the run |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 4
    name = ""
    for row in rows:
        name = row[0].strip("`") if len(row) == 4 else name
        machine, seconds, ran = row[-3:]
        config, [size] = load(name, []), re.findall(r"(\d+) GB", machine)
        [(_, most)] = [found for found in hours(config).items() if f"{size} GB" in found[0]]
        [(_, usual)] = [found for found in hours(config, MEAN).items() if f"{size} GB" in found[0]]
        assert ran == f"{rounded(usual)} to {rounded(most)}", name
        assert seconds == f"{usual * 3600 / config.generations:,.0f} to {most * 3600 / config.generations:,.0f}", name
