"""`populora benchmark`: suites on members of a run, on any model or PEFT folder, or on completions made elsewhere."""

from argparse import Namespace
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pyarrow as pa

from flows.backend import Backend
from flows.benchmarks import targets
from flows.benchmarks.contamination import contamination
from flows.benchmarks.members import Chosen
from flows.benchmarks.score import Question, kept_for, probe_folder, request_for, score_run
from flows.benchmarks.score_text import changes_text, depths_text, forms_text, scores_text
from flows.benchmarks.suite_score import (
    ELSEWHERE,
    BenchmarkRequest,
    done_shards,
    folder_of,
    problems_of,
    score_suite,
    stored,
    words_of,
)
from flows.benchmarks.targets import BenchmarkTarget
from flows.cards import one_card, usable
from flows.config import ConfigError
from flows.monitoring.meter import Meter
from flows.monitoring.progress import Display
from flows.run.run import Run
from flows.storage import Store
from flows.suites.own_suites import PROBE, STAIRCASE
from flows.suites.suite_data import suite_of, suites_folder
from flows.trust import WITHOUT_WALLS
from stages.core.number_text import signed
from stages.core.suites.scores import by_band, by_slice
from stages.core.suites.statistics import compare


def benchmark(arguments: Namespace, store: Store, run: Run | None) -> int:
    """Print scores as tables on standard output and store everything else. Raises ConfigError for an invalid request."""
    _check(arguments)
    for suite in arguments.suite:
        if arguments.contamination:
            assert run is not None
            print(contamination(run, suite, Path(arguments.data) if arguments.data else suites_folder()).text())
            continue
        asked = [arguments] if arguments.against is None else [arguments, _earlier(arguments)]
        if run is not None and suite in PROBE and not arguments.completions:
            _probe_of_run(asked, run, suite)
            continue
        if arguments.dry_run:
            print("\n".join(_plan(*_target(each, store, run, suite)) for each in asked))
            continue
        with ExitStack() as kept:
            if run is not None:
                for chosen in map(_chosen, asked):
                    kept.enter_context(kept_for(run, chosen.contestants(run), suite, chosen))
            _score_and_print(suite, [_target(each, store, run, suite) for each in asked], arguments.against)
    return 0


def _score_and_print(suite: str, found: list[tuple[BenchmarkTarget, BenchmarkRequest]], against: int | None) -> None:
    for target, request in found:
        scores = _scored(target, request)
        print(f"{suite}, {len(request.problems)} problems, style {request.style}\n{scores_text(scores)}")
        if suite in STAIRCASE:
            print(f"\n{depths_text(_answers(target, request))}")
        print(_comparisons(target, request), end="")
        print(f"stored under {target.run.run_id}/benchmarks/{folder_of(target, request)}")
    if against is not None:
        after, before = (_answers(*one) for one in found)
        print(changes_text(after, before, by_slice, against))


def _check(arguments: Namespace) -> None:
    """Check that there is exactly one target, with only the options that apply to it."""
    for option in ("attempts", "limit", "max_new_tokens"):
        if (getattr(arguments, option) or 0) < 0:
            raise ConfigError(f"benchmark: --{option.replace('_', '-')} {getattr(arguments, option)}: give 0 or more")
    chosen = [name for name in ("run", "model", "completions") if getattr(arguments, name)]
    if len(chosen) != 1:
        raise ConfigError("benchmark: give exactly one of RUN, --model and --completions")
    if arguments.run and any("/" in name for name in arguments.adapter):
        raise ConfigError("benchmark: --adapter takes an id with RUN, a PEFT folder with --model")
    if arguments.contamination and not arguments.run:
        raise ConfigError("benchmark: --contamination requires RUN, whose tasks and seed rows it compares")
    if arguments.contamination and arguments.dry_run:
        raise ConfigError("benchmark: --contamination generates nothing; leave out --dry-run")
    if arguments.contamination and arguments.problems:
        raise ConfigError("benchmark: --contamination compares all problems of a suite; leave out --problems")
    if arguments.against is not None:
        _check_against(arguments)
    _check_prompts(arguments)
    for suite in arguments.suite:
        if suite not in PROBE:
            suite_of(suite)
    if (arguments.since or arguments.until) and arguments.suite != ["livecodebench"]:
        raise ConfigError("benchmark: --since and --until apply only to --suite livecodebench, whose problems have dates")


