"""Files that a configuration names: found from any folder, recorded with the run, and the same ones when it is resumed."""

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.backend import Backend
from flows.choices import choose, sources
from flows.cli import main
from flows.config import PROJECT, ConfigError, RunConfig, dump, load
from flows.execution.run_stage import Spec, execute
from flows.execution.session import check_resumable
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core.method.curriculum import CURRICULA, Cell, Record
from stages.core.method.rewards import RULES
from stages.core.prompts.styles import Kind
from stages.reward import ESTIMATORS
from tests.support import example_run

PLACEBO = "infra/experiments/placebo.py:permuted"
RULE = "from stages.core.method.rewards import populora\n\ndef rule(event):\n    return populora(event)\n"


def ruled(file: Path) -> RunConfig:
    """The configuration of the example run with a reward rule of the user's."""
    reward = example_run.CONFIG.reward.model_copy(update={"rule": f"{file}:rule"})
    return example_run.CONFIG.model_copy(update={"reward": reward})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULE)
    return path


@pytest.fixture
def run(tmp_path: Path, file: Path) -> Iterator[Run]:
    """One generation of a run with a rule of the user's."""
    store = open_store(str(tmp_path / "store"))
    with hold(store, "smoke") as epoch:
        made = Run(store, "smoke", epoch)
        config = ruled(file)
        made.describe(dump(config), {"choices": sources(config)}, {})
        yield example_run.build(made, 1, config)


def test_a_relative_path_starts_at_the_project_wherever_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "infra" / "experiments"
    folder.mkdir(parents=True)
    (folder / "placebo.py").write_text("def permuted():\n    pass\n")  # of the same name, in the folder of the person
    monkeypatch.chdir(tmp_path)
    config = load("smoke", [f"learning.estimator={PLACEBO}"])
    placebo = PROJECT / "infra" / "experiments" / "placebo.py"
    assert sources(config) == {PLACEBO: sha256(placebo.read_bytes()).hexdigest()}
    assert choose("learning.estimator", PLACEBO, ESTIMATORS).__code__.co_filename == str(placebo)


def test_a_file_that_is_not_there_is_named_with_its_key_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    said = rf"^reward.rule: there is no file {PROJECT}/mine.py; a relative path starts at the project's folder$"
    with pytest.raises(ConfigError, match=said):
        choose("reward.rule", "mine.py:rule", RULES)
    with pytest.raises(ConfigError, match=said):
        sources(ruled(Path("mine.py")))
    assert sources(ruled(tmp_path / "mine.py")) == {f"{tmp_path}/mine.py:rule": sha256(RULE.encode()).hexdigest()}


def test_a_run_is_resumed_only_with_the_files_that_it_began_with(run: Run, file: Path) -> None:
    config = ruled(file)
    with pytest.raises(ConfigError, match=r"^model\.name: "):  # the example's model is made up: all before it was in order
        check_resumable(Run(run.store, "smoke"), config)
    file.write_text(RULE.replace("populora(event)", "0.0"))
    with pytest.raises(ConfigError, match=rf"^reward.rule: {file} has changed since run smoke began; "):
        check_resumable(Run(run.store, "smoke"), config)
    file.unlink()
    with pytest.raises(ConfigError, match=r"^reward\.rule: there is no file"):
        check_resumable(Run(run.store, "smoke"), config)


def test_a_worker_does_no_step_with_another_file(run: Run, file: Path) -> None:
    file.write_text(RULE.replace("populora(event)", "0.0"))
    step = Spec(run.store.url, "smoke", "match", 1, None, run.epoch, 3)
    with pytest.raises(ConfigError, match="has changed since run smoke began"):
        execute(step, lambda _: pytest.fail("the step was begun"))


def test_fsck_judges_with_no_other_file(run: Run, file: Path) -> None:
    assert fsck(Run(run.store, "smoke")) == []
    file.write_text(RULE.replace("populora(event)", "7.0"))
    (finding,) = fsck(Run(run.store, "smoke"))
    assert finding.uri == "run.json" and "invariants are not checked" in finding.problem and "has changed" in finding.problem


def test_a_fork_records_its_own_files(run: Run, file: Path, tmp_path: Path) -> None:
    other = shutil.copy(file, tmp_path / "other.py")
    made = fork(run, "other", -1, [f"reward.rule={other}:rule"], lambda config: {"choices": sources(config)}, {})
    description = made.history.description()
    assert description is not None
    assert description["versions"]["choices"] == {f"{other}:rule": sha256(RULE.encode()).hexdigest()}
    file.unlink()  # the parent's own is not the fork's affair any more
    again = fork(run, "other", -1, [f"reward.rule={other}:rule"], lambda config: {"choices": sources(config)}, {})
    assert again.run_id == "other"


@pytest.mark.parametrize(
    "setting", ["reward.rule=mine", "learning.estimator=rloo", 'reward.gates=["nope"]', "population.matchmaker=x"]
)
def test_a_fork_with_a_name_that_does_not_exist_is_not_made(
    run: Run, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fork", "smoke", "--generation", "-1", "--run-id", "never", "--set", setting, "--store", run.store.url]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"populora: {setting.partition('=')[0]}: '") and said.count("\n") == 1
    assert "never" not in run.store.folders("")


def test_an_unknown_name_is_followed_by_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        choose("reward.rule", "populor", RULES)
    names = "azr, form, learnable, populora, nor path/to/file.py:function"
    said = f"reward.rule: 'populor' is not one of {names}; did you mean populora?"
    assert str(error.value) == said


def test_a_file_that_cannot_be_loaded_is_one_line_that_names_the_key(tmp_path: Path) -> None:
    for text, said in (("def rule(:", "SyntaxError: "), ("import nothing_of_this_name", "ModuleNotFoundError: No module named")):
        (tmp_path / "own.py").write_text(text)
        with pytest.raises(ConfigError, match=f"reward.rule: .*own.py cannot be loaded: {said}"):
            choose("reward.rule", f"{tmp_path / 'own.py'}:rule", RULES)


def test_the_reasoner_is_given_deductions_whose_depth_it_solves_half_of_the_time() -> None:
    curriculum = choose("propose.curriculum", load("reasoner").propose.curriculum, CURRICULA)
    records = {
        Cell(Kind.DEDUCTION, 1): Record(98, 98),
        Cell(Kind.DEDUCTION, 6): Record(98, 49),
        Cell(Kind.DEDUCTION, 9): Record(98, 0),
        Cell(Kind.ABDUCTION, 6): Record(98, 49),
        Cell(Kind.INDUCTION, 1): Record(),
    }
    assert curriculum(records) == {
        Cell(Kind.DEDUCTION, 1): 0.99 * (1 - 0.99),
        Cell(Kind.DEDUCTION, 6): 0.25,
        Cell(Kind.DEDUCTION, 9): 0.01 * 0.99,
    }


def test_a_curriculum_that_weighs_none_of_the_run_s_kinds_is_refused_before_the_run() -> None:
    backend = Backend(load("reasoner", ["propose.kinds=['abduction']"]))
    with pytest.raises(ConfigError, match=r"propose\.curriculum and propose\.kinds \(abduction\): a curriculum's weights"):
        backend.check()
