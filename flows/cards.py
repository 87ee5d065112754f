"""The NVIDIA cards of this machine: which of them a process may use, how its children are pinned to one, and who holds it.

`nvidia-smi` is asked, never CUDA: a process that places work keeps no context on any card. Who holds a card has bound a name in
the kernel (an abstract Unix socket), which ends with its process. Nobody can remove it, unlike a file: systemd empties the
/dev/shm of a user who logs out.
"""

import csv
import errno
import gc
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flows.config import ConfigError
from stages.core.engines.protocol import EngineUnavailable

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS = 90  # without persistence mode, the driver starts each card anew: one to three seconds each
LINGER_SECONDS = 5.0
_ORDER = "CUDA_DEVICE_ORDER"
_used: set[str] = set()  # identifier of the card on which torch has computed in this process
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,mig.mode.current", "--format=csv,noheader,nounits")


class CardUnavailable(EngineUnavailable):
    """A card is gone, or another run has it. This is an external fault: the step is retried, on another card if there is one."""


@dataclass(frozen=True)
class Card:
    """One card.

    Attributes:
        name: What CUDA_VISIBLE_DEVICES says of it: its number, or its identifier.
        uuid: Its identifier.
        memory_mb: Its memory in MiB; 0 if it does not tell.
        divided: Whether it is divided into slices (MIG), of which a process uses one.
    """

    name: str
    uuid: str
    memory_mb: int = 0
    divided: bool = False

    def __str__(self) -> str:
        return f"card {self.name}"


def cards(environment: Mapping[str, str] = os.environ) -> list[Card]:
    """Return the cards that a process with this environment may use: those of CUDA_VISIBLE_DEVICES where it is set.

    Raises ConfigError for a card that is divided into slices (MIG): the variable must name slices.
    """
    found = _listed()
    chosen = {card.uuid: card for card in found}
    if VISIBLE in environment and found:
        chosen.clear()
        for entry in environment[VISIBLE].split(","):
            card = _named(entry.strip(), found)
            if card is None:
                break  # CUDA, too, sees nothing after a name that it does not know
            chosen.setdefault(card.uuid, card)
    if divided := [card for card in chosen.values() if card.divided]:
        raise ConfigError(f"{divided[0]} is divided into slices (MIG): name them, {VISIBLE}=MIG-… (nvidia-smi -L lists them)")
    return list(chosen.values())


def usable(device: str) -> list[Card]:
    """Return the cards to which a run with this `model.device` is pinned; none for cpu and for a card that it names itself."""
    return [] if device == "cpu" or ":" in device else cards()


def present(card: Card) -> bool:
    """Return whether the machine still lists the card."""
    try:
        found = _listed()
    except CardUnavailable:  # no answer says nothing about the card
        return True
    if not found and shutil.which(_QUERY[0]) is None:  # as on a node whose cards only Ray knows
        return True
    return any(one.uuid == card.uuid for one in found) or (card.uuid.startswith("MIG-") and found != [])


def pinned(card: Card | None) -> dict[str, str]:
    """Return what a child's environment needs to see this card alone; nothing without one.

    Numbers are those of nvidia-smi, whatever order the user has set: lock, memory and energy are those of its card.
    """
    return {} if card is None else {_ORDER: "PCI_BUS_ID", VISIBLE: card.name}


def recorded() -> dict[str, str]:
    """Return what a manifest's clock says about this process's card; nothing if it may use all, or none."""
    return {VISIBLE.lower(): value} if (value := os.environ.get(VISIBLE, "")) else {}


class Claim:
    """The right to a card, until `release` or the end of this process."""

    def __init__(self, bound: socket.socket) -> None:
        self._bound = bound

    def release(self) -> None:
        """Give the card back."""
        # A child that another thread is just starting holds a copy, and so the name, for a moment: the copy says that it is over.
        self._bound.shutdown(socket.SHUT_RDWR)
        self._bound.close()


def claim(card: Card) -> Claim | None:
    """Return the right to a card; None if another holds it. Raises CardUnavailable if no socket can be made."""
    deadline = time.monotonic() + LINGER_SECONDS
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            try:
                bound.bind(_address(card))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if _holder(card) is not None or time.monotonic() > deadline:
                bound.close()
                return None
            time.sleep(0.01)  # it was released a moment ago, or its new holder is about to listen
        bound.listen(socket.SOMAXCONN)  # whoever asks for the holder stays in this queue
    except OSError as error:
        bound.close()
        raise CardUnavailable(f"{card} cannot be claimed: {error.strerror or error}") from error
    return Claim(bound)


@contextmanager
def one_card(found: Sequence[Card]) -> Iterator[None]:
    """Hold a free one of these cards inside the block, and let this process and its children see no other.

    For commands that use a model in their own process, before torch looks for cards. Does nothing if there are none. A process
    in which torch has computed on a card gets no other one: torch would stay there. What torch has cached is freed afterwards.

    Raises CardUnavailable if others hold all of them.
    """
    fitting = [card for card in found if not _used or card.uuid in _used] or found
    held = next(((card, right) for card in fitting if (right := claim(card)) is not None), None)
    if held is None:
        if found:
            raise in_use(list(fitting))
        yield
        return
    seen = pinned(held[0])
    before = {name: os.environ.get(name) for name in seen}
    os.environ.update(seen)
    try:
        yield
    finally:
        if _freed():
            _used.add(held[0].uuid)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        held[1].release()


def _freed() -> bool:
    """Give the memory that torch has cached back to its card. Return whether torch has used one in this process."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    gc.collect()
    torch.cuda.empty_cache()
    return True


def in_use(refused: list[Card]) -> CardUnavailable:
    """Return the error that says who holds these cards, and what to do."""
    held = ", ".join(f"{card} by process {_holder(card) or '?'}" for card in refused)
    return CardUnavailable(f"in use: {held}; stop it, or choose other cards with {VISIBLE}")


def _holder(card: Card) -> str | None:
    """Return the process that holds a card, "?" for one that cannot be seen from here; None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_address(card))
        except ConnectionRefusedError:
            return None
        except BlockingIOError:  # its queue is full
            return "?"
        pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    return str(pid or "?")


def _address(card: Card) -> str:
    # Of the network's namespace: unlike a file, it is the same for services and jobs with temporary folders of their own.
    return f"\0populora-card-{card.uuid}"


def _named(entry: str, found: list[Card]) -> Card | None:
    """Return the card that an entry of CUDA_VISIBLE_DEVICES means: a number, the beginning of an identifier, or a MIG slice."""
    if entry.startswith("MIG-"):
        return Card(entry, entry)
    for card in found:
        if entry == card.name or (entry.startswith("GPU-") and card.uuid.startswith(entry)):
            return replace(card, name=card.uuid if entry.startswith("GPU-") else entry)  # vLLM knows whole identifiers only
    return None


def _listed() -> list[Card]:
    """Return the cards that nvidia-smi lists, also if it complains about others; none without it.

    Raises CardUnavailable if it does not answer.
    """
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except OSError:
        return []
    except subprocess.TimeoutExpired as error:
        late = f"nvidia-smi did not answer within {SECONDS} s; persistence mode (nvidia-smi -pm 1) makes it faster"
        raise CardUnavailable(late) from error
    rows = [row for row in csv.reader(answer.splitlines(), skipinitialspace=True) if len(row) >= 3 and row[0].isdigit()]
    return [Card(index, uuid, int(memory) if memory.isdigit() else 0, more == ["Enabled"]) for index, uuid, memory, *more in rows]
