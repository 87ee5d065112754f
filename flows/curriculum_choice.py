"""Which curriculum a run without teachers has, and whether it can be drawn from."""

from flows.choices import choose
from flows.config import ConfigError, RunConfig
from stages.core.method.curriculum import CURRICULA, Curriculum, shares
from stages.generate import records_of


def chosen_curriculum(config: RunConfig) -> Curriculum:
    """Return the curriculum that `propose.curriculum` names. Raises ConfigError."""
    return choose("propose.curriculum", config.propose.curriculum, CURRICULA)


def check_curriculum(config: RunConfig) -> None:
    """Raise ConfigError unless the curriculum weighs some cell of the run's kinds before anything has been attempted."""
    curriculum = chosen_curriculum(config)
    try:
        shares(curriculum, records_of([], config.kinds))
    except ValueError as error:
        kinds = ", ".join(config.propose.kinds)
        raise ConfigError(f"propose.curriculum and propose.kinds ({kinds}): {error}") from None
