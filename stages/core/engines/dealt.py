"""An engine that deals an adapter's requests out over the adapter's copies, for an evolution strategy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stages.core.engines.protocol import Completion, Ended, Engine, Request
from stages.core.engines.wrapping import WrappingEngine


class DealtEngine(WrappingEngine):
    """Implements `Engine` by another one: an adapter's copies take turns at its requests, in the order of the requests.

    `copies` maps an adapter id to the names of its copies. Whoever asks need not know them.
    """

    def __init__(self, engine: Engine, copies: Mapping[str, Sequence[str]]) -> None:
        super().__init__(engine)
        self._copies = copies

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return the completions, in the order of the requests; `ended` receives each one as it ends."""
        seen, dealt = Counter[str](), []
        for request in requests:
            assert request.adapter_id is not None, request
            names = self._copies[request.adapter_id]
            dealt.append(replace(request, adapter_id=names[seen[request.adapter_id] % len(names)]))
            seen[request.adapter_id] += 1
        return self._inner.generate(dealt, temperature, ended)
