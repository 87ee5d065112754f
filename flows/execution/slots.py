"""The stage processes of one machine: a set for each of its places, which stays from one step to the next, and one beside them.

A place is a card, or on a CPU one of several processes. Prefect's task runners, Ray or a pool's workers decide what runs at the
same time. A slot is only where it runs: a step that uses the model takes a free place, if possible one with a warm interpreter,
so that an engine starts once a place and run.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from flows import cards
from flows.cards import Card, CardUnavailable
from flows.execution.run_stage import Reference, Spec
from flows.execution.stage_process import CANCELLED, StageFailed, Told, Workers
from flows.stages import stage_of
from stages.core.engines.protocol import CardUnusable, EngineUnavailable, EngineUnusable
from stages.core.unavailable import Unsuited

FAILURES = 2


@dataclass(frozen=True)
class Tenant:
    """Whose steps may share processes: those of one run, with one configuration and one version of the code."""

    threads: int
    identity: tuple[str, ...] = ()


class Slot:
    """A place, with its card if it has one, and the processes of its tenant. `Slots` guards every change."""

    def __init__(self, card: Card | None) -> None:
        self.card, self.busy, self.used = card, False, 0.0
        self.failures, self.worked = 0, False
        self.tenant: Tenant | None = None
        self.workers = Workers(1)

    def take(self, tenant: Tenant) -> bool:
        """Give the slot to a tenant, and end another's processes. Returns False if another process has the card."""
        if self.tenant != tenant:
            self.end()
            self.failures, self.worked = 0, False  # what another run did on the card says nothing about this one
            if self.card is not None and self.workers.stuck:
                return False
            self.workers = Workers(tenant.threads, self.card)
            if self.card is not None and not self.workers.claim():
                return False
            self.tenant = tenant
        self.busy = True
        return True

    def give_back(self) -> None:
        """Keep the processes for the tenant's next step, unless they were told to leave."""
        self.busy, self.used = False, time.monotonic()
        if self.workers.left:
            self.end()

    def note(self, worked: bool) -> None:
        """Note how a step on the card ended."""
        self.failures, self.worked = 0 if worked else self.failures + 1, worked

    def end(self) -> None:
        """End the processes, and release the card."""
        self.workers.__exit__()
        self.tenant = None


