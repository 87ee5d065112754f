"""The engine: turns prompts into completions, for any mix of adapters in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """One completion to sample.

    `adapter_id` names the weights (None: the base model alone). `seed` is this completion's own: the draw does not depend on
    what else is in the batch. The completion ends with the token that makes its text hold one of `stops`.
    """

    prompt_ids: tuple[int, ...]
    adapter_id: str | None
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """Token ids with the log-probability each was sampled with (natural log, at the sampling temperature).

    The end-of-sequence token is included when it was sampled, and so is the token that ended a stop sequence; `truncated` says
    that the length limit ended the completion.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool


class Engine(Protocol):
    """Makes completions. The adapters it may use were loaded by whoever built it."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion, without the end-of-sequence token."""
        ...

    @property
    def window(self) -> int:
        """Tokens that a prompt and its completion may hold together."""
        ...

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Completions in the order of the requests; temperature 0 is greedy. Raises `EngineUnavailable`."""
        ...


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stop sequences that is in it."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


class EngineUnavailable(RuntimeError):
    """The engine could not answer: the world's fault, to be retried, never a reward."""
