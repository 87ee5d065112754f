"""Where the steps of a run go on a machine with cards: counted by interpreters that note their start and every step."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import cards
from flows.cards import VISIBLE, CardUnavailable
from flows.execution.slots import Slots, Tenant
from flows.execution.stage_process import StageFailed, WorkerLost
from stages.core.engines.protocol import CardUnusable
from stages.core.unavailable import Unsuited
from tests.support.cards import Machine, machine, step

RUN = Tenant(1, ("r",))


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine(tmp_path, monkeypatch, 8)


def together(slots: Slots, stage: str, generation: int, count: int, python: str = "") -> None:
    """The parts of a stage at the same time, as Prefect's task runner starts them."""
    with ThreadPoolExecutor(count) as threads:
        parts = [step(stage, generation, f"{number:02d}") for number in range(count)]
        assert [done["stage"] for done in threads.map(lambda spec: slots.run(spec, python), parts)] == ["noted"] * count


def whole(slots: Slots, generation: int, shards: int, groups: int, engine: str) -> None:
    """A generation: whole stages in turn, parts of propose, solve and update on the cards."""
    slots.run(step("match", generation))
    together(slots, "propose", generation, shards, engine)
    slots.run(step("verify", generation))
    together(slots, "solve", generation, shards, engine)
    together(slots, "update", generation, groups)
    slots.run(step("update", generation))
    slots.run(step("rate", generation))


def test_over_three_generations_an_engine_starts_once_a_card(eight: Machine) -> None:
    with Slots(cards.usable("auto"), RUN) as slots:
        assert slots.parallel == 8
        slots.run(step("start", None), eight.engine)
        for generation in range(3):
            whole(slots, generation, 4, 8, eight.engine)
    engines, trainers = eight.noted("start", "engine"), eight.noted("start", "trainer")
    assert sorted(one.card for one in engines) == ["0", "1", "2", "3"]
    assert sorted(one.card for one in trainers) == [str(number) for number in range(8)]
    steps = Counter(one.card for one in eight.noted("step", "engine"))
    # a probe and a rollout, twice a generation, and sleep before the update; the start on the first
    assert steps == {"0": 1 + 15, "1": 15, "2": 15, "3": 15}
    assert set(Counter(one.pid for one in eight.noted("step")).keys()) == {one.pid for one in (*engines, *trainers)}


def test_more_cards_than_parts_leave_cards_alone(eight: Machine) -> None:
    with Slots(cards.usable("auto"), RUN) as slots:
        for generation in range(3):
            together(slots, "update", generation, 2)
        free = cards.claim(cards.cards()[2])
        assert free is not None
        free.release()
    assert sorted(one.card for one in eight.noted("start")) == ["0", "1"]


def test_more_parts_than_cards_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = machine(tmp_path, monkeypatch, 2)
    with Slots(cards.usable("auto"), RUN) as slots:
        together(slots, "update", 0, 5)
    assert sorted(one.card for one in two.noted("start")) == ["0", "1"] and len(two.noted("step")) == 5


def test_a_part_of_an_update_takes_no_card_for_which_a_rollout_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    engine, order = one.interpreter("engine", "sleep 1"), list[str]()

    def run(stage: str, part: str) -> None:
        slots.run(step(stage, 0, part), engine)
        order.append(f"{stage} {part}")

    with Slots(cards.usable("auto"), RUN) as slots, ThreadPoolExecutor() as threads:
        for stage, part in (("propose", "00"), ("update", "00"), ("update", "01"), ("solve", "00"), ("solve", "01")):
            threads.submit(run, stage, part)
            time.sleep(0.1)
    assert [one.partition(" ")[0] for one in order] == ["propose", "solve", "solve", "update", "update"]


def test_without_cards_everything_is_one_process_with_the_environment_s_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = machine(tmp_path, monkeypatch, 0)
    with Slots(cards.usable("auto"), RUN) as slots:
        assert slots.parallel == 1
        for stage in ("start", "match", "verify", "rate"):
            slots.run(step(stage))
        together(slots, "update", 0, 2)
    (only,) = none.noted("start")
    assert only.card == "unset" and len(none.noted("step")) == 6


def test_on_one_card_everything_is_one_process_pinned_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    with Slots(cards.usable("auto"), RUN) as slots:
        assert slots.parallel == 1
        for stage in ("start", "match", "verify", "rate"):
            slots.run(step(stage))
        together(slots, "update", 0, 2)
    (only,) = one.noted("start")
    assert only.card == "0" and len(one.noted("step")) == 6


def test_stages_without_a_gpu_take_no_card(eight: Machine) -> None:
    with Slots(cards.usable("auto"), RUN) as slots:
        slots.run(step("match"))
        free = cards.claim(cards.cards()[0])
        assert free is not None
        free.release()
    assert [one.card for one in eight.noted("start")] == ["unset"]


