"""Copying: all of one database into another one, of the same kind or not.

Owns: what may be copied into what, the batches, what differs in a copy, and the proof that nothing else does.
Never: copies a database with a live engine, or into one that is not empty.
Invariants: no process writes to the source meanwhile. An incomplete target says so from before its first row until its
contents have been read again and found equal.
On crash: the target cannot be opened; it is emptied and copied into again on request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.model.errors import StoreError, UnfinishedCopy, UsageError
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.contents import Contents, Row, Table
from holdfast.store.row_types import EngineRow
from holdfast.store.urls import contents_at, store_at

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of one transaction, whichever is reached first: large enough that the disk's flush does not count, small enough for
any machine."""

_encode = msgspec.msgpack.Encoder().encode

OTHER_IDENTITY: Final = (
    "other_identity: it was copied from another store, whose idempotency keys its steps do not have any more. "
    "If it is resumed here, what was under way is done again under new keys"
)

IsDead = Callable[[Contents, EngineRow, int], bool]
"""True if an engine is dead at this moment."""

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""A row of `run_state`, by column, as it is in the copy."""

Progress = Callable[[str, str, int, int], None]
"""Called with what is being done with which table, and how many of how many rows are done."""


class Copied(NamedTuple):
    """One table that is the same on both sides."""

    table: str
    rows: int
    digest: str
    """Digest of its rows in the order of their key, as they are in the copy."""


def copy(
    source_url: str,
    target_url: str,
    *,
    is_dead: IsDead,
    again: bool = False,
    new_identity: bool = False,
    progress: Progress = lambda what, table, done, total: None,
) -> list[Copied]:
    """Copy everything, and return after the copy has been read again and found equal; then it can be opened.

    The target is created if it does not exist, and must be empty. With `again` it may also be an incomplete copy. Runs
    have no owner there, and their tokens are higher than any that was given out before. It has the id of the source and
    a higher epoch; with `new_identity` an id of its own, and its unfinished runs are on hold: other systems know what
    they did under idempotency keys of the source.
    """
    open_once(source_url, create=False)
    try:
        open_once(target_url)
    except UnfinishedCopy:
        if not again:
            raise
    with closing(contents_at(source_url)) as source, closing(contents_at(target_url)) as target:
        _refuse_target(source, target)
        refuse_engines(target, is_dead)
        tables = _same_tables(source, target)
        change = _on_hold if new_identity else _freed
        source.freeze()
        refuse_engines(source, is_dead)
        target.begin()
        copied = [_copy_table(source, target, name, table, change, progress) for name, table in tables.items()]
        for one in copied:
            _verify(target, one, tables[one.table], progress)
        meta = source.meta()
        if new_identity:
            meta = meta._replace(store_id=target.meta().store_id, epoch=1)
        else:
            meta = meta._replace(epoch=next_epoch(meta.epoch, source.now()))
        target.complete(meta)
    return copied


def next_epoch(epoch: int, now: int) -> int:
    """The epoch of a store that continues another one."""
    return max(epoch + 1, now)


def open_once(url: str, *, create: bool = True) -> None:
    """Open a store and close it again: create it, migrate it, or refuse it."""
    store = store_at(url, create=create)
    store.open()
    store.close()


def _refuse_target(source: Contents, target: Contents) -> None:
    meta = target.meta()
    if meta.is_unfinished:  # so it is not the source, which was opened
        return
    if meta.store_id == source.meta().store_id:
        raise UsageError(
            f"{source.shown} and {target.shown} are the same database, or copies of one; {target.shown} is "
            "not empty. Copy into a database that holds nothing; nothing was changed"
        )
    for name in target.tables():
        if count := target.count(name):
            raise UsageError(
                f"{target.shown} is not empty: its table {name} has {count:,} rows. Copy into a database that holds "
                "nothing; nothing was changed"
            )


def refuse_engines(side: Contents, is_dead: IsDead) -> None:
    """Raise UsageError, with its name, if an engine works on this side."""
    now = side.now()
    for engine in side.engines():
        if not is_dead(side, engine, now):
            seconds = max(0, engine.expires_at - now) / 1_000_000
            raise UsageError(
                f"engine {engine.engine} (process {engine.pid} on {engine.host}) works on {side.shown}. Stop it first; "
                f"if it is dead, its lease runs out in {seconds:.0f} s. Nothing was changed"
            )


def _same_tables(source: Contents, target: Contents) -> dict[str, Table]:
    tables = source.tables()
    if tables != target.tables():
        raise StoreError(
            f"{source.shown} and {target.shown} do not have the same tables. If the copy was begun by another version "
            "of Holdfast, remove it and copy again; nothing was copied"
        )
    return tables


def _copy_table(
    source: Contents, target: Contents, name: str, table: Table, change: Change, progress: Progress
) -> Copied:
    digest = _Digest()
    total = source.count(name)
    progress("copying", name, 0, total)
    for batch in _batches(_as_copied(source.read(name, table), name, table, change), digest):
        target.write(name, table, batch)
        progress("copying", name, digest.rows, total)
    return Copied(name, digest.rows, digest.hex())


def _as_copied(rows: Iterator[Row], name: str, table: Table, change: Change) -> Iterator[Row]:
    """Rows as they are in a copy."""
    if name != "run_state":
        return rows
    return (tuple(change(dict(zip(table.columns, row, strict=True))).values()) for row in rows)


def _freed(run: dict[str, Any]) -> dict[str, Any]:
    """A run has no owner in a copy, and a former owner cannot be taken for its owner."""
    return run | {"engine": None, "last_engine": run["engine"] or run["last_engine"], "token": run["token"] + 1}


def _on_hold(run: dict[str, Any]) -> dict[str, Any]:
    """The same in a copy that is another store: an unfinished run is put on hold."""
    if run["status"] in RUN_TERMINAL:
        return _freed(run)
    before = "" if run["hold"] is None else f" It was on hold before: {run['hold']}"
    return _freed(run) | {"hold": f"{OTHER_IDENTITY}{before}"}


def _verify(target: Contents, expected: Copied, table: Table, progress: Progress) -> None:
    """Read a table of the copy again, and compare it with what was read from the source."""
    digest = _Digest()
    for _ in _batches(target.read(expected.table, table), digest):
        progress("verifying", expected.table, digest.rows, expected.rows)
    found = Copied(expected.table, digest.rows, digest.hex())
    if found != expected:
        raise StoreError(
            f"{target.shown}: the table {expected.table} is not what was copied into it: {found.rows:,} rows with the "
            f"digest {found.digest}, and {expected.rows:,} with {expected.digest} were copied. Does another program "
            "write there?"
        )


class _Digest:
    """A digest over rows, in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.rows = 0

    def add(self, row: Row) -> int:
        """Add a row; return its size."""
        data = _encode(row)
        self._hash.update(data)
        self.rows += 1
        return len(data)

    def hex(self) -> str:
        return self._hash.hexdigest()


def _batches(rows: Iterator[Row], digest: _Digest) -> Iterator[list[Row]]:
    """Rows in portions that fit into memory, each added to the digest."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += digest.add(row)
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