class Slots:
    """The slots of one process. Use as a context manager: nothing outlives it."""

    def __init__(self, found: Sequence[Card | None], tenant: Tenant) -> None:
        self._own, self._leaving, self._here = tenant, False, len(found) > 0
        self._bare, self._places = Slot(None), [Slot(card) for card in found]
        self._changed = threading.Condition()
        self._rollouts = Counter[Tenant]()  # steps that wait for a place, of each tenant
        self._lost: list[Slot] = []

    def __enter__(self) -> "Slots":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        with self._changed:
            self._changed.wait_for(lambda: not any(slot.busy for slot in self._all()))
            for slot in self._all():
                slot.workers.hang_up()  # all of them, before the first is waited for
            for slot in self._all():
                slot.end()

    @property
    def parallel(self) -> int:
        """How many parts can be computed at the same time: one a place, at least one."""
        return max(1, len(self._places))

    def run(self, spec: Spec, python: str = "", told: Told = lambda reading: None) -> Reference:
        """Run one step of our own run, as `Workers.run` does."""
        with self.seat(self._own, spec, python) as workers:
            return workers.run(spec, python, told)

    @contextmanager
    def seat(self, tenant: Tenant, spec: Spec, python: str, wanted: Callable[[], bool] = lambda: True) -> Iterator[Workers]:
        """Wait for a free slot and yield its workers. Raises StageFailed if it is no longer `wanted` (see `look_again`).

        A card on which two steps in a row have failed while another worked is not used again: it may hang and still be listed.
        One on which the engine cannot run at all is not used again while there is another, which may be of another kind.

        Raises Unsuited if others have all cards or none is left, CardUnavailable if the card is lost when the step fails.
        """
        slot = self._taken(tenant, spec, python, wanted)
        try:
            yield slot.workers
            slot.note(worked=True)
        except (EngineUnavailable, EngineUnusable, StageFailed) as error:
            if slot.card is None or slot.workers.left or (why := self._lost_because(slot, error)) is None:
                raise
            self._lose(slot)
            raise CardUnavailable(f"{slot.card} ({slot.card.uuid}) {why}: {error}") from error
        finally:
            with self._changed:
                slot.give_back()
                self._drop_stuck()
                self._changed.notify_all()

    def leave(self) -> None:
        """Kill what is at work and let nothing wait, because the run is cancelled."""
        with self._changed:
            self._leaving = True
            for slot in self._all():
                if slot.busy:
                    slot.workers.leave()
            self._changed.notify_all()

    def end_idle(self, seconds: float) -> None:
        """End the processes that have done nothing for so long, and release their cards."""
        with self._changed:
            now = time.monotonic()
            idle = [slot for slot in self._all() if not slot.busy and slot.tenant is not None and now - slot.used >= seconds]
            for slot in idle:
                slot.workers.hang_up()
            for slot in idle:
                slot.end()
            self._drop_stuck()

    def look_again(self) -> None:
        """Let those who wait for a slot look whether it is still wanted."""
        with self._changed:
            self._changed.notify_all()

    def _taken(self, tenant: Tenant, spec: Spec, python: str, wanted: Callable[[], bool]) -> Slot:
        """Wait for a slot. A part of an update takes no place for which a rollout of its run waits: it runs beside rollouts."""
        needs_place, trains = self._here and spec.uses_gpu, stage_of(spec.stage).trains
        rollout = needs_place and not trains
        with self._changed:
            self._rollouts[tenant] += rollout
            try:
                while not self._leaving and wanted():
                    behind = trains and self._rollouts[tenant] > 0
                    if not behind and (slot := self._free(tenant, python, needs_place)) is not None:
                        return slot
                    self._changed.wait()
            finally:
                self._rollouts[tenant] -= rollout
                self._changed.notify_all()
        raise StageFailed(CANCELLED)

    def _free(self, tenant: Tenant, python: str, needs_place: bool) -> Slot | None:
        """Take the best free slot; None if one has to be waited for. A step without the model may share a place's processes."""

        def rank(slot: Slot) -> tuple[bool, bool, bool, bool, float]:
            ours = slot.tenant == tenant
            failing = ours and slot.failures >= FAILURES  # another card tells whether this one is the fault
            warm = ours and slot.workers.warm(python)
            return failing, not warm, not ours, slot.tenant is not None, 0.0 if ours else slot.used

        self._drop_stuck()
        free = sorted((slot for slot in self._places if not slot.busy), key=rank)
        if needs_place:
            if not self._places:
                raise Unsuited("no card is left on this machine")
            if (slot := next((slot for slot in free if slot.take(tenant)), None)) is not None:
                return slot
            if len(free) == len(self._places):
                raise Unsuited(str(cards.in_use([slot.card for slot in free if slot.card is not None])))
            return None
        ours = [slot for slot in free if slot.tenant == tenant or slot.card is None]
        return next((slot for slot in (*ours, self._bare) if not slot.busy and slot.take(tenant)), None)

    def _lost_because(self, slot: Slot, error: Exception) -> str | None:
        """Return why the card of a step that failed is not to be used again; None if it is."""
        assert slot.card is not None
        if not cards.present(slot.card):
            return "is gone"
        if isinstance(error, EngineUnavailable) and "out of memory" not in str(error):  # that is the plan's fault, not the card's
            slot.note(worked=False)
        others = [other for other in self._places if other is not slot]
        if isinstance(error, CardUnusable) and any(other.tenant in (slot.tenant, None) for other in others):
            return "is not used again"
        others = [other for other in others if other.tenant == slot.tenant]
        if slot.failures >= FAILURES and any(other.worked for other in others):
            return f"is not used again after {slot.failures} failures in a row"
        return None

    def _drop_stuck(self) -> None:
        """Use no card whose processes do not end. The slot is kept: with it would go the claim on the card."""
        stuck = [slot for slot in self._places if slot.card is not None and slot.workers.stuck and not slot.busy]
        for slot in stuck:
            slot.end()
        self._lost += stuck
        self._places = [slot for slot in self._places if slot not in stuck]

    def _lose(self, slot: Slot) -> None:
        with self._changed:
            slot.workers.leave()
            if slot in self._places:
                self._places.remove(slot)
            self._lost.append(slot)

    def _all(self) -> list[Slot]:
        return [self._bare, *self._places]
