"""Canonical values: the literal parser accepts what `repr` writes and nothing that would have to be run."""

# ruff: noqa: E501 (tables)

import ast
import math
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.core.values.canonical import (
    LiteralError,
    OverLimit,
    TooLarge,
    arguments_wire,
    canonical,
    is_settled,
    literal,
    parse_arguments,
    parse_value,
    to_literal,
)
from tests.support.counted import lines_run

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.binary(max_size=20)
hashable = scalars | st.tuples(scalars, scalars) | st.frozensets(scalars, max_size=3)
values = st.recursive(
    hashable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=4) | st.sets(hashable, max_size=4),
    max_leaves=20,
)


@given(values)
def test_texts_read_back_as_the_value(value: object) -> None:
    for text in (canonical(value), literal(value), repr(value)):
        assert canonical(parse_value(text, limit=1 << 20)) == canonical(value)
    assert to_literal(canonical(value)) == literal(parse_value(canonical(value), limit=1 << 20))
    names = {"inf": math.inf, "frozenset": frozenset, "set": set, "complex": complex, "__builtins__": {}}
    assert canonical(eval(arguments_wire((value,)), names)[0]) == canonical(value)


@given(
    st.lists(st.integers() | st.integers(-9, 9), min_size=1, max_size=6),
    st.sampled_from(["{}", "({},)", "[{}, 'a']", "{{1: {}}}"]),
)
def test_lists_of_integers_are_read_like_any_other(value: list[int], around: str) -> None:
    text = around.format(value)
    read = parse_value(text)
    assert read == ast.literal_eval(text) and repr(read) == literal(read) == text
    assert parse_value(text.replace(", ", " ,\n")) == read


def test_lists_of_integers_keep_the_limits() -> None:
    inside = "1, 2"
    assert parse_value("[" * 50 + inside + "]" * 50)
    for text in ("[" * 51 + inside + "]" * 51, f"[{', '.join(['1'] * 30_001)}]", "[1, 02]", "[1, 2j-]", "[1, 2"):
        with pytest.raises(LiteralError):
            parse_value(text, limit=200_000)


pieces = st.sampled_from([*"0()[], \n", "-0", "-12", "07", "True", "'a'", "''", "'\"'", "'\\n'", "'é'", '"a"', "1.5", "{}", ", "])


@given(values.map(canonical) | st.lists(pieces, max_size=12).map("".join))
def test_a_settled_text_is_both_texts_of_its_value(text: str) -> None:
    if is_settled(text):
        value = parse_value(text)
        assert canonical(value) == literal(value) == repr(value) == text


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("[]", True), ("(1,)", True), ("[(1, 'a'), []]", True), ("'it is'", True), ("-7", True), ("(None, [True])", True),
        ("(1)", False), ("[1,]", False), ("[1, ]", False), ("[1 , 2]", False), ("-0", False), ("[[[1]]]", False), ("1\n", False),
        ("'\\x41'", False), ("1.0", False), ("{1}", False), ("", False), ("9" * 4_000, False), ("'\x7f'", False), ("1, 2", False),
    ],
)  # fmt: skip
def test_what_is_settled(text: str, settled: bool) -> None:
    assert is_settled(text) is settled


@given(st.text(alphabet="0123456789+-.eEjJ_xXabrf'\"\\(){}[],: \nTrueNoneinfst", max_size=24))
def test_agrees_with_the_language_wherever_both_accept(text: str) -> None:
    try:
        ours = parse_value(text)
    except LiteralError:
        return
    try:
        theirs = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError):
        assert any(word in text for word in ("nan", "inf", "set", "-", "+", "\n"))
        return
    if "j" not in text.lower():
        assert canonical(ours) == canonical(theirs)


