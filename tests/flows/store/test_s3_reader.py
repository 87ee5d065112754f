"""The key of those who only look: what the stack's S3 server makes for the browser reads everything and changes nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from flows.config import PROJECT
from flows.storage import StoreRefused, open_store
from tests.support.servers import s3_servers

START = (PROJECT / "containers" / "s3" / "start.sh").read_text()
READER = {"READ_ACCESS_KEY": "reader", "READ_SECRET_KEY": "reader-secret"}


@pytest.mark.rgw
@pytest.mark.timeout(300)
def test_the_readers_key_reads_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if gap := s3_servers.rgw_gap():
        pytest.skip(gap)
    found = re.search(r'^if \[ ! -f "\$D/user" \].*?^fi\nif .*?^fi$', START, re.MULTILINE | re.DOTALL)
    assert found is not None
    with s3_servers.rgw(tmp_path) as url:
        own = {"AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": "writer-secret"}
        variables = os.environ | own | READER | {"CEPH_ARGS": f"-c {tmp_path}/ceph.conf", "D": str(tmp_path)}
        subprocess.run(["sh", "-euc", found[0]], env=variables, check=True, capture_output=True)
        for name, value in (s3_servers.environment(url) | own).items():
            monkeypatch.setenv(name, value)
        s3_servers.make_bucket("runs")
        writer = open_store("s3://runs/here")
        assert writer.create("a/one", b"data")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER["READ_ACCESS_KEY"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER["READ_SECRET_KEY"])
        reader = open_store("s3://runs/here")
        assert reader.read("a/one") == b"data" and reader.list("") == ["a/one"] and reader.stamp("a/one")
        with reader.open("a/one") as file:
            assert os.pread(file.fileno(), 9, 0) == b"data"
        for change in (
            lambda: reader.create("a/two", b"x"),
            lambda: reader.delete("a/one"),
            lambda: reader.replace("a/.l", b"x"),
        ):
            with pytest.raises(StoreRefused, match="access is denied"):
                change()
        assert writer.list("", hidden=True) == ["a/one"] and writer.read("a/one") == b"data"
