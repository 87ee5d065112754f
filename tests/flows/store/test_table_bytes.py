"""Tables as deterministic bytes: they come back as they went, and what is not what it should be is refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.storage import Damaged, StoreRefused
from flows.store.table_bytes import ROOM, ROOM_PER_ROW, decode_table, encode_table
from stages.core import tables


def _row(schema: pa.Schema, number: int) -> dict:
    made = {pa.string(): f"é{number}", pa.int64(): number, pa.float64(): number / 3, pa.bool_(): True}
    return {field.name: (None if field.nullable and number == 1 else made.get(field.type, [])) for field in schema}


ALL = tables.GENERATION_TABLES | {"seeds": tables.SEEDS, "scores": tables.SCORES, "answers": tables.ANSWERS}


@pytest.mark.parametrize("name", ALL)
def test_tables_come_back_as_they_went(name: str) -> None:
    schema = ALL[name]
    for rows in ([], [_row(schema, number) for number in range(3)]):
        data = encode_table(tables.table(rows, schema))
        found = decode_table(data, schema)
        assert found.schema.equals(schema, check_metadata=True)
        assert found.to_pylist() == rows
        assert b"pandas" not in data


def test_equal_rows_give_equal_bytes_however_they_were_chunked() -> None:
    rows = [_row(tables.TASKS, number) for number in range(9)]
    whole = tables.table(rows, tables.TASKS)
    pieces = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 5), whole.slice(7)])
    assert encode_table(pieces) == encode_table(whole) == encode_table(tables.table(rows, tables.TASKS))


def test_tables_that_are_not_what_they_should_be_are_refused() -> None:
    data = encode_table(tables.table([_row(tables.METRICS, 0)], tables.METRICS))
    with pytest.raises(Damaged, match=r"x\.parquet: not a Parquet file"):
        decode_table(data[:-9], tables.METRICS, "x.parquet")
    with pytest.raises(Damaged, match=r"x\.parquet: columns"):
        decode_table(data, tables.GRADES, "x.parquet")
    sink = pa.BufferOutputStream()
    pq.write_table(tables.METRICS.empty_table().replace_schema_metadata({"table": "metrics", "schema": "2"}), sink)
    with pytest.raises(StoreRefused, match="newer than this version reads"):
        decode_table(sink.getvalue().to_pybytes(), tables.METRICS, "x.parquet")


def test_a_table_whose_version_is_no_number_is_damaged() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(tables.METRICS.empty_table().replace_schema_metadata({"table": "metrics", "schema": "x"}), sink)
    with pytest.raises(Damaged, match=r"x\.parquet: its table schema is b'x', which is not a number"):
        decode_table(sink.getvalue().to_pybytes(), tables.METRICS, "x.parquet")


def test_a_table_that_would_fill_the_memory_is_refused_by_its_footer() -> None:
    """What is compared is in the last bytes of the file: nothing of these tables is decoded."""
    long = pa.table({"text": ["x" * (ROOM + 2 * ROOM_PER_ROW)]})
    sink = pa.BufferOutputStream()
    pq.write_table(long, sink, compression="zstd", use_dictionary=False)
    assert sink.tell() < 10_000
    with pytest.raises(Damaged, match="bytes of memory, which no stage writes in 1 rows"):
        decode_table(sink.getvalue().to_pybytes(), long.schema, "x.parquet")
    many = encode_table(pa.table({"number": pa.repeat(7, 1_000_000)}))
    assert len(many) < 30_000
    with pytest.raises(Damaged, match="its manifest states 3 rows, it has 1000000"):
        decode_table(many, pa.schema({"number": pa.int64()}), "x.parquet", rows=3)


def test_a_completion_of_a_hundred_thousand_tokens_in_each_row_is_read() -> None:
    tokens = 100_000
    row = _row(tables.ROLLOUTS, 0) | {"completion_ids": list(range(tokens)), "logprobs": [0.5 + n for n in range(tokens)]}
    row |= {"text": "word " * tokens}
    data = encode_table(tables.table([row] * 20, tables.ROLLOUTS))
    assert decode_table(data, tables.ROLLOUTS, rows=20).num_rows == 20
