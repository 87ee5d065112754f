"""What a longer update is made of: copies whose rows the trainer cannot share."""

import pyarrow as pa

from flows.gpu_check.update_pace import _copies, _positions


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
