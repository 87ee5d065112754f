"""The reward rule of experiments that began before it had a name of its own: `reward.rule = "learnable"`."""

from stages.core.method.rewards import learnable

__all__ = ["learnable"]
