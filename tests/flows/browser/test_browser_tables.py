"""Pages, filters and orders of the browser's tables agree with the stored table, and decode no more than they show."""

import pyarrow as pa
import pytest

from flows.browser.table_view import Asked, row, view
from flows.run.table_reader import parquet_file
from flows.storage import NotStored, encode_table


def numbers():
    """5,000 rows in which `group` has 7 values and `score` nulls."""
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("group", pa.int64()),
            ("score", pa.float64()),
            ("ids", pa.list_(pa.string())),
            ("prompt_ids", pa.list_(pa.int32())),
        ]
    )
    rows = [
        {
            "name": f"n{at:04d}",
            "group": at % 7,
            "score": None if at % 5 == 0 else at / 3,
            "ids": [f"i{at % 3}"],
            "prompt_ids": [1] * (at % 4),
        }
        for at in range(5000)
    ]
    return rows, parquet_file(encode_table(pa.Table.from_pylist(rows, schema)), "numbers")


def names(found):
    return [values["name"] for _, values in found.rows]


def test_pages_filters_and_sorts_agree_with_the_table():
    rows, file = numbers()
    first = view(file, Asked())
    assert (first.total, first.found, first.pages, len(first.rows)) == (5000, 5000, 100, 50)
    assert names(view(file, Asked(page=100))) == [row["name"] for row in rows[-50:]]
    assert first.rows[3] == (3, rows[3] | {"prompt_ids": 3})
    found = view(file, Asked("group", "3", "score", True))
    wanted = sorted((row for row in rows if row["group"] == 3), key=lambda row: (row["score"] is None, -(row["score"] or 0)))
    assert found.found == len(wanted) and names(found) == [row["name"] for row in wanted[:50]]
    assert view(file, Asked("ids", "i1")).found == sum(row["ids"] == ["i1"] for row in rows)
    assert view(file, Asked("score", "–")).found == 1000
    assert view(file, Asked("name", "none")).rows == []
    assert names(view(file, Asked(sort="group")))[0] == "n0000"
    assert row(file, 4999) == rows[4999]
    assert first.sortable == ["name", "group", "score"]


def test_a_column_that_was_not_asked_for_is_not_decoded():
    _, file = numbers()
    reads = []

    class Counting:
        metadata, schema_arrow = file.metadata, file.schema_arrow

        def read(self, columns):
            reads.append(columns)
            return file.read(columns)

        def iter_batches(self, size, columns=None):
            for batch in file.iter_batches(size, columns=columns):
                reads.append(batch.num_rows)
                yield batch

    view(Counting(), Asked("group", "3", "name"))
    assert reads == [["group"], ["name"], 2048]


def test_a_page_says_not_stored_for_a_row_that_is_none():
    with pytest.raises(NotStored, match="There is no row 5000"):
        row(numbers()[1], 5000)
