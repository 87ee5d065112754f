"""`populora track` for real: what TensorBoard, MLflow and Weights & Biases then hold equals the tables, once, and goes on."""

import io
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flows.cli import main
from flows.config import ConfigError
from flows.monitoring.run_tables import RunTables
from flows.run.run import Run
from flows.storage import NotStored, StoreUnavailable
from flows.store.file_store import FileStore
from flows.tracking.sinks import BEGUN, _Marker
from flows.tracking.tracking import SINKS, opened, track, values
from tests.support.report_run import made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with made(root, "run", 3, until="grade"):
        pass
    return root


@pytest.fixture(scope="module")
def run(store):
    return Run(FileStore(store), "run")


def expected(run):
    """By generation; the alarms are counted by hand below."""
    watch = RunTables(run).look()
    return {number: values(watch, number) for number in (0, 1)}


def quiet(_):
    pass


def records(data):
    """The records of a .wandb file: LevelDB's log format after a header of seven bytes."""
    at, kept = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        kept, at = kept + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield kept
            kept = b""


def test_names_say_what_a_number_is_about(run):
    found = expected(run)[1]
    names = {"solve.rate", "solve.rate/deduction", "rating.mu/teacher/t0", "update.drift_mean/teacher/t0", "seconds/solve"}
    assert names <= set(found)
    rows = run.read_table(1, "metrics").to_pylist()
    whole = {row["name"]: row["value"] for row in rows if row["member_id"] is row["role"] is row["kind"] is None}
    assert whole and whole.items() <= found.items()