def _check_prompts(arguments: Namespace) -> None:
    """Check that no option says how to ask where the run's own settings do."""
    changed = [setting for setting in arguments.set if not (arguments.run and setting == WITHOUT_WALLS)]
    if not arguments.model and (changed or arguments.probe_prompts != "auto"):
        raise ConfigError("benchmark: --set and --probe-prompts apply to --model; a run keeps its own settings")
    if arguments.run and set(arguments.suite) <= set(PROBE) and (arguments.style or arguments.max_new_tokens):
        raise ConfigError(
            f"benchmark: --style and --max-new-tokens do not apply to {', '.join(arguments.suite)} with RUN, "
            "whose model.style and benchmark.max_new_tokens hold; leave them out, or fork the run with another value"
        )
    if arguments.model and arguments.style and set(arguments.suite) <= set(PROBE):
        raise ConfigError(
            f"benchmark: --style applies to public suites; --probe-prompts says how {', '.join(arguments.suite)} is asked"
        )
    asks = ("adapter", "generation", "attempts", "style", "max_new_tokens")
    if arguments.completions and (given := [name for name in asks if getattr(arguments, name) not in (None, 0, "", [])]):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"benchmark: --completions are scored as they are; leave out {options}")


def _check_against(arguments: Namespace) -> None:
    if not arguments.run or arguments.adapter or arguments.contamination:
        raise ConfigError(
            "benchmark: --against compares generations of RUN; leave out --model, --completions, --adapter and --contamination"
        )
    if arguments.members not in ("students", "all") and not arguments.members.startswith("top:"):
        raise ConfigError("benchmark: --against compares the members of two generations; choose them with students, all or top:N")
    if arguments.against < -1:
        raise ConfigError(f"benchmark: --against {arguments.against}: give a generation, or -1 for the start")


def _earlier(arguments: Namespace) -> Namespace:
    """Return the same request for the generation of `--against`."""
    return Namespace(**(vars(arguments) | {"generation": arguments.against}))


def _probe_of_run(asked: list[Namespace], run: Run, suite: str) -> None:
    contestants = [_chosen(each).contestants(run) for each in asked]
    if asked[0].dry_run:
        members, first = sum(map(len, contestants)), asked[0]
        count = len(problems_of(suite, None, first.limit, pattern=first.problems))
        who = "1 adapter" if members == 1 else f"{members:,} adapters"
        print(f"{suite}: {count:,} problems, {who}, {(1 + first.attempts) * members * count:,} answers")
        return
    tables = []
    for each in asked:
        scores, answers = _probe_scores(each, run, suite)
        print(f"{suite}\n{scores_text(scores)}\n\n{forms_text(answers)}")
        if suite in STAIRCASE:
            print(f"\n{depths_text(answers)}")
        tables.append(answers)
    if len(tables) > 1:
        after, before = tables
        print(f"\n{changes_text(after, before, by_band, asked[1].generation)}")


def _probe_scores(arguments: Namespace, run: Run, suite: str) -> tuple[pa.Table, pa.Table]:
    """Return SCORES and ANSWERS."""
    chosen, asked = _chosen(arguments), Question(suite, arguments.limit, arguments.attempts, arguments.problems)
    with Display() as display, display.step(suite) as shown:
        scores = score_run(run, chosen, asked, Meter(shown))
    return scores, run.read_table(f"benchmarks/{probe_folder(run, chosen, asked)}/answers.parquet", "answers")


def _chosen(arguments: Namespace) -> Chosen:
    return Chosen(tuple(arguments.adapter), arguments.generation, arguments.members)