def test_two_runs_share_a_machine_but_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = machine(tmp_path, monkeypatch, 2)
    with Slots(cards.usable("auto"), RUN) as first, Slots(cards.usable("auto"), Tenant(1)) as second:
        first.run(step("update", 0, "00"))
        second.run(step("update", 0, "00"))
        with (
            Slots(cards.usable("auto"), Tenant(1)) as third,
            pytest.raises(Unsuited, match=f"^in use: card 0 by process {os.getpid()}, card 1 by process"),
        ):
            third.run(step("update", 0, "00"))
    assert [one.card for one in two.noted("start")] == ["0", "1"]
    with Slots(cards.usable("auto"), Tenant(1)) as third:  # they have ended
        third.run(step("update", 0, "00"))
    assert [one.card for one in two.noted("start")] == ["0", "1", "0"]


def test_a_card_that_vanishes_mid_stage_is_named_and_the_step_runs_again_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = machine(tmp_path, monkeypatch, 2)
    dying = two.interpreter("engine", "exit 7")
    with Slots(cards.usable("auto"), RUN) as slots:
        two.keep(1)
        with pytest.raises(CardUnavailable, match=rf"^card 0 \({two.uuid(0)}\) is gone: the worker of .* exited with code 7$"):
            slots.run(step("benchmark"), dying)
        assert slots.parallel == 1
        assert slots.run(step("benchmark"), two.interpreter("engine"))["stage"] == "noted"
        two.keep()
        with pytest.raises(CardUnavailable, match="is gone"):
            slots.run(step("update", 0, "00"), two.interpreter("engine-again", "exit 7"))
        with pytest.raises(Unsuited, match=r"^no card is left on this machine$"):
            slots.run(step("update", 0, "00"))
        assert slots.run(step("rate"))["stage"] == "noted"  # which needs none
    assert [one.card for one in two.noted("step", "engine")] == ["0", "1", "1"]  # the last: sleep before the update


def test_a_worker_that_dies_on_a_card_that_is_there_is_only_lost(eight: Machine) -> None:
    with Slots(cards.usable("auto"), RUN) as slots:
        with pytest.raises(WorkerLost, match="exited with code 7"):
            slots.run(step("benchmark"), eight.interpreter("engine", "exit 7"))
        assert slots.parallel == 8


def test_a_cancel_ends_what_is_at_work_and_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = machine(tmp_path, monkeypatch, 2)
    slow, raised = two.interpreter("engine", "sleep 600"), list[str]()

    def run(number: int) -> None:
        try:
            slots.run(step("benchmark", 0, f"{number:02d}"), slow)
        except StageFailed as error:
            raised.append(str(error))

    with Slots(cards.usable("auto"), RUN) as slots:
        parts = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for part in parts:
            part.start()
        while len(two.noted("step")) < 2:
            time.sleep(0.05)
        slots.leave()
        for part in parts:
            part.join()
        assert raised == ["the run of this step was cancelled"] * 3
        assert not any(_alive(one.pid) for one in two.noted("start"))


def test_another_tenant_takes_an_idle_card_and_its_processes_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    with Slots(cards.usable("auto"), RUN) as slots:
        for tenant in (RUN, RUN, Tenant(1, ("other",)), Tenant(2, ("other",)), RUN):
            with slots.seat(tenant, step("update", 0, "00"), "") as workers:
                workers.run(step("update", 0, "00"))
            assert sum(_alive(noted.pid) for noted in one.noted("start")) == 1
    assert len(one.noted("start")) == 4


def test_idle_processes_end_and_their_card_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    with Slots(cards.usable("auto"), RUN) as slots:
        slots.run(step("update", 0, "00"))
        slots.end_idle(3600)
        (started,) = one.noted("start")
        assert _alive(started.pid)
        slots.end_idle(0)
        assert not _alive(started.pid)
        free = cards.claim(cards.cards()[0])
        assert free is not None
        free.release()
        slots.run(step("update", 0, "00"))
    assert len(one.noted("start")) == 2


class Stuck:
    """A process that was killed and does not end."""

    process = SimpleNamespace(pid=4242)

    def hang_up(self) -> None:
        pass

    def end(self, patience: float) -> bool:
        return False


def test_a_card_whose_process_does_not_end_is_left_and_stays_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path, monkeypatch, 2)
    with Slots(cards.usable("auto"), RUN) as slots:
        with slots.seat(RUN, step("update", 0, "00"), "") as workers:
            workers._running["engine"] = Stuck()  # type: ignore[assignment]
            workers._end("engine", patience=0.0)
        assert slots.parallel == 1 and cards.claim(cards.cards()[0]) is None
        assert slots.run(step("update", 0, "00"))["stage"] == "noted"
    kept = workers._claim
    assert kept is not None and cards.claim(cards.cards()[0]) is None
    kept.release()  # as the end of this process would: other tests have a card of this name
    assert capsys.readouterr().err == "process 4242 was killed and does not end; card 0 is not used again\n"


