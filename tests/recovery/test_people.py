"""Recovering runs that wait for people and signals: nobody's word is taken twice, nothing runs on without it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.opening import open_engine
from holdfast.testing import corrupt
from tests.engine.kit import check_file, node_of, types, waiting

CALLS: list[str] = []


@hf.node
async def rec_first(how: str) -> str:
    CALLS.append("first")
    return how


@hf.node
async def rec_stops(ctx: hf.Context, how: str) -> int:
    CALLS.append("stops")
    if how == "next":
        hf.pend("review", output=1)
    if how == "same" and CALLS.count("stops") == 1:
        hf.pend("review", rerun=True)
    if how == "error" and ctx.attempt == 1:
        hf.pend("review", error="no")
    if how == "signal":
        return int(await ctx.receive("n", schema=int)) + int(await ctx.receive("n", schema=int))
    return 1


@hf.node
async def rec_last(x: int) -> int:
    CALLS.append("last")
    return x


@hf.workflow
def rec_chain(how: str) -> Any:
    return rec_last(rec_stops(rec_first(how)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    CALLS.clear()
    return f"sqlite:///{tmp_path}/people.db"


MODES = ("next", "same", "error")


async def made(url: str, how: str, case: str, *, go_on: bool) -> None:
    """A run that was stopped in a state of the catalogue."""
    async with hf.open(url) as engine:
        run = await engine.start(rec_chain, how=how, run_id="r")
        if how == "signal":
            await waiting(run, "signal")
            await run.signal("n", 1)
            await waiting(run, "signal")
        else:
            await waiting(run, "basket")
        if go_on:
            await run.resume()
            assert await run.result(timeout=20) == 1
    corrupt(url, "r", case)
    CALLS.clear()


@asynccontextmanager
async def brought_back(url: str) -> AsyncIterator[hf.Run[Any]]:
    """The run, recovered by whoever is first: a request that was not taken lets an engine look at it at once."""
    async with open_engine(url, recover=False) as engine:
        with contextlib.suppress(hf.Refused):  # it is being driven
            await engine.recover("r")
        yield engine.get("r")
        assert "RunRecovered" in types(await engine.get("r").events())
    check_file(Path(url.removeprefix("sqlite:///")))


@pytest.mark.parametrize("how", MODES)
async def test_a1_what_was_resumed_and_has_ended_has_ended(url: str, how: str) -> None:
    await made(url, how, "A1", go_on=True)
    async with brought_back(url) as run:
        assert await run.result(timeout=20) == 1
        assert CALLS == ["last"]


@pytest.mark.parametrize("how", MODES)
async def test_a1_what_was_resumed_and_did_not_go_on_lies_where_it_lay_and_is_resumed_once(url: str, how: str) -> None:
    """The request was not taken as far as the journal knows, so it is taken now."""
    await made(url, how, "A1-answer", go_on=True)
    async with brought_back(url) as run:
        if how == "same":  # to run again with nothing remembered is to come there again
            await waiting(run, "basket")
            await run.resume()
        assert await run.result(timeout=20) == 1
        assert CALLS.count("stops") == {"next": 0, "same": 2, "error": 1}[how]
        opened = [e for e in await run.events() if e.type == "WaitOpened" and e.branch == 2]
        assert [e.data["kind"] for e in opened[:1]] == ["basket"]


@pytest.mark.parametrize("how", MODES)
async def test_a2_what_lies_in_a_basket_is_not_started_again(url: str, how: str) -> None:
    await made(url, how, "A2", go_on=False)
    async with brought_back(url) as run:
        (wait,) = await waiting(run, "basket")
        assert (wait.mode, CALLS) == (how, [])


async def test_a2_a_run_that_was_paused_stays_paused(url: str) -> None:
    go = asyncio.Event()

    @hf.node
    async def rec_slow() -> int:
        await go.wait()
        return 1

    @hf.workflow
    def rec_paused() -> Any:
        return rec_last(rec_slow())

    async with hf.open(url) as engine:
        run = await engine.start(rec_paused, run_id="r")
        await run.pause("not now")
        go.set()
        await waiting(run, "pause")
    corrupt(url, "r", "A2")
    CALLS.clear()
    async with brought_back(url) as run:
        await waiting(run, "pause")
        assert (node_of(await run.nodes(), "rec_slow")["status"], CALLS) == ("completed", [])
        await run.resume()
        assert await run.result(timeout=20) == 1


async def test_a1_a_signal_that_was_received_and_not_consumed_comes_again_and_is_received_once(url: str) -> None:
    await made(url, "signal", "A1-answer", go_on=False)
    async with brought_back(url) as run:
        await waiting(run, "signal")
        await run.signal("n", 10)
        assert await run.result(timeout=20) == 11
