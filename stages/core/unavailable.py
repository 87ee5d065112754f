"""The fault of the world outside: a store, an engine, a sandbox or a grader that does not answer."""


class Unavailable(Exception):
    """An infrastructure failure: the stage is retried, or the command exits with code 3. It is never a verdict."""

    exit_code = 3


class Unsuited(Unavailable):
    """This machine cannot take a step, and has not begun it: it has other code, no free card, or not the model. Another may."""
