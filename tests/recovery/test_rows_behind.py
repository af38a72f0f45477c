"""Rows behind an intact journal (R1): they are written again from it under the lease, and the run goes on there."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.engine.engine import Engine
from holdfast.opening import open_engine
from holdfast.store.row_types import MessageRow
from holdfast.testing import corrupt
from tests.engine.kit import check_file, until

CALLS: list[str] = []


@hf.node
async def row_first(x: int) -> int:
    CALLS.append("first")
    return x + 1


@hf.node
async def row_middle(x: int, ok: bool) -> int:
    CALLS.append("middle")
    return x * 2 if ok else 0


@hf.node
async def row_last(x: int, ok: bool) -> int:
    CALLS.append("last")
    return x if ok else 0


@hf.workflow
def row_asks(x: int) -> Any:
    number = row_middle(row_first(x), hf.ask("pay?", schema=bool))
    return row_last(number, hf.ask("ship?", schema=bool, after=[number]))


@pytest.fixture
def url(tmp_path: Path) -> str:
    CALLS.clear()
    return f"sqlite:///{tmp_path}/behind.db"


async def answer(engine: Engine) -> None:
    (asked,) = await until(lambda: engine.store.asked(), "it asks")
    await engine.get("r").respond(asked.wait.wait_id, True, actor="kim")
    await until(lambda: asked.wait.wait_id not in [a.wait.wait_id for a in engine.store.asked()], "it was answered")


async def torn(url: str, answers: int) -> int:
    """A run `r` of which this many questions were answered, and whose rows are those of its first question; the event
    that they know."""
    async with hf.open(url, idle_seconds=0.0) as engine:
        run = await engine.start(row_asks, x=1, run_id="r")
        for _ in range(answers):
            await answer(engine)
        if answers == 2:
            assert await run.result(timeout=20) == 4
        else:
            await until(lambda: engine.store.asked(), "it asks again")
    CALLS.clear()
    corrupt(url, "r", "R1")
    async with open_engine(url, recover=False) as engine:
        row = engine.store.run("r")
        assert row is not None
        assert (row.status, row.hold) == ("suspended", None)
        return row.last_seq


def with_an_old_token(url: str) -> None:
    """The row of the run is whole as of an earlier time: several owners have written to the journal since."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE run_state SET token = (SELECT min(token) FROM run_events) - 1")
    connection.close()


async def journal(engine: Engine) -> list[tuple[str, dict[str, Any]]]:
    return [(event.type, event.data) for event in await engine.get("r").events()]


def without_mail(url: str) -> None:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE run_inbox_messages SET status = 'consumed' WHERE status = 'new'")
    connection.close()


Repair = Callable[[Engine], Awaitable[None]]


async def by_resume(engine: Engine) -> None:
    await engine.resume("r")


async def by_recover(engine: Engine) -> None:
    said = await engine.recover("r")
    assert (said.needed, said.case, said.branch) == (True, "R1", None)
    assert "and its journal continues to event" in said.what


async def by_claim(engine: Engine) -> None:
    engine.claims.only_root_runs = None
    await engine.claims.claim([row.run_no for row in engine.store.runs()])


