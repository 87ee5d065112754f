"""A published folder: loads on its base with the run's logits, says which options write it again, goes up when asked."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.numpy import load
from transformers import AutoModelForCausalLM

from flows.cli import main
from flows.config import PROJECT, ConfigError, RunConfig, dump
from flows.export.card import is_unedited, marked
from flows.export.publish import HubUnavailable, upload, write_folder
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import StoreRefused
from flows.store.file_store import FileStore
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import adapter_bytes
from stages.core.training.grouped_lora import attach
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights
from tests.support import scored_run
from tests.support.servers.fake_hub import TOKEN, FakeHub, fake_hub

SEED = PROJECT / "infra" / "models" / "seed"
IDS = torch.arange(20, 44).reshape(2, 12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run on the seed model with one starting adapter whose weights are not zero."""
    config = RunConfig.model_validate({"model": {"name": "infra/models/seed", "rank": 2, "alpha": 4}})
    store = FileStore(tmp_path_factory.mktemp("store"))
    lora = attach(AutoModelForCausalLM.from_pretrained(SEED), TARGETS, 2, 4, 1)
    with hold(store, "made") as epoch:
        found = Run(store, "made", epoch)
        found.describe(dump(config), {}, {})
        files = adapter_bytes(Adapter(random_weights(lora, 3), {}, 0), "infra/models/seed", 4)
        found.commit("start", None, [], found.write_adapter("s0-start", files), versions={"base_model": "ab" * 32})
        yield found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return scored_run.build(FileStore(tmp_path_factory.mktemp("played")), "played")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the tests are offline, and this hub is on 127.0.0.1
    with fake_hub() as found:
        yield found


def api(server: FakeHub, token: str = TOKEN) -> HfApi:
    return HfApi(endpoint=server.url, token=token)


def expected(run: Run) -> torch.Tensor:
    """Logits of the grouped layers, as the run's engine and trainer compute them."""
    lora = attach(AutoModelForCausalLM.from_pretrained(SEED, dtype=torch.float32), TARGETS, 2, 4, 1)
    files = run.read_adapter("s0-start")
    lora.load([load(files["adapter_model.safetensors"])])
    with torch.no_grad(), lora.routed([2]):
        logits: torch.Tensor = lora.model(IDS).logits
    return logits


