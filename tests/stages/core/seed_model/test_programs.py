"""The generator of programs, its keys, the probe's halves, and the rows that pretraining reads."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stages.core.seed_model import probe, seed_tokenizer
from stages.core.seed_model.pretraining_data import ANSWERS, BROAD, ROW, make_rows
from stages.core.seed_model.program_blocks import LEVELS
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import (
    MAX_OUTPUT,
    Behaviours,
    Program,
    ProgramKeys,
    compile_own,
    draw_program,
    program_key,
    run_own,
)
from tests.sandbox.test_keys import program_keys

BENCHMARKS = Path(__file__).parents[4] / "infra" / "benchmarks"
NOTHING = ProgramKeys(frozenset(), frozenset())


def draw(seed: int) -> ScalarDraws:
    return ScalarDraws(np.random.default_rng(seed))


def drawn(seed: int, level: int, count: int, num_inputs: int = 10) -> list[Program]:
    source = draw(seed)
    return [draw_program(source, level, num_inputs) for _ in range(count)]


@pytest.mark.parametrize("level", LEVELS)
def test_equal_seeds_give_equal_programs(level: int) -> None:
    first, second, other = drawn(1, level, 20), drawn(1, level, 20), drawn(2, level, 20)
    assert first == second
    assert first != other


@pytest.mark.parametrize("level", LEVELS)
def test_programs_do_what_their_pairs_say(level: int) -> None:
    for program in drawn(3, level, 60):
        function = compile_own(program.source)
        assert len(set(program.inputs)) == len(program.outputs) == 10
        assert len(set(program.outputs)) > 1
        for given, got in zip(program.inputs, program.outputs, strict=True):
            arguments = ast.literal_eval(f"[{given}]")
            assert run_own(function, arguments) == got
            assert len(got) <= MAX_OUTPUT
            assert repr(ast.literal_eval(got)) == got


def test_programs_differ_widely_and_grow_with_the_level() -> None:
    programs = {level: drawn(4, level, 300, 1) for level in LEVELS}
    different = [len({program_key(each.source) for each in programs[level]}) for level in LEVELS]
    lines = [float(np.mean([each.source.count("\n") for each in programs[level]])) for level in LEVELS]
    assert min(different) > 200
    assert lines == sorted(lines)
    assert lines[0] == 1


def test_long_loops_are_cut_off() -> None:
    loop = compile_own("def f(v):\n    s, h = 0, v\n    while h > 1:\n        s += 1\n        h -= 2\n    return s")
    assert [run_own(loop, [start]) for start in (10**12, 19, 3000, 10**12, 3000)] == [None, "9", "1500", None, "1500"]
    assert run_own(compile_own("def f(v):\n    return sum(range(v))"), [10**12]) is None


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="not 5"):
        draw_program(draw(0), 5, 1)


def test_the_key_sees_through_names_comments_and_docstrings() -> None:
    plain = "def f(a, b):\n    c = a + b\n    return c * 2"
    renamed = 'def f(x, y):\n    """Says nothing."""\n    # adds\n    total = x + y\n    return total * 2'
    assert program_key(plain) == program_key(renamed)
    assert program_key(plain) != program_key("def f(a, b):\n    c = b + a\n    return c * 2")
    assert program_key("def f(a):\n    return len(a)") != program_key("def f(a):\n    return sum(a)")
    nested = "def f(a):\n    def {0}(b):\n        return b + 1\n    return {0}(a)"
    assert program_key(nested.format("g")) == program_key(nested.format("h"))


def test_the_behaviour_key_sees_through_the_way_it_is_written() -> None:
    behaviours = Behaviours()
    double = behaviours.key("def f(a):\n    return a + a", "I")
    assert double == behaviours.key("def f(b):\n    c = b * 2\n    return c", "I")
    assert double != behaviours.key("def f(a):\n    return a + a", "S")
    assert double != behaviours.key("def f(a):\n    return a + 2", "I")


def test_probe_tables_keep_halves_apart_and_repeat() -> None:
    tables = probe.probe_tables(5, per_band=4)
    assert tables == probe.probe_tables(5, per_band=4)
    for table in tables.values():
        assert table.schema == probe.SCHEMA
        assert table.num_rows == 4 * 3 * len(LEVELS)
    first, second = (probe.probe_keys(tables[half]) for half in probe.HALVES)
    assert not first.behaviour & second.behaviour
    assert not first.syntax & second.syntax


@pytest.fixture(scope="module")
def shipped() -> dict[str, dict[str, list[Any]]]:
    return {half: pq.read_table(BENCHMARKS / f"probe-{half}.parquet").to_pydict() for half in probe.HALVES}


def test_the_shipped_halves_are_full_and_disjoint(shipped: dict[str, dict[str, list[Any]]]) -> None:
    for column in ("problem_id", "program", "program_key", "behaviour"):
        values = [shipped[half][column] for half in probe.HALVES]
        assert [len(set(each)) for each in values] == [3600, 3600], column
        assert not set(values[0]) & set(values[1]), column
    for table in shipped.values():
        counted = {(kind, band): 0 for kind in ("deduction", "abduction", "induction") for band in LEVELS}
        for kind, band, inputs, outputs in zip(table["kind"], table["band"], table["inputs"], table["outputs"], strict=True):
            counted[kind, band] += 1
            assert len(inputs) == len(outputs) == (10 if kind == "induction" else 1)
        assert set(counted.values()) == {300}
    assert sum((BENCHMARKS / f"probe-{half}.parquet").stat().st_size for half in probe.HALVES) < 4_000_000


def test_the_shipped_keys_are_the_sandbox_s(shipped: dict[str, dict[str, list[Any]]]) -> None:
    """A run compares the keys of its proposals, which the sandbox computes, with this column."""
    for table in shipped.values():
        assert program_keys(table["program"]) == table["program_key"]


def test_the_shipped_problems_are_right(shipped: dict[str, dict[str, list[Any]]]) -> None:
    table = shipped["dev"]
    for source, inputs, outputs in list(zip(table["program"], table["inputs"], table["outputs"], strict=True))[::7]:
        function = compile_own(source)
        assert [run_own(function, ast.literal_eval(f"[{given}]")) for given in inputs] == outputs


def test_pretraining_keeps_away_from_the_probe() -> None:
    tables = probe.probe_tables(5, per_band=10)
    held_out = probe.probe_keys(*tables.values())
    rows = make_rows((9,), 24, held_out, BROAD)
    assert rows.skipped > 0
    text = seed_tokenizer.COMPACT.decode(rows.ids.ravel().tolist())
    programs = {part.split("⟨")[0] for part in text.split("⟩") if part.startswith("def f(")}
    assert len(programs) > 100
    assert not held_out.syntax & {program_key(source) for source in programs}


def test_rows_are_full_and_repeat() -> None:
    rows, again = (make_rows((1, 2), 20, NOTHING, ANSWERS) for _ in range(2))
    for name in ("ids", "weights", "segments"):
        assert np.array_equal(getattr(rows, name), getattr(again, name)), name
    assert rows.ids.shape == (20, ROW)
    assert (rows.segments > 0).mean() > 0.9
    assert rows.documents == sum(len(set(row[row > 0].tolist())) for row in rows.segments)
    ends = rows.ids == seed_tokenizer.COMPACT.ids[seed_tokenizer.EOS]
    assert ends.sum() == rows.documents
    assert set(rows.weights[ends].tolist()) == set(np.array(ANSWERS.answers, np.float32).tolist())
    assert not rows.weights[rows.segments == 0].any()
