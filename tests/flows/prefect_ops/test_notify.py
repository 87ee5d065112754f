"""Who is told of what: addresses are in blocks only, messages arrive, and none that cannot be sent matters to a run."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import prefect
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import Artifact, FlowRun, State, StateType
from prefect.states import Crashed, Running

from flows import cli
from flows.config import ConfigError
from flows.notes import endings, telling
from flows.notes.end_text import HERE
from flows.prefect_ops import notify
from tests.support.servers.webhook import mail_server, webhook

CRASH = "Flow run process exited with non-zero status code -9."


@prefect.flow(name="train")
def stopped(run_id: str, store: str) -> None:
    pass


@pytest.fixture
def _clean() -> Iterator[None]:
    yield
    for name in ("pager", "letters", "other"):
        notify.remove(name)


def crashed(client: Any, run_id: str) -> Any:
    made = client.create_flow_run(stopped, parameters={"run_id": run_id, "store": "/nowhere"})
    client.set_flow_run_state(made.id, Running(), force=True)
    client.set_flow_run_state(made.id, Crashed(message=CRASH), force=True)
    return client.read_flow_run(made.id)


@pytest.mark.parametrize(
    ("kind", "url", "address"),
    [
        ("slack", "https://hooks.slack.com/services/T1/B2/c3", "https://hooks.slack.com/services/T1/B2/c3"),
        ("webhook", "https://example.org/a/b", "jsons://example.org/a/b"),
        ("webhook", "http://127.0.0.1:8830/hook?token=x&y=", "json://127.0.0.1:8830/hook?-token=x&-y="),
        ("email", "mailtos://u:p@smtp.example.org?to=a@b.c", "mailtos://u:p@smtp.example.org?to=a@b.c"),
    ],
)
def test_an_address_becomes_one_that_the_block_knows(kind: str, url: str, address: str) -> None:
    assert notify.apprise_address(kind, f" {url}\n") == address


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("slack", "https://example.org/SECRET"),
        ("slack", "SECRET"),
        ("webhook", "file:///SECRET"),
        ("webhook", "https://"),
        ("email", "https://SECRET"),
        ("email", "mailtos://"),
    ],
)
def test_a_wrong_address_is_refused_and_never_said(kind: str, url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        notify.apprise_address(kind, url)
    assert "SECRET" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slack"], "--url-from-env NAME or --url-from-stdin"),
        (["slack", "--url-from-env", "NO_SUCH_VARIABLE"], "the variable NO_SUCH_VARIABLE holds no address"),
        (["webhook", "--url-from-env", "ADDRESS", "--on", "crash,ned"], "write some of crash, end, alarm"),
        (["slack", "--url-from-env", "ADDRESS"], "starts with https://hooks.slack.com/services/"),
        (["remove"], "say which one with --name"),
        (["remove", "--name", "../x"], "lower-case letters, digits and dashes only"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_starts_no_server(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDRESS", "https://example.org/SECRET")
    assert cli.main(["notify", *words]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1 and "SECRET" not in printed


@pytest.mark.flow
@pytest.mark.usefixtures("_clean")
def test_the_address_is_in_the_block_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), webhook(500) as (url, _):
        notify.add("webhook", "pager", url, ["crash", "end"])
        assert notify.try_out("pager") == {"pager": "the message was not sent (NotificationError)"}
    assert [one.name for one in notify.listed()] == ["pager"]
    with get_client(sync_client=True) as client:
        own = [one for one in client.read_automations(limit=200) if telling.told(one.name)]
        assert {telling.told(one.name) for one in own} == {("pager", "crash"), ("pager", "end")}
        shown = [one.model_dump_json() for one in own]
        shown += [one.model_dump_json() for one in client.read_block_documents(include_secrets=False)]
    assert "SECRET-TOKEN" not in json.dumps(shown)
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("apprise", "urllib3", "requests"))]
    assert "SECRET-TOKEN" not in json.dumps(ours)


@pytest.mark.flow
@pytest.mark.usefixtures("_clean")
def test_setting_up_again_replaces_and_removing_removes() -> None:
    with webhook() as (url, got):
        notify.add("webhook", "pager", url, ["crash", "end", "alarm"])
        notify.add("webhook", "other", url, ["alarm"])
        notify.add("webhook", "pager", url, ["end"])
        assert notify.listed() == [notify.Told("other", "webhook", ("alarm",)), notify.Told("pager", "webhook", ("end",))]
        assert notify.try_out() == {"other": "", "pager": ""}
        assert len(got) == 2 and got[0]["path"] == "/hook?token=SECRET-TOKEN" and got[0]["title"] == "populora: a test"
    assert notify.remove("other") and not notify.remove("other")
    assert [one.name for one in notify.listed()] == ["pager"]
    for name in ("../x", "Big Name", ""):
        with pytest.raises(ConfigError):
            notify.remove(name)


@pytest.mark.flow
@pytest.mark.usefixtures("_clean")
def test_a_letter_is_sent_through_a_mail_server() -> None:
    with mail_server() as (port, letters):
        address = f"mailto://127.0.0.1:{port}/?from=runs@example.org&to=me@example.org&format=text"
        notify.add("email", "letters", address, ["crash"])
        assert notify.try_out("letters") == {"letters": ""}
    assert "me@example.org" in letters[0] and "populora: a test" in letters[0]


@pytest.mark.flow
@pytest.mark.usefixtures("_clean")
def test_a_run_whose_server_ends_with_it_tells_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HERE, "1")
    with webhook() as (url, got), get_client(sync_client=True) as client:
        notify.add("webhook", "pager", url, ["crash"])
        run = crashed(client, "smoke")
        endings.tell_end(stopped, run, run.state)
        endings.explain(stopped, run, run.state)
        (message,) = got
        assert message["title"] == "populora: run smoke crashed"
        assert "Why: its process was killed" in message["message"] and "--resume smoke" in message["message"]
        monkeypatch.delenv(HERE)
        endings.explain(stopped, run, run.state)
        assert len(got) == 1, "a server that stays up has its automations"


@pytest.mark.flow
@pytest.mark.usefixtures("_clean")
def test_a_message_that_cannot_be_sent_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(HERE, "1")
    with webhook(500) as (url, _), caplog.at_level(logging.WARNING, "populora.notes"):
        notify.add("webhook", "pager", url, ["end"])
        telling.tell_from_here("end", "s", "t")
    (warned,) = [one.getMessage() for one in caplog.records if one.name == "populora.notes"]
    assert warned == "pager: the message was not sent (NotificationError); the run is not affected"


@pytest.mark.parametrize(
    ("kind", "message", "resumes"),
    [
        (StateType.CRASHED, "status code: -9", True),
        (StateType.CRASHED, "Flow run received invalid parameters: config", False),
        (StateType.FAILED, "ConfigError: no", False),
    ],
)
def test_only_a_run_that_may_be_stored_is_to_be_resumed(kind: StateType, message: str, resumes: bool, tmp_path: Path) -> None:
    run = FlowRun(flow_id=uuid4(), parameters={"run_id": "none", "store": str(tmp_path)})
    assert endings._end(run, State(type=kind, message=message)).begun is resumes


@pytest.mark.flow
def test_a_run_that_nobody_explained_is_explained_once() -> None:
    with get_client(sync_client=True) as client:
        run = crashed(client, "silent")
        assert endings.explain_lost() >= 1 and endings.explain_lost() == 0
        notes = [one for one in client.read_artifacts(limit=200) if one.key == endings.key_of("silent")]
        assert [one.flow_run_id for one in notes] == [run.id] and "its process was killed" in str(notes[0].data)
        client.delete_flow_run(run.id)


@pytest.mark.flow
def test_a_crash_that_two_processes_explain_has_one_note() -> None:
    """The hook of a killed run and the sweeps of two workers may meet; Prefect may mark the run twice, runner and worker each."""
    with get_client(sync_client=True) as client:
        run = crashed(client, "twice")
        assert run.state is not None
        began, hook = (
            threading.Barrier(3),
            threading.Thread(target=lambda: (began.wait(), endings.explain(stopped, run, run.state))),
        )
        sweep = threading.Thread(target=lambda: (began.wait(), endings.explain_lost()))
        for thread in (hook, sweep):
            thread.start()
        began.wait()
        for thread in (hook, sweep):
            thread.join()
        assert len(notes_of(client, "twice")) == 1
        client.set_flow_run_state(run.id, Crashed(message=CRASH), force=True)
        again = client.read_flow_run(run.id)
        endings.explain(stopped, again, again.state)
        assert endings.explain_lost() == 0 and len(notes_of(client, "twice")) == 1
        client.set_flow_run_state(run.id, Running(), force=True)
        client.set_flow_run_state(run.id, Crashed(message="No heartbeat"), force=True)
        assert endings.explain_lost() == 1 and len(notes_of(client, "twice")) == 2  # it was retried, and crashed once more
        client.delete_flow_run(run.id)


def test_a_note_that_was_stamped_first_and_seen_last_is_the_only_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server stamps a note before others can read it, and the second writer may have looked between."""
    server, run = SlowToStore(), FlowRun(flow_id=uuid4(), parameters={"run_id": "twice"}, state=Crashed(message=CRASH))
    monkeypatch.setattr(endings, "get_client", lambda sync_client: nullcontext(server))
    monkeypatch.setattr(endings, "tell_from_here", lambda *_: None)
    server.before_storing = lambda: endings.explain(stopped, run, run.state)
    endings.explain(stopped, run, run.state)
    assert [one.created for one in server.notes] == [BEGAN + timedelta(seconds=1)]


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class SlowToStore:
    """A server that has stamped the first note and not stored it yet when `before_storing` writes the second."""

    def __init__(self) -> None:
        self.notes: list[Artifact] = []
        self.stamped = 0
        self.before_storing: Callable[[], None] | None = None

    def create_artifact(self, wanted: ArtifactCreate) -> Artifact:
        self.stamped += 1
        made = Artifact(id=uuid4(), created=BEGAN + timedelta(seconds=self.stamped), key=wanted.key, data=wanted.data)
        meanwhile, self.before_storing = self.before_storing, None
        if meanwhile is not None:
            meanwhile()
        self.notes.append(made)
        return made

    def read_artifacts(self, **_: Any) -> list[Artifact]:
        return list(self.notes)

    def delete_artifact(self, note: UUID) -> None:
        self.notes = [one for one in self.notes if one.id != note]

    def read_flow_run_states(self, _: UUID) -> list[State]:
        return [Crashed(timestamp=BEGAN)]


def notes_of(client: Any, run_id: str) -> list[Any]:
    return [one for one in client.read_artifacts(limit=200) if one.key == endings.key_of(run_id)]
