"""The example of docs/experiments.md is an experiment that would start, and its table names every key."""

import re
from pathlib import Path

from flows.config import PROJECT
from flows.experiments.spec import Arm, Experiment, Primary, planned, read

DOC = (PROJECT / "docs" / "experiments.md").read_text(encoding="utf-8")


def test_the_example_is_planned_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text(re.findall(r"```toml\n(.+?)```", DOC, re.DOTALL)[0])
    runs = {one.run_id: one.config for one in planned(read(tmp_path / "pay.toml"))}
    assert sorted(runs) == [
        *("pay-form-s0", "pay-learnable-s0", "pay-learnable-s1", "pay-learnable-s2"),
        *("pay-paper-s0", "pay-paper-s1", "pay-paper-s2"),
    ]
    assert [runs[f"pay-{arm}-s0"].reward.rule for arm in ("learnable", "paper", "form")] == ["learnable", "populora", "form"]
    assert {config.threads for config in runs.values()} == {1}


def test_the_table_names_every_key() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", DOC, re.MULTILINE)
    named = {key for row in rows for key in re.findall(r"`([\w.]+)`", row)}
    fields = set(Experiment.model_fields) - {"arms", "primary"}
    assert named == fields | {f"arms.{key}" for key in Arm.model_fields} | {f"primary.{key}" for key in Primary.model_fields}
