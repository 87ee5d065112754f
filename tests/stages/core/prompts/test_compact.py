"""The compact prompt style and the tokenizer under it."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.core.prompts.compact import INPUT, MARKERS, OUTPUT, PROGRAM, CompactPrompts
from stages.core.prompts.styles import Kind, Triplet, Unparsed
from stages.core.seed_model import seed_tokenizer

STYLE = CompactPrompts()
SOURCE = "def f(a, b):\n    res = a + b\n    return res"
TOKENIZER = Tokenizer.from_str(json.dumps(seed_tokenizer.COMPACT.tokenizer_json()))
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126, include_characters="\n"), max_size=80)
ANYTHING = st.text(max_size=40)


@settings(deadline=None)  # the first call on a busy machine may take long
@given(st.one_of(ASCII, st.lists(st.sampled_from((*seed_tokenizer.COMPACT.tokens[3:], "x", "12")), max_size=20).map("".join)))
def test_text_comes_back_exactly(text: str) -> None:
    encoded = TOKENIZER.encode(text).ids
    assert encoded == seed_tokenizer.COMPACT.encode(text)
    assert TOKENIZER.decode(encoded, skip_special_tokens=False) == text
    assert seed_tokenizer.COMPACT.decode(encoded) == text


@settings(deadline=None)
@given(ANYTHING)
def test_any_text_is_encoded(text: str) -> None:
    encoded = TOKENIZER.encode(text).ids
    assert encoded == seed_tokenizer.COMPACT.encode(text)
    assert all(index < len(seed_tokenizer.COMPACT.tokens) for index in encoded)


def test_the_vocabulary_has_markers_characters_and_pieces_as_single_tokens() -> None:
    assert 144 <= len(seed_tokenizer.COMPACT.tokens) <= 256
    assert all(len(seed_tokenizer.COMPACT.encode(token)) == 1 for token in seed_tokenizer.COMPACT.tokens)
    assert [seed_tokenizer.COMPACT.tokens[index] for index in seed_tokenizer.COMPACT.encode("def f(a):\n    return 120")] == [
        *("def f(", "a", "):\n    ", "return ", "1", "2", "0")
    ]


def test_prompts_are_what_the_docstring_says() -> None:
    assert STYLE.solve(Kind.DEDUCTION, SOURCE, ("1, 2",), ("3",), "") == f"⟨ded⟩{SOURCE}⟨in⟩1, 2⟨out⟩"
    assert STYLE.solve(Kind.ABDUCTION, SOURCE, ("1, 2",), ("3",), "") == f"⟨abd⟩{SOURCE}⟨out⟩3⟨in⟩"
    pairs = STYLE.solve(Kind.INDUCTION, SOURCE, ("1, 2", "2, 2"), ("3", "4"), "add")
    assert pairs == "⟨ind⟩⟨in⟩1, 2⟨out⟩3⟨in⟩2, 2⟨out⟩4⟨prog⟩"
    reference = Triplet("def f(x):\n    return x", "1", "1")
    assert STYLE.propose(Kind.ABDUCTION, (reference,)) == "⟨prog⟩def f(x):\n    return x⟨in⟩1⟨out⟩1⟨pa⟩"
    assert STYLE.propose(Kind.DEDUCTION, ()) == "⟨pd⟩"
    assert STYLE.propose_inputs(SOURCE, 10) == f"⟨pi⟩{SOURCE}⟨in⟩"


def test_what_a_prompt_cannot_ask_is_refused() -> None:
    with pytest.raises(ValueError, match="propose_inputs"):
        STYLE.propose(Kind.INDUCTION, ())
    with pytest.raises(ValueError, match="positive"):
        STYLE.propose_inputs(SOURCE, 0)
    with pytest.raises(ValueError):
        STYLE.solve(Kind.INDUCTION, SOURCE, ("1",), (), "")


@settings(deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING)
def test_nothing_written_into_a_prompt_becomes_a_marker(program: str, value: str, output: str) -> None:
    """Also not text that spells one: a program may compute `chr(10216) + 'ded' + chr(10217)`."""
    program, value = program + "⟨prog⟩", value + "⟨eos⟩"
    prompts = {
        STYLE.solve(Kind.DEDUCTION, program, (value,), (output,), ""): 3,
        STYLE.solve(Kind.INDUCTION, program, (value, value), (output, output), ""): 6,
        STYLE.propose(Kind.DEDUCTION, (Triplet(program, value, output),)): 4,
        STYLE.propose_inputs(program, 10): 2,
    }
    special = {seed_tokenizer.COMPACT.ids[token] for token in seed_tokenizer.COMPACT.special}
    for prompt, markers in prompts.items():
        assert sum(index in special for index in TOKENIZER.encode(prompt.replace("\r", "")).ids if index != 2) == markers


def test_characters_outside_ascii_become_escapes_of_the_same_value() -> None:
    prompt = STYLE.solve(Kind.DEDUCTION, "def f(a):\n\treturn a + 'é'", ("'⟨in⟩'",), ("",), "")
    assert prompt == "⟨ded⟩def f(a):\n    return a + '\\xe9'⟨in⟩'\\u27e8in\\u27e9'⟨out⟩"


def test_completions_are_read() -> None:
    proposed = STYLE.read_proposal(Kind.DEDUCTION, f"{SOURCE}{INPUT}1, 2")
    assert (proposed.program, proposed.inputs, proposed.message) == (SOURCE, ("1, 2",), "")
    inputs = STYLE.read_inputs(INPUT.join(["1, 2", " 3, 4 ", "5, 6", "7, 8"]), SOURCE, 3)
    assert (inputs.program, inputs.inputs, inputs.message) == (SOURCE, ("1, 2", "3, 4", "5, 6"), "")
    assert STYLE.read_answer(Kind.DEDUCTION, "[1, 2]\n") == "[1, 2]"
    assert STYLE.read_answer(Kind.INDUCTION, SOURCE) == SOURCE


@pytest.mark.parametrize(
    "completion",
    ["", SOURCE, INPUT, f"{SOURCE}{INPUT}", f"{INPUT}1", f"{SOURCE}{INPUT}1{INPUT}2", f"{SOURCE}{PROGRAM}{INPUT}1",
     f"{SOURCE}{INPUT}1{OUTPUT}1", f"{SOURCE}{INPUT}1⟨eos⟩", f"{SOURCE}{INPUT}⟨unk⟩", f"{SOURCE} é{INPUT}1", "⟨pad⟩" * 9],
)  # fmt: skip
def test_ugly_proposals_are_unparsed(completion: str) -> None:
    with pytest.raises(Unparsed):
        STYLE.read_proposal(Kind.ABDUCTION, completion)


@pytest.mark.parametrize(
    "completion", ["", "1", f"1{INPUT}2", f"1{INPUT}{INPUT}3", f"1{INPUT}2{INPUT}3⟨prog⟩", f"{INPUT}1{INPUT}2"]
)
def test_ugly_inputs_are_unparsed(completion: str) -> None:
    with pytest.raises(Unparsed):
        STYLE.read_inputs(completion, SOURCE, 3)


@pytest.mark.parametrize("completion", ["", " \n", "1⟨in⟩", "⟨out⟩1", "'⟨unk⟩'", "\x00", "1\t"])
@pytest.mark.parametrize("kind", list(Kind))
def test_ugly_answers_are_unparsed(kind: Kind, completion: str) -> None:
    with pytest.raises(Unparsed):
        STYLE.read_answer(kind, completion)


@settings(deadline=None)
@given(st.lists(st.one_of(ANYTHING, st.sampled_from(MARKERS)), max_size=8).map("".join))
def test_reading_never_fails_otherwise(completion: str) -> None:
    for read in (
        lambda: STYLE.read_proposal(Kind.DEDUCTION, completion),
        lambda: STYLE.read_inputs(completion, SOURCE, 2),
        lambda: STYLE.read_answer(Kind.INDUCTION, completion),
    ):
        with contextlib.suppress(Unparsed):
            read()


def test_the_shipped_tokenizer_is_this_one() -> None:
    folder = Path(__file__).parents[4] / "infra" / "models" / "seed"
    assert json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")) == seed_tokenizer.COMPACT.tokenizer_json()