def _target(arguments: Namespace, store: Store, run: Run | None, suite: str) -> tuple[BenchmarkTarget, BenchmarkRequest]:
    data = Path(arguments.data) if arguments.data else suites_folder()
    if run is not None:
        chosen = _chosen(arguments)
        target = targets.of_run(run, chosen.contestants(run), chosen.folder(run))
    elif arguments.model:
        target = targets.of_model(store, arguments.model, [Path(name) for name in arguments.adapter], _settings(arguments))
    else:
        listed = problems_of(suite, data, arguments.limit, arguments.since, arguments.until, arguments.problems)
        target = targets.of_completions(store, Path(arguments.completions), list(listed))
    return target, request_for(
        suite,
        target.config,
        data,
        limit=arguments.limit,
        attempts=arguments.attempts if target.given is None else 0,
        style=arguments.style if target.given is None else ELSEWHERE,
        max_new_tokens=arguments.max_new_tokens,
        window=(arguments.since, arguments.until),
        pattern=arguments.problems,
    )


def _settings(arguments: Namespace) -> list[str]:
    style = arguments.probe_prompts
    return [f"model.style={style}", *arguments.set]


def _scored(target: BenchmarkTarget, request: BenchmarkRequest) -> pa.Table:
    """Score, and show the progress: a bar on a terminal, elsewhere a line every half minute."""
    there = stored(target, request) is not None
    if not there:
        target.run.check_takes_scores()
    card = one_card([] if there or target.given is not None else usable(target.config.model.device))
    with Display() as display, display.step(request.suite) as shown, card:
        meter = Meter(shown)
        with closing(Backend(target.config, meter)) as backend:
            return score_suite(target, request, partial(meter, "shards"), backend)


def _plan(target: BenchmarkTarget, request: BenchmarkRequest) -> str:
    """Return the estimated cost: answers, maximum tokens, and minutes at the rate of the shards already done."""
    if stored(target, request) is not None:
        return f"{request.suite}: already scored, nothing to do"
    words, each = words_of(request, Backend(target.config)), 1 + request.attempts
    answers = len(request.problems) * len(target.contestants) * each if target.given is None else len(target.given)
    members = len(target.contestants)
    who = "1 contestant" if members == 1 else f"{members:,} contestants"
    lines = [f"{request.suite}: {len(request.problems):,} problems, {who}, {answers:,} answers"]
    if target.given is None:
        letters = sum(len(words.asks(problem)) for problem in request.problems)
        lines.append(f"  prompts: about {letters // 4 * members:,} tokens; style {words.style}")
        lines.append(f"  to write: at most {answers * request.max_new_tokens:,} tokens")
    done = done_shards(target, request)
    if done:
        seconds = sum(one.clock["seconds"] for one in done) / sum(one.counts["answers"] for one in done)
        left = answers - sum(one.counts["answers"] for one in done)
        lines.append(f"  {len(done)} shards are done; about {seconds * left / 60:.1f} minutes left at their rate")
    return "\n".join(lines)


def _comparisons(target: BenchmarkTarget, request: BenchmarkRequest) -> str:
    """Return every adapter's comparison with the base model, paired by problem."""
    if len(target.contestants) < 2 or target.contestants[0].member_id != "base":
        return ""
    rows = [row for row in _answers(target, request).to_pylist() if row["greedy"]]
    own: dict[str, dict[str, float]] = {}
    for row in rows:
        own.setdefault(row["member_id"], {})[row["problem_id"]] = float(row["correct"])
    lines = []
    for name in list(own)[1:]:
        found = compare(own[name], own["base"])
        error = "" if found.stderr is None else f" ± {100 * found.stderr:.2f}"
        lines.append(
            f"{name} - base: {signed(100 * found.difference, 2)}{error}, better on {found.better}, worse on {found.worse}\n"
        )
    return "".join(lines)


def _answers(target: BenchmarkTarget, request: BenchmarkRequest) -> pa.Table:
    return target.run.read_table(f"benchmarks/{folder_of(target, request)}/answers.parquet", "answers")
