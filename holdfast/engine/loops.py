"""Loops: an event loop for one main coroutine, as asyncio.run gives, that ends although a body does not.

Owns: what becomes of tasks that are left when the main one has ended.
Rule: they are cancelled and have a moment to clean up. asyncio.run would wait for those that go on, for ever: a body
that was given up, and that catches every cancel, would keep its process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.engine.asyncio_internals import abandon

R = TypeVar("R")
log = logging.getLogger("holdfast.engine")
LEAVING_SECONDS = 1.0
"""Bodies have had their grace time before; this is for what they have started beside themselves."""


def run(main: Coroutine[Any, Any, R]) -> R:
    """What the coroutine returns or raises."""
    return asyncio.run(_alone_at_the_end(main))


async def _alone_at_the_end(main: Coroutine[Any, Any, R]) -> R:
    try:
        return await main
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            _, deaf = await asyncio.wait(others, timeout=LEAVING_SECONDS)
            for task in deaf:
                _leave(task)


def _leave(task: asyncio.Task[Any]) -> None:
    log.warning("%s goes on although it was cancelled, and is left", task.get_name())
    abandon(task)
