"""How large a change is: float32 error, strengths at rank 32, and the measure of a change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.core.lora.delta import B_SUFFIX, compare, factors, modules
from stages.core.lora.operators import OPERATORS, on_weights
from stages.core.lora.operators import compare as lora_compare
from tests.stages.core.lora.test_operators import (
    FLOAT32,
    adapter,
    child_of,
    deltas,
    distance,
    in_other_gauge,
    quick,
    seeds,
    untrained,
)


@quick
@given(seeds, st.floats(0.0, 5.0))
def test_the_error_is_that_of_one_float32_product(seed, spread):
    """However bad the gauge: within 4 sqrt(r) 2^-24 |B| |A| of the exact result."""
    weights = in_other_gauge(adapter(seed, 4), seed, spread)
    child = on_weights(lambda parents, rng: OPERATORS["M1"](parents, rng, eps=0.0))([weights], np.random.default_rng(0))[0]
    for (_, A_RI, B_OR), made, dense in zip(factors(weights), deltas(child), deltas(weights), strict=True):
        assert np.linalg.norm(made - dense) <= 4 * 2 * FLOAT32 * np.linalg.norm(A_RI) * np.linalg.norm(B_OR)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("M1", 0.50, 0.54), ("M4", 0.20, 0.22), ("M2", 0.06, 0.10), ("M5", 0.09, 0.12)]
)
def test_strengths_at_rank_32(name, low, high):
    """Relative changes of delta W at rank 32 (M2 touches a third of the matrices)."""
    parent = adapter(0, 32, shapes=((512, 512),) * 3)
    assert low < compare(child_of(name, [parent]), parent).relative < high


@quick
@given(seeds, st.floats(1e-6, 10.0))
def test_compare_measures_small_and_large_changes(seed, size):
    parent, other = adapter(seed), adapter(seed + 1)
    child = dict(parent)
    for name in modules(parent):
        child[name + B_SUFFIX] = (parent[name + B_SUFFIX] + size * other[name + B_SUFFIX]).astype(np.float32)
    change = compare(child, parent)
    assert change.relative == pytest.approx(distance(child, parent), rel=1e-3, abs=1e-7)
    flat_child, flat_parent = (np.concatenate([dense.ravel() for dense in deltas(weights)]) for weights in (child, parent))
    cosine = flat_child @ flat_parent / np.linalg.norm(flat_child) / np.linalg.norm(flat_parent)
    assert change.cosine == pytest.approx(cosine, abs=1e-6)
    other_way = lora_compare(child, parent)
    assert (other_way.relative, other_way.cosine) == pytest.approx((change.relative, change.cosine), rel=1e-4, abs=1e-7)


def test_compare_with_nothing():
    assert compare(untrained(1), untrained(1)).relative == 0.0
    assert compare(untrained(1), untrained(1)).cosine == 0.0