@pytest.mark.parametrize("has_old_token", [False, True], ids=["token", "old token"])
@pytest.mark.parametrize("has_mail", [True, False], ids=["mail", "no mail"])
@pytest.mark.parametrize("repair", [by_resume, by_recover, by_claim])
async def test_rows_of_an_earlier_event_are_rebuilt_and_no_question_is_asked_or_answered_twice(
    url: str, repair: Repair, has_mail: bool, has_old_token: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seq = await torn(url, answers=1)
    if not has_mail:
        without_mail(url)
    if has_old_token:
        with_an_old_token(url)
    caplog.set_level(logging.WARNING, "holdfast.engine")
    async with open_engine(url, recover=False) as engine:
        before = await journal(engine)
        await repair(engine)
        await until(lambda: [a.wait for a in engine.store.asked() if b"ship?" in a.wait.data], "its rows are rebuilt")
        events = await journal(engine)
        assert events[: len(before)] == before
        what = f"its rows were those of event {seq}, and its journal continues to event {len(before)}"
        recovered = [data for kind, data in events if kind == "RunRecovered"]
        assert recovered == [
            {"case": "R1", "previous_branch": 1, "new_branch": 1, "cutoff_seq": len(before), "what": what}
        ]
        assert f"run r is recovered (R1): {what}" in caplog.text
        await answer(engine)
        assert await engine.get("r").result(timeout=20) == 4
        kinds = [kind for kind, _ in await journal(engine)]
        assert (kinds.count("WaitOpened"), kinds.count("RunRecovered")) == (2, 1)
        assert not (await engine.recover("r")).needed, "recovering twice is recovering once"
    assert CALLS == ["last"], "what the journal knows as completed does not run again"
    check_file(url.removeprefix("sqlite:///"))


async def test_doctor_rebuilds_rows_whose_token_is_behind_as_well(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await torn(url, answers=1)
    without_mail(url)
    with_an_old_token(url)
    async with open_engine(url, recover=False) as engine:
        before = await journal(engine)
    db = ["--db", url]
    assert main(["doctor", "--repair", *db]) == 0, capsys.readouterr()
    assert main(["doctor", "--deep", *db]) == 0, capsys.readouterr()
    async with hf.open(url) as engine:
        assert await journal(engine) == before
        await answer(engine)
        assert await engine.get("r").result(timeout=20) == 4
    check_file(url.removeprefix("sqlite:///"))


@pytest.mark.parametrize("repair", [by_resume, by_recover, by_claim])
async def test_run_whose_journal_has_ended_has_ended_and_nothing_is_appended(url: str, repair: Repair) -> None:
    await torn(url, answers=2)
    async with open_engine(url, recover=False) as engine:
        before = await journal(engine)
        await repair(engine)
        assert await engine.get("r").result(timeout=20) == 4
        assert await journal(engine) == before
        assert "completed" in await engine.get("r").why()
        assert engine.store.new_messages() == []
    assert CALLS == []
    check_file(url.removeprefix("sqlite:///"))


async def test_other_mail_that_waits_is_applied_after_the_repair(url: str) -> None:
    await torn(url, answers=1)
    async with open_engine(url, recover=False) as engine:
        cancel = MessageRow("m_cancel", engine.store.runs()[0].run_no, "cancel", b'{"reason":"enough"}', 1)
        assert engine.store.send([cancel]) == ["new"]
        said = await engine.recover("r")
        assert (said.needed, said.case) == (True, "R1"), "the caller's own engine is no reason to refuse"
        with pytest.raises(hf.RunCancelled, match="enough"):
            await engine.get("r").result(timeout=20)
    check_file(url.removeprefix("sqlite:///"))


async def test_rows_that_were_edited_by_hand_are_told_and_rebuilt(url: str) -> None:
    async with hf.open(url, idle_seconds=0.0) as engine:
        await engine.start(row_asks, x=1, run_id="r")
        await until(lambda: engine.store.asked(), "it asks")
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE run_node_state SET attempt = 7 WHERE node = 'row_first'")
    connection.close()
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover("r")
        assert (said.needed, said.case) == (True, "R1")
        assert said.what == (
            "its rows were not what its journal tells: row_first: attempt is 7 in its row and 1 by the journal"
        )
    check_file(url.removeprefix("sqlite:///"))


async def test_journal_that_lacks_events_is_held_until_an_operator_asks_for_its_recovery(url: str) -> None:
    await torn(url, answers=1)
    without_mail(url)
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("DELETE FROM run_events WHERE seq >= (SELECT last_seq FROM run_state)")
    connection.close()
    async with open_engine(url, recover=False) as engine:
        await by_claim(engine)
        held = lambda: (row := engine.store.run("r")) is not None and row.engine is None and row.hold  # noqa: E731
        hold = await until(held, "it is put on hold")
        assert "its journal ends with event" in hold
        assert "`holdfast recover r`" in await engine.get("r").why()
        said = await engine.recover("r")
        assert (said.needed, said.case) != (False, None), "it never says that all is well when it is not"
        assert engine.store.runs()[0].hold is None
        await answer(engine)


async def test_e2_of_a_completed_run_changes_nothing_unless_it_is_forced(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(row_asks, x=1, run_id="r")
        await answer(engine)
        await answer(engine)
        assert await run.result(timeout=20) == 4
    corrupt(url, "r", "E2")
    async with open_engine(url, recover=False) as engine:
        before = await journal(engine)
        said = await engine.recover("r")
        assert (said.needed, said.case) == (False, "E2")
        assert "is not in the store; the run has completed" in said.what
        await engine.resume("r")
        assert (await journal(engine), await engine.get("r").result(timeout=20)) == (before, 4)
        said = await engine.recover("r", force=True)
        assert (said.needed, said.case, said.branch) == (True, "E2", 2)
        assert await engine.get("r").result(timeout=20) == 4


def test_recover_command_says_what_was_rebuilt(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    asyncio.run(torn(url, answers=1))
    assert main(["recover", "r", "--no-run", "--db", url]) == 0
    told = capsys.readouterr().out
    assert "run r is recovered (R1: its rows were those of event" in told
    assert told.endswith("its rows were written again\n")
    assert main(["recover", "r", "--no-run", "--json", "--db", url]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["needed"], said["what"]) == (False, "its rows and its journal agree")
