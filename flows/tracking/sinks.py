"""The three destinations of `populora track`. Each needs its extra: `pip install 'populora-pipeline[tensorboard]'` and so on.

The last generation sent is stored with the data: a tag of the MLflow run, and for the other two a small file in their folder.
"""

import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.config import ConfigError
from flows.run.manifest import Json
from flows.storage import StoreRefused, StoreUnavailable
from flows.tracking.secrets import hidden, without_secrets

LAST = "populora.generation"
BEGUN = "populora.begun"
PROJECT = "populora"


def needed(module: str, extra: str) -> Any:
    """Import the library. Raises ConfigError naming the extra that provides it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{extra} is not installed: pip install -c constraints.txt -e '.[{extra}]'") from error


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return settings by dotted name, as text."""
    found: dict[str, str] = {}
    for key, value in config.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": str(value)}
    return found


class _Marker:
    """Marker of the last generation that a folder received, and of which run: one of that name may have been started again."""

    def __init__(self, folder: Path, begun: str) -> None:
        self._path, self._begun = folder / ".populora.json", begun
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreRefused(f"{folder}: {error.strerror}") from error
        self.read()  # before the library opens, or asks a server for, what another run left

    def read(self) -> int:
        if not self._path.is_file():
            return -1
        held = json.loads(self._path.read_text())
        _check_same(held.get("begun", self._begun), self._begun, str(self._path.parent))
        return int(held["generation"])

    def write(self, generation: int) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"generation": generation, "begun": self._begun}))
        new.replace(self._path)


def _check_same(held: str, begun: str, where: str) -> None:
    if held != begun:
        raise ConfigError(f"{where} holds the numbers of another run of this name; remove them, or give another destination")


class TensorBoard:
    """Event files in a folder, with a sub-folder for each run."""

    def __init__(self, target: str, run_id: str, config: Json, begun: str) -> None:
        library = needed("tensorboard.summary", "tensorboard")
        folder = Path(target) / run_id
        self._marker = _Marker(folder, begun)
        self._writer = library.Writer(str(folder))

    def last(self) -> int:
        """Return the last generation, from the folder's marker."""
        return self._marker.read()

    def write(self, generation: int, ended: float, values: Mapping[str, float]) -> None:
        """Write one scalar per number, at the step of its generation and the time at which it ended."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=generation, wall_time=ended)
        self._writer.flush()
        self._marker.write(generation)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow:
    """A run of the experiment `populora` at a tracking URI: a server, or `sqlite:///file.db`.

    A folder, too, if MLFLOW_ALLOW_FILE_STORE is set; by default MLflow no longer takes one.
    """

    def __init__(self, target: str, run_id: str, config: Json, begun: str) -> None:
        mlflow = needed("mlflow", "mlflow")
        self._entities = mlflow.entities
        faults = needed("mlflow.exceptions", "mlflow").MlflowException, needed("sqlalchemy.exc", "mlflow").SQLAlchemyError
        self._faults = (*faults, OSError)  # of a server, of a database, of its folder
        self._target = target
        with self._answering():
            self._client = mlflow.tracking.MlflowClient(target)
            found = self._client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
            runs = self._client.search_runs([experiment], f"tags.`populora.run` = '{run_id}'", max_results=1)
            if runs:
                self._id = runs[0].info.run_id
                _check_same(runs[0].data.tags.get(BEGUN, begun), begun, f"MLflow at {without_secrets(target)}")
            else:
                tags = {"populora.run": run_id, BEGUN: begun}
                self._id = self._client.create_run(experiment, tags=tags, run_name=run_id).info.run_id
                settings = [self._entities.Param(key, value[:6000]) for key, value in sorted(flat(config).items())]
                for place in range(0, len(settings), 100):
                    self._client.log_batch(self._id, params=settings[place : place + 100])

    def last(self) -> int:
        """Return the last generation, from the run's tag."""
        with self._answering():
            return int(self._client.get_run(self._id).data.tags.get(LAST, -1))

    def write(self, generation: int, ended: float, values: Mapping[str, float]) -> None:
        """Send batches of a thousand, the most that a server takes at once; then set the tag."""
        at = int(1000 * ended)
        found = [self._entities.Metric(_allowed(name), value, at, generation) for name, value in values.items()]
        with self._answering():
            for place in range(0, len(found), 1000):
                self._client.log_batch(self._id, metrics=found[place : place + 1000])
            self._client.set_tag(self._id, LAST, str(generation))

    def close(self) -> None:
        """Mark the run as finished. Until then it stays open for more generations."""
        with self._answering():
            self._client.set_terminated(self._id)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn errors of MLflow and of its database into StoreUnavailable, without the URI's user, password and query."""
        try:
            yield
        except self._faults as error:
            said = hidden(str(error).strip().partition("\n")[0], self._target)[:200]
            raise StoreUnavailable(f"MLflow at {without_secrets(self._target)}: {said}") from None


class WandB:
    """A run of the project `populora` (or WANDB_PROJECT) with its files in a folder. Offline unless WANDB_API_KEY is set."""

    def __init__(self, target: str, run_id: str, config: Json, begun: str) -> None:
        library = needed("wandb", "wandb")
        folder = Path(target) / run_id
        self._marker = _Marker(folder, begun)
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        project = os.environ.get("WANDB_PROJECT") or PROJECT
        quiet = library.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
        named = {"project": project, "id": run_id, "name": run_id, "dir": str(folder)}
        self._faults = (library.errors.Error, ValueError)
        with self._answering():
            self._run = library.init(**named, mode=mode, resume="allow", config=flat(config), settings=quiet)

    def last(self) -> int:
        """Return the last generation, from the folder's marker: offline there is no server to query."""
        return self._marker.read()

    def write(self, generation: int, ended: float, values: Mapping[str, float]) -> None:
        """Write one step per generation."""
        with self._answering():
            self._run.log(dict(values) | {"ended": ended}, step=generation)
        self._marker.write(generation)

    def close(self) -> None:
        """End the run. `wandb sync` sends offline data."""
        with self._answering():
            self._run.finish()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn wandb's errors into StoreUnavailable, without the key that some of them quote."""
        try:
            yield
        except self._faults as error:
            said = str(error).strip().partition("\n")[0].replace(os.environ.get("WANDB_API_KEY") or "\0", "***")[:200]
            raise StoreUnavailable(f"wandb: {said}") from None


def _allowed(name: str) -> str:
    """Return a name for MLflow, which takes letters, digits and `_-. :/`."""
    return re.sub(r"[^\w\-. :/]", "_", name)
