"""Foreign keys: which value of a table links to which page."""

import re
from typing import Any

from flows.pages.table_view import TOKENS
from flows.run.addresses import Addresses
from flows.run.lineage import generation_of_row
from stages.core.places import is_place
from stages.core.population import GENERATOR

_ATTEMPT = re.compile(r"-r\d+$")
TASKS = ("task_id", "proposal_id", "reference_ids")
ATTEMPTS = ("rollout_id", "sample_id")
MEMBERS = ("member_id", "teacher_id", "student_id", "opponent_id", "replaces", "parents")
ADAPTERS = ("adapter_id", "teacher_adapter_id", "student_adapter_id", "next_adapter_id", "parent_adapter_ids")
CHOICES = ("operator", "gate", "name")
"""Columns that may contain the name of a user's own function, with the path of its file (flows/choices.py)."""
_AT = Addresses()


def link(run_id: str, column: str, value: Any) -> str:
    """Return the address of the page that a value of this column names; empty if it names none."""
    if not isinstance(value, str) or not value:
        return ""
    if column in TASKS:
        return _AT.task(run_id, value)
    if column in ATTEMPTS:
        return _AT.attempt(run_id, value) if _ATTEMPT.search(value) else _AT.task(run_id, value)
    if column in MEMBERS:
        return "" if value == GENERATOR else _AT.member(run_id, value)
    if column in ADAPTERS:
        return _AT.adapter(run_id, value)
    generation = generation_of_row(value)
    if column == "match_id" and generation is not None:
        return _AT.generation_table(run_id, generation, "matches", column="match_id", value=value)
    if column == "group_id" and generation is not None:
        return _AT.generation_table(run_id, generation, "samples", column="group_id", value=value)
    return ""


def cells(run_id: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a row: for each column, pieces of text with their links."""
    return [_cell(run_id, column, value) for column, value in values.items()]


def _cell(run_id: str, column: str, value: Any) -> dict[str, Any]:
    if column in TOKENS and not isinstance(value, list):
        unit = "values" if column == "logprobs" else "tokens"
        return {"column": column, "kind": "length", "pieces": [(f"{value:,} {unit}" if isinstance(value, int) else "–", "")]}
    if isinstance(value, list):
        return {"column": column, "kind": "list", "pieces": [(one, link(run_id, column, one)) for one in value]}
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else "text"
    kind = "place" if column in CHOICES and is_place(value) else kind
    return {"column": column, "kind": kind, "pieces": [(value, link(run_id, column, value))]}
