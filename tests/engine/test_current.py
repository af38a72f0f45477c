"""hf.current(): what a body or step knows about itself where it has no ctx."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.testing import context, explore
from tests.engine.kit import check_file, until, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def facts(me: hf.Current) -> str:
    return f"{me.run_id} {me.node} {me.path} {me.visit} {me.attempt} {me.idempotency_key}"


@hf.node
async def cu_async(ctx: hf.Context) -> list[str]:
    beside = await asyncio.create_task(cu_plain())
    in_thread = await asyncio.to_thread(lambda: facts(hf.current()))
    return [ctx.idempotency_key, facts(hf.current()), beside, in_thread]


async def cu_plain() -> str:
    return facts(hf.current())


@hf.node
def cu_sync() -> str:
    return facts(hf.current())


@hf.node(inline=True)
def cu_inline() -> str:
    return facts(hf.current())


@hf.node
async def cu_quick() -> str:
    return facts(hf.current())


@hf.node(process=True)
def cu_process() -> str:
    return facts(hf.current())


@hf.node(process=True)
def cu_process_by_parameter(me: hf.Current, x: int) -> str:
    return f"{x} {facts(me)}"


@hf.node
def cu_sync_by_parameter(me: hf.Current, x: int) -> str:
    return f"{x} {facts(me)}"


@hf.node
async def cu_async_by_parameter(me: hf.Current, x: int) -> str:
    return f"{x} {facts(me)}"


@hf.workflow
def cu_bodies() -> dict[str, object]:
    return {
        "async": cu_async(),
        "sync": cu_sync(),
        "inline": cu_inline(),
        "quick": cu_quick(),
        "process": cu_process(),
        "process_by_parameter": cu_process_by_parameter(1),
        "sync_by_parameter": cu_sync_by_parameter(2),
        "async_by_parameter": cu_async_by_parameter(3),
    }


async def test_every_kind_of_body_knows_its_run_attempt_and_key(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        found = await (await engine.start(cu_bodies, run_id="r")).result()
    key, *others = found.pop("async")
    assert others == [f"r cu_async . 1 1 {key}"] * 3
    keys = {key}
    for name, told in found.items():
        told = told.removeprefix({"process": "1 ", "sync": "2 ", "async": "3 "}.get(name.partition("_by_")[0], ""))
        run_id, node, path, visit, attempt, key = told.split()
        assert (run_id, node, path, visit, attempt) == ("r", f"cu_{name}", ".", "1", "1")
        keys.add(key)
    assert len(keys) == 8


@hf.node(retry=hf.Retry(attempts=2, backoff=0))
def cu_flaky(keys: list[str]) -> str:
    me = hf.current()
    _tried.append((me.attempt, me.idempotency_key))
    if me.attempt == 1:
        raise ConnectionError("no")
    return me.idempotency_key


_tried: list[tuple[int, str]] = []


def cu_function(me: hf.Current, x: int) -> str:
    return f"{x} {me.idempotency_key}"


async def cu_with_ctx(ctx: hf.Context) -> list[str]:
    return [ctx.idempotency_key, hf.current().idempotency_key]


@hf.workflow
async def cu_steps(ctx: hf.Context) -> list[str]:
    with_ctx = await ctx.step(cu_with_ctx)
    mapped = await ctx.map(cu_function, [1, 2])
    first = await ctx.step(cu_flaky, [])
    return [*with_ctx, *mapped, first, hf.current().idempotency_key, ctx.idempotency_key]


async def test_a_sync_step_knows_its_own_key_which_is_the_same_for_every_try(db: Path) -> None:
    _tried.clear()
    async with hf.open(url(db)) as engine:
        first, same, one, two, flaky, body, body_too = await (await engine.start(cu_steps)).result()
    assert (first, body) == (same, body_too)
    assert [(attempt, key == flaky) for attempt, key in _tried] == [(1, True), (2, True)]
    assert (one[:2], two[:2]) == ("1 ", "2 ")
    assert len({first, body, flaky, one[2:], two[2:]}) == 5
    check_file(db)


async def test_a_sync_step_sees_that_it_was_asked_to_stop(db: Path) -> None:
    stopped = threading.Event()

    @hf.node(timeout=0.05)
    def obeys() -> None:
        me = hf.current()
        while not me.cancelled:
            threading.Event().wait(0.005)
        stopped.set()

    @hf.workflow
    async def asks_to_stop(ctx: hf.Context) -> None:
        await ctx.step(obeys)

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=r"timeout of 0\.05 s$"):
            await (await engine.start(asks_to_stop)).result()
        await until(stopped.is_set)


def test_outside_a_body_it_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(hf.UsageError, match=r"read hf\.current\(\)\.idempotency_key before, and pass it on"):
        hf.current()


async def test_a_function_that_takes_it_can_be_called_in_a_unit_test() -> None:
    assert cu_sync_by_parameter(7).startswith("7 ")
    assert (await context().step(cu_function, 7)).startswith("7 key_")


@hf.node
def cu_charges() -> str:
    return hf.current().idempotency_key[:3]


@hf.workflow
def cu_charging() -> str:
    return cu_charges()


def test_the_explorer_counts_it_as_reading_the_key() -> None:
    report = explore(cu_charging)
    assert report.safe, report.explain()
