"""Errors of means whose observations are alike in groups."""

import math

import pytest

from stages.core.statistics.metric_rows import clustered

VALUES, TASKS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "c", "d", "d"]


def test_tasks_of_one_prompt_keep_the_mean_and_share_their_error() -> None:
    alone = clustered(VALUES, TASKS)  # task means 1/2, 1, 1, 0
    assert alone == (0.625, pytest.approx(math.sqrt((0.125**2 + 2 * 0.375**2 + 0.625**2) / 3 / 4)), 4)
    assert clustered(VALUES, TASKS, {}) == clustered(VALUES, TASKS, {"a": "p", "b": "q", "c": "r", "d": "s"}) == alone
    # by hand: the prompt of b and c is 3/4 above the mean in sum, a and d are 1/8 and 5/8 below it
    joined = clustered(VALUES, TASKS, {"b": "p", "c": "p"})
    assert joined == (0.625, pytest.approx(math.sqrt(3 / 2 * (0.75**2 + 0.125**2 + 0.625**2)) / 4), 4)
    assert clustered(VALUES, TASKS, dict.fromkeys("abcd", "p")) == (0.625, None, 4)
