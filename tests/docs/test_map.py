"""docs/map.md is true: every `path:symbol` is defined there, every setting exists, and the picture says what the steps do."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import FunctionType

import pytest

from flows.config import PROJECT, RunConfig
from flows.stages import STAGE_NAMES
from flows.steps import steps
from flows.steps.generation_metrics import generation_metrics
from stages.core.tables import GENERATION_TABLES

TABLES = {*GENERATION_TABLES, "groups", "traces"}

DOC = (PROJECT / "docs" / "map.md").read_text(encoding="utf-8")
PICTURE = DOC.split("```")[1]
ROWS = [line for line in DOC.splitlines() if line.startswith("| ") and not line.startswith("| rule |")]
PLACE = re.compile(r"`([\w./-]+\.py):([\w.]+)`")
HEADER = re.compile(r"^\| rule \| where \| setting \|\n\|(?:---\|){3}$", re.MULTILINE)


@cache
def defined(path: str) -> frozenset[str]:
    """Names that a file defines: functions, classes, constants, and `Class.method`."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))

    return frozenset(names(ast.parse((PROJECT / path).read_text(encoding="utf-8")).body, ""))


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:50] for row in ROWS])
def test_a_rule_is_where_the_map_says(row):
    _, rule, where, settings, _ = row.split("|")
    places = PLACE.findall(where)
    assert rule.strip() and places, row
    assert ", ".join(f"`{path}:{symbol}`" for path, symbol in places) == where.strip(), "a place is `path.py:symbol`"
    for path, symbol in places:
        assert symbol in defined(path), f"{path} does not define {symbol}"
    for key in re.findall(r"`([\w.]+)`", settings):
        group, _, field = key.rpartition(".")
        model = RunConfig.model_fields[group].annotation if group else RunConfig
        assert field in model.model_fields, key


def test_every_table_is_read_as_rules():
    assert len(HEADER.findall(DOC)) == DOC.count("\n## ") and len(ROWS) >= 40


def test_a_symbol_that_is_not_there_is_noticed():
    assert "Rating.fitness" in defined("stages/core/method/rating.py")
    assert not {"fitness", "win_chance.beta", "dataclass"} & defined("stages/core/method/rating.py")


def drawn() -> dict[str, tuple[list[str], list[str]]]:
    """What the picture says of each stage: what it writes, and for each artifact the stages of this generation that read it."""
    found = {}
    for box in PICTURE.split("┌")[1:]:
        stage = re.search(r"│ +(\w+) +│", box)
        assert stage, box
        arrows = re.findall(r"[│┐] ──► (.+?) *(?:──► (.*))?$", box, re.MULTILINE)
        readers = {names: [reader for reader in listed.split(", ") if reader in STAGE_NAMES] for names, listed in arrows}
        found[stage[1]] = {name: readers[names] for names in readers for name in names.split(", ")}
    return found


def calls(function: FunctionType) -> Iterator[ast.Call]:
    """The calls in a step and in the functions of `flows` that it calls; the metrics, which read everything, are left out."""
    todo, seen = [function], {generation_metrics}
    while todo:
        current = todo.pop()
        seen.add(current)
        for node in ast.walk(ast.parse(inspect.getsource(current))):
            if isinstance(node, ast.Call):
                yield node
                called = current.__globals__.get(node.func.id) if isinstance(node.func, ast.Name) else None
                if isinstance(called, FunctionType) and called.__module__.startswith("flows.") and called not in seen:
                    todo.append(called)


def done(stage: str) -> tuple[set[str], set[str]]:
    """The tables of its own generation that a step reads, and those that it writes."""
    reads, writes = set(), set()
    for call in calls(steps.STEPS[stage]):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if name == "table" and first and len(call.args) == 1:
            reads.add(first)
        elif name == "trained_population":
            reads.add("ratings")
        elif name in ("write_table", "write_own") and first:
            writes.add(first)
    return reads, writes


def test_the_picture_shows_the_stages_and_the_tables_that_they_write_and_read():
    picture = drawn()
    assert tuple(picture) == STAGE_NAMES
    written = {stage: {name for name in names if name in TABLES} for stage, names in picture.items()}
    assert written == {stage: done(stage)[1] for stage in STAGE_NAMES}
    assert set().union(*written.values()) == TABLES
    for names in picture.values():
        for table in set(names) & TABLES:
            assert set(names[table]) == {stage for stage in STAGE_NAMES if table in done(stage)[0]}, table
