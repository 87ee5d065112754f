"""The parts of the loss against numbers worked out by hand."""

import math

import torch

from stages.core.training.loss import importance_weights, k3_divergence, surrogate


def test_surrogate_clips_only_where_it_lowers_the_objective() -> None:
    ratios = torch.tensor([0.5, 0.9, 1.1, 1.5, 0.5, 0.9, 1.1, 1.5], dtype=torch.float64)
    advantages = torch.tensor([2.0] * 4 + [-2.0] * 4, dtype=torch.float64)
    losses = surrogate(ratios.log(), torch.zeros(8, dtype=torch.float64), advantages, 0.2)
    torch.testing.assert_close(losses, -torch.tensor([1.0, 1.8, 2.2, 2.4, -1.6, -1.8, -2.2, -3.0], dtype=torch.float64))


def test_importance_weights_are_truncated_and_carry_no_gradient() -> None:
    old, engine = torch.tensor([0.0, -1.0, -2.0], requires_grad=True), torch.tensor([-1.0, -1.0, 0.0])
    weights = importance_weights(old, engine, 2.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 1.0, math.exp(-2)]))
    assert not weights.requires_grad and importance_weights(old, engine, 0.0).tolist() == [1, 1, 1]


def test_k3_is_zero_only_where_the_policies_agree() -> None:
    values = k3_divergence(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -2.0, -0.5]))
    torch.testing.assert_close(values, torch.tensor([0.0, math.exp(-1), math.exp(0.5) - 1.5]))
