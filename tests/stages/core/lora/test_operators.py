"""Algebra of the evolution operators: against dense SVD, under change of gauge, at their identities, and at their edges."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stages.core.lora.algebra import grams, load, thin_svd
from stages.core.lora.delta import A_SUFFIX, B_SUFFIX, check_alike, factors, modules, spectrum
from stages.core.lora.operators import OPERATORS, on_weights, operators, rotation
from stages.core.lora.paper import PAPER_OPERATORS

SHAPES = ((7, 5), (5, 9), (6, 6))  # outputs, inputs
MUTATIONS, CROSSOVERS = ("M1", "M2", "M3", "M4", "M5", "C1"), ("X1", "X2", "X3", "X4", "C2")
ALL = MUTATIONS + CROSSOVERS
BOTH_SPACES = [(space, name) for space in ("delta", "paper") for name in ALL]
SPACES = {"delta": operators(), "paper": operators(known=PAPER_OPERATORS)}
FLOAT32 = 2.0**-24

quick = settings(max_examples=20, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
ranks = st.integers(1, 4)


def adapter(seed: int, rank: int = 3, scale: float = 1.0, shapes=SHAPES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = {}
    for index, (outputs, inputs) in enumerate(shapes):
        weights[f"layer{index}{A_SUFFIX}"] = rng.standard_normal((rank, inputs), dtype=np.float32)
        weights[f"layer{index}{B_SUFFIX}"] = scale * rng.standard_normal((outputs, rank), dtype=np.float32)
    return weights


def untrained(seed: int, rank: int = 3) -> dict[str, np.ndarray]:
    return {name: values * (A_SUFFIX in name) for name, values in adapter(seed, rank).items()}


def in_other_gauge(weights: dict[str, np.ndarray], seed: int, spread: float = 1.0) -> dict[str, np.ndarray]:
    """(B G, G^-1 A) with singular values of G from exp(-spread) to exp(spread)."""
    rng = np.random.default_rng(seed)
    turned = {}
    for name, A_RI, B_OR in factors(weights):
        rank = len(A_RI)
        left, right = (np.linalg.qr(rng.standard_normal((rank, rank)))[0] for _ in range(2))
        lengths = np.exp(np.linspace(-spread, spread, rank)) if rank > 1 else np.exp(rng.uniform(-spread, spread, 1))
        turned[name + A_SUFFIX] = ((right.T / lengths) @ left.T @ A_RI.astype(float)).astype(np.float32)
        turned[name + B_SUFFIX] = (B_OR.astype(float) @ left @ (lengths[:, None] * right)).astype(np.float32)
    return turned


def deltas(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [B_OR.astype(float) @ A_RI.astype(float) for _, A_RI, B_OR in factors(weights)]


def distance(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """|delta - delta'| / |delta'|, by dense matrices."""
    away = sum(np.sum((a - b) ** 2) for a, b in zip(deltas(first), deltas(second), strict=True))
    return float(np.sqrt(away / sum(np.sum(b**2) for b in deltas(second))))


def child_of(name: str, parents: list[dict[str, np.ndarray]], seed: int = 0, space: str = "delta") -> dict[str, np.ndarray]:
    return SPACES[space][name](parents[: 2 if name in CROSSOVERS else 1], np.random.default_rng(seed))[0]


def truncated(dense: np.ndarray, rank: int) -> np.ndarray:
    u, s, vt = np.linalg.svd(dense)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def well_separated(*parents: dict[str, np.ndarray]) -> bool:
    """No two singular values nearly equal: there the SVD itself, and so any operator on it, is free to turn."""
    spectra = [spectrum(A_RI, B_OR) for parent in parents for _, A_RI, B_OR in factors(parent)]
    return all(np.all(s[1:] < 0.98 * s[:-1]) and s[-1] > 0.02 * s[0] for s in spectra)


# ---- what all of them promise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@quick
@given(seeds, seeds, ranks)
def test_the_child_does_not_depend_on_the_gauge(name, seed, gauge, rank):
    parents = [adapter(seed, rank), adapter(seed + 1, rank)]
    assume(well_separated(*parents))
    turned = [in_other_gauge(parent, gauge + index) for index, parent in enumerate(parents)]
    assert max(distance(a, b) for a, b in zip(turned, parents, strict=True)) < 1e-5
    assert distance(child_of(name, turned, 3), child_of(name, parents, 3)) < 1e-4


@pytest.mark.parametrize(("space", "name"), BOTH_SPACES)
@quick
@given(seeds, ranks)
def test_names_shapes_and_type_stay_and_parents_are_untouched(space, name, seed, rank):
    parents = [adapter(seed, rank), adapter(seed + 1, rank)]
    before = [{key: values.copy() for key, values in parent.items()} for parent in parents]
    child = child_of(name, parents, seed, space)
    assert sorted(child) == sorted(parents[0])
    for key, values in child.items():
        assert values.shape == parents[0][key].shape
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
        assert np.isfinite(values).all()
        for parent, copy in zip(parents, before, strict=True):
            assert np.array_equal(parent[key], copy[key])
            assert not np.shares_memory(values, parent[key])


@pytest.mark.parametrize(("space", "name"), BOTH_SPACES)
def test_same_seed_same_bytes_whatever_the_threads(space, name):
    parents = [adapter(1), adapter(2)]
    first = child_of(name, parents, 5, space)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        again = child_of(name, parents, 5, space)
    finally:
        torch.set_num_threads(threads)
    assert {key: values.tobytes() for key, values in first.items()} == {key: values.tobytes() for key, values in again.items()}
    if name not in ("C1", "C2", "X2"):
        assert distance(child_of(name, parents, 6, space), first) > 1e-4


@pytest.mark.parametrize("name", ALL)
def test_read_only_weights_are_read_without_a_warning(name):
    parents = [adapter(1), adapter(2)]
    for parent in parents:
        for values in parent.values():
            values.setflags(write=False)
    child_of(name, parents)


@pytest.mark.parametrize("name", ALL)
def test_before_training_children_are_copies(name):
    parents = [untrained(1), untrained(2)]
    child = child_of(name, parents, 4)
    for key, values in child.items():
        assert any(np.array_equal(values, parent[key]) for parent in (parents if name == "X2" else parents[:1]))


@pytest.mark.parametrize("name", ALL)
def test_rows_of_a_are_as_long_as_the_parents_and_no_component_dies(name):
    """Adam moves entries, so delta W by some |A| + |B|: in shorter factors, a child would learn more slowly than a copy."""
    parents = [adapter(1, 4), adapter(2, 4)]
    child = child_of(name, parents, 4)
    for (_, A_RI, B_OR), (_, first_RI, _) in zip(factors(child), factors(parents[0]), strict=True):
        lengths_R = np.linalg.norm(A_RI, axis=1)
        assert lengths_R.min() > 0.1
        if name in ("M1", "M3", "M4", "M5", "X1", "X3", "X4", "C2"):
            assert lengths_R == pytest.approx(np.linalg.norm(first_RI) / 2, rel=1e-5)
        if name in ("M1", "X1", "X3", "X4", "C2"):
            assert np.linalg.norm(B_OR, axis=0) * lengths_R == pytest.approx(spectrum(A_RI, B_OR), rel=1e-4, abs=1e-5)


# ---- identities ---------------------------------------------------------------------------------------------------------------


@quick
@given(seeds, ranks)
def test_no_strength_no_change(seed, rank):
    parent = load(adapter(seed, rank))
    off = {"M1": {"eps": 0.0}, "M2": {"eps": 0.0}, "M3": {"share": 0.0}, "M4": {"eps": 0.0}, "M5": {"alpha": 0.0}}
    for name, strength in off.items():
        same = on_weights(lambda parents, rng, name=name, strength=strength: OPERATORS[name](parents, rng, **strength))
        assert distance(same([adapter(seed, rank)], np.random.default_rng(0))[0], adapter(seed, rank)) < 1e-5, name
    assert parent.rank == rank


@pytest.mark.parametrize("name", ["X2", "X3", "X4", "C1", "C2"])
@quick
@given(seeds, seeds, ranks)
def test_crossing_a_parent_with_itself_gives_the_parent(name, seed, gauge, rank):
    parent = adapter(seed, rank)
    assume(well_separated(parent))
    assert distance(child_of(name, [parent, parent], seed), parent) < 1e-5
    assert distance(child_of(name, [parent, in_other_gauge(parent, gauge)], seed), parent) < 1e-4


def test_copies_are_copies_to_the_last_bit():
    first, second = adapter(1), adapter(2)
    assert all(np.array_equal(values, first[key]) for key, values in child_of("C1", [first]).items())
    child = child_of("X2", [first, second], 3)
    origins = [
        [index for index, parent in enumerate((first, second)) if np.array_equal(child[name + A_SUFFIX], parent[name + A_SUFFIX])]
        for name in modules(child)
    ]
    assert all(
        np.array_equal(child[name + B_SUFFIX], (first, second)[origin[0]][name + B_SUFFIX])
        for name, origin in zip(modules(child), origins, strict=True)
    )


# ---- against dense matrices ---------------------------------------------------------------------------------------------------


@quick
@given(seeds, ranks)
def test_thin_svd_equals_the_dense_one(seed, rank):
    weights = adapter(seed, rank)
    loaded = load(weights)
    thin = thin_svd(grams([loaded]), rank)
    for index, dense in enumerate(deltas(weights)):
        expected = np.linalg.svd(dense, compute_uv=False)[:rank]
        assert thin.values_NR[index].numpy() == pytest.approx(expected, rel=1e-9, abs=1e-9 * expected[0])
        U_OR = loaded.B[index].double() @ thin.left_NPR[index]
        V_RI = thin.right_NRP[index] @ loaded.A[index].double()
        assert np.allclose(U_OR.T @ U_OR, np.eye(rank), atol=1e-8)
        assert np.allclose(V_RI @ V_RI.T, np.eye(rank), atol=1e-8)
        assert np.allclose((U_OR * thin.values_NR[index]) @ V_RI, dense, atol=1e-8 * expected[0])
        assert spectrum(*list(factors(weights))[index][1:]) == pytest.approx(expected, rel=1e-9, abs=1e-9 * expected[0])


@quick
@given(seeds, ranks)
def test_midpoint_and_extrapolation_are_the_best_of_their_rank_at_the_parents_norm(seed, rank):
    better, worse = adapter(seed, rank), adapter(seed + 1, rank)
    eta = on_weights(OPERATORS["X4"])([better, worse], np.random.default_rng(seed))[1]["eta"]
    for name, share, goal in (("C2", 0.5, (0.5, 0.5)), ("X4", eta, (1.0, 0.0))):
        child = child_of(name, [better, worse], seed)
        for made, good, bad in zip(deltas(child), deltas(better), deltas(worse), strict=True):
            best = truncated(share * good + (1 - share) * bad, rank)
            norm = goal[0] * np.linalg.norm(good) + goal[1] * np.linalg.norm(bad)
            gap = np.linalg.svd(share * good + (1 - share) * bad, compute_uv=False)
            assume(len(gap) == rank or gap[rank] < 0.98 * gap[rank - 1])
            assert np.allclose(made, best * norm / np.linalg.norm(best), atol=2e-5 * norm)


@quick
@given(seeds, st.integers(2, 4))
def test_subspace_mix_joins_leading_and_trailing_triplets(seed, rank):
    first, second = adapter(seed, rank), adapter(seed + 1, rank)
    child, parameters = operators()["X3"]([first, second], np.random.default_rng(seed))
    k = parameters["k"]
    assert 1 <= k < rank
    for made, one, two in zip(deltas(child), deltas(first), deltas(second), strict=True):
        joined = truncated(one, k) + truncated(two, rank) - truncated(two, k)
        assert np.allclose(made, joined, atol=1e-5 * np.linalg.norm(joined))


@quick
@given(seeds, ranks)
def test_masking_removes_whole_triplets(seed, rank):
    parent = adapter(seed, rank)
    child, parameters = operators()["M3"]([parent], np.random.default_rng(seed))
    assert parameters["components"] == min(int(np.ceil(0.3 * rank)), rank - 1)
    for made, dense in zip(deltas(child), deltas(parent), strict=True):
        u, s, vt = np.linalg.svd(dense)
        kept = np.array([u[:, i] @ made @ vt[i] for i in range(rank)]) / s[:rank]
        assert sorted(np.round(kept, 3)) == [0.0] * parameters["components"] + [1.0] * (rank - parameters["components"])
        assert np.allclose((u[:, :rank] * (kept * s[:rank])) @ vt[:rank], made, atol=1e-4 * s[0])


@quick
@given(seeds, st.floats(0.01, 1.0), ranks)
def test_structured_noise_turns_without_stretching(seed, eps, rank):
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, rank, rank)))
    turned = rotation(noise, eps)
    assert torch.allclose(turned @ turned.mT, torch.eye(rank).double().expand(2, -1, -1), atol=1e-12)
    skew = (noise - noise.mT) / 2
    near = rotation(noise, 1e-5 * eps)
    assert torch.allclose(near, torch.eye(rank).double() + 1e-5 * eps * skew, atol=1e-8)
    # the spectrum moves by exp(eps z) and nothing else, so the change of norm is that of the singular values
    parent = adapter(seed, rank)
    child = on_weights(lambda parents, rng: OPERATORS["M1"](parents, rng, eps=eps))([parent], np.random.default_rng(seed))[0]
    z = np.random.default_rng(seed).standard_normal((len(SHAPES), rank))
    for index, ((_, A_RI, B_OR), dense) in enumerate(zip(factors(child), deltas(parent), strict=True)):
        expected = np.linalg.svd(dense, compute_uv=False)[:rank] * np.exp(eps * z[index])
        assert spectrum(A_RI, B_OR) == pytest.approx(np.sort(expected)[::-1], rel=1e-4)


# ---- measuring ----------------------------------------------------------------------------------------------------------------


# ---- the factor-space mode ----------------------------------------------------------------------------------------------------


# ---- bad input ----------------------------------------------------------------------------------------------------------------


def test_unlike_adapters_are_refused_by_name():
    good = adapter(1)
    less = {key: values for key, values in good.items() if "layer2" not in key}
    with pytest.raises(ValueError, match="t0-g0003 and t1-g0003 have different targets: only one of them adapts layer2"):
        check_alike({"t0-g0003": good, "t1-g0003": less})
    with pytest.raises(
        ValueError, match=r"t0 and t1 differ in rank or size: layer0.lora_A.weight is \(3, 5\) in t0 and \(2, 5\) in t1"
    ):
        check_alike({"t0": good, "t1": adapter(1, 2)})
    with pytest.raises(ValueError, match=r"adapter t1: layer0.lora_B.weight contains non-finite values"):
        check_alike({"t0": good, "t1": good | {f"layer0{B_SUFFIX}": np.full((7, 3), np.nan, np.float32)}})
    with pytest.raises(ValueError, match=r"adapter t1: layer0\.lora_A\.weight is float16, not float32"):
        check_alike({"t0": good, "t1": good | {f"layer0{A_SUFFIX}": good[f"layer0{A_SUFFIX}"].astype(np.float16)}})
    with pytest.raises(ValueError, match="not pairs of lora_A and lora_B"):
        check_alike({"t0": good, "t1": {key: values for key, values in good.items() if key != f"layer0{B_SUFFIX}"}})
    check_alike({"t0": good, "t1": adapter(2)})
    check_alike({})


def test_no_component_is_lost_where_the_rows_of_a_are_dependent() -> None:
    parents = [adapter(seed, 4) for seed in (0, 1)]
    for weights in parents:
        for name in [name for name in weights if name.endswith(A_SUFFIX)]:
            weights[name][3] = weights[name][2]
            weights[name] = parents[0][name]  # one A for both, as of members that share a start
        for name in [name for name in weights if name.endswith(B_SUFFIX)]:
            weights[name][:, 2:] = 0
    child, _ = operators()["X1"](parents, np.random.default_rng(0))
    for name in [name for name in child if name.endswith(A_SUFFIX)]:
        lengths = np.linalg.norm(child[name], axis=1), np.linalg.norm(child[name.replace(A_SUFFIX, B_SUFFIX)], axis=0)
        assert (np.maximum(*lengths) > 1e-3).all(), name
