"""Where the reward for a trace comes in: what a configuration with it needs, and what it adds to the rewards of a generation."""

import pyarrow as pa

from flows.config import ConfigError, RunConfig
from flows.run.stage_io import StageIO
from stages.core.method.rewards import Rule
from stages.core.method.trace_reward import check_weight, trace_shares


def check_trace_reward(config: RunConfig, style: str, rule: Rule) -> None:
    """Raise ConfigError unless the model's answers have a trace, and a right answer is worth more than any trace."""
    weight = config.reward.trace_weight
    if not weight:
        return
    if style != "trace":
        raise ConfigError(f"reward.trace_weight: {config.model.name} writes answers without a trace (model.style {style})")
    try:
        check_weight(weight, rule)
    except ValueError as error:
        raise ConfigError(f"reward.trace_weight: {weight:g} with reward.rule {config.reward.rule}: {error}") from error


def trace_bonuses(io: StageIO, config: RunConfig, rollouts: pa.Table, paid: pa.Table) -> dict[str, float]:
    """Return rollout id -> what its trace adds to its reward; none where traces are not rewarded. `paid` are GRADES as paid.

    Raises ConfigError in a fork that shares grades of a run without traces.
    """
    weight = config.reward.trace_weight
    if not weight:
        return {}
    if not io.has("traces"):
        raise ConfigError(
            f"reward.trace_weight: generation {io.generation} was graded without recording traces; fork it before grade"
        )
    return {rollout_id: weight * share for rollout_id, share in trace_shares(rollouts, paid, io.table("traces")).items()}
