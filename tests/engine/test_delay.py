"""Node `delay`: a start that is put off, from when everything the node needs is there.

Time is the harness's; the engine, the store and asyncio are real.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli.commands import graphs
from holdfast.cli.picture import Picture
from holdfast.inspect.why import why
from holdfast.model import definition as definitions
from holdfast.model import validation
from holdfast.testing import explore, harness
from tests.engine.kit import attempts, check_file, hold_time, node_of, types, until_async, url


@hf.node(idempotent=True)
async def dl_order(x: int) -> int:
    return x


@hf.node(delay="5m", idempotent=True)
async def dl_remind(x: int) -> int:
    return x + 1


@hf.node(delay=0.2, idempotent=True)
async def dl_soon(x: int) -> int:
    return x + 1


@hf.workflow
def dl_chain(x: int = 1) -> int:
    return dl_remind(dl_order(x))


@hf.workflow
def dl_short(x: int = 1) -> int:
    return dl_soon(dl_order(x))


@hf.workflow
def dl_placed(x: int = 1) -> list[Any]:
    first = dl_order(x)
    return [dl_order.named("later").delayed(timedelta(hours=1))(first), dl_remind.named("at_once").delayed(0)(first)]


@hf.workflow
def dl_parent(x: int = 1) -> int:
    return dl_order(dl_chain.delayed("1h")(x))


@hf.workflow
def dl_first(x: int = 1) -> int:
    return dl_remind(x)


@hf.workflow
async def dl_starts_a_child(ctx: hf.Context) -> int:
    return int(await ctx.child(dl_first, x=1))


@hf.workflow
def dl_mapped(numbers: list[int] = [1, 2]) -> list[int]:  # noqa: B006 - never changed
    return hf.map(dl_remind, numbers)


async def test_a_node_starts_its_delay_after_what_it_needs_is_there() -> None:
    async with harness() as h:
        run = await h.start(dl_chain)
        await h.advance(seconds=299)
        assert await run.status() == "suspended"
        assert not h.engine.actors, "it costs a row"
        assert node_of(await run.nodes(), "dl_remind")["status"] == "scheduled"
        await h.advance(seconds=1)
        assert await run.result() == 2
        assert attempts(await run.events(), "dl_remind") == [1]
        kinds = types(await run.events())
        assert [k for k in kinds if k.startswith(("Timer", "RunS", "RunR"))] == [
            "TimerSet",
            "RunSuspended",
            "TimerFired",
            "RunResumed",
        ]


async def test_a_short_delay_is_waited_for_in_memory() -> None:
    async with harness() as h:
        run = await h.start(dl_short)
        await h.advance(seconds=0.1)
        assert await run.status() == "running"
        assert attempts(await run.events(), "dl_soon") == []
        await h.advance(seconds=0.1)
        assert await run.result() == 2
        assert "TimerSet" not in types(await run.events())


@pytest.mark.parametrize("workflow", [dl_chain, dl_short])
async def test_a_crash_neither_shortens_a_delay_nor_begins_it_again(workflow: Any) -> None:
    whole = 300.0 if workflow is dl_chain else 0.2
    async with harness() as h:
        run = await h.start(workflow)
        (scheduled,) = [e for e in await run.events() if e.type == "NodeScheduled" and e.data.get("not_before")]
        await h.advance(seconds=whole / 2)
        await h.crash()
        await h.advance(seconds=whole / 2 - 0.05)
        assert await run.status() != "completed"
        await h.advance(seconds=10)
        assert await run.result() == 2
        (started,) = [e for e in await run.events() if e.type == "NodeStarted" and e.node == scheduled.node]
        assert int(started.at.timestamp() * 1_000_000) >= scheduled.data["not_before"]
        assert started.data["attempt"] == 1


async def test_an_orderly_stop_and_a_takeover_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    @hf.workflow
    def dl_over_a_stop() -> int:
        return dl_order.delayed(1.2)(1)

    async with hf.open(url(path)) as engine:
        hold_time(engine)
        run = await engine.start(dl_over_a_stop, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == 1
        assert types(await engine.get("r").events()).count("TimerSet") == 1
    check_file(path)


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


async def test_one_call_in_a_graph_may_be_put_off_or_not() -> None:
    async with harness() as h:
        run = await h.start(dl_placed)
        await h.advance(seconds=1)
        found = {n["node"]: n["status"] for n in await run.nodes()}
        assert found == {"dl_order": "completed", "later": "scheduled", "at_once": "completed"}
        await h.advance(hours=1)
        assert await run.result() == [1, 2]


async def test_a_child_may_be_put_off_and_begin_with_a_delay_itself() -> None:
    async with harness() as h:
        run = await h.start(dl_parent)
        await h.advance(minutes=64)
        assert await run.status() == "suspended"
        await h.advance(minutes=1)
        assert await run.result() == 2
        other = await h.start(dl_starts_a_child)
        await h.advance(seconds=299)
        assert await other.status() == "suspended"
        await h.advance(seconds=1)
        assert await other.result() == 2


async def test_every_item_of_a_map_is_put_off() -> None:
    async with harness() as h:
        run = await h.start(dl_mapped)
        await h.advance(seconds=299)
        assert "NodeStarted" not in types(await run.events())
        await h.advance(seconds=1)
        assert await run.result() == [2, 3]


async def test_a_retry_follows_its_own_policy_not_the_delay() -> None:
    tries: list[int] = []

    @hf.node(delay="1h", retry=hf.Retry(attempts=2, backoff=10, jitter=0))
    async def dl_flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("weather")
        return len(tries)

    @hf.workflow
    def dl_retried():
        return dl_flaky()

    async with harness() as h:
        run = await h.start(dl_retried)
        await h.advance(hours=1)
        assert len(tries) == 1
        await h.advance(seconds=10)
        assert await run.result() == 2


async def test_a_cancel_withdraws_what_was_put_off() -> None:
    async with harness() as h:
        run = await h.start(dl_chain)
        await run.cancel()
        assert await run.status() == "cancelled"
        assert "TimerCancelled" in types(await run.events())
        await h.advance(minutes=10)
        assert attempts(await run.events(), "dl_remind") == []


async def test_a_fork_in_a_delay_is_put_off_as_long_as_its_origin() -> None:
    async with harness() as h:
        run = await h.start(dl_chain)
        await h.advance(seconds=100)
        await run.fork(at="dl_order")
        await h.advance(seconds=299)
        assert await run.status() == "suspended"
        await h.advance(seconds=101)
        assert await run.result() == 2


async def test_why_show_and_graph_tell_it() -> None:
    definition = dl_chain.definition
    async with harness() as h:
        run = await h.start(dl_chain, run_id="r")
        store, now = h.engine.store, h.engine.clock.now()
        row = store.run("r")
        assert row is not None
        assert "dl_remind starts at" in why(store, row, now).why
        assert "after its delay" in why(store, row, now).why
        assert node_of((await run.show())["nodes"], "dl_remind")["starts_at"] is not None
        lines = Picture(definition).lines(row, store.nodes(row.run_no), (), {}, now)
        assert [line.detail for line in lines if line.label == "dl_remind"] == ["starts in 5:00"]
    assert 'dl_remind, 5:00 later"' in graphs.mermaid(definition)
    assert [n["delay"] for n in graphs.as_json(definition)["nodes"]] == [None, 300.0]


def test_a_definition_keeps_its_delays_and_one_without_has_the_hash_it_had() -> None:
    definition = dl_chain.definition
    again = definitions.decode(definition.encode())
    assert again == definition
    assert [node.delay for node in again.nodes] == [None, 300.0]
    assert definition.encode().count(b'"delay"') == 1


@pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), 1e300, timedelta(seconds=-1)])
def test_what_is_no_delay_is_refused_where_it_is_written(delay: Any) -> None:
    with pytest.raises(hf.UsageError, match="not a time to wait"):
        hf.node(delay=delay)
    with pytest.raises(hf.UsageError, match="not a time to wait"):
        dl_order.delayed(delay)
    with pytest.raises(hf.InvalidInput, match="not a duration"):
        dl_order.delayed("soon")


@pytest.mark.parametrize(("kind", "delay"), [("call", -1.0), ("call", 1e300), ("map", 5.0)])
def test_a_definition_with_a_delay_that_cannot_be_has_a_problem(kind: Any, delay: float) -> None:
    body = definitions.Body(nodes=(definitions.NodeDef(id="x", uses="some.handler"),))
    scope: dict[str, Any] = (
        {"body": body, "over": ["const", []], "item": "x"} if kind == "map" else {"uses": "some.handler"}
    )
    node = definitions.NodeDef(id="a", kind=kind, delay=delay, **scope)
    found = validation.check(definitions.Definition(name="bad_delay", nodes=(node,)))
    assert [(p.code, p.node) for p in found] == [("bad_delay", "a")]


async def test_a_node_with_a_delay_is_no_step() -> None:
    @hf.workflow
    async def dl_step(ctx: hf.Context) -> int:
        return await ctx.step(dl_remind, 1)

    async with harness() as h:
        with pytest.raises(hf.RunFailed, match=r"await ctx\.sleep"):
            await (await h.start(dl_step)).result()


@pytest.mark.parametrize("workflow", [dl_chain, dl_short, dl_parent, dl_mapped])
def test_no_crash_changes_the_outcome_of_a_run_with_delays(workflow: Any) -> None:
    report = explore(workflow)
    assert report.safe, report.explain()


async def test_a_long_delay_of_a_lazy_run_is_committed_at_once() -> None:
    @hf.workflow(persistence="lazy")
    def dl_lazy(x: int = 1) -> int:
        return dl_remind(dl_order(x))

    async with harness() as h:
        run = await h.start(dl_lazy)
        await h.advance(minutes=4)
        await h.crash()
        await h.advance(minutes=1)
        assert await run.result() == 2
