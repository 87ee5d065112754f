"""MBPP+ keeps arguments as JSON, which has no tuples, sets or complex numbers: how each task's arguments are meant.

The shape of a task's arguments is a fact of EvalPlus's release v0.2.0, here as a table: task number -> how deep lists are tuples.
"""

from typing import Any

_EACH = "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809"
_MEMBERS = "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780"
_MEMBERS_AND_EACH = "259 401 445"
_MEMBERS_OF_FIRST = "75 413 444 753"
_FIRST = "250 307 405 446 617 720 763 808"
_SECOND = "106 750"
_ALL = "580 615 791"


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split()))


EACH, MEMBERS, MEMBERS_AND_EACH = _numbers(_EACH), _numbers(_MEMBERS), _numbers(_MEMBERS_AND_EACH)
MEMBERS_OF_FIRST, FIRST, SECOND, ALL = _numbers(_MEMBERS_OF_FIRST), _numbers(_FIRST), _numbers(_SECOND), _numbers(_ALL)


def typed(task_id: str, given: list[Any]) -> tuple[Any, ...]:
    """The arguments of one call, as the task means them."""
    number = int(task_id.rpartition("/")[2])
    if number in EACH:
        return tuple(tuple(argument) for argument in given)
    if number in MEMBERS:
        return tuple([tuple(member) for member in argument] for argument in given)
    if number in MEMBERS_AND_EACH:
        return tuple(tuple(tuple(member) for member in argument) for argument in given)
    if number in MEMBERS_OF_FIRST:
        return [tuple(member) for member in given[0]], given[1]
    if number in FIRST:
        return tuple(given[0]), *given[1:]
    if number in SECOND:
        return given[0], tuple(given[1])
    if number in ALL:
        return tuple(_tuples(argument) for argument in given)
    return _alone(number, given)


def _alone(number: int, given: list[Any]) -> tuple[Any, ...]:
    """The tasks whose arguments are like no other's."""
    if number == 115:
        return ([set(member) if isinstance(member, list) and member else {} for member in given[0]],)
    if number == 124:
        return float(given[0]), complex(given[1])
    if number == 252:
        return (complex(given[0]),)
    if number == 278:
        return (tuple(tuple(member) if isinstance(member, list) else member for member in given[0]),)
    if number == 722:
        return {key: tuple(value) for key, value in given[0].items()}, *given[1:]
    return tuple(given)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
