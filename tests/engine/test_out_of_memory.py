"""Out of memory is an error like any other: a policy that names it tries again, with growing delays."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from tests.engine.kit import attempts

FAILURES = {"left": 0}


@hf.node(retry=hf.Retry(on=(MemoryError,), attempts=3, backoff=2, factor=2, jitter=0))
async def memory_hungry() -> int:
    if FAILURES["left"]:
        FAILURES["left"] -= 1
        raise MemoryError("no room for the model")
    return 1


@hf.workflow
def memory_once() -> Any:
    return memory_hungry()


async def test_memory_error_is_retried_twice_with_a_delay_that_doubles() -> None:
    FAILURES["left"] = 2
    async with harness() as h:
        run = await h.start(memory_once)
        for seconds, tried in [(1.9, [1]), (0.2, [1, 2]), (3.7, [1, 2]), (0.3, [1, 2, 3])]:
            await h.advance(seconds=seconds)
            assert attempts(await run.events(), "memory_hungry") == tried
        assert await run.result() == 1


async def test_third_memory_error_fails_the_run_and_not_its_engine() -> None:
    FAILURES["left"] = 3
    async with harness() as h:
        run = await h.start(memory_once)
        await h.advance(seconds=10)
        with pytest.raises(hf.RunFailed, match="no room for the model"):
            await run.result()
        assert await (await h.start(memory_once)).result() == 1
