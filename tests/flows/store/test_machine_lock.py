"""The lock among the processes of one machine: what the file system refuses is the store's own error."""

import errno
from pathlib import Path

import pytest

from flows.storage import StoreRefused, open_store


def test_a_lock_that_the_file_system_refuses_is_the_store_s_own_error(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "smoke" / ".lock").mkdir(parents=True)
    with pytest.raises(StoreRefused, match=r"smoke/\.lock: Is a directory"), store.lock("smoke"):
        pass
    with pytest.raises(OSError, match="of the block's own") as caught, store.lock("other"):
        raise OSError(errno.EIO, "of the block's own")
    assert caught.value.errno == errno.EIO
