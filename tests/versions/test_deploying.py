"""Deploying: immutable versions by content, starts by name, and runs of versions that only the database has."""

from __future__ import annotations

import msgspec
import pytest

import holdfast as hf
from holdfast.authoring import rivals
from holdfast.model import handlers
from tests.engine.kit import check_journal
from tests.versions.flows import declare, line, vs_first, vs_second, vs_third


class Order(msgspec.Struct):
    id: str
    amount: int = 5


@hf.node
async def vs_amount(order: Order) -> int:
    return order.amount


def vs_typed(order: Order, note: str = "none") -> int:
    return vs_amount(order)


def forget(name: str) -> None:
    """The program has its handlers, and no longer the workflow itself."""
    handlers._workflows.pop(name, None)
    rivals._claimed.pop(name, None)


async def test_the_same_content_has_the_same_number_and_other_content_the_next(address: str) -> None:
    async with hf.open(address) as engine:
        assert await engine.deploy(line(vs_first)) == [
            {"workflow": "vs_line", "version": 1, "is_new": True, "was_retired": False}
        ]
        (again,) = await engine.deploy(line(vs_first))
        assert (again["version"], again["is_new"]) == (1, False)
        (other,) = await engine.deploy(line(vs_first, vs_second))
        assert (other["version"], other["is_new"]) == (2, True)
        (back,) = await engine.deploy(line(vs_first))
        assert back["version"] == 1
        assert [(one["version"], one["nodes"]) for one in await engine.versions("vs_line")] == [(1, 1), (2, 2)]
        (shown,) = await engine.workflows()
        assert (shown["workflow"], shown["latest"], shown["versions"], shown["aliases"]) == ("vs_line", 2, 2, {})


async def test_a_start_by_name_gets_the_latest_version_and_a_python_object_itself(address: str) -> None:
    async with hf.open(address) as engine:
        one, two = line(vs_first), line(vs_first, vs_second)
        await engine.deploy(one, two)
        assert await (await engine.start("vs_line", x=1)).result() == 20
        assert await (await engine.start(one, x=1)).result() == 2
        assert await (await engine.start("vs_line@1", x=1)).result() == 2
        assert await (await engine.start("vs_line@latest", x=1)).result() == 20


async def test_a_version_of_which_only_the_database_knows_is_started_and_driven(address: str) -> None:
    """Its nodes are loaded here, the function that was traced is not."""
    async with hf.open(address) as engine:
        await engine.deploy(line(vs_first, vs_third))
    forget("vs_line")
    async with hf.open(address) as engine:
        run = await engine.start("vs_line", run_id="from-db", x=4)
        assert await run.result() == -5
        row = engine.store.run("from-db")
        assert row is not None
        check_journal(engine.store, row)


async def test_inputs_of_a_stored_version_are_checked_against_their_schema(address: str) -> None:
    async with hf.open(address) as engine:
        await engine.deploy(declare(vs_typed))
        forget("vs_typed")
        assert await (await engine.start("vs_typed", order={"id": "a", "amount": 3})).result() == 3
        assert await (await engine.start("vs_typed", order=Order("a"), note="x")).result() == 5
        with pytest.raises(hf.InvalidInput, match="amount"):
            await engine.start("vs_typed", order={"id": "a", "amount": "much"})
        with pytest.raises(hf.InvalidInput, match="missing order"):
            await engine.start("vs_typed")
        with pytest.raises(hf.InvalidInput, match="unknown nte"):
            await engine.start("vs_typed", order={"id": "a"}, nte=1)


async def test_a_repeated_start_by_name_is_the_same_run_whatever_is_deployed_by_now(address: str) -> None:
    async with hf.open(address) as engine:
        await engine.deploy(line(vs_first))
        run = await engine.start("vs_line", run_id="one", x=1)
        assert await run.result() == 2
        await engine.deploy(line(vs_first, vs_second))
        again = await engine.start("vs_line", run_id="one", x=1)
        assert (await again.result(), (await again.show())["version"]) == (2, 1)
        with pytest.raises(hf.RunExists, match="another input"):
            await engine.start("vs_line", run_id="one", x=2)


