"""Options of one call, and the retry policy that a workflow gives to nodes without one."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.model.errors import UsageError
from holdfast.testing import harness


@hf.node(timeout=10, retry=hf.Retry(2))
def charge(order: str) -> str:
    return order


@hf.node
def label(order: str) -> str:
    return order


def test_options_of_one_call_replace_only_what_they_name() -> None:
    @hf.workflow
    def flow(order: str) -> str:
        first = charge.options(timeout="5s", priority=3)(order)
        return charge.named("again")(first)

    first, again = flow.definition.nodes
    assert (first.timeout, first.retry, first.priority) == (5.0, hf.Retry(2), 3)
    assert (again.timeout, again.retry, again.priority) == (10.0, hf.Retry(2), 0)


def test_a_workflow_gives_its_retry_policy_to_nodes_without_one() -> None:
    @hf.workflow(retry=hf.Retry(7))
    def flow(orders: list[str]) -> list[str]:
        charge("x")
        label.options(retry=hf.Retry(4))("x")
        return hf.map(label, orders)

    declared, given, mapped = flow.definition.nodes
    assert declared.retry == hf.Retry(2)
    assert given.retry == hf.Retry(4)
    assert mapped.body is not None
    assert mapped.retry is None
    assert mapped.body.nodes[0].retry == hf.Retry(7)


async def test_durable_code_is_tried_again_by_the_policy_of_its_workflow() -> None:
    tries: list[int] = []

    @hf.workflow(retry=hf.Retry(3, backoff=0))
    async def flow(ctx: hf.Context) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return len(tries)

    async with harness() as h:
        run = await h.start(flow)
        assert await run.result() == 3


async def test_the_options_of_a_call_hold_for_a_step_too() -> None:
    tries: list[int] = []

    @hf.node
    def flaky() -> int:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("not yet")
        return len(tries)

    @hf.workflow
    async def flow(ctx: hf.Context) -> int:
        return await ctx.step(flaky.options(retry=hf.Retry(2, backoff=0)))

    async with harness() as h:
        run = await h.start(flow)
        assert await run.result() == 2


def test_wrong_options_are_refused_where_they_stand() -> None:
    with pytest.raises(UsageError, match=r"charge\.options: on_crash='never'"):
        charge.options(on_crash="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"charge\.options: retry=3 is not"):
        charge.options(retry=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"@hf\.workflow: retry=3 is not"):
        hf.workflow(retry=3)  # type: ignore[call-overload]
