"""Public coroutines belong to the engine's event loop: elsewhere they do nothing, and there they never keep it busy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from tests.engine.kit import check_file, url

OF_THE_ENGINE_ITSELF = {"open"}
"""Coroutines of `Engine` that its own parts await; programs are offered the others."""


def public(kind: type) -> Iterator[str]:
    """The coroutines and async iterators that programs may await on an instance of a class."""
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        is_async = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        if is_async and not name.startswith("_") and not (kind is Engine and name in OF_THE_ENGINE_ITSELF):
            yield name


def called(owner: Any, name: str) -> Any:
    """The coroutine of a call whose arguments are of no use: nothing may look at them yet."""
    method: Callable[..., Any] = getattr(owner, name)
    parameters = inspect.signature(method).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    begun = method(*[None] * len(required))
    return begun.__anext__() if inspect.isasyncgen(begun) else begun


@hf.node
async def charge(order: str) -> int:
    return 1


@hf.workflow
def pay_from_a_thread(order: str) -> int:
    return charge(order)


@hf.workflow
async def patient_caller(ctx: hf.Context) -> int:
    await ctx.sleep(0.05)
    return 7


def told_in_a_thread(owner: Any, name: str) -> str:
    """What a thread hears that awaits a call on an event loop of its own."""

    async def elsewhere() -> str:
        with pytest.raises(hf.UsageError) as refused:
            await called(owner, name)
        return str(refused.value)

    return asyncio.run(elsewhere())


def test_every_public_coroutine_of_run_and_engine_is_found() -> None:
    assert {"start", "list", "resume", "recover", "asked", "baskets", "close"} <= set(public(Engine))
    assert {"status", "result", "follow", "signal", "respond", "cancel", "fork", "until_quiet"} <= set(public(Run))


async def test_every_public_coroutine_is_refused_on_another_loop_before_anything_is_done(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        for name in public(Engine):
            told = await asyncio.to_thread(told_in_a_thread, engine, name)
            assert f"asyncio.run_coroutine_threadsafe(engine.{name}(...), engine.loop)" in told
        run = await engine.start(pay_from_a_thread, order="42")
        for name in public(Run):
            told = await asyncio.to_thread(told_in_a_thread, run, name)
            assert f"asyncio.run_coroutine_threadsafe(run.{name}(...), run.loop)" in told
        assert await run.result() == 1
        assert len(await engine.list()) == 1
    check_file(db)


async def test_a_thread_starts_a_run_through_the_loop_of_the_engine(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:

        def handler() -> int:
            run = asyncio.run_coroutine_threadsafe(engine.start(pay_from_a_thread, order="42"), engine.loop).result()
            return asyncio.run_coroutine_threadsafe(run.result(), run.loop).result()

        assert await asyncio.to_thread(handler) == 1


async def test_every_public_coroutine_suspends_before_it_returns(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(pay_from_a_thread, order="42")
        await run.result()
        for owner, names in ((engine, public(Engine)), (run, public(Run))):
            for name in set(names) - {"close"}:
                begun = called(owner, name)
                assert begun.send(None) is None, name  # a bare turn of the loop
                begun.close()


@pytest.mark.parametrize("read", ["status", "nodes", "events", "show", "why", "waits", "paths"])
async def test_polling_a_run_lets_the_run_go_on(tmp_path: Path, read: str) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(patient_caller)

        async def poll() -> None:
            while await run.status() != "completed":
                await getattr(run, read)()

        await asyncio.wait_for(poll(), 30)


async def test_a_timeout_fires_around_a_program_that_polls_for_ever(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(pay_from_a_thread, order="42")
        await run.result()

        async def poll() -> None:
            while True:
                await engine.list()
                async for _ in run.follow():
                    pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(poll(), 0.05)
