"""What tests of backups share: filling a database, looking into one, restoring and activating it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.cli.commands.database_verbs import is_dead
from holdfast.store import backups
from holdfast.store.row_types import Standing
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.store.urls import contents_at
from tests.store.conformance.store import make_runs


def restore(path: Path, backup: Path) -> backups.Restored:
    return backups.restore(str(path), backup, is_dead=is_dead)


def activate(url: Path | str, **options: Any) -> Standing | None:
    return backups.activate(str(url), is_dead=is_dead, **options)


def fill(path: Path, runs: int) -> list[int]:
    store = SqliteStore(str(path))
    store.open()
    try:
        return make_runs(store, runs)
    finally:
        store.close()


def look(path: Path) -> tuple[int, Standing]:
    """How many runs are there, in a database that is sound, and what it is."""
    store = SqliteStore(str(path), create=False)
    store.open()
    try:
        assert store.health(thorough=True).damage == []
        return sum(store.counts().values()), store.standing()
    finally:
        store.close()


def files(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def store_id(path: Path) -> str:
    with closing(contents_at(str(path))) as contents:
        return contents.meta().store_id
