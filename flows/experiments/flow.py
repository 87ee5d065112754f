"""An experiment as a Prefect flow: its runs, through the flow that `populora run` uses, then the comparison of the results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import prefect
from prefect.cache_policies import NO_CACHE
from pydantic import Field

from flows.benchmarks.members import Chosen
from flows.benchmarks.score import Question, score_run
from flows.execution.session import check_resumable
from flows.execution.stage_process import StageFailed
from flows.experiments.comparison import FIRST, asked
from flows.experiments.comparison_page import write_comparison
from flows.experiments.spec import Planned, planned, read
from flows.generation import RETRIES
from flows.monitoring.progress import say
from flows.run.lease import Fenced, LeaseHeld, hold
from flows.run.run import Run
from flows.storage import Damaged, NotStored, Store, open_store
from flows.train import train
from stages.core.engines.agreement import Disagreement


class IncompleteExperiment(Exception):
    """Runs failed for reasons that no retry fixes. The others and the comparison of the available results are done."""

    exit_code = 1


@prefect.flow(name="experiment", flow_run_name="experiment-{file}", persist_result=False)
def experiment(
    file: str, store: Annotated[str, Field(min_length=1)] = "runs", out: str = "", only_compare: bool = False
) -> dict[str, Any]:
    """Run or resume every run of an experiment, and compare them.

    Args:
        file: The experiment's TOML file.
        store: Where the runs' artifacts go: a folder, file:///folder, or s3://bucket/prefix.
        out: Where the comparison goes; empty: next to the runs, or the current folder.
        only_compare: Compare the available results and run nothing.

    Returns the paths of the page and its tables, and what the primary comparison says.

    Raises IncompleteExperiment if a run failed for a reason of its own.
    """
    path = Path(file)
    described = read(path)
    runs, opened = planned(described), open_store(store)
    failed = [] if only_compare else _run_all(runs, opened, store)
    written = write_comparison(described, path, runs, opened, Path(out) if out else _beside(store, described.name))
    if failed:
        raise IncompleteExperiment(f"{'; '.join(failed)}; the comparison of the others is {written['page']}")
    return written


def _run_all(runs: Sequence[Planned], opened: Store, store: str) -> list[str]:
    """Return why runs failed, one sentence each. A run that another process holds is skipped: several can share an experiment."""
    for one in runs:
        check_resumable(Run(opened, one.run_id), one.config)
    failed: list[str] = []
    scored: set[tuple[object, ...]] = set()
    for one in runs:
        try:
            _run_or_resume(one, opened, store)
            _score_start_once(one, opened, store, scored)
        except (StageFailed, Disagreement, Damaged, NotStored) as error:
            failed.append(f"{one.run_id} failed ({str(error).splitlines()[0]})")
        except (LeaseHeld, Fenced):
            say(f"{one.run_id}: in use by another process")
    return failed


def _run_or_resume(one: Planned, opened: Store, store: str) -> None:
    if Run(opened, one.run_id).manifest("evolve", one.config.generations - 1) is None:
        say(f"{one.run_id}: {one.config.generations} generations")
        train(run_id=one.run_id, store=store, config=one.config)


def _score_start_once(one: Planned, opened: Store, store: str, scored: set[tuple[object, ...]]) -> None:
    """Score the starting point of this run, unless an earlier run has scored the same one."""
    question = (one.seed, one.config.model, *asked(one.config))
    if question not in scored:
        with hold(opened, one.run_id):
            score_base(one, store)
        scored.add(question)


@prefect.task(
    task_run_name="base-{one.run_id}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def score_base(one: Planned, store: str) -> None:
    """Score the base model, as the adapter that every member starts with, on the run's own problems; once is enough."""
    rule = one.config.benchmark
    first = FIRST[one.config.mode == "single"]
    score_run(Run(open_store(store), one.run_id), Chosen((first,)), Question(rule.suite, rule.limit, rule.attempts))


def _beside(store: str, name: str) -> Path:
    return Path(f"{name}-comparison.html") if "://" in store else Path(store) / f"{name}-comparison.html"
