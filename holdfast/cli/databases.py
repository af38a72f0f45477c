"""Databases: the store of verbs that only read.

Owns: opening it for the time of a command, without an engine; a missing database is not created.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.cli import configuration, output
from holdfast.inspect import run_views
from holdfast.inspect.wait_views import wait_view
from holdfast.model import texts
from holdfast.model.errors import Refused, StoreMissing, UnknownRun
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.views import EventView, Wait
from holdfast.rules.questions import how_it_ended
from holdfast.store.contract import Store
from holdfast.store.liveness import Locks, is_dead
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import EngineRow, RunRow
from holdfast.store.urls import store_at

PAGE = 1_000
"""Events read at once: a page is a few hundred kilobytes."""
FOLLOW_SECONDS = 0.05
RECENT = 200
"""Runs whose ids are compared with an id that does not exist."""


class NoDatabase(UnknownRun):
    """There is no database yet."""


class UnknownWait(UnknownRun):
    """There is no such wait in this database."""

    code = "unknown_wait"


@contextmanager
def reading(flag: str | None, *, allow_network: bool = False) -> Iterator[Store]:
    """The store that the settings name. Raises NoDatabase when nothing has ever run there."""
    store = store_at(configuration.database_url(flag), create=False, allow_network=allow_network)
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


def journal(store: Store, run_no: int, after: int) -> Iterator[EventView]:
    """The events there are, page by page."""
    while page := run_views.event_views(store, run_no, after, PAGE):
        after = page[-1].seq
        yield from page


def follow(store: Store, run_no: int, after: int) -> Iterator[EventView]:
    """Committed events as they arrive, from any engine, until the run has ended."""
    while True:
        row = store.run_by_no(run_no)
        assert row is not None
        for event in journal(store, run_no, after):
            after = event.seq
            yield event
        if row.status in RUN_TERMINAL and after >= row.last_seq:
            return
        while store.changed() is False:  # None: the next read waits until the server is back
            time.sleep(FOLLOW_SECONDS)


def owner(store: Store, row: RunRow) -> EngineRow | None:
    """The live engine that drives a run; None if no engine does."""
    if row.engine is None:
        return None
    now, locks = store.now(), Locks.of(store)
    return next((e for e in store.engines() if e.engine == row.engine and not is_dead(e, now, locks)), None)


def find(store: Store, run_id: str) -> RunRow:
    """A run by its whole id: for verbs that change something. Raises UnknownRun, with ids that the caller may have
    meant."""
    try:
        return find_run(store, run_id)
    except UnknownRun as unknown:
        near = _near(store, run_id) if texts.is_name(run_id) else []
        raise UnknownRun(f"{unknown.message}{_meant(near)}") from None


def find_by_prefix(store: Store, beginning: str) -> RunRow:
    """A run by its id or by a prefix of it that no other id has: for verbs that only read. The id that a prefix stands
    for is printed beside the output."""
    matches = store.resolve_run_id(beginning) if texts.is_name(beginning) else []
    if beginning in matches or not matches:
        return find(store, beginning)
    if len(matches) > 1:
        raise UnknownRun(f"{beginning!r} is not unique: {', '.join(matches)}")
    output.note(output.line(f"{beginning} is run {matches[0]}"))
    return find_run(store, matches[0])


def find_wait(store: Store, wait_id: str, run: str | None = None) -> Wait:
    """A wait by its whole id. Raises Refused if it is closed, with who closed it, and UnknownWait with ids that begin
    like this one."""
    alike = store.wait(wait_id) if texts.is_name(wait_id) else []
    if run is not None:
        run_id = find(store, run).run_id
        alike = [asked for asked in alike if asked.run_id == run_id]
    found = [asked for asked in alike if asked.wait.wait_id == wait_id]
    if not found:
        raise UnknownWait(
            f"no run waits under the id {wait_id!r}; `holdfast inbox` and `holdfast show RUN` show the ids"
            f"{_meant([asked.wait.wait_id for asked in alike if asked.wait.status == 'open'])}"
        )
    candidates = [asked for asked in found if asked.wait.status == "open"] or found
    if len(candidates) > 1:
        listed = ", ".join(f"{asked.wait.wait_id} of run {asked.run_id}" for asked in candidates)
        raise UnknownWait(f"{wait_id!r} is not unique: {listed}; say which with --run RUN")
    asked = candidates[0]
    if asked.wait.status != "open":
        won = how_it_ended(asked.wait.wait_id, asked.wait.outcome or "", asked.wait.actor or "")
        raise Refused(f"run {asked.run_id}: {won}", reason="closed")
    return wait_view(asked.run_id, asked.workflow, asked.wait)


def _near(store: Store, run_id: str) -> list[str]:
    """Ids of runs that begin with what was typed; else those of recent runs that look like it."""
    recent = (row.run_id for row in store.runs(limit=RECENT))
    return store.resolve_run_id(run_id) or difflib.get_close_matches(run_id, recent)


def _meant(near: Sequence[str]) -> str:
    return f". Did you mean {' or '.join(near[:3])}? Only verbs that read accept the beginning of an id" if near else ""
