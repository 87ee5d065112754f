"""PEFT folders as the target of a benchmark: the scale that PEFT would use, or a refusal; and files that cannot be read."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from flows.benchmarks.targets import LONGEST, _folder, _peft, of_completions
from flows.cli import main
from flows.config import ConfigError
from flows.storage import open_store

PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def folder(tmp_path: Path, **settings: Any) -> Path:
    weights = {f"{PREFIX}.lora_A.weight": np.ones((4, 8), np.float32), f"{PREFIX}.lora_B.weight": np.ones((8, 4), np.float32)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(described | settings))
    return tmp_path


def test_the_scale_is_that_of_peft(tmp_path: Path) -> None:
    from peft import PeftConfig
    from peft.tuners.lora import Linear
    from torch import nn

    for settings in ({}, {"use_rslora": True}):
        _, rank, alpha, targets, _ = _peft(folder(tmp_path, **settings))
        config = PeftConfig.from_pretrained(str(tmp_path))
        layer = Linear(nn.Linear(8, 8), "default", config=config, r=4, lora_alpha=6)
        assert (rank, targets) == (4, ("q_proj",)) and alpha / rank == pytest.approx(layer.scaling["default"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("alpha_pattern", {"q_proj": 9}),
        ("rank_pattern", {"q_proj": 2}),
        ("modules_to_save", ["lm_head"]),
        ("layers_to_transform", [0]),
        ("bias", "all"),
    ],
)
def test_what_would_be_ignored_is_refused(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"not a PEFT folder .*: {name} is not supported, only plain LoRA"):
        _peft(folder(tmp_path, **{name: value}))


def test_a_long_name_of_a_folder_ends_with_a_digest_of_all_of_it() -> None:
    base = "Qwen2.5-Coder-0.5B-Instruct-" + "-".join(f"laptop-s{number}-g0059.c0ffee" for number in range(5))
    names = {_folder(base), _folder(base + "x"), _folder(base[:-1])}
    assert len(names) == 3 and all(len(name) == LONGEST for name in names)
    assert _folder("smoke s0/g1") == "smoke-s0-g1"


CORRUPT = gzip.compress(b"", mtime=0)[:10] + b"\xff" * 10
"""A gzip file whose head is whole: what follows begins with a kind of block that there is not."""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", b"\xff\xfe"),
        ("a.jsonl.gz", b"no gzip"),
        ("c.jsonl.gz", CORRUPT),
        ("a.parquet", b"none"),
        ("b.jsonl", b'{"problem_id": ["x"]}'),
    ],
)
def test_a_file_of_completions_that_cannot_be_read_is_named(name: str, data: bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"^{name}"):
        of_completions(open_store(str(tmp_path / "runs")), file, [])


def test_a_suite_s_file_that_is_corrupt_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "HumanEvalPlus.jsonl.gz").write_bytes(CORRUPT)
    (tmp_path / "made.jsonl").write_text("")
    words = ["--suite", "humaneval-plus", "--data", str(tmp_path), "--completions", str(tmp_path / "made.jsonl")]
    assert main(["benchmark", *words, "--store", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("populora: HumanEvalPlus.jsonl.gz: cannot be read: Error -3 while decompressing")
        and said.count("\n") == 1
    )
