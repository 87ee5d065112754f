"""Which tokens end a text."""

from types import SimpleNamespace

import pytest

from stages.core.engines.text_ends import text_ends


def tokenizer(eos: int | None, **added: int) -> SimpleNamespace:
    return SimpleNamespace(eos_token_id=eos, get_added_vocab=lambda: {f"<|{name}|>": token for name, token in added.items()})


@pytest.mark.parametrize(
    ("listed", "eos", "ends"),
    [(7, 7, {7}), ([7, 8], 7, {7, 8}), (None, 7, {7}), (7, None, {7}), (None, None, set()), ([], 7, {7})],
)
def test_the_settings_and_the_tokenizer_name_ends(listed: object, eos: int | None, ends: set[int]) -> None:
    assert text_ends({"eos_token_id": listed}, tokenizer(eos, im_start=3)) == ends
    assert text_ends({}, tokenizer(eos)) == ({eos} - {None})


def test_a_model_of_turns_also_ends_at_the_end_of_a_document() -> None:
    """Qwen2.5-Coder-Instruct ends a turn with <|im_end|> and a document with <|endoftext|>."""
    assert text_ends({"eos_token_id": 45}, tokenizer(45, im_start=44, im_end=45, endoftext=43)) == {43, 45}
