"""What a configuration chooses: functions by a built-in name or the user's own `path/to/file.py:function`, and rules of stages.

A relative path starts at the project's folder, like a model's path, so workers and other machines find the same file.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import allowed
from flows.config import PROJECT, ConfigError, RunConfig
from flows.near_names import hint
from stages import evolve as evolution
from stages.core.method.curriculum import CURRICULA, Curriculum, shares
from stages.core.method.gates import GATES, Gate
from stages.core.method.rating import Rating
from stages.generate import records_of
from stages.reward import ESTIMATORS, Estimator

if TYPE_CHECKING:
    from stages.core.training.settings import Settings


def choose(key: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that `name` selects for the configuration key `key`. Raises ConfigError naming the key."""
    if name in known:
        return known[name]
    if ".py:" not in name:
        names = f"{', '.join(sorted(known))}, nor path/to/file.py:function"
        raise ConfigError(f"{key}: {name!r} is not one of {names}{hint(name, known)}")
    path, function = _file(key, name), name.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location(f"choice_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{key}: {path} cannot be loaded: {type(error).__name__}: {error}") from error
    chosen = getattr(module, function, None)
    if not callable(chosen):
        raise ConfigError(f"{key}: {path} has no function {function}")
    return chosen


def estimator_of(config: RunConfig) -> Estimator:
    """Return the advantage estimator. REINFORCE++ and pass@k take the configuration's switches. Raises ConfigError."""
    learning = config.learning
    chosen = choose("learning.estimator", learning.estimator, ESTIMATORS)
    if learning.estimator == "reinforce_plus_plus_baseline":
        return partial(chosen, lone_by_kind=learning.teacher_baseline == "group", shift=learning.whiten_shift)
    if learning.estimator == "pass_at_k":
        return partial(chosen, k=learning.pass_at, lone_by_kind=learning.teacher_baseline == "group")
    return chosen


def gates_of(config: RunConfig) -> dict[str, Gate]:
    """Return the enabled gates by name, including the user's own. Raises ConfigError."""
    return {name: choose("reward.gates", name, GATES) for name in config.reward.gates}


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


def evolution_policy(config: RunConfig) -> evolution.EvolutionPolicy:
    """Return the evolution policy in the form that its stage takes."""
    fresh = Rating(config.rating.mu, config.rating.sigma)
    return evolution.EvolutionPolicy(**config.evolution.model_dump(), fresh=fresh)


def training_settings(config: RunConfig) -> "Settings":
    """Return the settings of an update in the form that trainer and stepper take."""
    from stages.core.training.loss import Objective
    from stages.core.training.settings import Settings

    rule = config.learning
    objective = Objective(
        clip_range=rule.clip_range,
        entropy_bonus=rule.entropy_bonus,
        kl=rule.kl,
        importance_cap=rule.importance_cap,
        temperature=config.engine.temperature,
    )
    return Settings(
        objective=objective,
        learning_rate=rule.learning_rate,
        warmup=rule.warmup,
        betas=rule.betas,
        weight_decay=rule.weight_decay,
        max_grad_norm=rule.max_grad_norm,
        micro_batch_tokens=rule.micro_batch_tokens,
        row_tokens=rule.row_tokens,
        gradient_checkpointing=rule.gradient_checkpointing is True,  # auto, if no run has settled it: no step is taken
        recompute_above=rule.recompute_above,
        skip_zero_groups=rule.skip_zero_groups,
        attention=rule.attention,
    )


def operators_of(config: RunConfig) -> dict[str, evolution.Operator]:
    """Return the operators of the policy's space by name, including the user's own. Raises ConfigError."""
    from stages.core.lora.operators import operators

    rule = config.evolution
    if rule.space == "paper":
        from stages.core.lora.paper import PAPER_OPERATORS

        known = operators(known=PAPER_OPERATORS)
    else:
        known = operators()
    copies = (evolution.COPY,) if rule.copies_at else ()
    return {name: choose("evolution", name, known) for name in (*rule.mutations, *rule.crossovers, *copies)}


def sources(config: RunConfig) -> dict[str, str]:
    """Return the sha256 of each user file in the configuration, by `file.py:function`, for run.json. Raises ConfigError."""
    return {name: hashlib.sha256(_file(key, name).read_bytes()).hexdigest() for key, name in user_files(config)}


def check_sources(config: RunConfig, versions: Mapping[str, Any], run_id: str, optional: Collection[str] = ()) -> None:
    """Raise ConfigError if a user file has changed since the run began. `versions` are those of run.json.

    Files in `optional` (`file.py:function`) may be missing: the caller does not load them.
    """
    recorded = versions.get("choices", {})
    for key, name in user_files(config):
        path = name.rpartition(":")[0]
        if name in optional and not (PROJECT / path).is_file():
            continue
        found = hashlib.sha256(_file(key, name).read_bytes()).hexdigest()
        if recorded.get(name, found) != found:
            raise ConfigError(f"{key}: {path} has changed since run {run_id} began; restore the file, or choose another --run-id")


def user_files(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield each choice of the configuration that is a user's file (`file.py:function`), with its key."""
    evolution, reward = config.evolution, config.reward
    choices = [
        ("population.matchmaker", config.population.matchmaker),
        ("propose.curriculum", config.propose.curriculum),
        ("reward.rule", reward.rule),
        *(("reward.gates", name) for name in reward.gates),
        ("learning.estimator", config.learning.estimator),
        *(("evolution.mutations", name) for name in evolution.mutations),
        *(("evolution.crossovers", name) for name in evolution.crossovers),
    ]
    return ((key, name) for key, name in choices if ".py:" in name)


def _file(key: str, name: str) -> Path:
    """Return the file of a choice. Raises ConfigError naming the path if there is none."""
    path = PROJECT / name.rpartition(":")[0]  # an absolute path stays unchanged
    allowed.check_function(key, str(path))
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {path}; a relative path starts at the project's folder")
    return path
