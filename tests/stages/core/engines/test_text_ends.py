"""Which tokens and which stop sequences end a text."""

from types import SimpleNamespace

import pytest
from tokenizers.decoders import ByteFallback, Fuse, Sequence

from stages.core.engines.text_ends import ends_with_stop, text_ends


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


def test_a_base_model_with_a_template_ends_where_its_turn_does() -> None:
    """Qwen2.5-Coder, not Instruct, lists <|endoftext|> alone, and its tokenizer has a chat template."""
    assert text_ends({"eos_token_id": 43}, tokenizer(43, im_start=44, im_end=45, endoftext=43)) == {43, 45}


def ended(tokens: list[str], *stops: str) -> list[bool]:
    """Whether a stop sequence ends the text at each of its tokens, with characters in bytes as Llama 2 writes rare ones."""
    decoder = Sequence([ByteFallback(), Fuse()])
    return [ends_with_stop(tokens[:count], stops, decoder.decode) for count in range(1, len(tokens) + 1)]


def test_a_stop_sequence_ends_a_text_at_the_token_that_completes_it() -> None:
    assert ended(["a", "b\nc"], "\n", "never") == [False, True]
    assert ended(["a", "de", "f g"], "def ") == [False, False, True]
    assert ended(["a", "b"]) == [False, False]


def test_a_stop_sequence_is_seen_behind_a_character_in_bytes() -> None:
    face = [f"<0x{byte:02X}>" for byte in "\U0001f600".encode()]
    assert ended(["x", *face, "<0x0A>"], "\n") == [False] * 5 + [True]
    assert ended([*face, *face, "<0x0A>"], "\n") == [False] * 8 + [True]
