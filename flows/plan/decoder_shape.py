"""The dimensions of a decoder, from a model's folder or its known name: what its cost and memory follow from."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.config import PROJECT, ConfigError


@dataclass(frozen=True)
class DecoderShape:
    """The dimensions of a decoder that determine its cost."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool
    window: int = 32768
    head_dim: int = 0  # where it is not hidden / heads, as in Qwen3

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def attention(self) -> int:
        """Width of all attention heads."""
        return self.head * self.heads

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer of one block."""
        key_value = self.head * self.key_value_heads
        return {
            "q_proj": (self.hidden, self.attention),
            "k_proj": (self.hidden, key_value),
            "v_proj": (self.hidden, key_value),
            "o_proj": (self.attention, self.hidden),
            "gate_proj": (self.hidden, self.feed_forward),
            "up_proj": (self.hidden, self.feed_forward),
            "down_proj": (self.feed_forward, self.hidden),
        }

    @property
    def parameters(self) -> int:
        """Parameters of the base model."""
        blocks = self.layers * sum(a * b for a, b in self.linears().values())
        return blocks + self.vocabulary * self.hidden * (1 if self.tied else 2)


KNOWN = {
    "Qwen2.5-Coder-0.5B": DecoderShape(896, 24, 4864, 14, 2, 151936, True),
    "Qwen2.5-Coder-1.5B": DecoderShape(1536, 28, 8960, 12, 2, 151936, True),
    "Qwen2.5-Coder-3B": DecoderShape(2048, 36, 11008, 16, 2, 151936, True),
    "Qwen2.5-Coder-7B": DecoderShape(3584, 28, 18944, 28, 4, 152064, False),
}


def shape_of(name: str) -> DecoderShape | None:
    """Return the shape of a model folder or of a known name; None for an unknown name."""
    folder = Path(name) if Path(name).is_absolute() else PROJECT / name
    file = folder / "config.json"
    if file.is_file():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return DecoderShape(
                found["hidden_size"],
                found["num_hidden_layers"],
                found["intermediate_size"],
                found["num_attention_heads"],
                found["num_key_value_heads"],
                found["vocab_size"],
                bool(found.get("tie_word_embeddings")),
                int(found["max_position_embeddings"]),
                int(found.get("head_dim") or 0),
            )
        except (ValueError, KeyError) as error:
            raise ConfigError(f"model.name: {file} does not describe a decoder ({error})") from error
    return next((shape for key, shape in KNOWN.items() if name.split("/")[-1].startswith(key)), None)


def known_shape(name: str) -> DecoderShape | None:
    """Return the shape; None also for a model that says its dimensions in another way."""
    try:
        return shape_of(name)
    except ConfigError:
        return None


def adapter_parameters(shape: DecoderShape, targets: Iterable[str], rank: int) -> int:
    """Return the parameters of one adapter; targets that a decoder block does not have count nothing."""
    linears = shape.linears()
    return shape.layers * sum(rank * sum(linears[target]) for target in targets if target in linears)
