"""Pages, filters and orders of the browser's tables agree with the stored table, and decode no more than they show."""

import pyarrow as pa
import pytest

from flows.pages.bad_request import BadRequest
from flows.pages.table_view import TableQuery, row, view
from flows.run.table_reader import batches, parquet_file
from flows.storage import NotStored
from flows.store.table_bytes import encode_table


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
            "score": None if at % 5 == 0 else (at - 30) / 3,
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
    first = view(file, TableQuery())
    assert (first.total, first.found, first.pages, len(first.rows)) == (5000, 5000, 100, 50)
    assert names(view(file, TableQuery(page=100))) == [row["name"] for row in rows[-50:]]
    assert first.rows[3] == (3, rows[3] | {"prompt_ids": 3})
    found = view(file, TableQuery("group", "3", "score", True))
    wanted = sorted((row for row in rows if row["group"] == 3), key=lambda row: (row["score"] is None, -(row["score"] or 0)))
    assert found.found == len(wanted) and names(found) == [row["name"] for row in wanted[:50]]
    assert view(file, TableQuery("ids", "i1")).found == sum(row["ids"] == ["i1"] for row in rows)
    assert view(file, TableQuery("score", "–")).found == 1000
    assert names(view(file, TableQuery("score", "1,203"))) == ["n3639"] and names(view(file, TableQuery("score", "−7"))) == [
        "n0009"
    ]
    for wrong in ("0,5", "1,2,3", "12,34"):
        with pytest.raises(BadRequest, match="is invalid"):
            view(file, TableQuery("score", wrong))
    assert view(file, TableQuery("name", "none")).rows == []
    assert names(view(file, TableQuery(sort="group")))[0] == "n0000"
    assert row(file, 4999) == rows[4999]
    assert first.sortable == ["name", "group", "score"]


def test_a_column_that_was_not_asked_for_is_not_decoded():
    _, file = numbers()
    reads = []

    class Counting:
        metadata, schema_arrow = file.metadata, file.schema_arrow

        def iter_batches(self, size, columns=None):
            for batch in file.iter_batches(size, columns=columns):
                reads.append((columns, batch.num_rows))
                yield batch

    view(Counting(), TableQuery("group", "3", "score"))
    assert reads[0] == (["group", "score"], 5000)
    assert len(reads) > 1 and {columns for columns, _ in reads[1:]} == {None} and {rows for _, rows in reads[1:]} == {512}


def test_rows_are_not_sorted_by_more_than_fits():
    schema = pa.schema([("text", pa.string()), ("at", pa.int64())])
    rows = {"text": [f"{at:09d}" * 1000 for at in range(5000)], "at": list(range(5000))}
    file = parquet_file(encode_table(pa.Table.from_pydict(rows, schema)), "texts")
    with pytest.raises(BadRequest, match="too large to sort all these rows by it; filter them first"):
        view(file, TableQuery(sort="text"))
    assert view(file, TableQuery("at", "7", "text")).found == 1
    assert names_of(view(file, TableQuery(sort="at", descending=True)))[0] == 4999


def names_of(found):
    return [values["at"] for _, values in found.rows]


def test_what_a_batch_holds_is_found_by_value_by_list_and_by_part():
    _, file = numbers()
    assert sum(batch.num_rows for batch in batches(file, ["name"], None, name=["n0001", "n0007"])) == 2
    assert sum(batch.num_rows for batch in batches(file, ["name"], {"name": "n000"})) == 10
    assert sum(batch.num_rows for batch in batches(file, ["name"], {"ids": "i2"}, group=3)) == sum(
        at % 3 == 2 and at % 7 == 3 for at in range(5000)
    )


def test_a_page_says_not_stored_for_a_row_that_is_none():
    with pytest.raises(NotStored, match="There is no row 5000"):
        row(numbers()[1], 5000)