@pytest.mark.parametrize(
    "text",
    [
        "eval(gold_output)", "gold_output", "__import__('os')", "1 # ", "1\n)", "'''", "0) or (True", "[x for x in y]", "f'a'", "(y := 1)",
        "1 + 1", "07", "1.5.5", "'a", "(1 2)", "{[1]}", "[...]", "Ellipsis", "-'a'", "1 or 2", "'\ud800'", "9" * 4301, "[" * 60 + "]" * 60,
        "lambda: 0", "1 if 1 else 2", "", "[,]", "1__0", "{**{}}", "*a", "set([1])", "complex('1')", "float('1')", "0x" + "f" * 5000, "b'é'",
        "'\\x4'", "'a' b'b'", "True()", "nan()", "1 2",
    ],
)  # fmt: skip
def test_refuses_what_is_not_one_literal(text: str) -> None:
    with pytest.raises(LiteralError):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "other", "equal"),
    [
        ("1", "1.0", False), ("1", "True", False), ("0.0", "-0.0", False), ("-0", "0", True), ("[1]", "(1,)", False), ("nan", "float('nan')", True),
        ("{1: 'a', 2: 'b'}", "{2: 'b', 1: 'a'}", True), ("{1: 'a'}", "{True: 'a'}", False), ("{1, 2}", "{2, 1}", True), ("set()", "{}", False),
        ("{1}", "frozenset({1})", False), ("'a' 'b'", "'ab'", True), ("1e999", "inf", True), ("0x10", "16", True), ("1, 2", "(1, 2)", True),
        ("2j", "(0+2j)", True), ("'é'", "'\\xe9'", True), ("'e\\u0301'", "'é'", False), ("b'a'", "'a'", False), ("{nan}", "{nan}", True),
        ("{(1, 'x'): [nan]}", "{(1, 'x'): [nan]}", True),
    ],
)  # fmt: skip
def test_equality_is_typed(text: str, other: str, equal: bool) -> None:
    assert (canonical(parse_value(text)) == canonical(parse_value(other))) is equal


def test_literal_text_is_as_repr_with_sets_sorted() -> None:
    assert literal({"b": 1, "a": {10, 9, 1}}) == "{'b': 1, 'a': {1, 9, 10}}"
    assert (
        literal([math.nan, -math.inf, set(), frozenset({2, 1}), complex(0, -2)]) == "[nan, -inf, set(), frozenset({1, 2}), -2j]"
    )
    with pytest.raises(TooLarge):
        literal("a" * 70_000)


NANS = [
    "{nan, nan}",
    "frozenset({(1, nan), (1, nan)})",
    "{nan: 1, nan: 2}",
    "[nan, {(nan,): 1, (nan,): 2}]",
    "{-nan, float('nan')}",
]


@pytest.mark.parametrize("text", NANS)
def test_every_nan_is_a_member_of_its_own_as_in_the_language(text: str) -> None:
    names = {"inf": math.inf, "float": float, "frozenset": frozenset, "complex": complex, "__builtins__": {}}
    value = parse_value(text)
    (wired,) = eval(arguments_wire((value,)), names)
    for one in (value, wired, parse_value(canonical(value)), parse_value(literal(value))):
        assert canonical(one) == canonical(value) and canonical(one).count("nan") == text.count("nan")
        assert literal(one) == literal(value)


def test_the_order_of_a_dict_s_nans_does_not_matter_and_their_values_do() -> None:
    assert canonical(parse_value("{nan: 2, nan: 1, 0: 3}")) == canonical(parse_value("{0: 3, nan: 1, nan: 2}"))
    assert canonical(parse_value("{nan: 1, nan: 1}")) != canonical(parse_value("{nan: 1}"))
    assert len({id(part) for part in parse_value("[nan, nan, float('nan'), float('NaN')]")}) == 4  # type: ignore[attr-defined]


def test_arguments() -> None:
    assert parse_arguments("") == () and parse_arguments(" 1, 'a', [2], ") == (1, "a", [2])
    assert parse_arguments("(1, ), (1, ), (1, 2)") == ((1,), (1,), (1, 2))
    for text in ("1 2", "a=1", ",", "1,,2"):
        with pytest.raises(LiteralError):
            parse_arguments(text)


