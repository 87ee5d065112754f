"""What a longer update is made of: copies whose rows the trainer cannot share."""

import pyarrow as pa

from flows.gpu_check.update_pace import _apart, _copies, _positions


def test_copies_add_as_many_positions_as_the_samples_have() -> None:
    samples = pa.table(
        {
            "sample_id": ["a", "b", "c"],
            "group_id": ["g", "g", "h"],
            "prompt_ids": [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7]],
            "completion_ids": [[8], [9, 9], [8]],
        }
    )
    copies = _copies(samples, 3)
    prompts = {tuple(ids) for ids in copies["prompt_ids"].to_pylist()}
    assert len(prompts) == 6 and len(set(copies["group_id"].to_pylist())) == 6
    assert sum(map(len, prompts)) + 12 == _positions(copies) == 3 * _positions(samples) == 33
    assert copies.schema == samples.schema and len(set(copies["sample_id"].to_pylist())) == 9


def test_no_two_completions_of_a_timed_update_begin_alike() -> None:
    rows = {"completion_ids": pa.array([[5, 6], [5, 6], [5]], pa.list_(pa.int32())), "group_id": ["g", "g", "h"]}
    apart = _apart(pa.table(rows))
    assert apart["completion_ids"].to_pylist() == [[0, 6], [1, 6], [2]] and apart.schema == pa.table(rows).schema
