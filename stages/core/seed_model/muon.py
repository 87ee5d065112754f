"""Muon: momentum whose matrix updates are made orthogonal by five Newton-Schulz steps (Jordan et al., 2024).

    X ← aX + (bA + cA²)X,  A = XXᵀ,  starting from X = G/‖G‖,  (a, b, c) = (3.4445, −4.7750, 2.0315)
    W ← W − lr · max(1, rows/columns)^½ · X

Matrices of one shape are stacked and go through the steps together.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


def orthogonalised(stack: torch.Tensor) -> torch.Tensor:
    """Each matrix of a (count, rows, columns) stack with its singular values brought near 1."""
    a, b, c = _COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x = stack.transpose(1, 2) if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: torch.Tensor = x.transpose(1, 2) if tall else x
    return result


class Muon:
    """Nesterov momentum on matrices, orthogonalised."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], momentum: float = 0.95) -> None:
        shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        self._groups = [(group, torch.zeros(len(group), *shape)) for shape, group in shapes.items()]
        self._momentum = momentum

    @property
    def velocities(self) -> list[torch.Tensor]:
        """The momentum of each stack of matrices: its whole state."""
        return [velocity for _, velocity in self._groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update from the gradients."""
        for group, velocity in self._groups:
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            assert len(gradients) == len(group), "a matrix has no gradient"
            velocity.lerp_(gradients, 1 - self._momentum)
            update = orthogonalised(gradients.lerp(velocity, self._momentum))
            rows, columns = update.shape[1:]
            for matrix, change in zip(group, update, strict=True):
                matrix.add_(change, alpha=-lr * max(1.0, rows / columns) ** 0.5)
