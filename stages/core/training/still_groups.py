"""Groups that teach nothing: what metrics, the trainer's counts and the figure call a group without variance."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

STILL = 1e-12  # a centred reward, or a difference of rewards, up to this is rounding


def still_groups(samples: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return one row for each group of SAMPLES by `keys`: the keys and `still`, whether its rewards leave nothing to learn.

    They do if all are equal, or if the estimator finds all as good as expected: centred rewards of 0. A sample without others
    has none to differ from, so only the latter counts. Paid for the best of k, a group of which any k hold a best answer has
    unequal rewards and no gradient. A baseline that is not the group's, as that of TRR++, makes a group of equal rewards a
    gradient: such a group counts, too.
    """
    far = samples.append_column("far", pc.abs(samples["centred"]))
    found = far.group_by([*keys], use_threads=False).aggregate(
        [("reward", "max"), ("reward", "min"), ("reward", "count"), ("far", "max")]
    )
    apart = pc.subtract(found["reward_max"], found["reward_min"])
    equal = pc.and_(pc.greater(found["reward_count"], 1), pc.less_equal(apart, STILL))
    still = pc.or_(equal, pc.less_equal(found["far_max"], STILL))
    return found.select([*keys]).append_column("still", still)
