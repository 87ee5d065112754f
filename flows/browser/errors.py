"""Errors as pages: a status, a heading and one sentence, never a traceback."""

from dataclasses import dataclass

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from flows.pages.bad_request import BadRequest
from flows.run.run import Retired
from flows.storage import AccessRefused, Damaged, NotStored, StoreRefused, StoreUnavailable

KINDS: tuple[type[Exception], ...] = (Retired, NotStored, StoreRefused, Damaged, StoreUnavailable, BadRequest)


@dataclass(frozen=True)
class Fault:
    """The content of an error page."""

    status: int
    heading: str
    message: str
    advice: str = ""


def explain(error: Exception) -> Fault:
    """Return the fault to show for an error."""
    said = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    if isinstance(error, Retired):
        advice = "Retention removed it on purpose. Its digest and the reason are kept under gc/ in the run."
        return Fault(410, "Retired", said, advice)
    if isinstance(error, AccessRefused):
        advice = "Check the credentials, rights and clock of the process that serves these pages, and the bucket; then reload."
        return Fault(503, "The store refuses access", said, advice)
    if isinstance(error, NotStored | StoreRefused):
        return Fault(404, "Not found", said)
    if isinstance(error, Damaged):
        advice = "It is not shown. `populora fsck RUN` reports what was made from it and how to fix it."
        return Fault(502, "Damaged", said, advice)
    if isinstance(error, StoreUnavailable):
        return Fault(503, "The store does not answer", said, "Try again. The address of the store is at the bottom of the page.")
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return Fault(404, "Not found", "The browser has no page at this address.")
        return Fault(error.status_code, "Refused", str(error.detail))
    if isinstance(error, BadRequest):
        return Fault(400, "Invalid request", said)
    if isinstance(error, RequestValidationError):
        wrong = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return Fault(400, "Invalid request", wrong)
    return Fault(500, "Internal error", f"{type(error).__name__}. The browser's own log has the details.")
