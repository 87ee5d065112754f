"""Addresses of the artifact browser's pages: for the links between them, and for the notes that point into the browser."""

from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlencode

from flows.config import ConfigError
from flows.run.lineage import generation_of_row
from flows.run.manifest import folder_of
from stages.core.method.top_up import task_of

SEARCHED = 20
"""Later generations that one page of a task searches for prompts with the task, and for batches that it filled."""


class Addresses:
    """Addresses below `base`: empty for links within the browser, `http://host:port` for links from elsewhere."""

    def __init__(self, base: str = "") -> None:
        if base and not base.startswith(("http://", "https://")):
            raise ConfigError(f"address of the artifact browser {base[:80]!r} is invalid: it must start with http:// or https://")
        self._base = base.rstrip("/")

    def runs(self, chosen: Iterable[str] = (), **query: object) -> str:
        """All runs of the store, or those that `query` asks for; `chosen` are ticked for a comparison."""
        return f"{self._base}/{_query(query, chosen)}"

    def compare(self, run_ids: Iterable[str], **query: object) -> str:
        """Several runs side by side, the first one as the reference."""
        return f"{self._base}/compare{_query(query, run_ids)}"

    def run(self, run_id: str) -> str:
        """One run."""
        return f"{self._base}/runs/{_part(run_id)}"

    def live(self, run_id: str) -> str:
        """What a run does at the moment."""
        return f"{self.run(run_id)}/live"

    def live_events(self, run_id: str) -> str:
        """The same as a stream of events."""
        return f"{self.live(run_id)}/events"

    def figures(self, run_id: str) -> str:
        """Every figure of a run."""
        return f"{self.run(run_id)}/figures"

    def figure_page(self, run_id: str, name: str) -> str:
        """The page of one figure."""
        return f"{self.figures(run_id)}/{_part(name)}"

    def figure(self, run_id: str, name: str, kind: str) -> str:
        """One figure as a picture (`svg`, `png`) or its numbers (`json`)."""
        return f"{self.figures(run_id)}/{_part(name)}.{kind}"

    def generation(self, run_id: str, generation: int | None) -> str:
        """One generation; None: the start."""
        return f"{self.run(run_id)}/generations/{'start' if generation is None else generation}"

    def manifest(self, run_id: str, uri: str) -> str:
        """One manifest, by its name in the run."""
        return f"{self.run(run_id)}/manifests/{quote(uri, safe='/=')}"

    def table(self, run_id: str, uri: str, **query: object) -> str:
        """A table by its name in the run; `query` may contain column, value, sort, descending and page."""
        return f"{self.run(run_id)}/tables/{quote(uri, safe='/=')}{_query(query)}"

    def generation_table(self, run_id: str, generation: int | None, name: str, **query: object) -> str:
        """A table of a generation by its plain name."""
        return self.table(run_id, f"{folder_of(generation)}/{name}.parquet", **query)

    def row(self, run_id: str, uri: str, number: int) -> str:
        """One row of a table."""
        return f"{self.run(run_id)}/rows/{number}/{quote(uri, safe='/=')}"

    def complete(self, run_id: str, uri: str, page: int = 1) -> str:
        """Complete rows of a table, as many as a page of the table."""
        return f"{self.run(run_id)}/complete/{quote(uri, safe='/=')}" + (f"?page={page}" if page > 1 else "")

    def file(self, run_id: str, uri: str) -> str:
        """An artifact's bytes, as a download."""
        return f"{self.run(run_id)}/files/{quote(uri, safe='/=')}"

    def task(self, run_id: str, task_id: str) -> str:
        """A task with everything derived from it."""
        return f"{self.run(run_id)}/tasks/{_part(task_id)}"

    def attempt(self, run_id: str, rollout_id: str) -> str:
        """One attempt, on the page of its task; of a stored task, the one that searches the generation that posed it again."""
        task_id = task_of(rollout_id)
        posed, played = generation_of_row(task_id), generation_of_row(rollout_id)
        after = 0 if played is None else played - (-1 if posed is None else posed)
        page = -(-after // SEARCHED)
        return f"{self.task(run_id, task_id)}{_query({'later': page if page > 1 else ''})}#{_part(rollout_id)}"

    def adapters(self, run_id: str) -> str:
        """All adapters of a run."""
        return f"{self.run(run_id)}/adapters"

    def adapter(self, run_id: str, adapter_id: str) -> str:
        """One adapter with its tree."""
        return f"{self.adapters(run_id)}/{_part(adapter_id)}"

    def member(self, run_id: str, member_id: str) -> str:
        """A member, among the adapters of its run."""
        return f"{self.adapters(run_id)}#{_part(member_id)}"


def _query(values: Mapping[str, object], run_ids: Iterable[str] = ()) -> str:
    """Return the part of an address after the path: what is not empty, and `run` once for each run."""
    asked = [(key, value) for key, value in values.items() if value not in (None, "", False)]
    asked += [("run", run_id) for run_id in run_ids]
    return f"?{urlencode(asked)}" if asked else ""


def _part(text: str) -> str:
    return quote(text, safe="")
