"""The engine turns prompts into completions, for any mix of adapters in one batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stages.core.unavailable import Unavailable


@dataclass(frozen=True)
class Request:
    """One completion to sample.

    `adapter_id` names the weights (None: the base model alone). `seed` belongs to this completion alone: the draw does not
    depend on the rest of the batch. The completion ends with the token that makes its text contain one of `stops`.
    """

    prompt_ids: tuple[int, ...]
    adapter_id: str | None
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """Token ids with the log-probability each was sampled with (natural log, at the sampling temperature).

    The end-of-sequence token is included if it was sampled, and so is the token that completed a stop sequence. `truncated` is
    True if the length limit ended the completion.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool


Ended = Callable[[int, Completion], None]
"""Called with the place of a request and its completion, as the completion ends, on the thread of the engine.

Decoding waits for it, so it returns at once.
"""


class Engine(Protocol):
    """Generates completions. Its creator has loaded the adapters that it may use."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, without the end-of-sequence token."""
        ...

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        ...

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return completions in the order of the requests; temperature 0 is greedy. Raise `EngineUnavailable`.

        `ended` receives each completion once, in the order in which they end. It changes no completion.
        """
        ...


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text up to the first stop sequence in it."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


class EngineUnavailable(Unavailable):
    """The engine could not answer: an infrastructure failure, to be retried, never a reward."""


class EngineUnusable(RuntimeError):
    """The engine cannot run on this machine, which no retry changes: such as with a driver that is too old. Another may."""

    exit_code = 3


class CardUnusable(EngineUnusable):
    """The engine cannot run on this card. Another card of the machine may do."""
