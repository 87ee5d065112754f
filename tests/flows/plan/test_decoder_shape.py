"""The dimensions of a decoder, as a model's folder says them."""

import json
from pathlib import Path

import pytest

from flows.plan.decoder_shape import KNOWN, DecoderShape, adapter_parameters, shape_of
from flows.plan.memory_plan import cache_bytes

QWEN3_SMALL = DecoderShape(1024, 28, 3072, 16, 8, 151936, True, 40960, 128)  # 0.6B
QWEN3 = DecoderShape(2560, 36, 9728, 32, 8, 151936, True, 40960, 128)  # 4B


@pytest.mark.parametrize(("shape", "parameters"), [(QWEN3_SMALL, 596.0e6), (QWEN3, 4022.5e6)])
def test_heads_with_a_width_of_their_own_count_as_wide_as_they_are(shape: DecoderShape, parameters: float) -> None:
    assert shape.parameters == pytest.approx(parameters, rel=1e-3)
    assert cache_bytes(shape, 2) == 2 * shape.layers * 8 * 128 * 2
    linears, outputs = shape.linears(), shape.heads * 128
    assert linears["q_proj"] == (shape.hidden, outputs) and linears["o_proj"] == (outputs, shape.hidden)
    assert adapter_parameters(shape, ["q_proj"], 4) == shape.layers * 4 * (shape.hidden + outputs)


def test_the_width_of_a_head_is_read_from_the_folder(tmp_path: Path) -> None:
    said = {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    }
    for own, width in (({}, 64), ({"head_dim": None}, 64), ({"head_dim": 128}, 128)):
        (tmp_path / "config.json").write_text(json.dumps(said | own))
        found = shape_of(str(tmp_path))
        assert found is not None and found.head == width
    assert found == QWEN3_SMALL


def test_a_model_that_says_nothing_of_its_heads_has_them_as_wide_as_its_hidden_state_together() -> None:
    assert all(shape.attention == shape.hidden for shape in KNOWN.values())
