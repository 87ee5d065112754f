"""Models of the hub: a run keeps the commit that it began with, and names its files; a local server answers as the hub does."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flows.base_model.hub import BASE_RULE, bases_differ, check_files, digest, is_digest_of, recorded_base
from flows.benchmarks.targets import of_model
from flows.config import PROJECT, ConfigError, RunConfig
from flows.storage import open_store
from flows.store.names import RUN_ID

SEED = PROJECT / "infra/models/seed"
NAME = "acme/Tiny-0.5B"
FIRST, SECOND = "a" * 40, "b" * 40
# Opens a run with each list of settings in turn; what its run.json then says, where its model lies, or what refused it.
OPEN = """
import json, os, sys
from flows.backend import Backend
from flows.config import ConfigError, apply
from flows.execution.session import open_session
from flows.benchmarks.targets import of_model
from flows.storage import open_store
from stages.core.engines.protocol import EngineUnavailable
name, store, *turns = sys.argv[1:]
for turn in turns:
    try:
        with open_session(apply({"model": {"name": name}}, json.loads(turn)), "r", store) as current:
            told, path = current.run.history.description(), Backend(current.config).model_path
        row = [told["config"]["model"]["revision"], told["versions"]["model"], path]
        if os.environ["HF_HUB_OFFLINE"] == "0":
            kept = of_model(open_store(store), name, [])
            row += [kept.run.run_id, kept.model]
        print(json.dumps(row))
    except (ConfigError, EngineUnavailable) as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(ThreadingHTTPServer):
    """One model, the seed's files under two commits; `newest` is what its main branch names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.newest, self.asked = FIRST, list[str]()
        self.files = {file.name: file.read_bytes() for file in SEED.iterdir() if file.suffix in (".json", ".safetensors", ".md")}

    def digest(self, name: str) -> str:
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else _git(data)


class Answer(BaseHTTPRequestHandler):
    """What the hub's client asks for a model: about it, its tree, its files."""

    server: Hub

    def do_GET(self) -> None:
        path, hub = urlsplit(self.path).path, self.server
        hub.asked.append(path)
        commit = next((one for one in (FIRST, SECOND) if one in path), hub.newest)
        if path.startswith(f"/api/models/{NAME}/tree/"):
            listed = [{"type": "file", "path": name, "size": len(data), "oid": _git(data)} for name, data in hub.files.items()]
            self._send(json.dumps(listed).encode(), commit, "tree")
        elif path.startswith(f"/api/models/{NAME}"):
            siblings: list[dict[str, Any]] = []
            for name, data in hub.files.items():
                large = {"lfs": {"sha256": hub.digest(name), "size": len(data), "pointerSize": 1}}
                row = {"rfilename": name, "size": len(data), "blobId": _git(data)}
                siblings.append(row | (large if name.endswith(".safetensors") else {}))
            self._send(json.dumps({"id": NAME, "sha": commit, "siblings": siblings}).encode(), commit, "info")
        elif path.startswith(f"/{NAME}/resolve/"):
            name = path.rpartition("/")[2]
            self._send(hub.files[name], commit, hub.digest(name))
        else:
            gated, revision = "/gated" in path, "/acme/changed/" in path
            self.send_response(403 if gated else 404)
            code = "GatedRepo" if gated else "RevisionNotFound" if revision else "RepoNotFound"
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def _send(self, data: bytes, commit: str, tag: str) -> None:
        self.send_response(200)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), "X-Repo-Commit": commit}
        for name, value in (headers | {"ETag": f'"{tag}"'}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def opened(hub: Hub, folder: Path, *turns: list[str], name: str = NAME, offline: str = "0") -> list[list[Any]]:
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": offline}
    environment = os.environ | places | {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", OPEN, name, str(folder / "store"), *map(json.dumps, turns)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_keeps_the_commit_that_it_began_with_and_names_every_file(hub: Hub, tmp_path: Path) -> None:
    ((revision, model, path, run_id, kept),) = opened(hub, tmp_path, [])
    wanted = {name: hub.digest(name) for name in sorted(hub.files) if not name.endswith(".md")}
    assert (revision, model) == (FIRST, {"commit": FIRST, "files": wanted})
    assert kept == model
    assert Path(path).name == FIRST
    assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == {name: hub.files[name] for name in wanted}
    assert re.fullmatch(r"model-tiny-0-5b-[0-9a-f]{8}", run_id)
    assert RUN_ID.fullmatch(run_id)

    hub.newest = SECOND  # the publisher goes on; the run does not
    same, other = opened(hub, tmp_path, [], [f"model.revision={SECOND}"])
    assert same[:3] == [FIRST, model, path]
    assert other[0] == "ConfigError"
    assert "model.revision;" in other[1]
    assert (same[3] != run_id, same[4]["commit"]) == (True, SECOND)  # a benchmark of the model by name takes what it is now
    assert opened(hub, tmp_path, [], offline="1") == [[FIRST, model, path]]  # without a connection


def test_a_model_that_the_hub_does_not_know_and_a_hub_that_does_not_answer(hub: Hub, tmp_path: Path) -> None:
    (unknown,) = opened(hub, tmp_path, [], name="acme/none")
    message = (
        "model.name: acme/none from https://huggingface.co/acme/none: the model does not exist or requires a token (HF_TOKEN)"
    )
    assert unknown == ["ModelMissing", message]
    (gated,) = opened(hub, tmp_path, [], name="acme/gated")
    assert gated[0] == "ModelMissing"
    assert gated[1].endswith("the model is gated; accept its terms on that page, then set HF_TOKEN to your token")
    (moved,) = opened(hub, tmp_path, ["model.revision=v9"], name="acme/changed")
    assert moved[0] == "ModelMissing"
    assert moved[1].endswith("no such commit, branch or tag; check model.revision, or leave it empty for the newest")
    (silent,) = opened(hub, tmp_path, [], offline="1")
    hub.shutdown()
    hub.server_close()
    (refused,) = opened(hub, tmp_path, [], name="acme/other")
    for kind, message in (silent, refused):
        assert kind == "EngineUnavailable"
        assert "\n" not in message and message.endswith(
            "; check the network, or download the model elsewhere and give its folder"
        )


def test_a_model_of_the_hub_that_cannot_be_trained_is_refused_before_its_weights_are_fetched(hub: Hub, tmp_path: Path) -> None:
    plain = json.loads(hub.files["config.json"])
    hub.files["config.json"] = json.dumps(plain | {"sliding_window": 16, "use_sliding_window": True}).encode()
    ((kind, message),) = opened(hub, tmp_path, ["model.style=compact"])
    assert kind == "ConfigError" and "has sliding-window attention over 16 tokens; set engine.window" in message
    del hub.files["config.json"]  # as in a repository of GGUF files
    hub.newest = SECOND
    ((kind, message),) = opened(hub, tmp_path, ["model.style=compact"])
    assert kind == "ConfigError" and message.endswith(
        "has no config.json; give a Hugging Face checkpoint with config.json and safetensors weights, not GGUF files"
    )
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


def test_a_tokenizer_that_is_no_json_is_fetched_before_the_model_is_judged(hub: Hub, tmp_path: Path) -> None:
    del hub.files["tokenizer.json"]
    hub.files["tokenizer.model"] = b"pieces"
    ((revision, model, path, *_),) = opened(hub, tmp_path, ["model.style=compact"])
    assert (revision, Path(path).name) == (FIRST, FIRST)
    assert "tokenizer.model" in model["files"]


def test_files_that_are_not_those_of_run_json_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    files = {"config.json": _git(b"{}"), "model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    check_files(tmp_path, {"commit": FIRST, "files": files})
    check_files(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(ConfigError, match=r"model\.safetensors differs from the file recorded in run\.json"):
        check_files(tmp_path, {"files": files})
    with pytest.raises(ConfigError, match=r"extra\.json differs from the file"):
        check_files(tmp_path, {"files": {"extra.json": files["config.json"]}})


def _folder_with(path: Path, **texts: str) -> RunConfig:
    """A model's folder with these files, `_` standing for the dot, and the configuration that names it."""
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        (path / name.replace("_", ".")).write_text(text)
    return RunConfig.model_validate({"model": {"name": str(path)}})


def test_whatever_changes_a_prompt_changes_the_digest_of_a_folder(tmp_path: Path) -> None:
    config = _folder_with(tmp_path / "model", config_json="{}", model_safetensors="weights")
    seen = [digest(config)]
    for name in ("template_jinja", "merges_txt", "tokenizer_model", "vocabulary_tiktoken"):
        for text in ("one", "two"):
            seen.append(digest(_folder_with(tmp_path / "model", **{name: text})))
    assert len(set(seen)) == len(seen)
    assert digest(_folder_with(tmp_path / "model", README_md="words")) == seen[-1]


def test_a_run_that_recorded_a_digest_of_the_first_rule_goes_on_and_a_new_one_keeps_its_template(tmp_path: Path) -> None:
    config = _folder_with(tmp_path / "model", config_json="{}", model_safetensors="weights")
    first = digest(config)  # what the first rule gives, too, as long as nothing but these two is there
    config = _folder_with(tmp_path / "model", template_jinja="ask")
    second = digest(config)
    assert is_digest_of(config, {"base_model": first}) and is_digest_of(config, {})
    assert is_digest_of(config, {"base_model": second, BASE_RULE: 2})
    assert not is_digest_of(config, {"base_model": first, BASE_RULE: 2}), "a template came into the folder"
    _folder_with(tmp_path / "model", template_jinja="ask otherwise")
    assert not is_digest_of(config, {"base_model": second, BASE_RULE: 2})
    _folder_with(tmp_path / "model", model_safetensors="others")
    assert not is_digest_of(config, {"base_model": first})


@pytest.mark.parametrize(
    ("found", "differ"),
    [
        ([{"base_model": "a"}, {"base_model": "b"}], True),
        ([{"base_model": "a"}, {"base_model": "b", BASE_RULE: 2}], None),
        ([{"base_model": "a"}, {"base_model": "a", BASE_RULE: 2}, {}], False),
        ([{"base_model": "a"}, {"base_model": "b", BASE_RULE: 2}, {"base_model": "c", BASE_RULE: 2}], True),
    ],
)
def test_recorded_digests_compare_only_within_one_rule(found: list[dict[str, object]], differ: bool | None) -> None:
    assert bases_differ(map(recorded_base, found)) is differ


@pytest.mark.parametrize(
    "name", ["Qwen2.5-Coder-1.5B", "___", "Ünïcode Modèl " * 5 + "x", "a-model-with-a-very-long-name-indeed"]
)
def test_any_model_folder_makes_a_run_id_that_a_store_takes(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in SEED.iterdir():
        (folder / file.name).symlink_to(file)
    subject = of_model(open_store(str(tmp_path / "store")), str(folder), [])
    assert RUN_ID.fullmatch(subject.run.run_id), subject.run.run_id


@pytest.mark.parametrize("name", ["~/Qwen", "models/my model", "models/", "models/a--b", "Qwen/x.git"])
def test_a_name_that_is_neither_a_folder_nor_one_of_the_hub(name: str, hub: Hub, tmp_path: Path) -> None:
    (found,) = opened(hub, tmp_path, [], name=name)
    assert found[0] == "ModelMissing"
    assert f"{name} is neither a folder here nor a name on the hub" in found[1] or f"folder {name} does not exist" in found[1]
