"""What the files of a model's folder say about it, before anything loads it: whether it can be trained, and its prompt style.

Only small files are read. What cannot work is refused in one line that says what to do: these models load and would then fail
late, or compute something else than engine and trainer assume.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.config import ConfigError, RunConfig
from stages.core.prompts import compact, trace

LARGE = 2_800_000_000
"""Parameters from which a model is asked in a think/answer conversation: models called 3B have about that many."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
_HYBRID = (  # keys of configurations whose layers are not all full attention; transformers may derive `layer_types` from them
    "layers_block_type",
    "block_types",
    "hybrid_override_pattern",
    "ssm_cfg",
    "mamba_d_state",
    "state_size",
    "full_attention_interval",
    "linear_num_value_heads",
    "linear_attn_config",
    "attention_chunk_size",
    "attn_layer_period",
    "full_attn_idxs",
    "index_topk",
)
_LOGITS = {
    "final_logit_softcapping": 0,
    "attn_logit_softcapping": 0,
    "logits_scaling": 1,
    "logit_scale": 1,
}  # and what changes nothing
_LOADED_IN = ("load_in_4bit", "load_in_8bit")  # of bitsandbytes: with both off, nothing is quantized
_DROPOUT = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout")
_COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_BY_LENGTH = ("longrope", "su")  # rotary embeddings whose frequencies change with the longest position of a pass


