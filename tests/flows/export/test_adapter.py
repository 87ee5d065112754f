"""Exported adapters load in PEFT and transformers with the logits that training saw; merged models in transformers."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from flows.backend import Backend
from flows.config import ConfigError, RunConfig, dump, parse
from flows.export.adapter import described, export_adapter, merge_into
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import StoreRefused
from flows.store.file_store import FileStore
from stages.core.engines.hf_engine import load_model
from stages.core.lora.adapter import Adapter, Weights
from stages.core.lora.adapter_files import CONFIG_FILE, WEIGHTS_FILE, adapter_bytes
from stages.core.seed_model import seed_tokenizer
from stages.core.training.grouped_lora import attach
from tests.stages.core.training.test_grouped_lora import SIZES, TARGETS, random_weights

IDS = torch.arange(12).reshape(2, 6) % 31


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a bfloat16 checkpoint with a tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": 256})).bfloat16().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(seed_tokenizer.COMPACT.tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(seed_tokenizer.COMPACT.tokenizer_config(64)))
    return folder


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with one starting adapter."""
    config = RunConfig.model_validate({"model": {"name": str(base), "rank": 2, "alpha": 4}})
    store = FileStore(tmp_path_factory.mktemp("store"))
    lora = attach(AutoModelForCausalLM.from_pretrained(base), TARGETS, 2, 4, 1)
    with hold(store, "made") as epoch:
        made = Run(store, "made", epoch)
        made.describe(dump(config), {}, {})
        files = adapter_bytes(Adapter(random_weights(lora, 3), {}, 0), "tiny", 4)
        made.commit(
            "start", None, [], made.write_adapter("s0-start", files), versions={"base_model": Backend(config).model_digest()}
        )
        yield made


def expected(run: Run, base: Path) -> torch.Tensor:
    """Logits of the grouped layers, as the trainer computes them."""
    lora = attach(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), TARGETS, 2, 4, 1)
    lora.load([load(run.read_adapter("s0-start", ["adapter_model.safetensors"])["adapter_model.safetensors"])])
    with torch.no_grad(), lora.routed([2]):
        logits: torch.Tensor = lora.model(IDS).logits
    return logits


