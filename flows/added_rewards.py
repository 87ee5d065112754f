"""Where rewards besides the rule's come in: what a configuration with them needs, and what they add in a generation."""

import pyarrow as pa

from flows.config import ConfigError, RunConfig
from flows.run.stage_io import StageIO
from stages.core.method.added_rewards import AddedRewards
from stages.core.method.rewards import Rule

NAMES = ("reward.trace_weight", "reward.trailing_text", "reward.likeness")


def weights(config: RunConfig) -> AddedRewards:
    """Return the weights that a configuration gives them."""
    return AddedRewards(config.reward.trace_weight, config.reward.trailing_text, config.reward.likeness)


def check_added_rewards(config: RunConfig, style: str, rule: Rule) -> None:
    """Raise ConfigError if answers have no trace to reward, or if what is worse could earn more (`AddedRewards.check`)."""
    rewarded = config.reward
    if rewarded.trace_weight and style != "trace":
        raise ConfigError(f"reward.trace_weight: {config.model.name} writes answers without a trace (model.style {style})")
    given = {name: getattr(rewarded, name.partition(".")[2]) for name in NAMES}
    used = {name: weight for name, weight in given.items() if weight}
    if not used:
        return
    try:
        weights(config).check(rule)
    except ValueError as error:
        amounts = " and ".join(f"{weight:g}" for weight in used.values())
        raise ConfigError(f"{' and '.join(used)}: {amounts} with reward.rule {config.reward.rule}: {error}") from error


def added_rewards(io: StageIO, config: RunConfig, tasks: pa.Table, rollouts: pa.Table, paid: pa.Table) -> dict[str, float]:
    """Return sample id -> what is added to its reward. `tasks` are TASKS as believed, `paid` are GRADES as paid.

    Raises ConfigError in a fork that shares grades of a run without traces.
    """
    if config.reward.trace_weight and not io.has("traces"):
        raise ConfigError(
            f"reward.trace_weight: generation {io.generation} was graded without recording traces; fork it before grade"
        )
    return weights(config).of(tasks, rollouts, paid, io.table("traces") if config.reward.trace_weight else None)
