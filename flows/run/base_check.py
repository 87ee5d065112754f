"""Is the base model still the one that a run's adapters were trained on?"""

from flows.config import ConfigError
from flows.run.run import Run

BRING_BACK = "its adapters fit the old ones only: bring those back"


def check_base(run: Run, name: str, digest: str, advice: str) -> None:
    """Raise ConfigError, which ends with the advice, if the run began on a base model with another digest.

    Shapes would still fit: scores, or a merged model, would silently be those of other weights.
    """
    start = run.manifest("start")
    if start is not None and start.versions.get("base_model") != digest:
        raise ConfigError(f"model.name: the files of {name} have changed since run {run.run_id} began; {advice}")
