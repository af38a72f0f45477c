"""A checkpoint closes the memory of the whole body: it is refused while something of the body is under way.

Otherwise what another task was told, or is still to be told, would be forgotten: a signal lost, a question asked twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness

Body = Callable[[hf.Context], Awaitable[Any]]


async def _work() -> str:
    await asyncio.sleep(1)
    return "worked"


async def beside_a_question(ctx: hf.Context) -> Any:
    async def loop() -> None:
        await ctx.sleep(1)
        await ctx.checkpoint(1)

    return await asyncio.gather(ctx.ask("Go?"), loop())


async def beside_a_step(ctx: hf.Context) -> Any:
    async def loop() -> None:
        await ctx.now()
        await ctx.checkpoint(1)

    return await asyncio.gather(ctx.step(_work), loop())


async def beside_a_call_that_has_not_begun(ctx: hf.Context) -> Any:
    return await asyncio.gather(ctx.checkpoint(1), ctx.receive("x"))


async def before_a_call_is_awaited(ctx: hf.Context) -> Any:
    signal = ctx.receive("x", deadline="1h", default=None)
    try:
        await ctx.checkpoint(1)
    finally:
        await signal


async def beside_a_task_between_two_calls(ctx: hf.Context) -> Any:
    async def lane() -> None:
        await ctx.step(abs, 1)
        await asyncio.sleep(5)
        await ctx.step(abs, 2)

    async def loop() -> None:
        await asyncio.sleep(1)
        await ctx.checkpoint(1)

    return await asyncio.gather(lane(), loop())


async def before_what_another_task_was_told_is_read(ctx: hf.Context) -> Any:
    """The step has ended; who gathers has not heard of it."""

    async def loop() -> None:
        await ctx.sleep(1)
        await ctx.checkpoint(1)

    return await asyncio.gather(ctx.step(abs, -1), loop())


async def before_what_a_task_in_a_group_of_groups_was_told_is_read(ctx: hf.Context) -> Any:
    async def loop() -> None:
        await ctx.sleep(1)
        await ctx.checkpoint(1)

    return await asyncio.gather(asyncio.gather(ctx.step(abs, -1), ctx.step(abs, -2)), loop())


async def in_a_task_beside_the_body_itself(ctx: hf.Context) -> Any:
    task = asyncio.create_task(_checkpoints(ctx))
    await ctx.sleep(1)
    return await task


async def in_a_step(ctx: hf.Context) -> Any:
    return await ctx.step(_checkpoints)


async def in_an_item_of_a_map(ctx: hf.Context) -> Any:
    return await ctx.map(_checkpoints_item, [1])


async def in_a_race(ctx: hf.Context) -> Any:
    return await ctx.race(_checkpoints(ctx), ctx.sleep("1h"))


async def by_two_tasks_at_once(ctx: hf.Context) -> Any:
    return await asyncio.gather(_checkpoints(ctx), _checkpoints(ctx))


async def _checkpoints(ctx: hf.Context) -> None:
    await ctx.checkpoint(1)


async def _checkpoints_item(ctx: hf.Context, item: int) -> None:
    await ctx.checkpoint(item)


REFUSED: dict[Body, str] = {
    beside_a_question: r"ctx\.ask \(ask\) is still under way",
    beside_a_step: r"ctx\.step .*_work\) is still under way",
    beside_a_call_that_has_not_begun: r"ctx\.receive \(x\) is still under way",
    before_a_call_is_awaited: r"ctx\.receive \(x\) is still under way",
    beside_a_task_between_two_calls: "another task of the body, which calls ctx as well, is still running",
    before_what_another_task_was_told_is_read: "what another task of the body has received is not read yet",
    before_what_a_task_in_a_group_of_groups_was_told_is_read: "what another task of the body has received",
    in_a_task_beside_the_body_itself: r"ctx\.sleep \(sleep\) is still under way",
    in_a_step: r"ctx\.step .*_checkpoints\) is still under way",
    in_an_item_of_a_map: r"ctx\.map .*_checkpoints_item\) is still under way",
    in_a_race: r"ctx\.sleep \(sleep\) is still under way",
    by_two_tasks_at_once: "another task of the body, which calls ctx as well, is still running",
}


@pytest.mark.parametrize("body", REFUSED)
async def test_a_checkpoint_is_refused(body: Body) -> None:
    @hf.workflow(name=f"chk_refused_{body.__name__}")
    async def checkpoints(ctx: hf.Context) -> Any:
        assert ctx.checkpointed is None
        return await body(ctx)

    async with harness() as h:
        run = await h.start(checkpoints)
        await h.advance(hours=2)
        with pytest.raises(hf.RunFailed, match=f"closes the memory of the whole body, and {REFUSED[body]}") as caught:
            await run.result()
        assert caught.value.error.code == "usage"


async def after_tasks_that_were_awaited(ctx: hf.Context, i: int) -> None:
    await asyncio.gather(ctx.step(abs, i), ctx.sleep(1))
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step(abs, i))
    await ctx.checkpoint(i)


async def after_a_race(ctx: hf.Context, i: int) -> None:
    await ctx.race(ctx.race(ctx.receive("x"), ctx.step(_work)), ctx.sleep("1h"), _lane(ctx))
    await ctx.checkpoint(i)


async def _lane(ctx: hf.Context) -> None:
    await asyncio.gather(ctx.sleep("1h"), ctx.receive("y"))


async def in_a_task_that_the_body_waits_for(ctx: hf.Context, i: int) -> None:
    async def inner() -> None:
        await asyncio.gather(ctx.step(abs, i), ctx.step(abs, -i))
        await ctx.checkpoint(i)

    await asyncio.wait_for(inner(), 60)


async def in_a_task_of_a_task(ctx: hf.Context, i: int) -> None:
    async def outer() -> None:
        await ctx.step(abs, i)
        await asyncio.gather(asyncio.gather(_at(ctx, i), asyncio.sleep(5)))

    await asyncio.gather(outer())


async def _at(ctx: hf.Context, i: int) -> None:
    await ctx.checkpoint(i)


async def after_a_call_that_was_dropped(ctx: hf.Context, i: int) -> None:
    ctx.step(abs, i).close()
    await ctx.checkpoint(i)


async def after_failures_that_are_kept(ctx: hf.Context, i: int) -> None:
    errors = await asyncio.gather(ctx.step(_fails), ctx.step(_fails), return_exceptions=True)
    await ctx.checkpoint(i)
    assert len(errors) == 2


def _fails() -> None:
    raise ValueError("no")


async def after_a_call_that_was_cancelled(ctx: hf.Context, i: int) -> None:
    task = asyncio.create_task(ctx.receive("never"))
    await ctx.step(abs, i)
    task.cancel()
    await asyncio.wait([task])
    await ctx.checkpoint(i)


@pytest.mark.parametrize(
    "checkpoint",
    [
        after_tasks_that_were_awaited,
        after_a_race,
        in_a_task_that_the_body_waits_for,
        in_a_task_of_a_task,
        after_a_call_that_was_dropped,
        after_failures_that_are_kept,
        after_a_call_that_was_cancelled,
    ],
)
async def test_a_checkpoint_in_a_loop_goes_on_where_it_was(checkpoint: Callable[[hf.Context, int], Any]) -> None:
    begun: list[int] = []

    @hf.workflow(name=f"chk_loop_{checkpoint.__name__}")
    async def checkpoints(ctx: hf.Context) -> int:
        begun.append(ctx.checkpointed or 0)
        for i in range((ctx.checkpointed or 0) + 1, 4):
            await ctx.sleep("1h")
            await checkpoint(ctx, i)
        return ctx.checkpointed

    async with harness() as h:
        run = await h.start(checkpoints)
        for _ in range(4):
            await h.advance(minutes=45)
            await h.crash()
        await h.advance(hours=5)
        assert await run.result() == 3
        assert begun == sorted(begun)
        assert begun[-1] > 0


async def test_what_is_called_while_a_checkpoint_is_committed_comes_after_it() -> None:
    """A task that began to call while the checkpoint was on its way to the store is remembered behind it."""

    @hf.workflow
    async def chk_called_meanwhile(ctx: hf.Context) -> list[Any]:
        first = ctx.checkpointed is None
        late: list[asyncio.Task[Any]] = []
        if first:
            asyncio.get_running_loop().call_soon(lambda: late.append(asyncio.create_task(_late(ctx))))
            await ctx.checkpoint("there")
        value = await (late[0] if first else asyncio.create_task(_late(ctx)))
        await ctx.sleep("1h")
        return [ctx.checkpointed, value, made]

    made: list[int] = []

    async def _late(ctx: hf.Context) -> int:
        return await ctx.step(count)

    def count() -> int:
        made.append(1)
        return len(made)

    async with harness() as h:
        run = await h.start(chk_called_meanwhile)
        await h.crash()
        await h.advance(hours=1)
        assert await run.result() == ["there", 1, [1]]
