"""Private names of asyncio: the self-test sees that one is missing, and everything works without them, safely."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine import asyncio_internals
from tests.engine.kit import url


@pytest.fixture(autouse=True)
def _tested_anew() -> Iterator[None]:
    asyncio_internals.shows_waits.cache_clear()
    yield
    asyncio_internals.shows_waits.cache_clear()


def test_this_python_has_every_name(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio_internals.shows_waits()
    assert caplog.records == []


def _nothing(*args: Any) -> Any:
    async def wait(*futures: Any) -> None:
        await asyncio.Future(loop=args[-1])

    return wait(*args)


class _OtherGroup:
    async def __aexit__(self, *args: Any) -> None:
        await asyncio.Future(loop=self._loop)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "name", "other", "missing"),
    [
        (asyncio, "gather", lambda *futures: SimpleNamespace(), "gather()._children"),
        (asyncio, "TaskGroup", _OtherGroup, "TaskGroup._tasks"),
        (asyncio.tasks, "_wait", _nothing, "the futures of asyncio.wait"),
        (asyncio, "Task", lambda coroutine, loop: SimpleNamespace(), "Task._fut_waiter"),
        (asyncio, "TaskGroup", lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_the_self_test_names_what_another_python_lacks(
    module: Any, name: str, other: Any, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, name, other)
        assert not asyncio_internals.shows_waits()
        assert not asyncio_internals.shows_waits()
    (record,) = caplog.records
    assert missing in record.getMessage()
    assert "bodies that wait stay in memory" in record.getMessage()


@hf.workflow
async def waits_in_two_tasks(ctx: hf.Context) -> list[Any]:
    return list(await asyncio.gather(ctx.receive("a"), ctx.receive("b")))


async def test_without_them_a_body_that_waits_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(asyncio_internals._TESTS, "a name", lambda: False)
    async with hf.open(url(tmp_path / "runs.db"), idle_seconds=0) as engine:
        assert [record.levelno for record in caplog.records] == [logging.WARNING], "it is said when the engine opens"
        run = await engine.start(waits_in_two_tasks)
        await asyncio.sleep(0.2)
        assert await run.status() == "running"
        assert len(engine.actors) == 1
        await run.signal("b", 2)
        await run.signal("a", 1)
        assert await run.result() == [1, 2]


async def test_a_task_can_be_abandoned_also_where_asyncio_does_not_unregister_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    with monkeypatch.context() as patch:
        patch.delattr(asyncio.tasks, "_unregister_task")
        asyncio_internals.abandon(task)
    assert task in asyncio.all_tasks()
    asyncio_internals.abandon(task)
    assert task not in asyncio.all_tasks()
    task.cancel()
