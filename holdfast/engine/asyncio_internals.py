"""asyncio internals: every private name of asyncio that the engine and the worker use.

Owns: these names, and the self-test that the running Python still has them and that they mean what we need.
Never: raises where one is missing. Each use has a safe answer for that case, and the self-test logs a warning once.

- `Task._fut_waiter`, `_GatheringFuture._children`, `TaskGroup._on_completed_fut` and `_tasks`, and the local variables
  of `asyncio.wait`: what a task waits for, so that a body that only waits can be evicted. Without them bodies stay in
  memory. (From 3.14 on `asyncio.capture_call_graph` shows the same for people; it builds the whole stack, as text.)
- `asyncio.tasks._unregister_task`: abandon a task that ignores its cancellation when a program ends. Without it
  `asyncio.run` waits for that task.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Collection, Coroutine
from functools import lru_cache
from types import CoroutineType, FrameType
from typing import Any

log = logging.getLogger("holdfast.engine")
Future = asyncio.Future[Any]
Task = asyncio.Task[Any]
_ABOUT_TO_RUN: tuple[Future, ...] = ()
_abandoned: list[Task] = []
"""Kept until the process ends: asyncio complains of a pending task that is destroyed."""


def waiter_of(task: Task) -> Future | None:
    """The future that a task waits for; None: it is about to run, or that is not known."""
    return getattr(task, "_fut_waiter", None)


def children_of(future: Future) -> Collection[Future]:
    """What a future of `asyncio.gather` waits for; nothing for any other future."""
    return getattr(future, "_children", ())


def awaited_through(task: Task, waiter: Future) -> Collection[Future]:
    """What a task waits for that waits for this future. `TaskGroup` and `asyncio.wait` make one that stands for many;
    nothing: one of those has ended, and the task is about to run."""
    frame = _innermost(task.get_coro())
    if frame is None:
        return (waiter,)
    match frame.f_globals.get("__name__"):
        case "asyncio.taskgroups":
            group = frame.f_locals.get("self")
            if getattr(group, "_on_completed_fut", None) is waiter:
                inside: Collection[Future] = getattr(group, "_tasks", ())
                return _ABOUT_TO_RUN if any(future.done() for future in inside) else inside
        case "asyncio.tasks":
            names = frame.f_locals
            if names.get("waiter") is waiter and "fs" in names and names.get("timeout_handle") is None:
                inside = names["fs"]
                has_heard = names["counter"] == sum(not future.done() for future in inside)
                return inside if has_heard else _ABOUT_TO_RUN
    return (waiter,)


def _innermost(here: Any) -> FrameType | None:
    """The frame in which a coroutine waits."""
    frame = None
    while isinstance(here, CoroutineType):
        frame, here = here.cr_frame, here.cr_await
    return frame


def abandon(task: Task) -> None:
    """Let the task's loop end although the task does not: a loop does not wait for what it does not know."""
    _abandoned.append(task)
    unregister = getattr(asyncio.tasks, "_unregister_task", None)
    if unregister is not None:
        unregister(task)


# --- self-test -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def shows_waits() -> bool:
    """Whether this Python shows what a task waits for. Asked when an engine opens; a warning is logged where not."""
    try:
        missing = [name for name, test in _TESTS.items() if not test()]
    except Exception as e:  # noqa: BLE001 - whatever asyncio has changed must not keep an engine from opening
        missing = [f"{type(e).__name__}: {e}"]
    if missing:
        log.warning(
            "Python %s does not show what an asyncio task waits for (%s): bodies that wait stay in memory. Use a "
            "version of Python that this version of Holdfast was tested with",
            platform.python_version(), ", ".join(missing),
        )  # fmt: skip
    return not missing


class _IdleLoop:
    """A loop that runs nothing: enough to make futures and to advance coroutines by hand."""

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> Future:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, *args: Any, **options: Any) -> None: ...
    def call_exception_handler(self, context: dict[str, Any]) -> None: ...


def _task_shows_its_waiter() -> bool:
    async def work() -> None: ...

    coroutine = work()
    task = asyncio.Task(coroutine, loop=_IdleLoop())  # type: ignore[arg-type]
    coroutine.close()
    return getattr(task, "_fut_waiter", task) is None


def _gather_shows_its_children() -> bool:
    inner = _IdleLoop().create_future()
    return list(children_of(asyncio.gather(inner))) == [inner]


def _wait_shows_its_futures() -> bool:
    loop = _IdleLoop()
    inside = {loop.create_future()}
    waiting: Any = asyncio.tasks._wait(inside, None, asyncio.ALL_COMPLETED, loop)  # type: ignore[attr-defined]
    return _shows(waiting, inside)


def _task_group_shows_its_tasks() -> bool:
    group: Any = asyncio.TaskGroup()
    loop = _IdleLoop()
    group._entered, group._loop, group._parent_task = True, loop, object()
    group._tasks = {loop.create_future()}
    return _shows(group.__aexit__(None, None, None), group._tasks)


def _shows(waiting: Coroutine[Any, Any, Any], inside: Collection[Future]) -> bool:
    """Whether a coroutine that waits for these futures can be seen to."""

    class Waiting:
        def get_coro(self) -> Any:
            return waiting

    waiter = waiting.send(None)
    try:
        return set(awaited_through(Waiting(), waiter)) == set(inside)  # type: ignore[arg-type]
    finally:
        waiting.close()


_TESTS = {
    "Task._fut_waiter": _task_shows_its_waiter,
    "gather()._children": _gather_shows_its_children,
    "the futures of asyncio.wait": _wait_shows_its_futures,
    "TaskGroup._tasks": _task_group_shows_its_tasks,
}