def test_a_peft_folder_loads_in_peft_and_transformers(run: Run, base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    line = export_adapter(run, "s0-start", tmp_path / "out", merge=False)
    assert "PEFT" in line and {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors"}  # fmt: skip
    by_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path / "out")
    by_transformers = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    by_transformers.load_adapter(str(tmp_path / "out"))
    for model in (by_peft, by_transformers):
        with torch.no_grad():
            torch.testing.assert_close(model(IDS).logits, expected(run, base), rtol=1e-4, atol=1e-5)


def test_a_merged_model_loads_in_transformers(run: Run, base: Path, tmp_path: Path) -> None:
    run.store.delete("made/adapters/s0-start/optimizer.safetensors")  # as retention does
    line = export_adapter(run, "s0-start", tmp_path / "out", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert merged.dtype == torch.bfloat16 and len(AutoTokenizer.from_pretrained(tmp_path / "out")) > 100
    with torch.no_grad():
        wrong = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(IDS).logits - expected(run, base)
        rounding = merged.float()(IDS).logits - expected(run, base)
    assert rounding.norm() < 0.1 * wrong.norm()
    kept = float(line.partition("kept ")[2].partition("%")[0])
    assert 90 < kept < 100


def test_an_adapter_is_not_merged_into_other_weights_of_the_same_shape(run: Run, base: Path, tmp_path: Path) -> None:
    file = base / "model.safetensors"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        with pytest.raises(ConfigError, match=r"have changed since run made began; .* bring those back"):
            export_adapter(run, "s0-start", tmp_path / "out", merge=True)
    finally:
        file.write_bytes(before)
    assert not (tmp_path / "out").exists()


def test_neither_a_merge_nor_a_run_loads_a_pickle_or_runs_code_of_the_base(run: Run, base: Path, tmp_path: Path) -> None:
    adapter = load(run.read_adapter("s0-start", ["adapter_model.safetensors"])["adapter_model.safetensors"])
    pickled, coded = (Path(shutil.copytree(base, tmp_path / name)) for name in ("pickled", "coded"))
    torch.save(load_file(base / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = json.loads((base / "config.json").read_text()) | {"model_type": "own", "auto_map": code}
    (coded / "config.json").write_text(json.dumps(config))
    (coded / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    loads: list[Callable[[str], object]] = [load_model, lambda folder: merge_into(folder, adapter, 2.0, tmp_path / "out")]
    for loads_from in loads:
        with pytest.raises(OSError, match="safetensors"):
            loads_from(str(pickled))
        with pytest.raises(ValueError, match="trust_remote_code"):
            loads_from(str(coded))
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()


def test_a_merge_checks_the_folder_of_the_base(run: Run, base: Path, tmp_path: Path) -> None:
    """With an adapter beside the base's own weights, transformers would load both."""
    extra, config = base / "adapter_config.json", parse(described(run)["config"])
    extra.write_text('{"base_model_name_or_path": "other"}')
    try:
        with hold(run.store, "beside") as epoch:
            other = Run(run.store, "beside", epoch)
            other.describe(dump(config), {}, {})
            refs = other.write_adapter("s0-start", run.read_adapter("s0-start", [CONFIG_FILE, WEIGHTS_FILE]))
            other.commit("start", None, [], refs, versions={"base_model": Backend(config).model_digest()})
        with pytest.raises(ConfigError, match="holds a PEFT adapter"):
            export_adapter(other, "s0-start", tmp_path / "out", merge=True)
    finally:
        extra.unlink()
    assert not (tmp_path / "out").exists()


def test_the_card_says_where_the_weights_come_from(run: Run, tmp_path: Path) -> None:
    export_adapter(run, "s0-start", tmp_path / "out", merge=False)
    card = (tmp_path / "out" / "README.md").read_text()
    sha256 = run.history.find("adapters/s0-start/adapter_model.safetensors").sha256
    start = run.manifest("start")
    assert start is not None
    for part in (
        start.versions["base_model"],
        sha256,
        "rank 2, alpha 4",
        "`s0-start`: start",
        "These weights were not scored",
        "--max-lora-rank 8",
    ):
        assert part in card
    assert str(tmp_path) not in card


def test_nothing_is_overwritten_and_unknown_adapters_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreRefused, match="already exists"):
        export_adapter(run, "s0-start", tmp_path, merge=False)
    with pytest.raises(StoreRefused, match="no adapter s9"):
        export_adapter(run, "s9", tmp_path / "new", merge=False)
    assert not (tmp_path / "new").exists()


def test_a_folder_beside_the_merged_weights_keeps_its_permissions(base: Path, tmp_path: Path, tiny_change: Weights) -> None:
    """Such as `additional_chat_templates`, which transformers writes for a tokenizer with several."""
    beside = tmp_path / "additional_chat_templates"
    beside.mkdir(mode=0o755)
    merge_into(str(base), tiny_change, 2.0, tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop(beside.name) == 0o755 and set(modes.values()) == {modes["config.json"]}


@pytest.fixture
def tiny_change(base: Path) -> dict[str, np.ndarray]:
    """Weights of an adapter whose change is below the resolution of bfloat16."""
    lora = attach(AutoModelForCausalLM.from_pretrained(base), TARGETS, 2, 4, 1)
    return {name: (array * 1e-3).astype(np.float32) for name, array in random_weights(lora, 3).items()}


def test_small_changes_that_bfloat16_cannot_hold_are_reported(base: Path, tmp_path: Path, tiny_change: Weights) -> None:
    kept, written = merge_into(str(base), tiny_change, 2.0, tmp_path)
    assert kept < 0.5 and written == "bfloat16"


def test_a_merged_model_in_float32_keeps_every_change(base: Path, tmp_path: Path, tiny_change: Weights) -> None:
    for given in ({"dtype": "float32"}, {"trained": "float32"}):
        folder = tmp_path / next(iter(given))
        kept, written = merge_into(str(base), tiny_change, 2.0, folder, **given)
        assert kept > 0.99 and written == "float32"
        assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.float32
    assert merge_into(str(base), tiny_change, 2.0, tmp_path / "half", "float16", "float32")[1] == "float16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.float16


def test_a_merge_that_loses_most_of_the_change_warns_and_names_the_option(run: Run, tmp_path: Path, tiny_change: Weights) -> None:
    write_small = run.write_adapter("s1-start", adapter_bytes(Adapter(tiny_change, {}, 0), "tiny", 4))
    run.commit("propose", 0, [], write_small)
    _, warning = export_adapter(run, "s1-start", tmp_path / "coarse", merge=True).split("\n")
    assert warning.startswith("warning    bfloat16 is too coarse") and warning.endswith("; --dtype float32 keeps all of it")
    assert "\n" not in export_adapter(run, "s1-start", tmp_path / "fine", merge=True, dtype="float32")
    assert "rounding to float32 kept 100.0% of its change" in (tmp_path / "fine" / "README.md").read_text()


def test_files_of_a_merged_model_have_the_permissions_of_the_umask(base: Path, tmp_path: Path, tiny_change: Weights) -> None:
    before = os.umask(0o027)
    try:
        merge_into(str(base), tiny_change, 2.0, tmp_path / "out")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()} == {0o640}
