"""What can go wrong with a store: the errors that every kind of store raises."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stages.core.unavailable import Unavailable

_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG_NAME = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


class StoreUnavailable(Unavailable):
    """The store is unreachable or full. A retry may succeed; this says nothing about the data."""


class StoreRefused(ValueError):
    """The request cannot succeed, however often it is retried: an invalid name, an unusable address, no access."""

    exit_code = 2


class AccessRefused(StoreRefused):
    """The store refuses this user, whatever the name: wrong or expired credentials, missing rights, a missing bucket.

    It says nothing about whether the artifact exists.
    """


class NotStored(LookupError):
    """There is no artifact of that name."""

    exit_code = 1


class Damaged(Exception):
    """An artifact does not match its manifest. `uri` names it, `detail` states how."""

    exit_code = 1

    def __init__(self, uri: str, detail: str) -> None:
        super().__init__(f"{uri}: {detail}")
        self.uri, self.detail = uri, detail

    def __reduce__(self) -> tuple[type["Damaged"], tuple[str, str]]:
        """Return what makes it again in another process: pickle would pass the message alone."""
        return type(self), (self.uri, self.detail)


@contextmanager
def explained(uri: str, writing: bool = False) -> Iterator[None]:
    """Turn an OSError into the store's own error with a one-line message."""
    try:
        yield
    except FileNotFoundError as error:
        if writing:
            raise StoreRefused(f"{uri}: its folder cannot be created") from error
        raise NotStored(f"{uri}: no such artifact") from error
    except OSError as error:
        kind: Callable[[str], Exception] = StoreUnavailable
        if error.errno in _NO_RIGHTS:
            kind = AccessRefused
        elif error.errno in _WRONG_NAME:
            kind = StoreRefused
        raise kind(f"{uri}: {error.strerror or error}") from error
