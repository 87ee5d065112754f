"""Requests of an adapter are dealt out over its copies."""

from collections.abc import Sequence

from stages.core.engines.dealt import DealtEngine
from stages.core.engines.protocol import Completion, Ended, Request
from tests.support.fakes import ScriptedEngine


class Naming(ScriptedEngine):
    """Completes with the name of the adapter that was asked."""

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        assert ended is None or ended is _ignore
        names = [str(request.adapter_id) for request in requests]
        return [Completion(tuple(self.encode(name)), (0.0,) * len(name), False) for name in names]


def _ignore(place: int, completion: Completion) -> None:
    """Take what a completion's end is told to."""


def test_copies_take_turns_at_the_requests_of_their_own_adapter() -> None:
    engine = DealtEngine(Naming(), {"s0": ["s0+00", "s0+01"], "s1": ["s1+00", "s1+01"]})
    asked = ["s0", "s0", "s1", "s0", "s1", "s0"]
    found = engine.generate([Request((1,), name, 0, 9) for name in asked], 1.0, _ignore)
    assert [engine.decode(one.token_ids) for one in found] == ["s0+00", "s0+01", "s1+00", "s0+00", "s1+01", "s0+01"]
