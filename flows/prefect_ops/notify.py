"""Who is told of crashes, ends and alarms: an address is a Prefect block, what it is told of are automations that send to it.

The functions work on the server that is Prefect's at the moment (flows.prefect_ops.every_server). What a run tells itself,
because its server ends with it, is in flows.notes.telling.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from prefect.blocks.notifications import SlackWebhook
from prefect.client.orchestration import get_client
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from pydantic import SecretStr

from flows.config import ConfigError
from flows.notes.apprise_block import AppriseAddress
from flows.notes.publish import NEWS
from flows.notes.telling import EVENTS, blocks, send, title, told
from flows.store.names import RUN_ID

KINDS = ("slack", "webhook", "email")
LINK = "{{ flow_run|ui_url }}"
RUN = "{{ flow_run.parameters['run_id'] }}"
TRAIN = {"prefect.resource.role": "flow", "prefect.resource.name": "train"}


@dataclass(frozen=True)
class Told:
    """One address: its name, what kind of block it is, and the events that it is told of."""

    name: str
    kind: str
    events: tuple[str, ...]


def add(kind: str, name: str, url: str, events: list[str]) -> list[str]:
    """Tell the address of these events, and of no others. Returns the names of the automations. Raises ConfigError."""
    check_name(name)
    address = SecretStr(apprise_address(kind, url))
    remove(name)
    block: Any = SlackWebhook(url=address) if kind == "slack" else AppriseAddress(url=address)
    block_id = block.save(_block_name(kind, name), overwrite=True)
    made = [_automation(name, event, block_id) for event in events]
    with get_client(sync_client=True) as client:
        for one in made:
            client.create_automation(one)
    return [one.name for one in made]


def remove(name: str) -> bool:
    """Forget the address. Returns whether it was there. Raises ConfigError."""
    check_name(name)
    with get_client(sync_client=True) as client:
        own = [one for one in client.read_automations(limit=200) if (told(one.name) or ("",))[0] == name]
        for one in own:
            client.delete_automation(one.id)
        documents = [one for one in client.read_block_documents() if one.name in {_block_name(kind, name) for kind in KINDS}]
        for document in documents:
            client.delete_block_document(document.id)
    return bool(own or documents)


def listed() -> list[Told]:
    """Return who is told of what, by name."""
    with get_client(sync_client=True) as client:
        events: dict[str, list[str]] = {}
        for one in client.read_automations(limit=200):
            if (found := told(one.name)) is not None and one.enabled:
                events.setdefault(found[0], []).append(found[1])
        there = {str(document.name) for document in client.read_block_documents(include_secrets=False)}
    return [
        Told(name, next((kind for kind in KINDS if _block_name(kind, name) in there), "?"), tuple(sorted(own, key=EVENTS.index)))
        for name, own in sorted(events.items())
    ]


def try_out(name: str = "") -> dict[str, str]:
    """Send a message to the address, or to every one. Returns the faults (empty: none) by name."""
    wanted: dict[str, Any] = {}
    with get_client(sync_client=True) as client:
        for one in client.read_automations(limit=200):
            found = told(one.name)
            if found is not None and name in ("", found[0]):
                wanted[found[0]] = next(blocks(one), None)
    said = "Messages about runs of populora will look like this one."
    return {
        one: send(block_id, "populora: a test", said) if block_id else "its automation sends to no block"
        for one, block_id in wanted.items()
    }


def apprise_address(kind: str, url: str) -> str:
    """Return the address of a block. Raises ConfigError, which never says the address: it may contain a password or a key."""
    parts = urlsplit(url.strip())
    if kind == "email":
        if parts.scheme not in ("mailto", "mailtos") or not parts.hostname:
            raise ConfigError("email: write mailtos://USER:PASSWORD@SERVER:PORT/?from=ADDRESS&to=ADDRESS (mailto:// without TLS)")
        return url.strip()
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{kind}: the address must start with https:// or http://")
    if kind == "slack":
        if parts.hostname not in ("hooks.slack.com", "hooks.slack-gov.com"):
            raise ConfigError("slack: the address of an incoming webhook starts with https://hooks.slack.com/services/")
        return url.strip()
    query = urlencode([(f"-{key}", value) for key, value in parse_qsl(parts.query, keep_blank_values=True)])
    return urlunsplit(("jsons" if parts.scheme == "https" else "json", parts.netloc, parts.path or "/", query, ""))


def check_name(name: str) -> None:
    """Raise ConfigError unless this may name an address."""
    if not RUN_ID.fullmatch(name):
        raise ConfigError(f"--name {name[:60]!r}: lower-case letters, digits and dashes only, 40 at most")


def _automation(name: str, event: str, block_id: Any) -> Any:
    """Return the automation that tells of an event. `{{ … }}` is filled in by the server."""
    ours: dict[str, Any] = {
        "crash": {
            "expect": {"prefect.flow-run.Crashed", "prefect.flow-run.Failed"},
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": TRAIN,
        },
        "end": {
            "expect": {"prefect.flow-run.Completed", "prefect.flow-run.Cancelled"},
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": TRAIN,
        },
        "alarm": {
            "expect": {"populora.alarm.*"},
            "match": {"prefect.resource.id": "populora.run.*", NEWS: "true"},
        },
    }
    texts = {
        "crash": (
            f"populora: run {RUN} {{{{ flow_run.state.name|lower }}}}",
            "Why: {{ flow_run.state.message }}\n"
            f"What to do: the note {RUN}-crash among the artifacts of this flow run says it; Retry resumes the run.\n{LINK}",
        ),
        "end": (f"populora: run {RUN} {{{{ flow_run.state.name|lower }}}}", LINK),
        "alarm": (
            "populora: alarm in run {{ event.payload.run }}",
            "g{{ event.payload.generation }} {{ event.payload.alarm }} {{ event.payload.subject }}: {{ event.payload.message }}\n"
            "{{ event.payload.link }}",
        ),
    }
    subject, body = texts[event]
    return AutomationCore(
        name=title(name, event),
        description="Created by populora notify.",
        trigger=EventTrigger(posture=Posture.Reactive, threshold=1, for_each={"prefect.resource.id"}, **ours[event]),
        actions=[SendNotification(block_document_id=block_id, subject=subject, body=body)],
    )


def _block_name(kind: str, name: str) -> str:
    return f"populora-{kind}-{name}"
