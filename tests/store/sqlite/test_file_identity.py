from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast.store.sqlite import open_files
from holdfast.store.sqlite.open_files import WatchedPath, of_stat


@pytest.fixture(params=["statx", "stat"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to ask: with the system call, and where it is missing."""
    if request.param == "stat":
        monkeypatch.setattr(open_files, "_statx", None)
    elif sys.platform != "linux":
        pytest.skip("statx is a system call of Linux")
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_identity_is_the_one_that_stat_reports(tmp_path: Path) -> None:
    path = tmp_path / "ä file"
    path.write_bytes(b"")
    assert WatchedPath(path).identity() == of_stat(os.stat(path))
    assert WatchedPath("/dev/null").identity() == of_stat(os.stat("/dev/null"))


@pytest.mark.usefixtures("way")
def test_identity_follows_links_and_tells_a_replaced_file(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"")
    link.symlink_to(path)
    watched = WatchedPath(link)
    before = watched.identity()
    assert before == WatchedPath(path).identity()
    other = tmp_path / "other"
    other.write_bytes(b"")
    other.rename(path)
    assert watched.identity() != before


@pytest.mark.usefixtures("way")
def test_identity_of_a_missing_file_raises_what_stat_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        WatchedPath(tmp_path / "missing").identity()


@pytest.mark.skipif(sys.platform != "linux", reason="statx is a system call of Linux")
def test_identity_is_read_without_the_times_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(*_: object) -> None:
        raise AssertionError("reading the times makes the next commit slower")

    watched = WatchedPath(tmp_path)
    monkeypatch.setattr(open_files.os, "stat", stat)
    assert watched.identity()