async def test_what_was_not_deployed_is_named(address: str) -> None:
    async with hf.open(address) as engine:
        await engine.deploy(line(vs_first))
        with pytest.raises(hf.HoldfastError, match="no workflow other was deployed here") as found:
            await engine.start("other", x=1)
        assert found.value.code == "unknown_version"
        with pytest.raises(hf.HoldfastError, match="has no version 7; it has 1"):
            await engine.start("vs_line@7", x=1)
        with pytest.raises(hf.HoldfastError, match="has no alias canary; it has none"):
            await engine.start("vs_line@canary", x=1)
        with pytest.raises(hf.UsageError, match="NAME@ALIAS"):
            await engine.start("vs_line@", x=1)
        assert await engine.list() == []


async def test_an_engine_that_lacks_the_code_stores_the_run_for_one_that_has_it(address: str) -> None:
    @hf.node
    async def vs_elsewhere(x: int) -> int:
        return x + 100

    async with hf.open(address) as engine:
        await engine.deploy(line(vs_elsewhere))
    kept = handlers._handlers.pop(vs_elsewhere.name)
    forget("vs_line")
    async with hf.open(address) as engine:
        run = await engine.start("vs_line", run_id="later", x=1)
        assert await run.status() == "created"
    handlers._handlers[vs_elsewhere.name] = kept
    async with hf.open(address) as engine:
        assert await engine.get("later").result() == 101


async def test_a_retired_version_starts_nothing_until_it_is_deployed_again(address: str) -> None:
    async with hf.open(address) as engine:
        one, two = line(vs_first), line(vs_first, vs_second)
        await engine.deploy(one, two)
        run = await engine.start(one, run_id="old", x=1)
        assert await run.result() == 2
        await engine.retire("vs_line", 1)
        for start in (engine.start(one, x=5), engine.start("vs_line@1", x=5)):
            with pytest.raises(hf.HoldfastError, match="version 1 of workflow vs_line is retired") as found:
                await start
            assert found.value.code == "version_retired"
        assert await (await engine.start("vs_line", x=1)).result() == 20
        assert await (await engine.start(one, run_id="old", x=1)).result() == 2, "a run that exists is that run"
        assert (await run.show())["version"] == 1
        with pytest.raises(hf.HoldfastError, match="retired"):
            await run.fork("start")
        (back,) = await engine.deploy(one)
        assert (back["version"], back["was_retired"]) == (1, True)
        assert await (await engine.start("vs_line@1", x=5)).result() == 6
        await run.fork("start")
        assert await run.result() == 2


async def test_a_version_with_unfinished_runs_is_not_retired(address: str) -> None:
    def vs_asks() -> str:
        return hf.ask("Well?", schema=str)

    async with hf.open(address) as engine:
        await engine.deploy(declare(vs_asks))
        run = await engine.start("vs_asks", run_id="asks")
        with pytest.raises(hf.Refused, match="1 run of it is unfinished") as found:
            await engine.retire("vs_asks", 1)
        assert found.value.reason == "unfinished"
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
        await engine.retire("vs_asks", 1)
        with pytest.raises(hf.HoldfastError, match="every version of workflow vs_asks is retired"):
            await engine.start("vs_asks")


async def test_a_child_of_a_retired_version_fails_its_parent_and_not_the_engine(address: str) -> None:
    child = line(vs_first)

    async def vs_parent(ctx: hf.Context) -> int:
        return await ctx.child(child, x=1)

    async with hf.open(address) as engine:
        parent = declare(vs_parent)
        assert await (await engine.start(parent)).result() == 2
        await engine.retire("vs_line", 1)
        run = await engine.start(parent, run_id="parent")
        with pytest.raises(hf.RunFailed, match="version 1 of the child workflow vs_line is retired"):
            await run.result()
        row = engine.store.run("parent")
        assert row is not None
        check_journal(engine.store, row)