def test_a_card_that_is_listed_but_fails_step_after_step_is_left_while_another_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, 2)

    def works(slots: Slots) -> None:
        with slots.seat(RUN, step("benchmark"), ""):
            pass

    def fails(slots: Slots, raised: type[Exception] = WorkerLost, match: str = "^no answer$") -> None:
        with pytest.raises(raised, match=match), slots.seat(RUN, step("benchmark"), ""):
            raise WorkerLost("no answer")

    with Slots(cards.usable("auto"), RUN) as slots:
        for _ in range(3):  # where no card has worked, the fault may be elsewhere
            fails(slots)
    with Slots(cards.usable("auto"), RUN) as slots:
        with slots.seat(RUN, step("benchmark"), ""):  # card 0, so that the others are on card 1
            fails(slots)
            works(slots)
            fails(slots)
        with slots.seat(RUN, step("benchmark"), ""):
            fails(slots, CardUnavailable, r"^card 1 \(.*\) is not used again after 2 failures in a row: no answer$")
        assert slots.parallel == 1
        for _ in range(3):
            fails(slots)


@pytest.mark.parametrize("others_work", [True, False])
def test_a_card_on_which_the_engine_cannot_run_is_left_at_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others_work: bool
) -> None:
    """A machine with cards of two kinds, and one without a card that will do: it says so once the last has failed."""
    three = machine(tmp_path, monkeypatch, 3)
    works, error = three.interpreter("works"), '{"error": "CardUnusable", "message": "it has no kernels for this card"}'
    refuses = f"if [ ${VISIBLE} != 1 ] || {'false' if others_work else 'true'}; then echo '{error}'; continue; fi"
    engine = three.interpreter("engine", refuses)
    with Slots(cards.usable("auto"), RUN) as slots:
        if others_work:
            with pytest.raises(CardUnavailable, match=r"^card 0 \(.*\) is not used again: it has no kernels for this card$"):
                slots.run(step("benchmark"), engine)
            assert slots.run(step("benchmark"), engine)["stage"] == "noted" and slots.parallel == 2
        else:
            for _ in range(2):
                with pytest.raises(CardUnavailable, match=r"is not used again: it has no kernels"):
                    slots.run(step("benchmark"), engine)
            with pytest.raises(CardUnusable, match=r"^it has no kernels for this card$"):
                slots.run(step("benchmark"), engine)
            assert slots.parallel == 1 and slots.run(step("benchmark"), works)["stage"] == "noted"


def test_what_one_run_cannot_do_costs_no_other_its_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 2)
    wrong = Tenant(1, ("wrong",))
    with Slots(cards.usable("auto"), RUN) as slots:
        with slots.seat(RUN, step("benchmark"), ""):
            pass
        seats: list[str] = []

        def fail() -> None:
            with slots.seat(wrong, step("benchmark"), "") as workers:
                seats.append(str(workers.card))
                raise WorkerLost("out of the host's memory")

        for _ in range(4):
            with pytest.raises(WorkerLost):
                fail()
        assert seats == ["card 1", "card 1", "card 0", "card 0"] and slots.parallel == 2
        with slots.seat(RUN, step("benchmark"), ""):
            pass


def test_a_card_that_fails_is_left_once_the_run_works_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another run had all that work before."""
    machine(tmp_path, monkeypatch, 2)
    other = Tenant(1, ("other",))
    with Slots(cards.usable("auto"), RUN) as slots:
        with slots.seat(RUN, step("benchmark"), ""):
            pass
        for _ in range(2):
            with pytest.raises(WorkerLost), slots.seat(other, step("benchmark"), ""):
                raise WorkerLost("no answer")
        with slots.seat(other, step("benchmark"), "") as workers:
            assert str(workers.card) == "card 0"
        with (
            slots.seat(other, step("benchmark"), ""),  # on card 0 again
            pytest.raises(CardUnavailable, match=r"^card 1 .* is not used again after 3 failures in a row"),
            slots.seat(other, step("benchmark"), ""),
        ):
            raise WorkerLost("no answer")
        assert slots.parallel == 1


def test_processes_end_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = machine(tmp_path, monkeypatch, 4)
    slow = Path(four.interpreter("engine"))
    slow.write_text(slow.read_text() + "sleep 3\n")
    with Slots(cards.usable("auto"), RUN) as slots:
        together(slots, "benchmark", 0, 4, str(slow))
        began = time.monotonic()
    assert time.monotonic() - began < 9  # not four times three


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    log = tmp_path / "log"
    for line in log.read_text().splitlines() if log.exists() else []:
        pid = int(line.split()[-1])
        if _alive(pid):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"a worker outlived its test: {line}")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
