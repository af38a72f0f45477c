"""Where a database file may lie: not where its locks do not work."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli import configuration
from holdfast.cli.commands.database_verbs import backup_command
from holdfast.model.errors import UnsafeFilesystem, UsageError
from holdfast.store.sqlite import sqlite_opening
from holdfast.store.sqlite.sqlite_store import SqliteStore

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw,nosuid - devtmpfs devtmpfs rw
40 22 0:41 / /srv/share\\040one rw,relatime shared:9 master:1 - nfs4 server:/export rw,vers=4.2
41 22 0:42 / /home/me/remote rw - fuse.sshfs me@host: rw
a line that is cut
"""


@pytest.fixture
def on_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that is on NFS, as far as can be seen."""
    share = tmp_path / "share"
    share.mkdir()
    known = {share: "nfs4"}
    monkeypatch.setattr(sqlite_opening, "filesystem_of", known.get)
    monkeypatch.delenv(sqlite_opening.VARIABLE, raising=False)
    return share


@pytest.mark.parametrize(
    ("device", "kind"), [("254:0", "ext4"), ("0:41", "nfs4"), ("0:42", "fuse.sshfs"), ("0:99", None)]
)
def test_the_type_of_a_file_system_is_read_from_the_table_of_mounts(device: str, kind: str | None) -> None:
    assert sqlite_opening.kind_in(MOUNTS, device) == kind


def test_the_file_system_of_this_machine_is_found(tmp_path: Path) -> None:
    assert sqlite_opening.filesystem_of(tmp_path) not in sqlite_opening.UNSAFE
    assert sqlite_opening.filesystem_of(Path("/proc")) == "proc"
    assert sqlite_opening.filesystem_of(tmp_path / "nothing") is None


def test_a_database_on_a_network_file_system_is_refused_before_anything_is_made(on_network: Path) -> None:
    with pytest.raises(UnsafeFilesystem, match=r"nfs4.*HOLDFAST_ALLOW_NETWORK_FILESYSTEM"):
        SqliteStore(str(on_network / "runs.db")).open()
    link = on_network.parent / "link.db"
    link.symlink_to(on_network / "runs.db")
    with pytest.raises(UnsafeFilesystem):
        SqliteStore(str(link)).open()
    assert list(on_network.iterdir()) == []
    SqliteStore(str(on_network.parent / "local.db")).open()


def test_it_can_be_allowed_by_an_option_or_a_variable(on_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = f"sqlite:///{on_network / 'runs.db'}"

    async def open_there(**options: bool) -> None:
        async with hf.open(where, **options):  # type: ignore[arg-type]  # the one that is given is of that type
            pass

    with pytest.raises(UnsafeFilesystem):
        asyncio.run(open_there())
    asyncio.run(open_there(allow_network_filesystem=True))
    monkeypatch.setenv(sqlite_opening.VARIABLE, "0")
    with pytest.raises(UnsafeFilesystem):
        asyncio.run(open_there())
    monkeypatch.setenv(sqlite_opening.VARIABLE, "1")
    asyncio.run(open_there())


def test_it_can_be_allowed_by_the_project_file(on_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(on_network.parent)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    Path("holdfast.toml").write_text("[holdfast]\nallow_network_filesystem = 1\n")
    with pytest.raises(UsageError, match="true or false"):
        configuration.database_url()
    Path("holdfast.toml").write_text("[holdfast]\nallow_network_filesystem = true\n")
    assert configuration.database_url("runs.db") == "runs.db"
    assert os.environ[sqlite_opening.VARIABLE] == "1"


def test_a_backup_may_be_made_on_a_network_file_system(
    on_network: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore(str(on_network.parent / "local.db"))
    store.open()
    assert backup_command(on_network / "backup.db", db=str(on_network.parent / "local.db")) == 0
    store.close()
    assert "verified" in capsys.readouterr().out
