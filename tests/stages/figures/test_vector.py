"""Curves and trees written as SVG: each point where its axis says, gaps where numbers are missing, text as text."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pyarrow as pa

from stages.core import tables
from stages.figures.family import family_of
from stages.figures.panels import Line, Outline, Panel
from stages.figures.vector import curves_svg, family_svg

LINE = Line(
    "students", "#0072b2", "--", "line", (0.0, 1.0, 3.0), (10.0, 20.0, 40.0), (5.0, math.nan, 5.0), (2, 1, 2), broken=True
)
OUTLINE = Outline("why", "Why?", "", (), (Panel("generation", "share (%)", "", (LINE,), (0.0, 100.0)),))


def paths(svg: str, style: str) -> list[list[list[float]]]:
    """The points of each piece of the paths with that style, without the legend's samples."""
    found = [one.get("d", "") for one in ElementTree.fromstring(svg).iter("path") if style in one.get("style", "")]
    pieces = [piece for path in found for piece in path.split("M") if piece and "h" not in piece]
    return [[[float(number) for number in point.split()] for point in re.split("[LZ]", piece) if point] for piece in pieces]


def test_points_stand_at_their_values_and_a_line_breaks_at_a_missing_generation() -> None:
    svg = curves_svg(OUTLINE)
    first, last = paths(svg, "stroke-dasharray")
    assert len(first) == 2 and len(last) == 1
    (x0, y0), (x1, y1), (x3, y3) = *first, *last
    assert abs((x3 - x1) - 2 * (x1 - x0)) < 0.2 and abs((y1 - y3) - 2 * (y0 - y1)) < 0.2
    top, bottom = 22 + 12, 22 + 12 + 118
    assert abs(y1 - (bottom - 0.2 * (bottom - top))) < 0.1
    band = paths(svg, "fill-opacity")
    height = 0.05 * (bottom - top)
    assert [round(point[1], 1) for point in band[0]] == [round(v, 1) for v in (y0 - height, y1, y1, y0 + height)]
    assert [len(piece) for piece in band] == [4, 2]
    assert svg.count("<circle") == 3 and "var(--student)" in svg


def test_texts_of_the_store_stay_texts() -> None:
    hostile = replace(LINE, name="<script>\x1b")
    svg = curves_svg(replace(OUTLINE, question="<b>", panels=(Panel("x", "<i>", "<u>", (hostile,)),)))
    assert not re.search("<(script|b|i|u)>", svg) and "&lt;script&gt;\\x1b" in svg
    ElementTree.fromstring(svg)


def test_one_value_alone_has_an_axis_and_an_error_bar() -> None:
    alone = Line("t", "#000000", "-", "line", (7.0,), (0.25,), (0.05,), (3,))
    svg = curves_svg(replace(OUTLINE, panels=(Panel("generation", "y", "", (alone,)),)))
    assert svg.count("<circle") == 1 and ">7</text>" in svg and "nan" not in svg
    ElementTree.fromstring(svg)


def test_every_member_and_birth_has_its_place_in_the_tree() -> None:
    names = ("generation", "member_id", "role")
    rated = [(0, "t0", "teacher"), (0, "s0", "student"), (1, "t0", "teacher"), (1, "s1", "student")]
    ratings = pa.table({name: [row[place] for row in rated] for place, name in enumerate(names)})
    birth = {"member_id": "s1", "role": "student", "replaces": "s0", "parents": ["s0"], "parent_adapter_ids": ["s0-g0000"]}
    birth |= {
        "operator": "folder/own.py:<op>",
        "operator_kind": "mutation",
        "seed": "1",
        "parameters": "{}",
        "adapter_id": "s1-start",
    }
    birth |= {"adapter_sha256": "0" * 64, "mu": 25.0, "sigma": 8.0, "relative_change": 0.1, "cosine": 0.9, "note": ""}
    offspring = tables.table([birth], tables.OFFSPRING)
    family = family_of(ratings, offspring.add_column(0, "generation", pa.array([0])))
    assert family is not None and family_of(ratings.slice(0, 0), offspring) is None
    assert [(life.member, life.slot, life.first, life.last) for life in family.lives] == [
        ("t0", 0, 0, 1), ("s0", 1, 0, 0), ("s1", 1, 1, 1),
    ]  # fmt: skip
    assert [(one.x, one.slot, one.parents, one.text) for one in family.births] == [(0.5, 1, (1,), "own.py:<op>")]
    svg = family_svg(family)
    assert svg.count("<rect") == 3 and "own.py:&lt;op&gt;" in svg
    ElementTree.fromstring(svg)
