"""The catalogue's cases of a run that asks a person, and what a recovery records of itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.opening import open_engine
from holdfast.testing import corrupt
from tests.engine.kit import check_file, types, waiting

CALLS: list[str] = []


@hf.node
async def ask_first(x: int) -> int:
    CALLS.append("first")
    return x + 1


@hf.node
async def ask_person(ctx: hf.Context, x: int) -> int:
    CALLS.append("asks")
    return x + int(await ctx.ask("how many?", schema=int))


@hf.node(retry=hf.Retry(attempts=2, backoff=0.01))
async def ask_last(ctx: hf.Context, x: int) -> int:
    CALLS.append("last")
    if ctx.attempt == 1:
        raise ValueError("not today")
    return x


@hf.workflow
def ask_chain(x: int) -> Any:
    return ask_last(ask_person(ask_first(x)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    CALLS.clear()
    return f"sqlite:///{tmp_path}/asked.db"


async def made(url: str, case: str) -> None:
    """A run `r` that asked a person, got 10, and was brought into a state of the catalogue."""
    async with hf.open(url) as engine:
        run = await engine.start(ask_chain, x=1, run_id="r")
        (wait,) = await waiting(run, "input")
        await run.respond(str(wait.wait_id), 10, actor="kim")
        assert await run.result(timeout=20) == 12
    corrupt(url, "r", case)
    CALLS.clear()


async def test_a1_question_that_was_answered_is_not_asked_again_and_the_next_node_runs(url: str) -> None:
    await made(url, "A1")
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover("r")
        run = engine.get("r")
        assert await run.result(timeout=20) == 12
        events = await run.events()
    assert (said.case, CALLS) == ("A1", ["last", "last"])
    assert types(events).count("WaitOpened") == 1
    assert (events[said.cutoff_seq - 1].type, events[said.cutoff_seq - 1].node) == ("NodeCompleted", "ask_person")
    check_file(Path(url.removeprefix("sqlite:///")))


async def test_a1_stored_answer_is_given_to_the_node_which_asks_nobody_again(url: str) -> None:
    await made(url, "A1-answer")
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover("r")
        run = engine.get("r")
        assert await run.result(timeout=20) == 12
        events = await run.events()
    assert (said.case, CALLS) == ("A1", ["asks", "last", "last"])
    assert types(events).count("WaitOpened") == 1
    assert (events[said.cutoff_seq - 1].type, events[said.cutoff_seq - 1].data["actor"]) == ("WaitClosed", "kim")
    check_file(Path(url.removeprefix("sqlite:///")))


async def test_a2_question_is_asked_again_and_answered_once(url: str) -> None:
    await made(url, "A2")
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover("r")
        run = engine.get("r")
        (wait,) = await waiting(run, "input")
        assert (said.case, wait.question, CALLS) == ("A2", "how many?", ["asks"])
        await run.respond(str(wait.wait_id), 20, actor="kim")
        assert await run.result(timeout=20) == 22
        asked = [e.branch for e in await run.events() if e.type == "WaitOpened"]
    assert asked == [1, 2]
    check_file(Path(url.removeprefix("sqlite:///")))


@pytest.mark.parametrize("case", ["A1", "A1-answer", "A2", "A3", "A4", "A5", "D2"])
async def test_recovery_is_recorded_and_logged_with_case_branches_and_cutoff(
    url: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    await made(url, case)
    caplog.set_level(logging.WARNING, "holdfast.engine")
    async with open_engine(url, recover=False) as engine:
        last = len(await engine.get("r").events())
        said = await engine.recover("r")
        (recovered,) = [e for e in await engine.get("r").events() if e.type == "RunRecovered"]
    code = case.partition("-")[0]
    assert (said.needed, said.case, said.branch) == (True, code, 2)
    assert 1 < said.cutoff_seq <= last
    assert recovered.branch == 2
    assert recovered.data == {
        "case": code,
        "previous_branch": 1,
        "new_branch": 2,
        "cutoff_seq": said.cutoff_seq,
        "what": said.what,
    }
    line = f"run r is recovered ({code}): {said.what}; it continues on branch 2, cut off at event {said.cutoff_seq}"
    assert [record.getMessage() for record in caplog.records if "recovered" in record.getMessage()] == [line]


@hf.node
async def ask_double(x: int) -> int:
    CALLS.append("double")
    return 2 * x


@hf.node
async def ask_yes(ctx: hf.Context, x: int) -> int:
    CALLS.append("yes")
    return x if await ctx.ask("sure?", schema=bool) else 0


def declared(second: Any) -> Any:
    @hf.workflow(name="ask_versions")
    def ask_versions(x: int) -> Any:
        return ask_yes(second.named("second")(x))

    return ask_versions


async def test_e2_run_whose_version_is_gone_goes_back_to_the_version_that_it_began_with(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(declared(ask_first), x=5, run_id="r")
        await waiting(run, "input")
        await waiting(await engine.start(declared(ask_double), x=5, run_id="other"), "input")
        await run.fork(edits={"version": 2})
        await waiting(run, "input")
        assert (await run.show())["version"] == 2
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("DELETE FROM workflow_versions WHERE workflow = 'ask_versions' AND version = 2")
    connection.execute("DELETE FROM run_state WHERE run_id = 'other'")
    connection.close()
    CALLS.clear()
    declared(ask_first)
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover("r")
        run = engine.get("r")
        (wait,) = await waiting(run, "input")
        await run.respond(str(wait.wait_id), True)
        assert await run.result(timeout=20) == 6, "5 + 1 is what the first version makes of it; the second made 10"
        shown = await run.show()
        opened = [e.data for e in await run.events() if e.type == "BranchOpened"]
        assert [b["parent"] for b in opened] == [1, 1], "the branch that holds the event where it was cut"
        listed = [(b["branch"], b["version"], b["status"], b["current"]) for b in await run.branches()]
        assert listed == [(1, 1, "suspended", False), (2, 2, "suspended", False), (3, 1, "completed", True)]
    assert (said.case, said.branch, shown["version"]) == ("E2", 3, 1)
    assert CALLS == ["yes"], "what the first version had completed does not run again"
