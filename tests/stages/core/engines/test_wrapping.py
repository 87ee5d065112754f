"""An engine around another one has the other's texts and window."""

import pytest

from stages.core.engines.counted import CountedEngine, TokenCount
from stages.core.engines.dealt import DealtEngine
from stages.core.engines.wrapping import WrappingEngine
from tests.support.fakes import ScriptedEngine

INNER = ScriptedEngine("abc")


@pytest.mark.parametrize("engine", [WrappingEngine(INNER), CountedEngine(INNER, TokenCount()), DealtEngine(INNER, {})])
def test_texts_and_window_are_the_other_engines(engine: WrappingEngine) -> None:
    assert (engine.encode("ab"), engine.decode([97, 98]), engine.window) == ([97, 98], "ab", INNER.window)
