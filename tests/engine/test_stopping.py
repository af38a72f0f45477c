"""An engine that is closed in order loses nothing: what was committed while it stopped begins elsewhere."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, types, until_async, url

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    RUNS.clear()


def note(kind: str) -> str:
    RUNS.append(kind)
    return kind


@hf.node(on_crash="ask")
async def stp_async(before: int) -> str:
    return note("async")


@hf.node(on_crash="ask")
async def stp_async_with_ctx(ctx: hf.Context, before: int) -> str:
    return note("async_with_ctx")


@hf.node(on_crash="ask")
def stp_sync(before: int) -> str:
    return note("sync")


@hf.node(on_crash="ask", inline=True)
def stp_inline(before: int) -> str:
    return note("inline")


@hf.node(on_crash="ask", process=True)
def stp_process(before: int) -> str:
    return "process"


KINDS: dict[str, Any] = {
    "async": stp_async,
    "async_with_ctx": stp_async_with_ctx,
    "sync": stp_sync,
    "inline": stp_inline,
    "process": stp_process,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_body_whose_start_is_committed_while_the_engine_closes_begins_in_the_next_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not cut off: it never began. So nobody is asked whether it was done, and no attempt is lost."""
    has_run, is_committing = threading.Event(), asyncio.Event()

    @hf.node
    async def stp_first() -> int:
        has_run.set()
        return 1

    @hf.workflow(name=f"stp_closing_before_{kind}")
    def closing_between():
        return KINDS[kind].named("second")(stp_first.named("first")())

    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        loop, write = asyncio.get_running_loop(), engine.store.commit

        def commit(group: Any) -> Any:
            if has_run.is_set():  # the end of the first body, and the start of the second one
                loop.call_soon_threadsafe(is_committing.set)
                while not engine.runtime.stopping:
                    time.sleep(0.001)
            return write(group)

        monkeypatch.setattr(engine.store, "commit", commit)
        run = await engine.start(closing_between, run_id="r")
        await is_committing.wait()
    assert RUNS == [], "it did not begin where it could not end"
    async with hf.open(url(path)) as engine:
        run = engine.get("r")
        assert await run.result() == kind
        events = await run.events()
        assert attempts(events, "second") == [1]
        before = types(events)[: types(events).index("RunTakenOver")]
        assert before[-2:] == ["NodeStarted", "NodeSuspended"], "its start was committed, and taken back"
        assert "NodeFailed" not in types(events)
    assert kind == "process" or [kind] == RUNS
    check_file(path)


@hf.node(on_crash="ask")
async def stp_up(i: int) -> int:
    return i + 1


@hf.node(on_crash="ask")
def stp_up_in_a_thread(i: int) -> int:
    return i + 1


@hf.node
async def stp_up_in_code(ctx: hf.Context, i: int) -> int:
    return await ctx.step(abs, i + 1)


@hf.workflow(on_failure="pend:errors")
def stp_opened_and_closed(start: int = 0) -> int:
    def body(i: int) -> Any:
        return stp_up_in_code(stp_up_in_a_thread(stp_up(i)))

    return hf.loop(body, start=start, until=lambda i: i > 1_000_000, max_visits=1_000_000)


@pytest.mark.parametrize("seed", range(3))
async def test_engines_that_open_and_close_again_and_again_fail_nothing_and_lose_no_attempt(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        await engine.start(stp_opened_and_closed, run_id="r")
    for _ in range(12):
        async with hf.open(url(path)) as engine:
            run = engine.get("r")
            before = len(await run.events())

            async def moved(run: hf.Run[Any] = run, to: int = before + chance.randrange(2, 30)) -> bool:
                return len(await run.events()) >= to

            await until_async(moved)
            assert await run.status() == "running"
            assert await run.waits() == [], "nothing lies in a basket, and nobody is asked anything"
    async with hf.open(url(path)) as engine:
        events = await engine.get("r").events()
    assert {"NodeFailed", "WaitOpened"}.isdisjoint(types(events))
    assert {e.data["attempt"] for e in events if e.type == "NodeStarted"} == {1}
    assert types(events).count("RunTakenOver") >= 12
    check_file(path)
