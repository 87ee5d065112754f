"""An engine that deals an adapter's requests out over the adapter's copies, for an evolution strategy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stages.core.engines.protocol import Completion, Ended, Engine, Request


class DealtEngine:
    """Implements `Engine` by another one: an adapter's copies take turns at its requests, in the order of the requests.

    `copies` maps an adapter id to the names of its copies. Whoever asks need not know them.
    """

    def __init__(self, engine: Engine, copies: Mapping[str, Sequence[str]]) -> None:
        self._inner, self._copies = engine, copies

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return the completions, in the order of the requests; `ended` receives each one as it ends."""
        seen, dealt = Counter[str](), []
        for request in requests:
            assert request.adapter_id is not None, request
            names = self._copies[request.adapter_id]
            dealt.append(replace(request, adapter_id=names[seen[request.adapter_id] % len(names)]))
            seen[request.adapter_id] += 1
        return self._inner.generate(dealt, temperature, ended)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        return self._inner.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion."""
        return self._inner.decode(token_ids)

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return self._inner.window
