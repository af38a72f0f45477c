"""Databases: the store of verbs that only read.

Owns: opening it for as long as a command needs it, without an engine; a database that is not there is not made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.cli import settings
from holdfast.engine import reads
from holdfast.engine.leases import is_dead
from holdfast.engine.waits import Wait, wait_view
from holdfast.model import texts
from holdfast.model.errors import Refused, StoreMissing, UnknownRun
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules.questions import who_won
from holdfast.store.api import AskedRow, EngineRow, RunRow, Store
from holdfast.store.urls import store_at

PAGE = 1_000
"""Events read at once: a page is a few hundred kilobytes."""
FOLLOW_SECONDS = 0.05


class NoDatabase(UnknownRun):
    """There is no database yet."""


class UnknownWait(UnknownRun):
    """There is no such wait in this database."""

    code = "unknown_wait"


@contextmanager
def reading(flag: str | None) -> Iterator[Store]:
    """The store that the settings name. Raises NoDatabase when nothing has ever run there."""
    store = store_at(settings.database_url(flag), create=False)
    try:
        store.open()
    except StoreMissing as error:
        raise NoDatabase(
            f"{error.message} Name another one with --db, or start a run: holdfast run FILE.py:NAME"
        ) from error
    try:
        yield store
    finally:
        store.close()


def journal(store: Store, run_no: int, after: int) -> Iterator[reads.EventView]:
    """The events there are, page by page."""
    while page := reads.event_views(store, run_no, after, PAGE):
        after = page[-1].seq
        yield from page


def follow(store: Store, run_no: int, after: int) -> Iterator[reads.EventView]:
    """Committed events as they come, of whoever drives the run, until it has ended."""
    while True:
        row = store.run_by_no(run_no)
        assert row is not None
        for event in journal(store, run_no, after):
            after = event.seq
            yield event
        if row.status in RUN_TERMINAL and after >= row.last_seq:
            return
        while store.changed() is False:  # None: reading waits until the server is back
            time.sleep(FOLLOW_SECONDS)


def owner(store: Store, row: RunRow) -> EngineRow | None:
    """The live engine that drives a run; None when nobody does."""
    if row.engine is None:
        return None
    now = store.now()
    return next((e for e in store.engines() if e.engine == row.engine and not is_dead(e, now)), None)


find = reads.find_run


def find_wait(store: Store, wait_id: str, run: str | None = None) -> Wait:
    """A wait for people by its id, or by a prefix that no other open one has. Raises Refused when it is over, with who
    was first."""
    found = store.wait(wait_id) if texts.is_name(wait_id) else []  # an empty text is the beginning of every id
    if run is not None:
        run_id = find(store, run).run_id
        found = [asked for asked in found if asked.run_id == run_id]
    if not found:
        raise UnknownWait(
            f"nobody waits under the id {wait_id!r}; `holdfast inbox` and `holdfast show RUN` show the ids"
        )
    candidates = [asked for asked in found if asked.wait.status == "open"] or found
    if len(candidates) > 1:
        raise UnknownWait(_not_unique(wait_id, candidates))
    asked = candidates[0]
    if asked.wait.status != "open":
        won = who_won(asked.wait.wait_id, asked.wait.outcome or "", asked.wait.actor or "")
        raise Refused(f"run {asked.run_id}: {won}", reason="closed")
    return wait_view(asked.run_id, asked.workflow, asked.wait)


def _not_unique(wait_id: str, found: list[AskedRow]) -> str:
    listed = ", ".join(f"{asked.wait.wait_id} of run {asked.run_id}" for asked in found)
    same = len({asked.wait.wait_id for asked in found}) == 1
    return f"{wait_id!r} is not unique: {listed}" + ("; say which with --run RUN" if same else "")
