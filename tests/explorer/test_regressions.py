"""What the explorer has found in the engine; each schedule is run again for ever, with the fix and without it.

A tape counts boundaries. When the engine comes to have other ones, a tape may point somewhere harmless: then the test
without the fix says so, and the tape has to be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import pytest

from holdfast.engine.committer import Committer
from holdfast.engine.ownership.lease import Lease
from holdfast.engine.ports import settle
from holdfast.engine.run.bodies import BodyPort
from holdfast.model import commands as cmd
from holdfast.model.errors import OutcomeUnknown
from holdfast.rules import undoing
from holdfast.store.sqlite.sqlite_store import SqliteStore
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


@contextmanager
def _undo_anew() -> Iterator[None]:
    """The second list replaces the first one, and lists what was undone since."""
    provide = undoing.provide

    def replace(d: Any, c: cmd.ProvideUndo) -> None:
        d.state.undo = None
        provide(d, c)

    with mock.patch.object(undoing, "provide", replace), mock.patch.object(undoing, "_is_settled", return_value=False):
        yield


def _run_again_and_again(self: BodyPort, key: tuple[str, str], evicted: bool = False) -> None:
    self.actor.restarted_at = -1
    _body_exited(self, key, evicted)


_body_exited = BodyPort.body_exited


@contextmanager
def _without_either_safeguard() -> Iterator[None]:
    """That nothing begins after the lease would hide it, too."""
    with (
        mock.patch.object(BodyPort, "body_exited", _run_again_and_again),
        mock.patch.object(Lease, "may_begin", True),
    ):
        yield


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
        _undo_anew,
        {"cancel_after": "xp_book_2"},
    ),
    Found(
        "a body in a thread was run again and again by an engine that had lost its run, and waited for what only the "
        "new owner knows",
        waiting.asks_in_a_thread,
        "0/16.12",
        _without_either_safeguard,
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
        monkeypatch.setattr(SqliteStore, "unknown_owners", lambda self: [])
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        await h.advance(minutes=1)
        h._store.alter("UPDATE run_state SET engine = 'ghost', token = token + 1")
        await h.advance(hours=2)
        assert (await run.status() == "completed") is fixed
