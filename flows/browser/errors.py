"""What went wrong, as a page can say it: a status, a heading and one sentence, never a traceback."""

from dataclasses import dataclass

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from flows.run.run import Retired
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable


class BadRequest(ValueError):
    """The address asks for something that cannot be answered, such as an unknown column."""


KINDS: tuple[type[Exception], ...] = (Retired, NotStored, StoreRefused, Damaged, StoreUnavailable, BadRequest)


@dataclass(frozen=True)
class Fault:
    """What the page of an error shows."""

    status: int
    heading: str
    message: str
    advice: str = ""


def explain(error: Exception) -> Fault:
    """The fault that a reader sees."""
    said = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    if isinstance(error, Retired):
        advice = "Retention removed it on purpose. Its digest and the reason are kept under gc/ in the run."
        return Fault(410, "Retired", said, advice)
    if isinstance(error, NotStored | StoreRefused):
        return Fault(404, "Not here", said)
    if isinstance(error, Damaged):
        advice = "Nothing of it is shown. `populora fsck RUN` says what was made from it and how to mend it."
        return Fault(502, "Damaged", said, advice)
    if isinstance(error, StoreUnavailable):
        return Fault(503, "The store does not answer", said, "Try again; the address of the store stands at the foot.")
    if isinstance(error, HTTPException):
        return Fault(error.status_code, "Not here" if error.status_code == 404 else "Refused", str(error.detail))
    if isinstance(error, BadRequest):
        return Fault(400, "Not a question", said)
    if isinstance(error, RequestValidationError):
        wrong = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return Fault(400, "Not a question", wrong)
    return Fault(500, "A fault of ours", f"{type(error).__name__}. The browser's own log has the details.")