TOO_LARGE = "1" + "0" * 400


@pytest.mark.parametrize("text", [f"complex({TOO_LARGE}, 1)", f"complex(1, -{TOO_LARGE})", f"{TOO_LARGE}+1j", f"-{TOO_LARGE}-2j"])
def test_a_part_of_a_complex_number_beyond_floats_is_refused(text: str) -> None:
    with pytest.raises(LiteralError, match="beyond floats"):
        parse_value(f"[{text}]")


def nested(levels: int, inside: str = "1, 2", outside: str = "3") -> str:
    for _ in range(levels):
        inside = f"frozenset({{{inside}, {outside}}})"
    return inside


@pytest.mark.parametrize("write", [canonical, literal, lambda value: arguments_wire((value,))])
def test_a_level_of_frozensets_costs_its_text(write: Callable[[object], str]) -> None:
    """Every text of a value writes each of its parts once a level at most: lines that run grow with the depth, and not by powers."""
    lines = {levels: lines_run(lambda levels=levels: write(parse_value(nested(levels)))) for levels in (6, 12, 24)}
    assert lines[24] < 6 * lines[12] < 36 * lines[6]


@given(values.map(lambda value: frozenset([canonical(value), 1])) | st.frozensets(st.frozensets(st.tuples(scalars, scalars))))
def test_nested_frozensets_read_back(value: object) -> None:
    assert canonical(parse_value(literal(value), limit=1 << 20)) == canonical(value) == canonical(parse_value(canonical(value)))


PRIME = 2**61 - 1


def same_hashes(levels: int, number: Iterator[int]) -> str:
    """A frozenset that is unlike any other and has the hash of all: two such in each, numbers at the bottom."""
    if not levels:
        return str(next(number) * PRIME)
    return f"frozenset({{{same_hashes(levels - 1, number)}, {same_hashes(levels - 1, number)}}})"


@pytest.mark.parametrize(
    "text",
    [
        "{" + ", ".join(str(number * PRIME) for number in range(3_000)) + "}",
        "{" + ", ".join(f"{number * PRIME}: 0" for number in range(3_000)) + "}",
        "frozenset([" + ", ".join(str(number * PRIME) for number in range(3_000)) + "])",
        "{" + same_hashes(9, counted := count(1)) + ", " + same_hashes(9, counted) + "}",
        "{" + ", ".join(str(tuple(-1 - (number >> bit & 1) for bit in range(11))) for number in range(1 << 11)) + "}",
    ],
)
def test_members_with_one_hash_are_refused_before_they_cost(text: str) -> None:
    with pytest.raises(OverLimit, match="one hash"):
        parse_value(text, limit=1 << 20)


@pytest.mark.parametrize(
    "value",
    [
        {(x, y) for x in range(-30, 30) for y in range(-30, 30)},
        {frozenset({-1}), frozenset({-2}), frozenset({(0, -1), (0, -2)})},
        {-1: "a", -2: "b", (-1, -2): "c", (-2, -1): "d"},
        {number * PRIME for number in range(100)},
    ],
)
def test_honest_members_with_one_hash_are_read(value: object) -> None:
    assert parse_value(literal(value)) == value
    assert parse_value("{" + "0, " * 9_000 + "}") == {0}


@pytest.mark.parametrize("unit", ["'a' ", "''", "\\n", "é", "\\'", '"', "1, ", "-", "1_", "[", "\\x41", "'''"])
def test_a_text_costs_a_few_bytes_a_character(unit: str) -> None:
    for text in (unit * (200_000 // len(unit)), "'''" + unit * (200_000 // len(unit)) + "'''"):
        tracemalloc.start()
        with suppress(LiteralError):
            parse_value(text, limit=1 << 24)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 * len(text) + 100_000, (unit, peak / len(text))
