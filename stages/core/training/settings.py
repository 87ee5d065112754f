"""What an update is computed with: the loss, the optimizer, and the size of a pass."""

from dataclasses import dataclass, field
from typing import Literal

from stages.core.training.loss import Objective


@dataclass(frozen=True)
class Settings:
    """Settings of an update. `micro_batch_tokens` are padded positions of one pass; `row_tokens` limits rows that share a prompt.

    With `gradient_checkpointing`, passes of more than `recompute_above` positions compute their activations again in the
    backward pass; rows are packed into passes of at most that many. Over an adapter's first `warmup` steps the learning rate
    rises linearly: fresh moments make a new adapter's first steps large. `skip_zero_groups` leaves groups without an advantage
    out of the passes; it raises ValueError where the objective would train them all the same. `attention` is how rows whose
    completions part are computed; "flex" requires a GPU.
    """

    objective: Objective = field(default_factory=Objective)
    learning_rate: float = 1e-5
    warmup: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384
    row_tokens: int = 1024
    gradient_checkpointing: bool = False
    recompute_above: int = 0
    skip_zero_groups: bool = False
    attention: Literal["masked", "flex"] = "masked"

    def __post_init__(self) -> None:
        if self.skip_zero_groups and (self.objective.entropy_bonus or self.objective.kl):
            raise ValueError(f"groups without an advantage cannot be skipped under {self.objective}")

    @property
    def pass_tokens(self) -> int:
        """Positions of the passes into which rows are packed: those that keep their activations, where any do."""
        keeps = self.gradient_checkpointing and self.recompute_above
        return min(self.micro_batch_tokens, self.recompute_above) if keeps else self.micro_batch_tokens
