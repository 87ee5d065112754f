"""Messages about alarms and ends of runs to e-mail, Slack or a webhook, as `populora notify` has set them up.

For each address there is a Prefect block, and for each event an automation that sends to it. A server that stays up runs its
automations. The private server of one command ends with the run, so there the run's own process reads the same automations and
sends the message (`HERE` is set). A message never fails a run, nor delays it for long: a fault is one warning, without address.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation

from flows.notes import apprise_block
from flows.notes.end_text import HERE

BLOCKS = (apprise_block.AppriseAddress,)
"""Kinds of blocks beside Prefect's own: it can load those of classes that this process has imported."""
EVENTS = ("crash", "end", "alarm")
PREFIX = "populora tells "
PATIENCE = 20.0
_LOG = logging.getLogger("populora.notes")


def title(name: str, event: str) -> str:
    """Return the name of the automation that tells `name` about an event."""
    return f"{PREFIX}{name} of {event}"


def told(title_: str) -> tuple[str, str] | None:
    """Return (name, event) of an automation's name; None for an automation that is not ours."""
    name, of, event = title_.removeprefix(PREFIX).rpartition(" of ")
    return (name, event) if title_.startswith(PREFIX) and of and event in EVENTS else None


def blocks(found: Automation) -> Iterator[UUID]:
    """Yield the ids of the blocks to which an automation sends."""
    for action in found.actions:
        if isinstance(action, SendNotification):
            yield action.block_document_id


def send(block_id: UUID, subject: str, text: str) -> str:
    """Send a message; return what went wrong, or an empty text. Never says the address."""
    try:
        block: Any = Block.load_from_ref(block_id)
        with block.raise_on_failure():
            block.notify(text, subject)
    except Exception as error:  # the other side, the network, a block that was changed by hand
        return f"the message was not sent ({type(error).__name__})"
    return ""


def tell_from_here(event: str, subject: str, text: str) -> None:
    """Send a message to everybody who is to be told of the event, if this process has to do it; wait a while at most."""
    if not os.environ.get(HERE):
        return
    context = copy_context()  # which server is Prefect's
    thread = threading.Thread(target=context.run, args=(_tell, event, subject, text), name="tell", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        _LOG.warning("a message about this run takes long; the run does not wait for it")


def _tell(event: str, subject: str, text: str) -> None:
    try:
        with get_client(sync_client=True) as client:
            found = client.read_automations(limit=200)
        for one in found:
            address = told(one.name)
            if one.enabled and address is not None and address[1] == event:
                for block_id in blocks(one):
                    if fault := send(block_id, subject, text):
                        _LOG.warning("%s: %s; the run is not affected", address[0], fault)
    except Exception as error:  # a message must never fail a run
        _LOG.warning("nobody was told of this run's %s (%s); the run is not affected", event, type(error).__name__)
