"""A private Prefect server that exits before it answers."""

import os
from pathlib import Path

import pytest

from flows.prefect_ops import own_server, supervised


def test_a_server_that_exits_without_a_word_is_reported_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # the server's settings must not outlive the test
    silent = tmp_path / "silent-python"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    monkeypatch.setattr(own_server.sys, "executable", str(silent))
    with (
        own_server.own_server(tmp_path, {}, "--alone") as (_, wait),
        pytest.raises(supervised.ChildFailed, match="exited with code 3: it printed nothing; set PREFECT_SERVER_LOG"),
    ):
        wait()
