"""What counts as a group without a signal, here and for metrics, the figure and the trainer's counts."""

import pyarrow as pa
import pytest

from stages.core.training.still_groups import still_groups


@pytest.mark.parametrize(
    ("rewards", "centred", "still"),
    [
        ([1.0, 1.0], [0.0, 0.0], True),
        ([1.0, 1.0], [0.4, 0.4], True),  # a baseline that is not the group's
        ([1.0, 1.0 + 1e-13], [0.4, 0.4], True),  # rounding
        ([1.0, 0.0], [0.5, -0.5], False),
        ([1.0, 0.0], [0.0, 1e-13], True),  # the best of k: any two hold a best answer
        ([1.0], [0.4], False),  # without others, a sample has none to differ from
        ([1.0], [0.0], True),
    ],
)
def test_a_group_is_still_without_a_difference_or_without_an_advantage(rewards: list, centred: list, still: bool) -> None:
    other = {"group_id": ["other"] * 2, "reward": [0.0, 1.0], "centred": [-0.5, 0.5]}
    own = {"group_id": ["own"] * len(rewards), "reward": rewards, "centred": centred}
    samples = pa.concat_tables([pa.table(own), pa.table(other)])
    assert still_groups(samples, ["group_id"]).to_pylist() == [
        {"group_id": "own", "still": still},
        {"group_id": "other", "still": False},
    ]
