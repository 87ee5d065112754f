"""The counted engine gives what the other engine gives, and counts its tokens."""

from stages.core.engines.counted import CountedEngine, TokenCount
from stages.core.engines.protocol import Request
from tests.support.fakes import ScriptedEngine


def test_tokens_are_counted_and_what_the_other_engine_has_besides_is_reached() -> None:
    inner, count = ScriptedEngine("abc", "d"), TokenCount()
    engine = CountedEngine(inner, count)
    requests = [Request((1, 2), None, seed, 9) for seed in range(3)]
    assert [len(one.token_ids) for one in engine.generate(requests, 1.0)] == [3, 1, 3]
    assert count == TokenCount(prompt=6, generated=7)
    assert engine.asked == 3  # what a particular engine has besides
