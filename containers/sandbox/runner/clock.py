"""A clock for programs that shows another date in every template server, so that what depends on it is not reproducible.

The modules that a program may import reach the time through the module `time`; only `datetime.now` and `datetime.utcnow` ask the
kernel. Standard library only.
"""

import gc
import sys
import time

_STARTS = (619_315_261.2731, 2_934_902_198.6184, 1_288_774_983.1907, 941_880_642.5512, 2_246_551_807.9375, 1_711_036_444.0823)


def install(index: int) -> None:
    """Replaces the clock functions of `time`. To be called before any other module is imported that may take them from there."""
    state = [_STARTS[index % len(_STARTS)]]
    step = 0.171 + 0.093 * index
    local, greenwich, to_text, formatted = time.localtime, time.gmtime, time.asctime, time.strftime

    def now() -> float:
        state[0] += step
        return state[0]

    def now_ns() -> int:
        return int(now() * 1e9)

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, now)
        setattr(time, name + "_ns", now_ns)
    time.clock_gettime = lambda clock: now()
    time.clock_gettime_ns = lambda clock: now_ns()
    time.localtime = lambda seconds=None: local(now() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: greenwich(now() if seconds is None else seconds)
    time.ctime = lambda seconds=None: to_text(local(now() if seconds is None else seconds))
    time.asctime = lambda moment=None: to_text(local(now()) if moment is None else moment)
    time.strftime = lambda form, moment=None: formatted(form, local(now()) if moment is None else moment)
    sys.modules["_hashlib"] = None  # type: ignore[assignment]  # OpenSSL is large; the built-in digests are the same


def install_in_datetime() -> None:
    """The same for `datetime`, whose type is written in C and takes no attributes: they are put into its table."""
    kind, clock = sys.modules["datetime"].datetime, time.time

    def now(cls, tz=None):
        """The time of the server's clock."""
        return cls.fromtimestamp(clock(), tz)

    def utcnow(cls):
        """The time of the server's clock."""
        return cls.utcfromtimestamp(clock())

    (table,) = (held for held in gc.get_referents(kind.__dict__) if type(held) is dict)  # behind the read-only view
    table |= {"now": classmethod(now), "utcnow": classmethod(utcnow)}
