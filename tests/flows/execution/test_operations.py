"""What a person does wrong when bringing services up: one line that says what to do, and its exit code; never a hang."""

import asyncio
import fcntl
import gc
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import cards, cli
from flows.config import ConfigError, configurations, load
from flows.execution import gc_tuning, preflight, ray_cluster, stage_process
from flows.execution.pools import HERE, Placement
from flows.prefect_ops import prefect_api, serve, supervised, ui_server
from flows.prefect_ops.own_server import own_server
from stages.core.engines.protocol import EngineUnavailable
from stages.core.unavailable import Unavailable
from tests.support.servers import s3_servers
from tests.support.servers.prefect_double import server_of_version


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_UI_URL", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:  # bound and silent: nobody waits for its answer
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


def said(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert cli.main(words) == code
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.err.startswith("populora: ")
    return printed.err


def test_a_port_in_use_is_named(tmp_path: Path, taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("serve", "--home", str(tmp_path), "--port", str(taken), "--browser-port", str(s3_servers.free_port()))
    line = said(capsys, 2, *words)
    assert f"cannot listen on 127.0.0.1:{taken}: address already in use; choose another --port" in line
    words = ("serve", "--home", str(tmp_path), "--port", str(s3_servers.free_port()), "--browser-port", str(taken))
    assert "choose another --browser-port" in said(capsys, 2, *words)


def test_a_port_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--port 70000: must be between 1 and 65535" in said(capsys, 2, "serve", "--home", str(tmp_path), "--port", "70000")


def test_another_prefect_server_on_the_port_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server_of_version("3.2.1") as port:
        line = said(capsys, 2, "serve", "--home", str(tmp_path), "--port", str(port))
    assert f"a Prefect server 3.2.1 is running there (this project has {prefect_api.installed_version()})" in line


def test_serve_holds_its_port_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    plan = serve.ServeOptions("runs", port=s3_servers.free_port(), home=tmp_path)
    with serve._listen(plan, "--port", plan.port), socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", plan.port))


def test_an_answer_of_somebody_else_is_not_taken_for_that_of_the_server(tmp_path: Path) -> None:
    ended = supervised.start("server", ["false"], os.environ, tmp_path / "log")
    ended.process.wait()
    with server_of_version("3.2.1") as port, pytest.raises(supervised.ChildFailed, match="the Prefect server did not start"):
        serve._wait_for_server(serve.ServeOptions("runs", port=port, home=tmp_path), ended)


def test_a_second_serve_on_one_home_is_told_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / "serving.json").write_text('{"pid": 17, "url": "http://127.0.0.1:4200"}')
        line = said(capsys, 2, "serve", "--home", str(tmp_path))
    assert "already running (process 17, http://127.0.0.1:4200)" in line and "--home" in line


def test_a_database_of_a_newer_prefect_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prefect-version").write_text("4.1.0")
    line = said(capsys, 2, "serve", "--home", str(tmp_path))
    assert f"was written by Prefect 4.1.0, but {prefect_api.installed_version()} is installed: run make setup" in line


@pytest.mark.parametrize("words", [("worker", "cpu"), ("run", "--detach", "-c", "chaos")])
def test_without_a_server_it_is_said_how_to_start_one(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{s3_servers.free_port()}/api")
    assert "start one with populora serve, or set PREFECT_API_URL" in said(capsys, 3, *words)


@pytest.mark.parametrize("words", [("worker", "cpu"), ("run", "--detach", "-c", "chaos")])
def test_a_server_of_another_version_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_of_version("3.2.1") as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        line = said(capsys, 2, *words)
    assert f"is 3.2.1, this project has {prefect_api.installed_version()}: versions must match" in line


def without_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A PATH on which no nvidia-smi is found."""
    monkeypatch.setenv("PATH", str(folder))


def test_a_client_of_a_server_without_tls_reads_one_certificate(tmp_path: Path) -> None:
    assert prefect_api.settings_without_tls("https://prefect.example/api", tmp_path) == {}
    for _ in range(2):
        ((name, file),) = prefect_api.settings_without_tls("http://127.0.0.1:4200/api", tmp_path / "home").items()
        assert name == "PREFECT_API_SSL_CERT_FILE"
        assert len(ssl.create_default_context(cafile=file).get_ca_certs()) == 1
    assert [one.name for one in (tmp_path / "home").iterdir()] == ["certificate.pem"]


def test_a_machine_without_gpu_takes_no_gpu_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_gpu(monkeypatch, tmp_path)
    with server_of_version(prefect_api.installed_version()) as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        assert "no NVIDIA GPU is visible on this machine (nvidia-smi -L)" in said(capsys, 2, "worker", "gpu")


def test_a_run_that_wants_a_gpu_says_so_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch, tmp_path)
    config = load("chaos", ["model.device=cuda"])
    with pytest.raises(ConfigError, match=r"model\.device: cuda was requested, .* place these stages in the pool gpu"):
        preflight.check(config, str(tmp_path), "r")


@pytest.mark.parametrize("settings", [["model.device=cuda"], ["model.device=gpu"]])
def test_a_run_in_the_foreground_is_refused_before_anything_is_written(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_gpu(monkeypatch, tmp_path)
    chosen = [option for setting in ["generations=3", *settings] for option in ("--set", setting)]
    key = settings[-1].partition("=")[0]
    assert f"{key}: " in said(capsys, 2, "run", "-c", "chaos", "--store", str(tmp_path / "runs"), *chosen)
    assert not (tmp_path / "runs" / "chaos").exists()


def test_a_device_that_is_none_or_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("gpu", "cuda:", "cuda:x", "CPU"):
        with pytest.raises(ConfigError, match=rf"model\.device: '{device}'; give auto, cpu, cuda, or a card"):
            preflight.check_machine(load("chaos", [f"model.device={device}"]))
    monkeypatch.setattr(cards, "cards", lambda: [cards.Card("0", "GPU-0")])
    preflight.check_machine(load("chaos", ["model.device=cuda:0"]))
    with pytest.raises(ConfigError, match=r"model\.device: cuda:1 was requested, but the last visible GPU is cuda:0"):
        preflight.check_machine(load("chaos", ["model.device=cuda:1"]))


def test_what_a_configuration_names_is_checked_where_the_model_is_not(tmp_path: Path) -> None:
    config = load("chaos", ["reward.rule=popluora"])
    with pytest.raises(ConfigError, match=r"reward\.rule"):
        preflight.check(config, str(tmp_path), "r", model_elsewhere=True, sandbox_elsewhere=True)


def test_vllm_is_given_its_card_by_the_environment(tmp_path: Path) -> None:
    config = load("one-gpu", ["model.device=cuda:1"])
    with pytest.raises(ConfigError, match="vLLM uses the first visible card: set it to cuda, with CUDA_VISIBLE_DEVICES=1"):
        preflight.check(config, str(tmp_path), "r", gpu_elsewhere=True, model_elsewhere=True)


def test_a_worker_takes_at_least_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--limit 0: at least 1" in said(capsys, 2, "worker", "cpu", "--limit", "0")


@pytest.mark.parametrize("place", ["gpu", "gpu=", "disk=cpu"])
def test_a_place_that_is_none(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--place {place}: write sandbox=POOL, gpu=POOL or ray=HOST:PORT" in said(capsys, 2, "run", "--place", place)


def test_an_unknown_preset_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, 2, "run", "--detach", "-c", "smoek")
    assert "no configuration 'smoek'" in line and all(preset in line for preset in configurations())


def test_a_value_out_of_range_is_refused_before_anything_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, 2, "run", "--detach", "-c", "chaos", "--set", "solve.attempts=1")
    assert "solve.attempts" in line


@pytest.mark.parametrize("address", ["here", "ray://head", "10.0.0.1:x"])
def test_an_address_of_a_ray_cluster_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match=r"placement\.ray"), ray_cluster.connected(address, "auto"):
        pass


def test_a_ray_cluster_that_does_not_answer() -> None:
    with (
        pytest.raises(EngineUnavailable, match=r"no Ray cluster answers at 127\.0\.0\.1"),
        ray_cluster.connected(f"127.0.0.1:{s3_servers.free_port()}", "auto"),
    ):
        pass


def test_stages_go_where_the_placement_says() -> None:
    placement = Placement(sandbox="cpu", gpu="gpu")
    stages = ("match", "propose", "verify", "solve", "grade", "reward", "rate", "benchmark", "evolve", "start")
    assert [placement.pool(stage, None) for stage in stages] == ["", "gpu", "cpu", "gpu", "cpu", "", "", "gpu", "", "gpu"]
    assert (placement.pool("update", "00"), placement.pool("update", None)) == ("gpu", "")
    assert {HERE.pool(stage, None) for stage in stages} == {""}


def kinds_of(error: type[Exception]) -> Iterator[type[Exception]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def test_every_fault_of_the_world_comes_back_as_itself() -> None:
    ours = [kind for kind in kinds_of(Unavailable) if kind.__module__.startswith(("flows.", "stages."))]
    kinds = [kind for kind in ours if not kind.__module__.startswith("flows.export.")]  # no stage exports
    assert {"EngineUnavailable", "GraderUnavailable", "LeaseLost", "Overtaken", "WorkerLost"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        error = stage_process.known_error(f"Flow run encountered an exception: {kind.__name__}: it is away")
        assert type(error) is kind and str(error) == "it is away"


def test_an_error_on_another_machine_comes_back_as_itself() -> None:
    error = stage_process.known_error("Flow run encountered an exception: StoreUnavailable: store s3://b: no route")
    assert type(error).__name__ == "StoreUnavailable" and str(error) == "store s3://b: no route"
    assert stage_process.known_error("Flow run encountered an exception: ValueError: 3") is None


def test_every_answer_of_the_ui_carries_the_policy() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ui_server.PolicyHeaders(app)({"type": "http"}, None, send))
    headers = dict(sent[0]["headers"])
    policy = dict(part.split(" ", 1) for part in headers[b"content-security-policy"].decode().split("; "))
    assert headers[b"x-own"] == b"1"
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert "http" not in " ".join(policy.values())


def test_children_that_will_not_stay_are_given_up(tmp_path: Path) -> None:
    child = supervised.start("worker", ["false"], os.environ, tmp_path / "log")
    for _ in range(supervised.MAX_RESTARTS):
        child.process.wait()
        assert supervised.keep([child]) == ["worker"]
    child.process.wait()
    with pytest.raises(supervised.ChildFailed, match="the worker keeps exiting"):
        supervised.keep([child])


def test_a_child_that_ignores_sigterm_ends_all_the_same(tmp_path: Path) -> None:
    deaf = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done"]
    child = supervised.start("deaf", deaf, os.environ, tmp_path / "log")
    while "ready" not in child.last_words():
        assert child.lives
    child.end(0.4)
    assert not child.lives


def test_deployments_that_are_not_made_in_time_are_one_line_that_names_the_log(tmp_path: Path) -> None:
    slow = supervised.start("setup", ["sleep", "600"], os.environ, tmp_path / "setup.log")
    with pytest.raises(
        supervised.ChildFailed, match=rf"^the deployments were not created within 0 s; see {tmp_path}/setup\.log$"
    ):
        serve._wait_for_setup(slow, 0.2)
    assert not slow.lives
    wrong = supervised.start("setup", ["sh", "-c", "echo no room; exit 1"], os.environ, tmp_path / "setup.log")
    with pytest.raises(supervised.ChildFailed, match=r"^the deployments could not be created: no room; see "):
        serve._wait_for_setup(wrong)


def test_what_serve_gives_its_children(tmp_path: Path) -> None:
    variables = serve.environment(serve.ServeOptions("runs", port=4321, home=tmp_path))
    assert variables["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    assert variables["PREFECT_HOME"] == str(tmp_path / "prefect")
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false" and variables["DO_NOT_TRACK"] == "1"


def test_the_collector_is_calm_for_a_while() -> None:
    before = gc.get_threshold()
    with gc_tuning.relaxed_gc():
        assert gc.get_freeze_count() > 1000 and gc.get_threshold() == gc_tuning.THRESHOLDS
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_a_server_of_our_own_that_cannot_start_says_why(tmp_path: Path) -> None:
    before = dict(os.environ)
    wrong = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "no-database"}
    with own_server(tmp_path, wrong, "--alone") as (server, answers):
        with pytest.raises(supervised.ChildFailed, match="Could not parse SQLAlchemy URL"):
            answers()
        assert os.environ["PREFECT_API_URL"].startswith("http://127.0.0.1:")
    assert not server.lives and dict(os.environ) == before
