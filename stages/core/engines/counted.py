"""An engine that counts the tokens that pass through it, for the cost of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.core.engines.protocol import Completion, Ended, Engine, Request
from stages.core.engines.wrapping import WrappingEngine


@dataclass
class TokenCount:
    """Tokens so far. Every completion counts its whole prompt, although an engine reads what prompts share only once."""

    prompt: int = 0
    generated: int = 0


class CountedEngine(WrappingEngine):
    """Implements `Engine` by another one, and adds what it reads and writes to `count`."""

    def __init__(self, engine: Engine, count: TokenCount) -> None:
        super().__init__(engine)
        self._count = count

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return the other engine's completions."""
        found = self._inner.generate(requests, temperature, ended)
        self._count.prompt += sum(len(request.prompt_ids) for request in requests)
        self._count.generated += sum(len(completion.token_ids) for completion in found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what a particular engine has besides, such as sleep and wake
