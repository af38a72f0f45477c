"""Runs that wait for people: in order for as long as it takes; and what may be wrong with their journals and rows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.engine.versions import Versions
from holdfast.inspect.doctor.audit import Audit
from holdfast.inspect.doctor.check import check
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.store.clocks import SystemClock
from holdfast.store.row_types import EventRow
from tests.doctor.ward import event, examine, harm, journal, opened, relink, repair, told, ward_add
from tests.engine.kit import url, waiting

Rows = list[EventRow]
YEAR_MICROS = 365 * 24 * 3600 * 1_000_000


@hf.node
async def people_ask(ctx: hf.Context, n: int) -> int:
    return int(await ctx.ask("How many?", schema=int, assignee="ann", remind="1h", deadline="365000d"))


@hf.workflow
def people_asked(n: int):
    return ward_add.named("after")(people_ask(n))


@hf.node
async def people_pend(ctx: hf.Context, how: str) -> int:
    if ctx.attempt == 1 and how == "error":
        hf.pend("review", error="not now")
    if how == "same":
        tries = await ctx.step(_tried, how)
        if tries == 1:
            hf.pend("review", rerun=True)
    if how == "next":
        hf.pend("review", output=1)
    return 2


TRIES: list[str] = []


async def _tried(how: str) -> int:
    TRIES.append(how)
    return len(TRIES)


@hf.workflow
def people_pended(how: str):
    return ward_add.named("after")(people_pend(how))


@hf.workflow
async def people_told(ctx: hf.Context) -> int:
    return int(await ctx.receive("go", schema=int))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people") / "runs.db"
    asyncio.run(_admit(path))
    return path


@pytest.fixture
def ward(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "runs.db"))


RUNS = (
    *("asked", "handed_on", "answered", "paused", "told", "early"),
    *("in_next", "in_same", "in_error", "after_next", "after_same", "after_error"),
)


async def _admit(path: Path) -> None:
    """A run that waits for a person in every way, and one of each that has gone on."""
    async with hf.open(url(path)) as engine:
        for name in ("asked", "handed_on", "answered", "paused"):
            run: Any = await engine.start(people_asked, run_id=name, n=1)
            (wait,) = await waiting(run, "input")
            if name == "handed_on":
                await run.reassign(wait.wait_id, assignee="zoe", basket="last")
            if name == "answered":
                await run.respond(wait.wait_id, 4, actor="ann")
                assert await run.result() == 5
            if name == "paused":
                await run.pause("not now", actor="ann")
                await waiting(run, "input", "pause")
        for name in ("told", "early"):
            run = await engine.start(people_told, run_id=name)
            await waiting(run, "signal")
            await run.signal("go" if name == "told" else "come", 1, id="1")
        assert await engine.get("told").result() == 1
        for how, result in (("next", 2), ("same", 3), ("error", 3)):
            for when in ("in", "after"):
                TRIES.clear()
                run = await engine.start(people_pended, run_id=f"{when}_{how}", how=how)
                await waiting(run, "basket")
                if when == "after":
                    await run.resume()
                    assert await run.result() == result


# --- in order ------------------------------------------------------------------------------------------------------


class _NextYear(SystemClock):
    def now(self) -> int:
        return super().now() + 3 * YEAR_MICROS

    def elapsed(self) -> None:
        """The machine was restarted meanwhile."""


def test_who_waits_for_people_is_in_order_however_long_it_takes(ward: Path) -> None:
    with opened(ward) as store:
        assert store.counts()["suspended"] == 7
        report = check(store, deep=True, clock=_NextYear())
    # reminders have been due for years, and no engine was there to bring them; nothing else is to be said of any run
    assert set(told(report.violations)) == {("I51", "asked"), ("I51", "handed_on"), ("I51", "paused")}
    assert all("remind:" in v.what for v in report.violations)
    assert examine(ward, deep=True).violations == []


@pytest.mark.parametrize("case", ["B1", "B2"])
async def test_a_question_that_nobody_has_answered_for_a_year_is_not_recovered_but_asked_on(
    ward: Path, case: str
) -> None:
    from holdfast.testing import corrupt

    corrupt(url(ward), "asked", case)
    async with hf.open(url(ward)) as engine:
        assert not (await engine.recover("asked")).needed
        (wait,) = await waiting(engine.get("asked"), "input")
        await engine.get("asked").respond(wait.wait_id, 1)
        assert await engine.get("asked").result() == 2


def feed(path: Path, run_id: str, rows: Rows) -> list[tuple[str, int | None]]:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        audit = Audit(Versions(store).numbered(row.workflow, row.version), row.run_no, run_id)
    return [(v.code, v.seq) for v in audit.feed(rows)]


@pytest.mark.parametrize("run_id", RUNS)
def test_a_journal_is_judged_the_same_in_whatever_portions_it_is_fed_or_copied(ward: Path, run_id: str) -> None:
    with opened(ward) as store:
        row = store.run(run_id)
        assert row is not None
        evidence = store.evidence(row.run_no)
        audit = Audit(Versions(store).numbered(row.workflow, row.version), row.run_no, run_id)
    for i, event_row in enumerate(evidence.events):
        copied = audit.copy()
        assert copied.feed(evidence.events[i:]) + copied.compare(evidence) == []
        assert audit.feed([event_row]) == []
    assert audit.compare(evidence) == []


# --- journals that lie ---------------------------------------------------------------------------------------------


def at(rows: Rows, kind: str, nth: int = -1) -> int:
    return [i for i, row in enumerate(rows) if row.type == kind][nth]


def changed(rows: Rows, index: int, **fields: Any) -> Rows:
    """The same journal with other data in one event."""
    data = msgspec.structs.replace(journal_format.decode(rows[index].type, rows[index].data), **fields)
    return [*rows[:index], rows[index]._replace(data=journal_format.encode(data)), *rows[index + 1 :]]


def doubled(rows: Rows, index: int) -> Rows:
    return [*rows[: index + 1], *rows[index:]]


def without(rows: Rows, index: int) -> Rows:
    return [*rows[:index], *rows[index + 1 :]]


def before(rows: Rows, index: int, content: Any, **columns: Any) -> Rows:
    return [*rows[:index], event(rows[index], content, **columns), *rows[index:]]


LIES: dict[str, tuple[str, str, Callable[[Rows], Rows]]] = {
    "a question that is answered twice": ("answered", "I33", lambda r: doubled(r, at(r, "WaitClosed"))),
    "a question of no node": (
        "asked",
        "I31",
        lambda r: [*r[: at(r, "WaitOpened")], r[at(r, "WaitOpened")]._replace(node=None, path=None)],
    ),
    "a pause of a node": (
        "paused",
        "I31",
        lambda r: [*r[: at(r, "WaitOpened")], r[at(r, "WaitOpened")]._replace(node="people_ask", path=".")],
    ),
    "a pause in a pause": (
        "paused",
        "I33",
        lambda r: before(r, len(r) - 1, ev.WaitOpened("w_x", "pause"), node=None, path=None),
    ),
    "a start in a pause": (
        "paused",
        "I20",
        lambda r: [
            *r,
            event(r[-1], ev.NodeScheduled(1), node="after", path="."),
            event(r[-1], ev.NodeStarted(1), node="after", path="."),
        ],
    ),
    "a question that is handed on when it is answered": (
        "answered",
        "I31",
        lambda r: before(r, at(r, "WaitClosed") + 1, ev.RunEdited("x", {}, {"wait_id": _wait(r)}), node=None),
    ),
    "a question from a body that is not there": (
        "asked",
        "I12",
        lambda r: [*r[: at(r, "NodeStarted")], *r[at(r, "WaitOpened") :]],
    ),
    "a signal that is received twice": ("told", "I24", lambda r: doubled(r, at(r, "MessageConsumed"))),
    "a signal that nobody received": (
        "told",
        "I24",
        lambda r: [*r[: at(r, "MessageConsumed")], r[at(r, "MessageConsumed")]._replace(node=None, path=None)],
    ),
    "an output from elsewhere": ("after_next", "I31", lambda r: changed(r, at(r, "NodeCompleted", 0), pended_at=2)),
    "an output in the place of the one that it pended with": (
        "after_next",
        "I11",
        lambda r: changed(r, at(r, "NodeCompleted", 0), pended_at=None),
    ),
    "a completed node that runs again": (
        "after_next",
        "I11",
        lambda r: before(r, at(r, "NodeCompleted", 0), ev.NodeScheduled(1)),
    ),
    "another attempt with the number of the one that failed": (
        "after_error",
        "I12",
        lambda r: changed(r, at(r, "NodeScheduled", 1), attempt=1),
    ),
    "an error that did not happen": ("in_error", "I12", lambda r: without(r, at(r, "NodeFailed"))),
    "a failure that lies there as done": ("in_error", "I12", lambda r: changed(r, at(r, "NodeSuspended"), mode="next")),
    "another basket than the one that is shown": (
        "in_next",
        "I20",
        lambda r: changed(r, at(r, "NodeSuspended"), basket="elsewhere"),
    ),
    "a node that waits for nothing": (
        "asked",
        "I20",
        lambda r: changed(r, at(r, "NodeSuspended"), waits=()),
    ),
    "a node that waits for something that is over": (
        "asked",
        "I31",
        lambda r: changed(r, at(r, "NodeSuspended"), waits=("w_gone",)),
    ),
    "a step that was forgotten and one that was not": (
        "after_same",
        "I11",
        lambda r: changed(r, at(r, "NodeSuspended"), forgets=False),
    ),
}


def _wait(rows: Rows) -> str:
    return str(msgspec.json.decode(rows[at(rows, "WaitClosed")].data)["wait_id"])


@pytest.mark.parametrize("lie", LIES)
def test_a_journal_that_cannot_have_happened_is_told(ward: Path, lie: str) -> None:
    run_id, code, forge = LIES[lie]
    rows = journal(ward, run_id)
    assert feed(ward, run_id, relink(rows, run_id)) == []
    found = feed(ward, run_id, relink(forge(rows), run_id))
    assert code in [c for c, _ in found], found


# --- rows ----------------------------------------------------------------------------------------------------------

ROWS = {
    "a question of somebody else": ("asked", "UPDATE run_waits SET assignee = 'bob' WHERE run_no = {asked}"),
    "a pended node in another basket": ("in_next", "UPDATE run_waits SET basket = 'bin' WHERE run_no = {in_next}"),
    "a question that was not handed on": (
        "handed_on",
        "UPDATE run_waits SET assignee = 'ann', basket = NULL WHERE run_no = {handed_on}",
    ),
    "an answer of somebody else": ("answered", "UPDATE run_waits SET actor = 'bob' WHERE run_no = {answered}"),
    "a reminder that is missing": (
        "asked",
        "DELETE FROM run_timers WHERE run_no = {asked} AND timer LIKE 'remind:%'",
    ),
    "a pause that the row does not know": (
        "paused",
        "UPDATE run_state SET fold = CAST(json_remove(fold, '$.paused') AS BLOB) WHERE run_no = {paused}",
    ),
}


@pytest.mark.parametrize("damage", ROWS)
def test_a_row_that_is_not_what_the_journal_tells_is_told_and_rebuilt(ward: Path, damage: str) -> None:
    run_id, statement = ROWS[damage]
    harm(ward, statement)
    assert told(examine(ward, deep=True).violations) == [("I5", run_id)]
    assert repair(ward, deep=True).violations == []
    assert examine(ward, deep=True).violations == []


def test_a_deadline_without_a_timer_is_told_at_once(ward: Path) -> None:
    harm(ward, "DELETE FROM run_timers WHERE run_no = {asked} AND timer NOT LIKE 'remind:%'")
    assert told(examine(ward).violations) == [("I23", "asked")]
    repair(ward)
    assert examine(ward, deep=True).violations == []


MESSAGES = {
    "a signal that was received and lies there as if it was not": (
        "told",
        "UPDATE run_inbox_messages SET status = 'held' WHERE run_no = {told}",
    ),
    "a signal that was not received and counts as if it was": (
        "early",
        "UPDATE run_inbox_messages SET status = 'consumed' WHERE run_no = {early}",
    ),
    "an answer that is kept": (
        "early",
        "INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status) "
        "VALUES ('m1', {early}, 'answer', CAST('{}' AS BLOB), 1, 'held')",
    ),
}


@pytest.mark.parametrize("damage", MESSAGES)
def test_a_message_that_is_not_what_the_journal_tells_is_told(ward: Path, damage: str) -> None:
    run_id, statement = MESSAGES[damage]
    harm(ward, statement)
    assert told(examine(ward, deep=True).violations) == [("I24", run_id)]


async def test_a_signal_that_was_given_back_must_be_received_by_the_branch_that_counts_it(ward: Path) -> None:
    async with hf.open(url(ward)) as engine:
        run = engine.get("told")
        await run.fork(at="start")
        assert await run.result() == 1
    assert examine(ward, deep=True).violations == []
    harm(ward, "UPDATE run_inbox_messages SET status = 'held' WHERE run_no = {told} AND kind = 'signal'")
    assert told(examine(ward, deep=True).violations) == [("I24", "told")]
