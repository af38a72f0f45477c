"""What the explorer has found in the engine; each schedule is run again for ever, with the fix and without it.

A tape counts boundaries. When the engine comes to have other ones, a tape may point somewhere harmless: then the test
without the fix says so, and the tape has to be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import pytest

from holdfast.engine.actor import RunActor
from holdfast.engine.committer import Committer
from holdfast.engine.futures import settle
from holdfast.model import commands as cmd
from holdfast.model.errors import OutcomeUnknown
from holdfast.rules import decide, runs
from holdfast.store.sqlite_reads import SqliteReads
from holdfast.testing import explore, harness
from tests.explorer import scenarios, waiting


class Found(NamedTuple):
    """A schedule that once failed."""

    what: str
    workflow: Any
    tape: str
    unfixed: Callable[[], Any]
    """Takes the fix out."""
    options: Mapping[str, Any] = MappingProxyType({})


def _without_waiting(self: Committer, work: Callable[[], Any]) -> Any:
    return work()


def _told_to_whoever_asked(self: Committer, future: Any, result: Any, error: BaseException | None) -> None:
    settle(future, result, error)


def _told_to_nobody(self: Committer, function: Callable[[], None]) -> None:
    def job() -> None:
        with suppress(OutcomeUnknown):
            function()

    self._writer.put(job)


def _undo_anew(d: Any, c: cmd.ProvideUndo) -> None:
    d.state.undo = None
    runs.provide_undo(d, c)


def _run_again_and_again(self: RunActor, key: tuple[str, str], left: bool = False) -> None:
    self.restarted_at = -1
    _body_left(self, key, left)


_body_left = RunActor.body_left

FOUND = [
    Found(
        "a full disk while a body orders a child failed the body",
        scenarios.graph_parent,
        "0/4.3",
        lambda: mock.patch.object(Committer, "when_not_full", _without_waiting),
    ),
    Found(
        "an unknown COMMIT of anything but a group left an engine that could do nothing and did not stop",
        scenarios.chain,
        "0/2.4",
        lambda: mock.patch.object(Committer, "_report", _told_to_whoever_asked),
    ),
    Found(
        "an unknown COMMIT of a renewal did the same",
        scenarios.retried,
        "0/11.4",
        lambda: mock.patch.object(Committer, "call_from_thread", _told_to_nobody),
    ),
    Found(
        "what there is to undo was brought twice, and the second list began with what was undone already",
        scenarios.compensated,
        "0/11.1",
        lambda: mock.patch.dict(decide._RULES, {cmd.ProvideUndo: _undo_anew}),
        {"cancel_after": "xp_book_2"},
    ),
    Found(
        "a body in a thread was run again and again by an engine that had lost its run, and waited for what only the "
        "new owner knows",
        waiting.asks_in_a_thread,
        "0/16.12",
        lambda: mock.patch.object(RunActor, "body_left", _run_again_and_again),
        {"answers": waiting.ANSWERS, "idempotent": ["xp_step"]},
    ),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.what)
def test_a_schedule_that_once_failed_is_survived(found: Found) -> None:
    report = explore(found.workflow, tape=found.tape, **found.options)
    assert report.safe, report.explain()


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.what)
def test_without_its_fix_it_fails_again(found: Found) -> None:
    with found.unfixed():
        report = explore(found.workflow, tape=found.tape, **found.options)
    assert not report.safe, "the tape has to be found again: explore the workflow without the fix"
    assert report.suitable, report.explain()


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_run_held_by_an_engine_that_nobody_knows_is_freed(fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that was declared dead could claim a run before it noticed; when it died then, nobody missed it."""
    if not fixed:
        monkeypatch.setattr(SqliteReads, "unknown_owners", lambda self: [])
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        await h.advance(minutes=1)
        h._store.alter("UPDATE run_state SET engine = 'ghost', token = token + 1")
        await h.advance(hours=2)
        assert (await run.status() == "completed") is fixed
