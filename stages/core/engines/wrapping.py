"""An engine around another one: its texts and window are the other's, and `generate` is its own."""

from collections.abc import Sequence

from stages.core.engines.protocol import Engine


class WrappingEngine:
    """Implements `Engine` by another one, except for `generate`."""

    def __init__(self, engine: Engine) -> None:
        self._inner = engine

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