@dataclass(frozen=True)
class ModelFolder:
    """A checkpoint that can be trained: its configuration, and what the choice of a prompt style depends on."""

    config: Mapping[str, Any]
    has_template: bool
    markers: str = ""
    """The style whose marker tokens the vocabulary has: compact or trace."""

    @property
    def parameters(self) -> int:
        """Parameters, as the dimensions of a dense decoder imply them."""
        found = self.config
        hidden, heads = int(found["hidden_size"]), int(found["num_attention_heads"])
        width = int(found.get("head_dim") or hidden // heads)
        attention = 2 * hidden * width * (heads + int(found.get("num_key_value_heads") or heads))
        feed_forward = 3 * hidden * int(found.get("intermediate_size") or 4 * hidden)
        embeddings = int(found["vocab_size"]) * hidden * (1 if found.get("tie_word_embeddings") else 2)
        return int(found["num_hidden_layers"]) * (attention + feed_forward) + embeddings

    @property
    def style(self) -> str:
        """The prompt style that `auto` means: that of a seed model's markers, azr for large instruct models, else document."""
        if self.markers:
            return self.markers
        return "azr" if self.has_template and self.parameters >= LARGE else "document"


def read_folder(folder: Path, window: int = 0) -> ModelFolder:
    """Return what the folder says. `window` is the configured one, 0 for the model's own. Raises ConfigError."""
    where = f"model.name: {folder}"
    config = _config(folder, where)
    _check_causal(config, where)
    _check_loading(config, where)
    _check_logits(config, where)
    _check_attention(config, window, where)
    _check_rotation(config, window, where)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(f"{where} has no tokenizer (tokenizer.json); copy the tokenizer files of the original model into it")
    vocabulary = _vocabulary(folder, where)
    rows = int(config.get("vocab_size") or 0)
    if vocabulary and max(vocabulary.values()) >= rows:
        raise ConfigError(
            f"{where}: the tokenizer has {max(vocabulary.values()) + 1} tokens, but the embedding has only {rows} rows; "
            "use the tokenizer that belongs to these weights, or resize the model's embedding"
        )
    marked = [name for name, style in (("trace", trace), ("compact", compact)) if set(style.MARKERS) <= vocabulary.keys()]
    return ModelFolder(config, _has_template(folder), marked[0] if marked else "")


def check_weights(folder: Path) -> None:
    """Raise ConfigError unless the folder has weights in the form that is loaded."""
    if not next(folder.glob("*.safetensors"), None):
        raise ConfigError(
            f"model.name: {folder} has no safetensors weights; convert the model with transformers' save_pretrained, or download "
            "it again with a connection"
        )


def check_style(config: RunConfig, found: ModelFolder) -> None:
    """Raise ConfigError if the model's vocabulary lacks the markers that the configured style writes."""
    style, own = config.model.style, found.markers
    if style not in ("compact", "trace") or style == own or (style, own) == ("compact", "trace"):
        return
    raise ConfigError(
        f"model.style: {style}: no tokens for its markers were found in {config.model.name}; model.style=auto means {found.style}"
    )


def check_lengths(config: RunConfig, found: ModelFolder) -> None:
    """Raise ConfigError if a completion as long as its limit leaves no room for a prompt in the window."""
    own = int(found.config.get("max_position_embeddings") or 1 << 62)
    window = min(config.engine.window or own, own)
    limits = {f"{group}.max_new_tokens": getattr(config, group).max_new_tokens for group in ("propose", "solve", "benchmark")}
    for setting, tokens in limits.items():
        if tokens >= window:
            raise ConfigError(
                f"{setting}: {tokens} tokens leave no room for a prompt: prompt and completion share a window of {window} "
                f"tokens; set it to {window // 4} or so"
            )


def _config(folder: Path, where: str) -> dict[str, Any]:
    file = folder / "config.json"
    if (folder / "adapter_config.json").is_file():  # with a config.json beside it, transformers would load adapter and base
        base = _json(folder / "adapter_config.json", where).get("base_model_name_or_path")
        named = f" ({base})" if base else ""
        raise ConfigError(f"{where} holds a PEFT adapter; give its base model{named} without it, or merge the adapter into it")
    if not file.is_file():
        if next(folder.glob("*.gguf"), None):
            raise ConfigError(f"{where} contains GGUF files, which cannot be trained; give the original safetensors checkpoint")
        raise ConfigError(
            f"{where} has no config.json; give a Hugging Face checkpoint with config.json and safetensors weights, not GGUF files"
        )
    return _json(file, where)


def _json(file: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {file.name} cannot be read: {str(error).splitlines()[0][:100]}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {file.name} is not a JSON object; give the folder of a Hugging Face checkpoint")
    return found


def _check_causal(config: Mapping[str, Any], where: str) -> None:
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or not any(name.endswith("ForCausalLM") for name in names):
        found = names[0] if names else config.get("model_type", "no architecture")
        raise ConfigError(f"{where} is not a causal language model ({found}); give a decoder, such as Qwen2.5-Coder")
    missing = [name for name in _COUNTS if not isinstance(config.get(name), int) or config[name] < 1]
    if missing:
        raise ConfigError(
            f"{where}: config.json does not state {', '.join(missing)}; give a Llama-like decoder, such as Qwen2.5-Coder"
        )


def _check_loading(config: Mapping[str, Any], where: str) -> None:
    """Refuse what transformers does not load as plain layers: quantized weights, and models that it does not know."""
    rule = config.get("quantization_config")
    if isinstance(rule, dict):
        method, flags = rule.get("quant_method", "unknown method"), [rule[name] for name in _LOADED_IN if name in rule]
        if any(flags) or not flags:
            raise ConfigError(f"{where} is quantized ({method}), which cannot be trained; give the original weights")
    kind, names = str(config.get("model_type", "")), [str(name) for name in config["architectures"]]
    table = _known_models()
    if not any(re.search(rf'"{re.escape(kind)}",\s*"{re.escape(name)}"', table) for name in names):
        raise ConfigError(
            f"{where}: this transformers has no {names[0]} of type {kind!r}; update transformers, or give another model: "
            "a model's custom code is never run"
        )


def _known_models() -> str:
    """Return the source of transformers' table of model types and classes: importing it would take seconds."""
    found = find_spec("transformers")
    places = (found.submodule_search_locations if found else None) or []
    return "".join((Path(place) / "models/auto/modeling_auto.py").read_text(encoding="utf-8") for place in places)


def _check_logits(config: Mapping[str, Any], where: str) -> None:
    """Refuse models that change logits behind the head or drop activations: the trainer's loss applies the head itself."""
    changed = [name for name, neutral in _LOGITS.items() if config.get(name) not in (None, neutral)]
    if changed:
        raise ConfigError(f"{where} scales or caps scores ({changed[0]}), which the trainer does not; give another model")
    dropped = [name for name in _DROPOUT if config.get(name)]
    if dropped:
        raise ConfigError(f"{where} has dropout ({dropped[0]} = {config[dropped[0]]}); set it to 0 in a copy's config.json")


def _check_attention(config: Mapping[str, Any], window: int, where: str) -> None:
    """Refuse layers that are no full attention over the window: engine and trainer assume full attention everywhere."""
    kinds = {str(kind) for kind in config.get("layer_types") or ()}
    hybrid = [name for name in _HYBRID if config.get(name)]
    hybrid += ["attn_type_list"] if set(config.get("attn_type_list") or [1]) != {1} else []
    if hybrid or kinds - {"full_attention", "sliding_attention"}:
        found = ", ".join(hybrid or sorted(kinds))
        raise ConfigError(
            f"{where} has hybrid or recurrent layers ({found}); give a model with full attention, such as Qwen2.5-Coder"
        )
    span = config.get("sliding_window")
    off = config.get("use_sliding_window") is False or kinds == {"full_attention"}
    if span and not off and int(span) < _reach(config, window):
        raise ConfigError(
            f"{where} has sliding-window attention over {span} tokens; set engine.window to at most {span}, or give a model with "
            "full attention"
        )


def _check_rotation(config: Mapping[str, Any], window: int, where: str) -> None:
    """Refuse rotary frequencies that the longest text of a pass decides: a row would depend on the rows beside it."""
    rules = [found for name in ("rope_parameters", "rope_scaling") if isinstance(found := config.get(name), dict)]
    rules += [nested for rule in rules for nested in rule.values() if isinstance(nested, dict)]  # one per type of layer
    for rule in rules:
        span = rule.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        if (rule.get("rope_type") or rule.get("type")) in _BY_LENGTH and span and int(span) < _reach(config, window):
            raise ConfigError(
                f"{where} rotates positions in another way once a text of the batch is longer than {span} tokens; set "
                f"engine.window to at most {span}"
            )


def _reach(config: Mapping[str, Any], window: int) -> int:
    return min(window or 1 << 62, int(config.get("max_position_embeddings") or 1 << 62))


def _vocabulary(folder: Path, where: str) -> dict[str, int]:
    """Return the largest id of each token that the tokenizer's JSON files name; a tokenizer.model names none."""
    found: dict[str, int] = {}
    try:
        for token, number in _tokens(folder, where):
            found[token] = max(int(number), found.get(token, 0))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{where}: the tokenizer's files cannot be read: {str(error)[:100]}; copy those of the original model"
        ) from error
    return found


def _tokens(folder: Path, where: str) -> Iterator[tuple[str, Any]]:
    if (folder / "tokenizer.json").is_file():
        stored = _json(folder / "tokenizer.json", where)
        plain = (stored.get("model") or {}).get("vocab") or {}
        yield from plain.items() if isinstance(plain, dict) else ((one[0], number) for number, one in enumerate(plain))
        yield from ((one["content"], one["id"]) for one in stored.get("added_tokens") or ())
    elif (folder / "vocab.json").is_file():
        yield from _json(folder / "vocab.json", where).items()
    if (folder / "added_tokens.json").is_file():
        yield from _json(folder / "added_tokens.json", where).items()
    if (folder / "tokenizer_config.json").is_file():
        added = _json(folder / "tokenizer_config.json", where).get("added_tokens_decoder") or {}
        yield from ((one["content"], number) for number, one in added.items())


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    file = folder / "tokenizer_config.json"
    return file.is_file() and bool(_json(file, f"model.name: {folder}").get("chat_template"))
