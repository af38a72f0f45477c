"""Parking: whether a body does nothing but wait in its calls on ctx.

Owns: what a task of the body waits for, followed through other tasks, `asyncio.gather`, `asyncio.TaskGroup` and
`asyncio.wait`.
Never: decides what follows from it (activation.py).
Rule: in doubt a task is at work. A waiting body that is taken for one at work just stays in memory; a working one that
is taken for waiting would be left in its middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from types import CoroutineType
from typing import Any

Future = asyncio.Future[Any]
Task = asyncio.Task[Any]
_ABOUT_TO_GO_ON: tuple[Future, ...] = ()


def at_work(tasks: Iterable[Task], parked: Collection[Task]) -> Future | None:
    """What keeps a body of these tasks from counting as parked: a task that is about to go on, or a future from
    elsewhere that one of them waits for. None: each of them has ended, is parked, or waits for such tasks only."""
    todo: list[Future] = list(tasks)
    seen: set[Future] = set()
    while todo:
        future = todo.pop()
        if future in seen or future in parked or future.done():
            continue
        seen.add(future)
        awaited = _awaited_by(future)
        if not awaited:
            return future
        todo += awaited
    return None


def waits_for(task: Task, other: Task) -> bool:
    """Whether a task waits for another one, perhaps among others."""
    todo: list[Future] = [task]
    seen: set[Future] = set()
    while todo:
        future = todo.pop()
        if future is other:
            return True
        if future not in seen and not future.done():
            seen.add(future)
            todo += _awaited_by(future)
    return False


def ended_beside(tasks: Iterable[Task]) -> set[Future]:
    """What has ended of that which these tasks wait for together (`asyncio.gather`, `asyncio.wait`): nobody has read it
    while they wait."""
    ended: set[Future] = set()
    todo: list[Future] = []
    for task in tasks:
        waiter: Future | None = getattr(task, "_fut_waiter", None)
        if waiter is not None:
            todo += getattr(waiter, "_children", None) or _awaited_through(task, waiter)
    while todo:
        future = todo.pop()
        todo += getattr(future, "_children", ())
        if future.done():
            ended.add(future)
    return ended


def _awaited_by(future: Future) -> Collection[Future]:
    """What must end before a future can; nothing where that is not known, or where a task only waits for its turn."""
    if not isinstance(future, asyncio.Task):
        return [child for child in getattr(future, "_children", ()) if not child.done()]  # of `asyncio.gather`
    waiter: Future | None = getattr(future, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return _ABOUT_TO_GO_ON
    return _awaited_through(future, waiter)


def _awaited_through(task: Task, waiter: Future) -> Collection[Future]:
    """The same for a task that waits for a future; TaskGroup and `asyncio.wait` make one that stands for many."""
    here: Any = task.get_coro()
    frame = None
    while isinstance(here, CoroutineType):
        frame, here = here.cr_frame, here.cr_await
    if frame is None:
        return (waiter,)
    match frame.f_globals.get("__name__"):
        case "asyncio.taskgroups":
            group = frame.f_locals.get("self")
            if getattr(group, "_on_completed_fut", None) is waiter:
                inside: Collection[Future] = getattr(group, "_tasks", ())
                has_heard = not any(task.done() for task in inside)
                return inside if has_heard else _ABOUT_TO_GO_ON
        case "asyncio.tasks":
            names = frame.f_locals
            if names.get("waiter") is waiter and "fs" in names and names.get("timeout_handle") is None:
                inside = names["fs"]
                has_heard = names["counter"] == sum(not future.done() for future in inside)
                return inside if has_heard else _ABOUT_TO_GO_ON
    return (waiter,)
