"""A folder that appears whole: what another process writes next to it stays."""

from pathlib import Path

import pytest

from flows.export.folder import whole_folder
from flows.storage import StoreRefused


def fail(folder: Path) -> None:
    with whole_folder(folder) as unfinished:
        (unfinished / "mine").write_text("second")
        raise OSError("disk full")


def test_two_that_write_the_same_folder_do_not_touch_each_others_work(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as first:
        (first / "mine").write_text("first")
        with pytest.raises(StoreRefused, match="disk full"):
            fail(tmp_path / "out")
        assert (first / "mine").read_text() == "first"
    assert (tmp_path / "out" / "mine").read_text() == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="File name too long"), whole_folder(tmp_path / ("x" * 300)):
        pytest.fail("there is no such folder")


def test_a_name_that_is_taken_is_refused_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "same")
    with whole_folder(tmp_path / "out") as first:
        (first / "mine").write_text("first")
        with pytest.raises(StoreRefused, match="exists"):
            fail(tmp_path / "out")
        assert (first / "mine").read_text() == "first"
