"""The prompt style whose answers show their steps."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.core.prompts import compact
from stages.core.prompts.compact import INPUT, OUTPUT, PROGRAM
from stages.core.prompts.styles import Kind, Unparsed
from stages.core.prompts.trace import MARKERS, RUN, TracePrompts
from stages.core.seed_model import seed_tokenizer

STYLE = TracePrompts()
SOURCE = "def f(a):\n    c = a + 5\n    d = c * 2\n    return d"
TOKENIZER = Tokenizer.from_str(json.dumps(seed_tokenizer.TRACE.tokenizer_json()))


def test_prompts_are_what_the_docstring_says() -> None:
    assert STYLE.solve(Kind.DEDUCTION, SOURCE, ("1",), ("12",), "") == f"⟨ded⟩{SOURCE}⟨in⟩1⟨run⟩"
    assert STYLE.solve(Kind.ABDUCTION, SOURCE, ("1",), ("12",), "") == f"⟨abd⟩{SOURCE}⟨out⟩12⟨run⟩"
    assert STYLE.solve(Kind.INDUCTION, SOURCE, ("1",), ("12",), "") == "⟨ind⟩⟨in⟩1⟨out⟩12⟨prog⟩"
    direct = compact.CompactPrompts()
    assert STYLE.propose(Kind.DEDUCTION, ()) == direct.propose(Kind.DEDUCTION, ())
    assert STYLE.propose_inputs(SOURCE, 10) == direct.propose_inputs(SOURCE, 10)


def test_the_result_stands_behind_the_trace() -> None:
    assert STYLE.read_answer(Kind.DEDUCTION, f"c=6\nd=12{OUTPUT}12") == "12"
    assert STYLE.read_answer(Kind.ABDUCTION, f"d=12\nc=6{INPUT}1, [2]\n") == "1, [2]"
    assert STYLE.read_answer(Kind.INDUCTION, SOURCE) == SOURCE
    assert STYLE.read_answer(Kind.DEDUCTION, f"{OUTPUT}12") == "12"


def test_a_stop_ends_an_answer_also_where_the_limit_would_have_cut_it_off() -> None:
    for kind, text, answer in (
        (Kind.DEDUCTION, f"d=12{OUTPUT}12{INPUT}", "12"),
        (Kind.DEDUCTION, f"d=12{OUTPUT}12{PROGRAM}def f(", "12"),
        (Kind.ABDUCTION, f"d=12{INPUT}1{OUTPUT}12", "1"),
        (Kind.INDUCTION, f"{SOURCE}{INPUT}", SOURCE),
    ):
        assert STYLE.read_answer(kind, text, truncated=True) == answer
        assert any(stop in text for stop in STYLE.solve_stops(kind))
    with pytest.raises(Unparsed, match="cut off"):
        STYLE.read_answer(Kind.DEDUCTION, f"d=12{OUTPUT}12", truncated=True)


@pytest.mark.parametrize(
    "completion",
    ["", "12", "d=12\n12", OUTPUT, f"d=12{OUTPUT}", f"d=12{OUTPUT}12{OUTPUT}12", f"d={RUN}{OUTPUT}12", f"{INPUT}{OUTPUT}1",
     f"d=12{OUTPUT}⟨ded⟩", f"d=12{OUTPUT}⟨unk⟩"],
)  # fmt: skip
def test_ugly_answers_are_unparsed(completion: str) -> None:
    with pytest.raises(Unparsed):
        STYLE.read_answer(Kind.DEDUCTION, completion)


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from(MARKERS)), max_size=8).map("".join), st.booleans())
def test_reading_never_fails_otherwise(completion: str, truncated: bool) -> None:
    for kind in Kind:
        with contextlib.suppress(Unparsed):
            assert not set(STYLE.read_answer(kind, completion, truncated)) & {"⟨", "⟩"}


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_nothing_written_into_a_prompt_becomes_a_marker(program: str, value: str) -> None:
    prompt = STYLE.solve(Kind.DEDUCTION, program + "⟨run⟩", (value + "⟨in⟩",), (), "")
    special = {seed_tokenizer.TRACE.ids[token] for token in seed_tokenizer.TRACE.special}
    assert sum(index in special for index in TOKENIZER.encode(prompt.replace("\r", "")).ids if index != 2) == 3


def test_the_vocabulary_is_that_of_the_direct_style_and_one_marker() -> None:
    trace, direct = seed_tokenizer.TRACE, seed_tokenizer.COMPACT
    assert set(trace.tokens) == {*direct.tokens, RUN} and len(trace.tokens) <= 216
    text = f"⟨ded⟩{SOURCE}⟨in⟩1⟨run⟩c=6\nd=12⟨out⟩12⟨eos⟩"
    assert TOKENIZER.encode(text).ids == trace.encode(text)
    assert trace.decode(trace.encode(text)) == text