def test_the_three_lines_of_the_card_load_the_runs_own_adapter(run: Run, tmp_path: Path) -> None:
    write_folder(run, "s0-start", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    card = (tmp_path / "out" / "README.md").read_text()
    lines = card.partition("```python\n")[2].partition("```")[0].strip()
    assert len(lines.splitlines()) == 3
    names = {"BASE": str(SEED)}
    exec(lines.replace('"out"', repr(str(tmp_path / "out"))), names)  # our own template, with no name of a run in it
    with torch.no_grad():
        found = names["model"].float()(IDS).logits  # type: ignore[attr-defined]
    base = AutoModelForCausalLM.from_pretrained(SEED, dtype=torch.float32)
    with torch.no_grad():
        assert not torch.allclose(base(IDS).logits, expected(run), atol=1e-2)
    torch.testing.assert_close(found, expected(run), rtol=1e-4, atol=1e-4)


def test_the_card_has_metadata_for_the_hub_and_the_digests_to_verify_it(run: Run, tmp_path: Path) -> None:
    write_folder(run, "s0-start", tmp_path / "out", hub_base="someone/seed")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.to_dict() == {
        "base_model": "someone/seed",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "license": "mit",
        "pipeline_tag": "text-generation",
        "tags": ["populora", "lora", "self-play", "code"],
    }
    weights = hashlib.sha256((tmp_path / "out" / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert weights in card.text and run.history.head() in card.text
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == "someone/seed"
    again = tmp_path / "again" / "out"
    write_folder(run, "s0-start", again, hub_base="someone/seed")
    assert (again / "README.md").read_bytes() == (tmp_path / "out" / "README.md").read_bytes()


def test_the_card_says_which_options_write_the_same_bytes(run: Run, tmp_path: Path) -> None:
    options = {"repository": "me/adapter", "hub_base": "me/base", "licence": "apache-2.0"}
    write_folder(run, "s0-start", tmp_path / "out", **options)
    write_folder(run, "s0-start", tmp_path / "again" / "out", **options)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card == (tmp_path / "again" / "out" / "README.md").read_text()
    assert "and the same `--base-model`,\n  `--license` and `--to`, writes the same bytes" in card
    write_folder(run, "s0-start", tmp_path / "plain" / "out")
    assert (tmp_path / "plain" / "out" / "README.md").read_text() != card, "the options are part of the bytes"


def test_an_upload_is_one_commit_to_a_private_repository(run: Run, server: FakeHub, tmp_path: Path) -> None:
    write_folder(run, "s0-start", tmp_path / "out", "me/adapter")
    assert 'from_pretrained(BASE), "me/adapter")' in (tmp_path / "out" / "README.md").read_text()
    assert upload(api(server), tmp_path / "out", "me/adapter", public=False).endswith("/me/adapter/commit/1 (private)")
    assert server.private == {"me/adapter": True}
    assert server.files["me/adapter"] == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert sum(path.endswith("/commit/main") for _, path, _ in server.asked) == 1
    upload(api(server), tmp_path / "out", "me/open", public=True)
    assert server.private["me/open"] is False
    with pytest.raises(ConfigError, match="is public; give --public"):
        upload(api(server), tmp_path / "out", "me/open", public=False)


def test_what_the_hub_refuses_or_cannot_do_is_one_line_without_the_token(run: Run, server: FakeHub, tmp_path: Path) -> None:
    write_folder(run, "s0-start", tmp_path / "out")
    wrong = "hf_wrong-token"
    with pytest.raises(ConfigError, match="refuses the token") as refused:
        upload(api(server, wrong), tmp_path / "out", "me/adapter", public=False)
    assert wrong not in str(refused.value)
    for status, kind in ((422, ConfigError), (500, HubUnavailable)):
        server.answer = status
        with pytest.raises(kind) as failed:
            upload(api(server), tmp_path / "out", "me/adapter", public=False)
        assert TOKEN not in str(failed.value) and "\n" not in str(failed.value)
    closed = HfApi(endpoint="http://127.0.0.1:9", token=TOKEN)
    with pytest.raises(HubUnavailable, match="is complete, and the same command tries again"):
        upload(closed, tmp_path / "out", "me/adapter", public=False)


def test_a_folder_that_holds_the_adapter_is_kept_and_any_other_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_folder(run, "s0-start", folder)
    assert "holds this adapter already" in write_folder(run, "s0-start", folder, "me/adapter")
    card = (folder / "README.md").read_text()
    assert '"me/adapter")' in card, "a card that nobody edited gets the hub's name"
    (folder / "README.md").write_text(card + "\nMine.\n")
    write_folder(run, "s0-start", folder, "me/other")
    assert (folder / "README.md").read_text() == card + "\nMine.\n"
    (folder / "adapter_model.safetensors").write_bytes(b"other weights")
    with pytest.raises(StoreRefused, match="already exists"):
        write_folder(run, "s0-start", folder)
    assert [file.name for file in tmp_path.iterdir()] == ["out"], "nothing half-written is left"


def test_a_licence_reaches_a_card_that_nobody_edited_and_is_refused_by_an_edited_one(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    card = folder / "README.md"
    write_folder(run, "s0-start", folder)
    assert ModelCard.load(card).data.license == "mit"
    write_folder(run, "s0-start", folder, licence="apache-2.0")
    assert ModelCard.load(card).data.license == "apache-2.0"
    write_folder(run, "s0-start", folder, "me/adapter")
    assert ModelCard.load(card).data.license == "apache-2.0", "what was stated stays"
    edited = card.read_text() + "\nMine.\n"
    card.write_text(edited)
    with pytest.raises(ConfigError, match=r"--license mit: .*README.md was edited and is kept"):
        write_folder(run, "s0-start", folder, licence="mit")
    assert "was edited and is kept" in write_folder(run, "s0-start", folder, licence="apache-2.0")
    assert card.read_text() == edited


def test_a_base_model_named_later_reaches_card_and_configuration_and_stays(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fresh = tmp_path / "out", tmp_path / "fresh" / "out"
    write_folder(run, "s0-start", folder)
    assert "a folder, seed; to upload, name it on the hub with --base-model OWNER/NAME" in capsys.readouterr().err
    write_folder(run, "s0-start", fresh, hub_base="me/base")
    for name in ("me/base", ""):
        write_folder(run, "s0-start", folder, hub_base=name)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
            file.name: file.read_bytes() for file in fresh.iterdir()
        }
    assert capsys.readouterr().err == ""
    card = folder / "README.md"
    assert "vllm serve me/base --enable-lora" in card.read_text() and "BASE" not in card.read_text()
    card.write_text(card.read_text() + "\nMine.\n")
    assert "was edited and is kept" in write_folder(run, "s0-start", folder)
    with pytest.raises(ConfigError, match=r"--base-model me/other: .*README.md was edited and is kept"):
        write_folder(run, "s0-start", folder, hub_base="me/other")


def test_without_an_adapter_the_best_rated_student_is_written_wherever_the_folder_is_named(
    played: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ("--store", played.store.url)
    assert main(["publish", "played", *store]) == 0
    said = capsys.readouterr().out.splitlines()
    chosen = said[0].split()[1].rstrip(":")
    rows = played.read_table(1, "ratings").to_pylist()
    best = max((row for row in rows if row["role"] == "student"), key=lambda row: row["fitness"])
    assert chosen == best["next_adapter_id"] and said[1].startswith(f"wrote      played-{chosen}: ")
    assert main(["publish", "played", "s0-start", *store, "--base-model", "me/base", "named"]) == 0
    assert (tmp_path / "named" / "README.md").is_file()


def test_our_own_older_card_is_replaced_and_a_kill_never_cuts_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    card = folder / "README.md"
    write_folder(run, "s0-start", folder)
    new = card.read_text()
    older = marked("---\ntags: [populora]\n---\n\nAs an older version wrote it.\n")
    card.write_text(older)

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_folder(run, "s0-start", folder)
    assert card.read_text() == older
    write_folder(run, "s0-start", folder)
    assert card.read_text() == new and len(list(folder.iterdir())) == 3
    for changed in (new[:-1], new + "x", new.replace("self-play", "play"), "", new.partition("<!-- As written")[0]):
        assert is_unedited(new) and not is_unedited(changed)


def command(run: Run, server: FakeHub, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`populora publish` as a user calls it, with a hub of the tests and no log-in of this machine."""
    store = run.store.url.removeprefix("file://")
    words = ["publish", run.run_id, "s0-start", str(folder), "--store", store, *more]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING_FACE"))}
    own = {"HF_ENDPOINT": server.url, "HF_HOME": str(folder.parent / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True, cwd=PROJECT, env=clean | own | variables
    )


def test_the_command_uploads_with_the_token_of_the_environment_and_never_prints_it(
    run: Run, server: FakeHub, tmp_path: Path
) -> None:
    server.large = True
    done = command(run, server, tmp_path / "out", "--to", "me/adapter", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert "uploaded   " in done.stdout and "(private)" in done.stdout
    assert server.files["me/adapter"] == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert server.objects, "the weights went as a large file"
    assert TOKEN not in done.stdout + done.stderr
    assert not any(TOKEN in file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("more", "variables", "code_", "said"),
    [
        (("--to", "me/adapter"), {}, 2, "no token for the hub; set HF_TOKEN"),
        (("--to", "adapter"), {"HF_TOKEN": TOKEN}, 2, "give OWNER/NAME"),
        (
            ("--to", "me/adapter", "--base-model", "me/base"),
            {"HF_TOKEN": TOKEN, "HF_ENDPOINT": "http://127.0.0.1:9"},
            3,
            "is complete",
        ),
    ],
)
def test_a_command_that_cannot_upload_says_so_in_one_line(
    run: Run, server: FakeHub, tmp_path: Path, more: tuple[str, ...], variables: dict[str, str], code_: int, said: str
) -> None:
    done = command(run, server, tmp_path / "out", *more, **variables)
    assert done.returncode == code_ and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and TOKEN not in done.stderr
    assert not server.asked
    assert (tmp_path / "out").exists() == (code_ == 3)
