"""Parking: whether a body does nothing but wait in its calls on ctx.

Owns: what a task of the body waits for, followed through other tasks, `asyncio.gather`, `asyncio.TaskGroup` and
`asyncio.wait`.
Owns: the refusal of a checkpoint while something of the body is under way: what another task receives then, or has
received and not handed over yet, would be forgotten (a signal lost, a question asked twice). A call on ctx is open from
the moment it is made until what it returned to be awaited has ended, or was dropped.
Never: decides what follows from it (activation.py), uses private names of asyncio (engine/asyncio_internals.py).
Rule: in doubt a task is at work. A waiting body that is taken for one at work just stays in memory; a working one that
is taken for waiting would be evicted in its middle.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection, Coroutine, Iterable, Mapping, Set
from typing import Any

from holdfast.engine.asyncio_internals import awaited_through, children_of, shows_waits, waiter_of
from holdfast.model.errors import UsageError
from holdfast.worker.recorded_calls import Call

Future = asyncio.Future[Any]
Calls = Mapping[Coroutine[Any, Any, Any], Call]
Task = asyncio.Task[Any]


def at_work(tasks: Iterable[Task], parked: Collection[Task]) -> Future | None:
    """What keeps a body of these tasks from counting as parked: a task that is about to run, or a future from elsewhere
    that one of them waits for. None: each of them has ended, is parked, or waits for such tasks only."""
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
    """What has ended of that which these tasks wait for together (`asyncio.gather`, `asyncio.wait`): they have not read
    its results."""
    ended: set[Future] = set()
    todo: list[Future] = []
    for task in tasks:
        waiter = waiter_of(task)
        if waiter is not None:
            todo += children_of(waiter) or awaited_through(task, waiter)
    while todo:
        future = todo.pop()
        todo += children_of(future)
        if future.done():
            ended.add(future)
    return ended


def _awaited_by(future: Future) -> Collection[Future]:
    """What must end before a future can; nothing where that is not known, or where a task only waits for its turn."""
    if not isinstance(future, asyncio.Task):
        return [child for child in children_of(future) if not child.done()]
    waiter = waiter_of(future) if shows_waits() else None
    return () if waiter is None or waiter.done() else awaited_through(future, waiter)


def check_checkpoint(
    here: Task,
    body: Task | None,
    tasks: Iterable[Task],
    calls: Mapping[Coroutine[Any, Any, Any], Call],
    ended: Set[Any],
) -> None:
    """Raise UsageError when the task `here` may not make a checkpoint now. `tasks` are the tasks of the body besides
    its own, `ended` those that have ended, `calls` what is awaited for the calls that they have made."""
    problem = _under_way(here, body, tasks, calls, ended)
    if problem is not None:
        raise UsageError(
            f"ctx.checkpoint closes the memory of the whole body, and {problem}: it would be forgotten. Await it "
            "before, or make the loop that has the checkpoints a node or a workflow of its own"
        )


def _under_way(
    here: Task,
    body: Task | None,
    tasks: Iterable[Task],
    calls: Mapping[Coroutine[Any, Any, Any], Call],
    ended: Set[Any],
) -> str | None:
    for awaited, call in calls.items():
        if inspect.getcoroutinestate(awaited) != inspect.CORO_CLOSED:
            return f"ctx.{call.kind} ({call.name}) is still under way"
    others = {task for task in tasks if task is not here and not task.done()}
    if not all(waits_for(task, here) for task in others):
        return "another task of the body, which calls ctx as well, is still running"
    waiting = others if body is None or body is here else {body, *others}
    if not ended_beside(waiting).isdisjoint(ended):
        return "what another task of the body has received is not read yet"
    return None