def test_tensorboard_holds_the_numbers_once(run, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert track(run, f"tensorboard:{tmp_path}", told=quiet) == 2
    assert track(run, f"tensorboard:{tmp_path}", told=quiet) == 0
    events = EventAccumulator(str(tmp_path / "run"), size_guidance={"tensors": 0, "scalars": 0}).Reload()
    tags = events.Tags()["tensors"]
    for generation, numbers in expected(run).items():
        assert set(numbers) <= set(tags)
        for name in ("solve.rate", "rating.mu/teacher/t0", "seconds/solve"):
            found = [one for one in events.Tensors(name) if one.step == generation]
            assert [one.tensor_proto.float_val[0] for one in found] == [pytest.approx(numbers[name], rel=1e-6)]


def test_the_numbers_of_another_run_of_that_name_are_not_continued(tmp_path):
    first = _Marker(tmp_path / "run", "c0de")
    first.write(7)
    assert _Marker(tmp_path / "run", "c0de").read() == 7
    with pytest.raises(ConfigError, match="holds the numbers of another run of this name; remove them, or give another"):
        _Marker(tmp_path / "run", "beef").read()
    (tmp_path / "run" / ".populora.json").write_text('{"generation": 3}')  # of an earlier version
    assert _Marker(tmp_path / "run", "beef").read() == 3


@pytest.mark.slow  # making the tables of its database takes many seconds
def test_mlflow_holds_the_numbers_once_and_the_settings(run, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    target = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert track(run, f"mlflow:{target}", told=quiet) == 2
    assert track(run, f"mlflow:{target}", told=quiet) == 0
    client = mlflow.tracking.MlflowClient(target)
    (found,) = client.search_runs([client.get_experiment_by_name("populora").experiment_id])
    assert found.data.params["evolution.every"] == "2" and found.data.tags["populora.run"] == "run"
    for name in ("solve.rate/deduction", "rating.mu/teacher/t0", "alarms"):
        history = sorted((one.step, one.value) for one in client.get_metric_history(found.info.run_id, name))
        assert [step for step, _ in history] == [0, 1]
        if name != "alarms":
            assert history == [(generation, numbers[name]) for generation, numbers in expected(run).items()]


def test_an_mlflow_run_says_which_run_its_numbers_are_of(tmp_path, monkeypatch):
    """One that an earlier version made has no tag, and is continued."""
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is made at once, a database takes seconds
    to = f"mlflow:{tmp_path}"
    first = opened(to, "run", {}, "c0de")
    first.write(7, 0.0, {"solve.rate": 0.5})
    client = mlflow.tracking.MlflowClient(str(tmp_path))
    (found,) = client.search_runs([client.get_experiment_by_name("populora").experiment_id])
    assert found.data.tags[BEGUN] == "c0de" and opened(to, "run", {}, "c0de").last() == 7
    with pytest.raises(ConfigError, match="holds the numbers of another run of this name; remove them, or give another"):
        opened(to, "run", {}, "beef")
    assert opened(to, "other", {}, "beef").last() == -1
    client.delete_tag(found.info.run_id, BEGUN)
    assert opened(to, "run", {}, "beef").last() == 7


@pytest.mark.slow
def test_weights_and_biases_keeps_the_numbers_offline(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    assert track(run, f"wandb:{tmp_path}", told=quiet) == 2
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    found = {}
    for record in map(Record.FromString, records(file.read_bytes())):
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        if "solve.rate" in items:
            found[record.history.step.num] = float(items["solve.rate"])
    assert found == {generation: pytest.approx(numbers["solve.rate"]) for generation, numbers in expected(run).items()}
    assert track(run, f"wandb:{tmp_path}", told=quiet) == 0


def test_what_is_no_target_and_what_is_no_run(run, store, tmp_path, capsys):
    for to in ("tensorboard", "elsewhere:x", "mlflow:"):
        with pytest.raises(ConfigError, match="give one of mlflow:WHERE, tensorboard:WHERE, wandb:WHERE"):
            track(run, to)
    with pytest.raises(NotStored, match="no run none"):
        track(Run(FileStore(store), "none"), "tensorboard:x")
    assert main(["track", "run", "--store", str(store), "--to", "elsewhere:x"]) == 2
    assert capsys.readouterr().err.startswith("populora: --to 'elsewhere:x'")


class Counting:
    """A destination that counts how often it is asked for its last generation."""

    asked = 0

    def __init__(self, target, run_id, config, begun):
        self._last = -1

    def last(self):
        Counting.asked += 1
        return self._last

    def write(self, generation, ended, values):
        self._last = generation

    def close(self):
        pass


def test_a_destination_is_asked_once_and_its_password_is_not_printed(store, monkeypatch, capsys):
    monkeypatch.setitem(SINKS, "counting", Counting)
    to = "counting:postgresql://user:se/cr@et@host:5432/db?password=secret"
    monkeypatch.setenv("TRACKER", to)
    assert main(["track", "run", "--store", str(store), "--to-from-env", "TRACKER"]) == 0
    shown = "counting:postgresql://host:5432/db"
    assert capsys.readouterr().out.splitlines() == [
        f"generation 0 sent to {shown}",
        f"generation 1 sent to {shown}",
        f"2 generations sent to {shown}",
    ]
    assert Counting.asked == 1
    monkeypatch.setenv("TRACKER", to.removeprefix("counting:"))
    assert main(["track", "run", "--store", str(store), "--to-from-env", "TRACKER"]) == 2
    assert "populora: --to 'postgresql://host:5432/db': give one of" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{to}\n"))
    assert main(["track", "run", "--store", str(store), "--to-from-stdin"]) == 0
    assert capsys.readouterr().out.endswith(f" generations sent to {shown}\n")


@pytest.mark.parametrize("secret", ["mlflow:postgresql://user:pass@host/db", "mlflow:postgresql://host/db?password=pass"])
def test_a_password_among_the_arguments_is_refused_in_one_line(secret, store, capsys):
    assert main(["track", "run", "--store", str(store), "--to", secret]) == 2
    said = capsys.readouterr().err
    assert said.startswith("populora: --to mlflow:postgresql://host/db: other users of this machine see a password")
    assert said.endswith("give the whole address with --to-from-env NAME or --to-from-stdin\n") and said.count("\n") == 1
    assert main(["track", "run", "--store", str(store), "--to-from-env", "NO_SUCH"]) == 2
    assert "track: the variable NO_SUCH holds no address" in capsys.readouterr().err


class Tracker(BaseHTTPRequestHandler):
    """As much of an MLflow server as `track` needs to begin with a run that exists."""

    def log_message(self, format, *args):
        pass

    def _answer(self):
        run = {"info": {"run_id": "a" * 32, "run_uuid": "a" * 32, "experiment_id": "1", "status": "RUNNING"}, "data": {}}
        body = json.dumps({"experiment": {"experiment_id": "1", "name": "populora"}, "runs": [run]}).encode()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer


def test_an_mlflow_server_that_stops_answering_is_one_line_without_the_password(monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ThreadingHTTPServer(("127.0.0.1", 0), Tracker) as server:
        address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        sink = opened(f"mlflow:http://user:s%20cret@{address}/?key=hidden", "run", {}, "")
        server.shutdown()
        thread.join()
    for call in (sink.last, sink.close, lambda: sink.write(0, 0.0, {"solve.rate": 0.5})):
        with pytest.raises(StoreUnavailable) as raised:
            call()
        said = str(raised.value)
        assert said.startswith(f"MLflow at http://{address}/: ") and raised.value.__cause__ is None
        assert not any(secret in said for secret in ("user:", "s%20cret", "s cret", "key=hidden")), said
    with pytest.raises(StoreUnavailable) as raised:
        opened("mlflow:nosuch://user:secret@host/db", "run", {}, "")
    assert "unsupported URI 'nosuch://***@host/db'" in str(raised.value)


def test_an_mlflow_database_that_cannot_be_written_is_one_line(tmp_path, run, capsys):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreUnavailable, match=r"MLflow at sqlite:////.*/file/x\.db: ") as raised:
        track(run, f"mlflow:sqlite:///{tmp_path / 'file' / 'x.db'}", told=quiet)
    assert raised.value.exit_code == 3 and "\n" not in str(raised.value)


def test_errors_of_an_mlflow_database_are_one_line(tmp_path):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from sqlalchemy.exc import OperationalError

    sink = opened(f"mlflow:sqlite:///{tmp_path / 'mlflow.db'}", "run", {}, "")
    (tmp_path / "mlflow.db").write_bytes(b"no database any more" * 400)
    with pytest.raises(StoreUnavailable, match=r"MLflow at sqlite:////.*/mlflow\.db: ") as raised:
        sink.write(0, 0.0, {"solve.rate": 0.5})
    assert "\n" not in str(raised.value) and not isinstance(raised.value, OperationalError)


def test_a_missing_library_names_its_extra(monkeypatch):
    from flows.tracking.sinks import needed

    with pytest.raises(ConfigError, match=r"wandb is not installed: pip install -c constraints.txt -e '.\[wandb\]'"):
        needed("no_such_library", "wandb")
