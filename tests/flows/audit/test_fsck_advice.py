"""The commands that fsck names are ones that the command line takes, about the damaged run and what was asked of it."""

import shlex
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.cli import _parser
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.resume import first_generation
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from tests.support import example_run

ASKED = {
    "probe-dev/asked/generation=0001-n300-k8": {"generation": 1, "limit": 300, "attempts": 8, "members": "students"},
    "probe-test/asked/start-all-n0-k0": {"generation": -1, "limit": 0, "members": "all"},
    "probe-dev/asked/generation=0000-top2-n6-k0": {"generation": 0, "limit": 6, "members": "top:2"},
    "probe-dev/asked/s0-start-s1-g0001-n6-k1": {"adapter": ["s0-start", "s1-g0001"], "limit": 6, "attempts": 1},
    "probe-dev/chosen/s0-g0001-n0-k0-p01234567": {"adapter": ["s0-g0001"], "problems": "dev-*-1-*"},
    "probe-dev/asked/generation=0001-n6-k0-s01234567": {"generation": 1, "limit": 6, "members": "students"},
    "gsm8k/chosen/s0-g0001-0123456789ab": {"adapter": ["s0-g0001"], "problems": "dev-*-1-*", "attempts": 2},
    "gsm8k/asked/generation=0001-0123456789ab": {"suite": ["gsm8k"], "limit": 40, "attempts": 2, "max_new_tokens": 64},
    "gsm8k/asked/s0-g0001-0123456789ab/shards/0001": {"adapter": ["s0-g0001"], "attempts": 2, "limit": 0},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my store")
    store = open_store(str(folder))
    with hold(store, "smoke") as epoch:
        made = example_run.build(Run(store, "smoke", epoch), 2)
        rule = {"question": {"style": "chat", "attempts": 2, "max_new_tokens": 64}}
        for place in ASKED:
            scores = made.write_table_at(f"benchmarks/{place}/scores.parquet", tables.SCORES.empty_table(), tables.SCORES)
            chosen = {"question": rule["question"] | {"problems": "dev-*-1-*"}} if "/chosen/" in place else rule
            made.commit_benchmark(
                place, [], [scores], {"problems": 40} | ({} if "shards" in place else {"shards": 2}), chosen, {}
            )
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Iterator[Run]:
    folder = tmp_path / "my store"
    shutil.copytree(whole, folder)
    store = open_store(str(folder))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)


def advised(run: Run, uri: str, data: bytes = b"{") -> list[Namespace]:
    """What the command line reads in the advice for one damaged artifact."""
    (run.store.root / "smoke" / uri).write_bytes(data)  # type: ignore[attr-defined]
    (finding,) = fsck(Run(run.store, "smoke"))
    assert finding.uri == uri
    commands = [shlex.split(command) for command in finding.command.split(" && ")]
    assert [words[0] for words in commands] == ["populora"] * len(commands)
    return [_parser().parse_args(words[1:]) for words in commands]


@pytest.mark.parametrize("uri", ["generation=0001/grades.parquet", "generation=0000/solve.json", "start/seeds.parquet"])
def test_a_damaged_run_is_resumed_with_its_own_configuration(run: Run, uri: str) -> None:
    (words,) = advised(run, uri)
    assert (words.command, words.resume, words.run_id) == ("run", "smoke", None)
    opened = Run(open_store(words.store), words.resume)
    assert opened.store.root == run.store.root  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ASKED)
def test_a_damaged_benchmark_is_asked_the_same_question_again(run: Run, place: str) -> None:
    (words,) = advised(run, f"benchmarks/{place}/scores.parquet", b"?")
    assert (words.command, words.run, words.suite) == ("benchmark", "smoke", [place.partition("/")[0]])
    assert {name: getattr(words, name) for name in ASKED[place]} == ASKED[place]


def test_a_damaged_manifest_of_a_benchmark_goes_first(run: Run) -> None:
    uri = "benchmarks/probe-dev/asked/generation=0001-n300-k8/benchmark.json"
    resume, again = advised(run, uri)
    assert (resume.command, resume.resume, again.command, again.limit) == ("run", "smoke", "benchmark", 300)
    first_generation(Run(run.store, "smoke", run.epoch))  # what resuming begins with
    assert Run(run.store, "smoke").history.manifest(uri) is None


def test_scores_of_a_generation_are_made_by_the_run_again(run: Run) -> None:
    manifest = run.manifest("update", 1)
    assert manifest is not None
    uri = "benchmarks/probe-dev/generation=0001/scores.parquet"
    scores = run.write_table_at(uri, tables.SCORES.empty_table(), tables.SCORES)
    run.store.delete("smoke/generation=0001/evolve.json")
    run.store.delete("smoke/generation=0001/offspring.parquet")
    again = Run(run.store, "smoke", run.epoch)
    again.commit("benchmark", 1, [], [scores])
    (words,) = advised(run, uri, b"?")
    assert (words.command, words.resume) == ("run", "smoke")


def test_wrong_contents_are_left_behind_by_a_fork_that_can_be_made(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    odd = example_run.CONFIG.model_copy(update={"solve": example_run.CONFIG.solve.model_copy(update={"attempts": 3})})
    with hold(store, "a-run-with-a-name-as-long-as-any-can-be-") as epoch:
        made = example_run.build(Run(store, "a-run-with-a-name-as-long-as-any-can-be-", epoch), 1, odd)
        (finding,) = fsck(made)
        words = _parser().parse_args(shlex.split(finding.command)[1:])
        assert (words.command, words.generation, words.run) == ("fork", -1, made.run_id)
        assert fork(made, words.run_id, words.generation, words.set, lambda config: {}, {}).run_id != made.run_id


def test_broken_contents_under_a_sound_chain_are_found_by_fsck(tmp_path: Path) -> None:
    """A run whose stage wrote nonsense: every digest holds, and yet."""
    store = open_store(str(tmp_path))
    odd = example_run.CONFIG.model_copy(update={"solve": example_run.CONFIG.solve.model_copy(update={"attempts": 3})})
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 1, odd)
    (finding,) = fsck(Run(store, "smoke"))
    fix = f"populora fork smoke --generation -1 --run-id smoke-fixed --store {store.url}"
    assert (finding.uri, finding.command) == ("generation=0000/rollouts.parquet", fix)
    assert finding.problem.startswith("not attempted 3 times: ")
