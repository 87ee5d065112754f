"""Where a run's evolution strategy comes in: perturbed copies of its adapters generate, and their rewards move the adapters.

With `strategy.population` = 0 the members' own adapters generate, and the trainer takes the steps.
"""

from collections.abc import Mapping

from flows.backend import Backend
from flows.config import RunConfig
from flows.run.stage_io import StageIO
from stages.core.engines.dealt import DealtEngine
from stages.core.engines.protocol import Engine
from stages.core.lora.adapter import Adapter
from stages.core.lora.strategy import NoiseKey, Strategy, copy_id, perturbed
from stages.core.population import Role
from stages.core.training.protocol import Updater
from stages.core.training.strategy_step import StrategyUpdater


def engine_of(io: StageIO, config: RunConfig, backend: Backend, adapters: Mapping[str, Adapter], role: Role) -> Engine:
    """Return the engine that writes for these adapters in a role: with their copies where a strategy trains the role."""
    if role not in config.copied_roles:
        return backend.engine(adapters)
    strategy, copies, served = _strategy(config), dict[str, list[str]](), dict[str, Adapter]()
    for adapter_id, adapter in adapters.items():
        key = NoiseKey(config.seed, io.generation, adapter_id)
        copies[adapter_id] = [copy_id(adapter_id, copy) for copy in range(strategy.population)]
        for copy, name in enumerate(copies[adapter_id]):
            served[name] = Adapter(perturbed(adapter.weights, strategy, key, copy), {}, adapter.step)
    return DealtEngine(backend.engine(served), copies)


def updater_of(io: StageIO, config: RunConfig, backend: Backend) -> Updater:
    """Return what takes the steps of this generation."""
    return StrategyUpdater(_strategy(config), config.seed, io.generation) if config.strategy.population else backend.trainer()


def _strategy(config: RunConfig) -> Strategy:
    rule = config.strategy
    return Strategy(rule.population, rule.sigma, rule.learning_rate)
