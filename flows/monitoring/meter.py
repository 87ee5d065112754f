"""Readings of a step's progress, taken twice a second in the process that computes. No Prefect."""

import time
from collections.abc import Callable
from dataclasses import dataclass

PERIOD = 0.5  # seconds between two readings
TELLING = 0.05  # share of a count after which it says how long the rest takes: the first completions wait for all prompts


@dataclass(frozen=True)
class Reading:
    """Progress of a step at one moment: (what, done, total) of each count, outermost first, with tokens and their rate.

    `seconds_left` is for the count `left_of`: the outermost or, if that tells nothing yet, the newest. None: neither does.
    """

    counts: tuple[tuple[str, float, float], ...]
    tokens: int
    tokens_a_second: float | None
    seconds_left: float | None
    left_of: str = ""

    @property
    def share(self) -> float:
        """Share of the outermost count that is done, from 0 to 1."""
        _, done, total = self.counts[0]
        return done / total if total else 1.0

    def __str__(self) -> str:
        of_what = f" of {self.left_of}" if self.left_of != self.counts[0][0] else ""
        left = [] if self.seconds_left is None else [f"{duration(self.seconds_left)} left{of_what}"]
        rate = [] if self.tokens_a_second is None else [f"{self.tokens_a_second:,.0f} tokens/s"]
        counts = [f"{what} {int(done):,}/{int(total):,}" for what, done, total in self.counts]
        tokens = [] if self.tokens_a_second is None else [f"{self.tokens:,} tokens"]
        return " · ".join(left + rate + counts + tokens)  # most important first: a narrow terminal cuts the end


@dataclass
class _Count:
    """One count: where it began and its current value."""

    began: float
    first: float
    done: float
    total: float
    tokens: int = 0

    def seconds_left(self, now: float) -> float | None:
        if not self.first < self.done < self.total or self.done - self.first < TELLING * (self.total - self.first):
            return None
        return (now - self.began) * (self.total - self.done) / (self.done - self.first)


class Meter:
    """A `Progress` that turns reports into readings and passes them on, at most one per period."""

    def __init__(self, hand_on: Callable[[Reading], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._hand_on, self._clock = hand_on, clock
        self.begin()

    def begin(self) -> None:
        """Start another step: earlier counts are dropped."""
        self._counts: dict[str, _Count] = {}
        self._newest = ""
        self._earlier_tokens = 0
        self._said = self._clock()

    def __call__(self, what: str, done: float, total: float, tokens: int = 0) -> None:
        """Report a count; see `Progress`. A count that falls, or has another total, starts again."""
        now, count, self._newest = self._clock(), self._counts.get(what), what
        begins = count is None or done < count.done or total != count.total
        if count is None or begins:
            self._earlier_tokens += 0 if count is None else count.tokens
            self._counts.pop(what, None)
            count = self._counts[what] = _Count(now, done, done, total)
        count.done, count.tokens = done, tokens
        if begins or now - self._said >= PERIOD:  # after it begins, minutes can pass without a report
            self._said = now
            self._hand_on(self.reading(now))

    def reading(self, now: float) -> Reading:
        """Return the reading at `now`: the outermost unfinished count, and the newest within it."""
        outer = next((what for what, count in self._counts.items() if count.done < count.total), self._newest)
        chosen = list(dict.fromkeys((outer, self._newest)))
        writing = [count for count in reversed(self._counts.values()) if count.tokens]
        elapsed = now - writing[0].began if writing else 0.0
        lefts = [(left, what) for what in chosen if (left := self._counts[what].seconds_left(now)) is not None]
        return Reading(
            tuple((what, self._counts[what].done, self._counts[what].total) for what in chosen),
            self._earlier_tokens + sum(count.tokens for count in self._counts.values()),
            writing[0].tokens / elapsed if elapsed > 0 else None,
            *(lefts[0] if lefts else (None, "")),
        )


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3 h 20 min."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
