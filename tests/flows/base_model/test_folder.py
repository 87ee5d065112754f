"""A model that cannot be trained is refused in one line that says what to do; `auto` chooses a style by a folder's files."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flows.backend import Backend
from flows.base_model.folder import LARGE, check_lengths, check_style, read_folder
from flows.base_model.hub import local_folder, pinned, style_of
from flows.cli import main
from flows.config import PROJECT, RUNS, ConfigError, apply, load
from flows.experiments.spec import planned, read
from stages.core.seed_model import seed_tokenizer

SEED = PROJECT / "infra/models/seed"
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 8,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "use_sliding_window": False,
}


def model(folder: Path, template: bool = False, tokens: int = 8, **changed: Any) -> Path:
    """A folder with the small files of a checkpoint."""
    folder.mkdir(exist_ok=True)
    config = {name: value for name, value in (QWEN | changed).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"t{number}": number for number in range(tokens)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    settings = {"chat_template": "{{ messages }}"} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "not causal": ({"architectures": ["BertForMaskedLM"]}, r"is not a causal language model \(BertForMaskedLM\); give a decoder"),
    "no architecture": ({"architectures": None}, r"is not a causal language model \(qwen2\)"),
    "encoder and decoder": ({"is_encoder_decoder": True}, "is not a causal language model"),
    "many modes": ({"architectures": ["Qwen2VLForConditionalGeneration"]}, "is not a causal language model"),
    "other names": ({"hidden_size": None}, "config.json does not state hidden_size; give a Llama-like decoder"),
    "sliding": ({"use_sliding_window": True}, "sliding-window attention over 4096 tokens; set engine.window to at most 4096"),
    "always sliding": ({"use_sliding_window": None}, "sliding-window attention over 4096 tokens"),
    "some layers slide": (
        {"use_sliding_window": None, "layer_types": ["full_attention", "sliding_attention"]},
        "sliding-window attention",
    ),
    "rotation by length": (
        {"rope_scaling": {"type": "su", "long_factor": [1.0]}, "original_max_position_embeddings": 4096},
        "in another way once a text of the batch is longer than 4096 tokens; set engine.window to at most 4096",
    ),
    "the same, as newer files say it": (
        {"rope_parameters": {"full_attention": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}},
        "longer than 4096 tokens",
    ),
    "linear layers": (
        {"layer_types": ["linear_attention", "full_attention"]},
        r"hybrid or recurrent layers \(full_attention, linear",
    ),
    "linear layers by their interval": (
        {"full_attention_interval": 4},
        r"hybrid or recurrent layers \(full_attention_interval\)",
    ),
    "attention in chunks": ({"attention_chunk_size": 8192}, "hybrid or recurrent layers"),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, r"is quantized \(gptq\), which cannot be trained; give the"),
    "custom code": (
        {"model_type": "acme", "auto_map": {"AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM"}},
        "this transformers has no Qwen2ForCausalLM of type 'acme'; update transformers, or give another model",
    ),
    "no type": ({"model_type": None}, "this transformers has no Qwen2ForCausalLM of type ''"),
    "an unknown class of a known type": ({"architectures": ["AcmeForCausalLM"]}, "has no AcmeForCausalLM of type 'qwen2'"),
    "capped logits": ({"final_logit_softcapping": 30.0}, r"scales or caps scores \(final_logit_softcapping\)"),
    "scaled logits": ({"logits_scaling": 8.0}, r"scales or caps scores \(logits_scaling\)"),
    "dropout": ({"attention_dropout": 0.1}, r"has dropout \(attention_dropout = 0.1\); set it to 0"),
    "some layers are linear": ({"attn_type_list": [1, 0]}, r"hybrid or recurrent layers \(attn_type_list\)"),
    "a count in words": ({"vocab_size": "many"}, "config.json does not state vocab_size"),
    "state spaces": ({"mamba_d_state": 16}, r"hybrid or recurrent layers \(mamba_d_state\)"),
    "more tokens than rows": (
        {"vocab_size": 7},
        "the tokenizer has 8 tokens, but the embedding has only 7 rows; use the tokenizer",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_unfit_model_is_refused_with_what_to_do(case: str, tmp_path: Path) -> None:
    changed, message = UNFIT[case]
    with pytest.raises(ConfigError, match=message) as refused:
        read_folder(model(tmp_path / "m", **changed))
    assert str(refused.value).startswith(f"model.name: {tmp_path / 'm'}") and "\n" not in str(refused.value)


@pytest.mark.parametrize("case", ["not causal", "sliding", "linear layers", "quantized", "more tokens than rows"])
def test_a_run_of_an_unfit_model_writes_nothing(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed, message = UNFIT[case]
    folder, store = model(tmp_path / "m", **changed), tmp_path / "store"
    assert main(["run", "--set", f"model.name={folder}", "--store", str(store)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert not [file for file in store.rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    ("file", "stored"),
    [
        ("vocab.json", {"a": 8}),
        ("added_tokens.json", {"t1": 8}),
        ("added_tokens.json", {"<more>": 8}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"8": {"content": "<more>"}}}),
    ],
)
def test_a_token_without_a_row_is_found_in_each_file_that_names_tokens(file: str, stored: dict[str, Any], tmp_path: Path) -> None:
    folder = model(
        tmp_path / "m", auto_map={"AutoConfig": "configuration_qwen2.Qwen2Config"}
    )  # a known model's own code is unused
    assert read_folder(folder)
    if file == "vocab.json":
        (folder / "tokenizer.json").unlink()
    (folder / file).write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="the tokenizer has 9 tokens, but the embedding has only 8 rows"):
        read_folder(folder)
    (folder / file).write_text(json.dumps({"a": "b", "added_tokens_decoder": {"8": "c"}}))
    with pytest.raises(ConfigError, match=r"the tokenizer's files cannot be read: .*; copy those of the original model"):
        read_folder(folder)


def test_a_window_inside_the_sliding_one_is_full_attention(tmp_path: Path) -> None:
    sliding = model(tmp_path / "m", use_sliding_window=None)
    assert read_folder(sliding, window=4096).config["sliding_window"] == 4096
    with pytest.raises(ConfigError, match="sliding-window"):
        read_folder(sliding, window=4097)
    plain = {"load_in_4bit": False, "load_in_8bit": False, "quant_method": "bitsandbytes"}
    for other in ({"quantization_config": plain}, {"attn_type_list": [1, 1]}, {"logits_scaling": 1, "attention_dropout": 0.0}):
        assert read_folder(model(tmp_path / "full", use_sliding_window=None, sliding_window=None, **other))
    for full in ({"sliding_window": None}, {"sliding_window": 32768}, {"layer_types": ["full_attention"] * 2}):
        assert read_folder(model(tmp_path / "full", use_sliding_window=None, **full))


def test_a_window_inside_the_first_length_has_one_rotation(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert read_folder(model(tmp_path / "m", rope_scaling=rope), window=4096)
    with pytest.raises(ConfigError, match=r"engine\.window"):
        read_folder(model(tmp_path / "m", rope_scaling=rope), window=4097)
    assert read_folder(model(tmp_path / "m", rope_scaling=rope | {"rope_type": "yarn"}))


FOLDERS = {
    "adapter": (
        {"adapter_config.json": '{"base_model_name_or_path": "acme/base"}'},
        r"holds a PEFT adapter; give its base model \(acme/base\) without it",
    ),
    "adapter beside a configuration": (
        {"adapter_config.json": "{}", "config.json": json.dumps(QWEN), "tokenizer.json": "{}", "adapter_model.safetensors": ""},
        "holds a PEFT adapter; give its base model without it, or merge the adapter into it",
    ),
    "gguf": ({"model-q8.gguf": "GGUF"}, "contains GGUF files, which cannot be trained; give the original safetensors checkpoint"),
    "nothing": (
        {"model.safetensors": ""},
        "has no config.json; give a Hugging Face checkpoint with config.json and",
    ),
    "no json": ({"config.json": "{"}, "config.json cannot be read: "),
    "a list": ({"config.json": "[]"}, "config.json is not a JSON object"),
    "no weights": (
        {"config.json": json.dumps(QWEN), "tokenizer.model": "", "pytorch_model.bin": ""},
        "has no safetensors weights; convert the model",
    ),
    "no tokenizer": ({"config.json": json.dumps(QWEN)}, r"has no tokenizer \(tokenizer.json\); copy the tokenizer files"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_no_model_is_refused_by_the_run_before_anything_is_written(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, message = FOLDERS[case]
    folder, store = tmp_path / "given", tmp_path / "store"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    assert main(["run", "--set", f"model.name={folder}", "--set", "model.style=document", "--store", str(store)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert not [file for file in store.rglob("*") if file.is_file()]
    with pytest.raises(ConfigError, match=message):
        Backend(apply({"model": {"name": str(folder)}}, [])).check()


def test_a_gguf_file_or_another_file_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("model.gguf", "is a GGUF file, which cannot be trained; give the folder"),
        ("model.bin", "is a file; give the"),
    ):
        (tmp_path / name).write_text("")
        with pytest.raises(ConfigError, match=message):
            local_folder(str(tmp_path / name))
    assert main(["try-prompts", str(tmp_path / "model.gguf")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_auto_tells_the_two_vocabularies_of_seed_models_apart(tmp_path: Path) -> None:
    for name, vocabulary in (("trace", seed_tokenizer.TRACE), ("compact", seed_tokenizer.COMPACT)):
        folder = model(tmp_path / name, vocab_size=216)
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary.tokenizer_json()))
        auto = apply({"model": {"name": str(folder)}}, [])
        assert read_folder(folder).style == style_of(auto) == name
        assert type(Backend(auto).style()).__name__ == f"{name.title()}Prompts"


def test_auto_chooses_by_markers_template_and_size_and_a_run_keeps_the_choice(tmp_path: Path) -> None:
    large = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    assert read_folder(SEED).style == "compact" and read_folder(SEED).parameters == 3_463_168
    assert read_folder(model(tmp_path / "small", template=True)).style == "document"
    assert read_folder(model(tmp_path / "base", **large)).style == "document"
    found = read_folder(model(tmp_path / "large", template=True, **large))
    assert (found.style, found.parameters > LARGE) == ("azr", True)
    auto = apply({"model": {"name": str(tmp_path / "large")}}, [])
    assert auto.model.style == "auto" and style_of(auto) == pinned(auto).model.style == "azr"
    shutil.rmtree(tmp_path / "large")
    known = {"config": {"model": {"style": "chat"}}}
    assert (
        pinned(auto.model_copy(update={"model": auto.model.model_copy(update={"name": str(SEED)})}), known).model.style == "chat"
    )
    chosen = apply({"model": {"style": "document"}}, [])
    assert pinned(chosen) is chosen and style_of(chosen) == "document"


def test_a_new_run_is_refused_where_its_model_is_and_not_elsewhere(tmp_path: Path) -> None:
    unfit = apply({"model": {"name": str(model(tmp_path / "m", use_sliding_window=True)), "style": "document"}}, [])
    with pytest.raises(ConfigError, match="sliding-window"):
        pinned(unfit)
    assert pinned(unfit, elsewhere=True) is unfit  # whoever has the model checks it
    assert pinned(unfit, {"config": {"model": {"style": "document"}}}) is unfit  # it has begun


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model.style: chat: infra/models/seed: the tokenizer has no chat template; use document"
    ):
        Backend(apply({"model": {"style": "chat"}}, [])).style()


def test_a_style_of_markers_needs_a_vocabulary_that_has_them(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    message = f"model.style: trace: no tokens for its markers were found in {folder}; model.style=auto means document"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_style(apply({"model": {"name": str(folder), "style": "trace"}}, []), read_folder(folder))
    seed = load("smoke", ["model.style=trace"])
    with pytest.raises(ConfigError, match="auto means compact"), closing(Backend(seed)) as backend:
        backend.check_run()
    for name in ("smoke", "reasoner"):
        check_style(load(name), read_folder(PROJECT / load(name).model.name))
    check_style(load("reasoner", ["model.style=compact"]), read_folder(PROJECT / "infra/models/reasoner"))


@pytest.mark.parametrize("setting", ["propose.max_new_tokens", "solve.max_new_tokens", "benchmark.max_new_tokens"])
def test_a_completion_must_leave_room_for_a_prompt(setting: str) -> None:
    with pytest.raises(ConfigError) as refused, closing(Backend(load("smoke", [f"{setting}=1024"]))) as backend:
        backend.check_run()
    expected = f"{setting}: 1024 tokens leave no room for a prompt: prompt and completion share a window of 1024 tokens; "
    assert str(refused.value) == expected + "set it to 256 or so"
    with pytest.raises(ConfigError, match="share a window of 256 tokens; set it to 64 or so"):
        check_lengths(load("smoke", ["engine.window=256", f"{setting}=256"]), read_folder(SEED))


def test_every_shipped_run_and_experiment_leaves_room_for_a_prompt() -> None:
    experiments = sorted((PROJECT / "infra/experiments").glob("*.toml"))
    configs = [load(file.stem) for file in sorted(RUNS.glob("*.toml"))]
    configs += [one.config for file in experiments for one in planned(read(file))]
    shipped = [config for config in configs if (PROJECT / config.model.name).is_dir()]
    assert {Path(config.model.name).name for config in shipped} == {"seed", "reasoner"}
    for config in shipped:
        check_lengths(config, read_folder(PROJECT / config.model.name))
