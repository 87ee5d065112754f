"""Links that open a form of the Prefect UI, filled in: fork, restart from a stage, benchmark a member, compare runs.

The UI of `populora serve` and of the stack answers `/forms/NAME?run_id=…` and leads on to the form of the deployment
(flows/prefect_ops/form_server.py). A link names a form and a few values and no id of a deployment, so it stays good, and can be
made without asking the server. `values` reads a link: names of runs, stages and adapters, and numbers; never a path.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from flows.config import ConfigError
from flows.stages import STAGE_NAMES
from flows.store.names import RUN_ID

URL = "POPULORA_FORMS_URL"
"""Variable with the address of the UI. Without it, no page and no note has such a link."""
PATH = "/forms/"
LONGEST_ID = 40
ADAPTER = re.compile(r"[tsa][0-9]{1,6}-(?:start|g[0-9]{4,9})")
BEFORE_ALL, NUMBERED = "start", "generation "


class FormLinks:
    """Links to forms of the UI at `base`; empty texts if that is empty."""

    def __init__(self, base: str = "") -> None:
        self._base = base.rstrip("/") if base.startswith(("http://", "https://")) else ""

    def __bool__(self) -> bool:
        return bool(self._base)

    def fork(self, run_id: str, generation: int, planned: int = 0) -> str:
        """Fork after a generation (-1: the start); after the last one of those planned, the fork trains as many again."""
        more = {"generations": 2 * planned} if 0 < planned <= generation + 1 else {}
        name = new_id(run_id, "start" if generation < 0 else f"g{generation:04d}")
        return self._link("fork", run_id=run_id, generation=generation, new_run_id=name, **more)

    def restart(self, run_id: str, generation: int, stage: str) -> str:
        """Compute a stage of a generation and all after it again, as a new run."""
        name = new_id(run_id, f"g{generation:04d}-{stage}")
        return self._link("restart", run_id=run_id, generation=generation, stage=stage, new_run_id=name)

    def benchmark(self, run_id: str, adapter_id: str) -> str:
        """Score one adapter."""
        return self._link("benchmark-member", run_id=run_id, adapter=adapter_id)

    def compare(self, run_ids: Sequence[str]) -> str:
        """Compare runs."""
        return self._link("compare", runs=",".join(run_ids))

    def _link(self, form: str, **values: object) -> str:
        return f"{self._base}{PATH}{form}?{urlencode(values)}" if self._base else ""


def of_environment() -> FormLinks:
    """Return the links of this process: those of the server that started it, or none."""
    return FormLinks(os.environ.get(URL, ""))


def new_id(run_id: str, tail: str) -> str:
    """Return a name for a new run made from `run_id`, no longer than a name may be."""
    return f"{run_id[: LONGEST_ID - len(tail) - 1].rstrip('-')}-{tail}"


def generation_text(generation: int) -> str:
    """Return a generation as the forms write it; -1 is the start. A list of Prefect's UI shows the number 0 as not chosen."""
    if generation < -1:
        raise ValueError(f"{generation} is not a generation")
    return BEFORE_ALL if generation < 0 else f"{NUMBERED}{generation}"


def generation_number(value: object) -> object:
    """Return the number in a text of `generation_text`. Any other value is returned as it is, for pydantic to read or refuse."""
    if not isinstance(value, str):
        return value
    return -1 if value == BEFORE_ALL else value.removeprefix(NUMBERED)


def values(form: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that a link fills in. Raises ConfigError for another form, name or value."""
    if form not in FORMS:
        raise ConfigError(f"there is no form {form[:40]!r}")
    found: dict[str, Any] = {}
    for name, text in query.items():
        read = FORMS[form].get(name)
        if read is None:
            raise ConfigError(f"the form {form} has no field {name[:40]!r} that a link may fill in")
        try:
            found |= read(text)
        except ValueError:
            raise ConfigError(f"{name}: {text[:80]!r} is not valid there") from None
    return found


def _of_pattern(name: str, pattern: "re.Pattern[str]") -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return {name: text}

    return read


def _runs(text: str) -> dict[str, Any]:
    names = text.split(",") if text else []
    if len(names) > 20 or not all(RUN_ID.fullmatch(name) for name in names):
        raise ValueError(text)
    return {"runs": names}


def _stage(text: str) -> dict[str, Any]:
    if text not in STAGE_NAMES:
        raise ValueError(text)
    return {"stage": text}


def _number(text: str) -> int:
    if len(text) > 9:
        raise ValueError(text)
    return int(text)


_RUN, _NEW = _of_pattern("run_id", RUN_ID), _of_pattern("new_run_id", RUN_ID)
_FORK: dict[str, Callable[[str], dict[str, Any]]] = {
    "run_id": _RUN,
    "new_run_id": _NEW,
    "generation": lambda text: {"generation": generation_text(_number(text))},
    "generations": lambda text: {"settings": [f"generations={_number(text)}"]},
}
FORMS: dict[str, dict[str, Callable[[str], dict[str, Any]]]] = {
    "fork": _FORK,
    "restart": _FORK | {"stage": _stage},
    "benchmark-member": {"run_id": _RUN, "adapter": _of_pattern("adapter", ADAPTER)},
    "compare": {"runs": _runs},
}
"""Each form with its fields that a link may fill in, and how each is read. A deployment of this name serves it."""
