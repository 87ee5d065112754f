"""What the pages and the experiments say about settings and figures is what configurations, formulas and measurements hold."""

import json
import re

import pytest

from flows.config import PROJECT, RUNS, RunConfig, differences, dump, load
from flows.experiments.spec import planned, read
from stages.core.method.gates import GATES

DOCS = PROJECT / "docs"
PRESETS = {file.stem: dump(load(file.stem)) for file in sorted(RUNS.glob("*.toml"))}
TABLE = (DOCS / "method.md").read_text().split("## Where settings differ on purpose")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `([a-z_]+)\.([a-z_]+)` \| `([^`]+)` \| (.*?) \|", TABLE, flags=re.MULTILINE)


def arm(file: str, name: str) -> RunConfig:
    described = planned(read(PROJECT / "infra" / "experiments" / file))
    return next(one.config for one in described if one.arm == name)


@pytest.mark.parametrize(("group", "key", "default", "elsewhere"), ROWS, ids=lambda text: text[:20])
def test_a_setting_is_what_the_table_says_in_every_configuration(group: str, key: str, default: str, elsewhere: str) -> None:
    assert dump(RunConfig())[group][key] == json.loads(default)
    others: dict[str, object] = {}
    for value, *names in (re.findall(r"`([^`]+)`", part) for part in elsewhere.split("; ") if "`" in part):
        others |= dict.fromkeys(names, json.loads(value))
    assert {name: config[group][key] for name, config in PRESETS.items() if config[group][key] != json.loads(default)} == others


def test_every_point_is_in_the_table() -> None:
    named = {f"{group}.{key}" for group, key, _, _ in ROWS}
    assert len(ROWS) == TABLE.count("\n| `") and {"evolution.min_age", "learning.importance_cap", "benchmark.members"} <= named


def test_the_single_agent_of_the_size_experiment_trains_as_azr_does() -> None:
    alike = set(differences(PRESETS["single"], PRESETS["azr"]))
    assert alike == set(differences(dump(arm("size.toml", "single")), dump(arm("size.toml", "azr"))))
    ours = dump(arm("size.toml", "azr"))
    for key in alike:
        group, name = key.split(".")
        assert ours[group][name] == PRESETS["azr"][group][name], key


def test_all_task_gates_are_all() -> None:
    assert set(arm("parts.toml", "gated").reward.gates) == set(GATES) - {"repeated"}


def test_retention_is_off_where_the_page_says() -> None:
    text = (DOCS / "storage.md").read_text().split("## Retention and forks")[1].split("Where it is on")[0]
    assert set(re.findall(r"`([a-z-]+)`", text)) == {name for name, config in PRESETS.items() if not config["retention"]["on"]}


def test_the_churn_trap_has_its_table_and_the_command_that_makes_it() -> None:
    text = (DOCS / "evolution.md").read_text().split("## The churn trap")[1].split("\n## ")[0]
    assert "SIMULATE" not in text and ".venv/bin/populora simulate" in text
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("| ") and " ± " in line]
    rows = [[cell.split(" ± ")[0] for cell in line.split(" | ")] for line in lines]
    culled = {name: float(share) for name, share, *_ in rows}
    assert len(rows) == 7 and culled["fresh child ratings, kappa = 3 (as published)"] > 0.8
    assert culled["this configuration"] == culled["inherited child ratings, kappa = 3"] < 0.25


def test_sizing_counts_the_tasks_and_seconds_that_were_measured() -> None:
    text = (DOCS / "operations.md").read_text()
    sizing, measured = text.split("## Sizing")[1].split("\n## ")[0], text.split("## What orchestration costs")[1]
    (milliseconds,) = re.findall(r"tasks, (\d+) ms each", sizing)
    assert f"{milliseconds} ms each" in measured
    rows = [line.strip("| ").split(" | ") for line in sizing.splitlines() if re.match(r"\| \d", line)]
    for _, members, *_, prefect in rows:
        tasks = 11 + int(members) + 3 * int(members) // 2
        seconds = f" ({round(tasks * int(milliseconds) / 1000)} s)" if tasks > 100 else ""
        assert prefect == f"{tasks}{seconds}"


def test_the_readme_quotes_what_was_measured() -> None:
    readme = (PROJECT / "README.md").read_text().split("## Does it learn?")[1].split("\n## ")[0]
    quad = (DOCS / "evidence" / "analysis.txt").read_text().split("single:")[0]
    found = [re.search(rf"after +{trained} +greedy +formed +([\d.]+)% +right of those +([\d.]+)%", quad) for trained in (0, 60)]
    for one in found:
        assert one is not None and all(f"{share} %" in readme for share in one.groups())
