"""What a program may ask of an engine and of its runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from tests.engine.kit import check_file, node_of, types, until, until_async, url


@dataclass
class Order:
    id: str
    amount: int


class Gate:
    """Bodies wait here until the test lets them go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.entered = 0

    async def wait(self) -> None:
        self.entered += 1
        self.began.set()
        await self.open.wait()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.node
async def price(order: Order) -> int:
    return order.amount * 2


@hf.node
def label(order: Order, total: int) -> str:
    return f"{order.id}:{total}"


@hf.workflow
def sell(order: Order):
    total = price(order)
    return {"label": label(order, total), "total": total}


@hf.workflow
async def add(ctx: hf.Context, a: int, b: int = 2) -> int:
    return a + b


@hf.node
async def broken(order: Order) -> int:
    raise ValueError(f"no {order.id}")


@hf.workflow
def sell_badly(order: Order):
    return broken(order)


@pytest.mark.smoke
async def test_start_returns_a_committed_run_whose_result_can_be_awaited(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sell, order=Order("a", 21), run_id="one")
        assert run.run_id == "one"
        assert engine.get("one").run_id == "one"
        assert await run.result() == {"label": "a:42", "total": 42}
        assert await run.result() == {"label": "a:42", "total": 42}
        assert await run.status() == "completed"
    check_file(db)


async def test_a_failed_run_raises_run_failed_with_the_error_of_its_node(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sell_badly, order=Order("a", 1))
        with pytest.raises(hf.RunFailed, match="ValueError: no a") as caught:
            await run.result()
        assert caught.value.run_id == run.run_id
        assert caught.value.error.node == "broken"
        assert caught.value.error.kinds[0] == "ValueError"
        assert await run.status() == "failed"
    check_file(db)


async def test_result_gives_up_after_its_timeout_and_the_run_goes_on(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def slow(ctx: hf.Context) -> str:
        await gate.wait()
        return "done"

    async with hf.open(url(db)) as engine:
        run = await engine.start(slow)
        patient = asyncio.ensure_future(run.result())
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.01)
        gate.open.set()
        assert await run.result() == await patient == "done"


async def test_a_timeout_of_result_says_which_run_how_long_and_where_it_stands(db: Path) -> None:
    @hf.workflow
    async def unpaid(ctx: hf.Context) -> None:
        await ctx.receive("paid")

    async with hf.open(url(db)) as engine:
        run = await engine.start(unpaid, run_id="order-42")
        await until(lambda: engine.store.open_waits([1]))
        with pytest.raises(TimeoutError, match=r"^run order-42 has not ended after 0.01 s: .* waits for signal paid"):
            await run.result(timeout=0.01)


async def test_a_timeout_of_result_does_not_wait_for_a_server_that_is_away(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    @hf.workflow
    async def slow(ctx: hf.Context) -> None:
        await gate.wait()

    async def never(run: hf.Run) -> str:
        return await asyncio.Event().wait()

    monkeypatch.setattr(hf.Run, "why", never)
    monkeypatch.setattr("holdfast.engine.run_handle.STANDS_SECONDS", 0.01)
    async with hf.open(url(db)) as engine:
        run = await engine.start(slow, run_id="order-42")
        with pytest.raises(TimeoutError, match=r"^run order-42 has not ended after 0.01 s$"):
            await run.result(timeout=0.01)
        gate.open.set()


async def test_nodes_show_status_attempt_output_and_what_is_pending(db: Path) -> None:
    gate = Gate()

    @hf.node
    async def first() -> str:
        await gate.wait()
        return "one"

    @hf.node
    async def second(x: str) -> str:
        return x + "!"

    @hf.workflow
    def two():
        return second(first())

    async with hf.open(url(db)) as engine:
        run = await engine.start(two)
        await gate.began.wait()
        nodes = await run.nodes()
        assert (node_of(nodes, "first")["status"], node_of(nodes, "second")["status"]) == ("running", "pending")
        gate.open.set()
        await run.result()
        nodes = await run.nodes()
        assert [(n["node"], n["status"], n["attempt"], n["output"]) for n in nodes] == [
            ("first", "completed", 1, "one"),
            ("second", "completed", 1, "one!"),
        ]


async def test_events_are_numbered_from_one_and_can_be_read_from_anywhere(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sell, order=Order("a", 1))
        await run.result()
        everything = await run.events()
        assert [e.seq for e in everything] == list(range(1, len(everything) + 1))
        assert everything[0].type == "RunCreated"
        assert everything[-1].type == "RunCompleted"
        assert [e.seq for e in await run.events(after=3)] == [e.seq for e in everything[3:]]


async def test_a_started_node_names_where_its_inputs_are_and_never_holds_them(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sell, order=Order("a secret id", 1))
        await run.result()
        started = [e for e in await run.events() if e.type == "NodeStarted"]
        assert started
        for event in started:
            assert "secret" not in repr(event.data)


async def test_follow_gives_every_event_once_in_order_and_ends_with_the_run(db: Path) -> None:
    gate = Gate()

    @hf.node
    async def first() -> int:
        await gate.wait()
        return 1

    @hf.workflow
    def followed():
        return label.named("end")(Order("x", 1), first())

    async with hf.open(url(db)) as engine:
        run = await engine.start(followed)

        async def seen() -> list[int]:
            return [event.seq async for event in run.follow()]

        task = asyncio.ensure_future(seen())
        await gate.began.wait()
        gate.open.set()
        await run.result()
        assert await task == [e.seq for e in await run.events()]
        assert [e.seq async for e in run.follow(after=4)] == [e.seq for e in await run.events(after=4)]


async def test_follow_sees_committed_events_only(db: Path) -> None:
    gate = Gate()

    @hf.node
    async def quick() -> int:
        return 1

    @hf.node
    async def held(x: int) -> int:
        await gate.wait()
        return x

    @hf.workflow(persistence="lazy")
    def lazily():
        return held(quick())

    async with hf.open(url(db)) as engine:
        run = await engine.start(lazily)
        await gate.began.wait()
        assert "NodeCompleted" not in types(await run.events())
        gate.open.set()
        await run.result()
        assert types(await run.events()).count("NodeCompleted") == 2


async def test_list_is_newest_first_and_filters_by_status_and_workflow(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        for i in range(3):
            run = await engine.start(sell, order=Order("a", i), run_id=f"good-{i}")
            await run.result()
        bad = await engine.start(sell_badly, order=Order("a", 1), run_id="bad")
        with pytest.raises(hf.RunFailed):
            await bad.result()
        assert [r["run_id"] for r in await engine.list()] == ["bad", "good-2", "good-1", "good-0"]
        assert [r["run_id"] for r in await engine.list(limit=2)] == ["bad", "good-2"]
        assert [r["run_id"] for r in await engine.list(status="failed")] == ["bad"]
        assert len(await engine.list(workflow="sell")) == 3
        assert all("input" not in r and "nodes" not in r for r in await engine.list())


async def test_every_call_by_id_takes_the_whole_id(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        await (await engine.start(add, a=1, run_id="order-42")).result()
        assert engine.get("order-42").run_id == "order-42"
        for wrong in ("order-4", "order", "order-421", ""):
            with pytest.raises(hf.UnknownRun) as unknown:
                engine.get(wrong)
            assert "order-42 " not in str(unknown.value)  # no other run's id is told to whoever typed this one
            with pytest.raises(hf.UnknownRun):
                await engine.resume(wrong)
            with pytest.raises(hf.UnknownRun):
                await engine.recover(wrong)


@pytest.mark.smoke
async def test_the_same_id_with_the_same_input_is_the_same_run(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        first = await engine.start(sell, order=Order("a", 1), run_id="x")
        again = await engine.start(sell, order=Order("a", 1), run_id="x")
        assert await first.result() == await again.result()
        once_more = await engine.start(sell, order=Order("a", 1), run_id="x")
        await once_more.result()
        assert types(await once_more.events()).count("RunCreated") == 1
        assert len(await engine.list()) == 1


async def test_the_same_id_with_another_input_is_run_exists_and_changes_nothing(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sell, order=Order("a", 1), run_id="x")
        await run.result()
        before = await run.events()
        with pytest.raises(hf.RunExists, match="another input"):
            await engine.start(sell, order=Order("b", 1), run_id="x")
        with pytest.raises(hf.RunExists, match="another workflow"):
            await engine.start(add, a=1, run_id="x")
        assert await run.events() == before
        assert len(await engine.list()) == 1


async def test_the_same_id_started_by_many_at_once_is_one_run(db: Path) -> None:
    ran: list[int] = []

    @hf.node(inline=True)
    def note(a: int) -> int:
        ran.append(a)
        return a

    @hf.workflow
    def once(a: int):
        return note(a)

    async with hf.open(url(db)) as engine, hf.open(url(db)) as other:
        starts = [(engine, other)[i % 2].start(once, a=7, run_id="same") for i in range(20)]
        runs = await asyncio.gather(*starts)
        assert [await run.result() for run in runs] == [7] * 20
        assert ran == [7]
        assert len(await engine.list()) == 1
    check_file(db)


async def test_the_same_id_started_at_once_with_other_inputs_is_one_run_and_run_exists(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        found = await asyncio.gather(*(engine.start(add, a=i, run_id="same") for i in range(8)), return_exceptions=True)
        runs = [r for r in found if isinstance(r, hf.Run)]
        assert len(runs) == 1
        assert all(isinstance(r, hf.Run | hf.RunExists) for r in found), found
        assert len(await engine.list()) == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "missing order"),
        ({"order": Order("a", 1), "colour": 1}, "unknown colour"),
        ({"order": {"id": "a"}}, "amount"),
        ({"order": {"id": "a", "amount": "many"}}, "amount"),
        ({"order": None}, "order"),
    ],
)
async def test_an_input_that_does_not_fit_is_refused_and_nothing_is_written(db: Path, inputs, message: str) -> None:
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.InvalidInput, match=message):
            await engine.start(sell, **inputs)
        assert await engine.list() == []


@pytest.mark.parametrize("run_id", ["", " a", "a\n", "x" * 201])
async def test_a_run_id_that_could_not_be_shown_is_refused(db: Path, run_id: str) -> None:
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.UsageError, match="run id"):
            await engine.start(add, a=1, run_id=run_id)
        assert await engine.list() == []


async def test_defaults_of_inputs_are_filled_in_and_are_the_same_input_as_given_ones(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(add, a=1, run_id="x")
        assert await run.result() == 3
        assert await (await engine.start(add, a=1, b=2, run_id="x")).result() == 3


async def test_cancel_ends_a_run_and_says_why(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        await gate.wait()

    async with hf.open(url(db)) as engine:
        run = await engine.start(waits)
        await gate.began.wait()
        await run.cancel("the customer asked", actor="ada")
        with pytest.raises(hf.RunCancelled, match="the customer asked"):
            await run.result()
        assert await run.status() == "cancelled"
        shown = await run.show()
        assert shown["reason"] == "the customer asked"
        (asked,) = [e for e in await run.events() if e.type == "RunCancelRequested"]
        assert asked.data["actor"] == "ada"
    check_file(db)


async def test_cancelling_again_changes_nothing(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        try:
            await gate.wait()
        finally:
            await cleaning.wait()

    cleaning = asyncio.Event()
    async with hf.open(url(db)) as engine:
        run = await engine.start(waits)
        await gate.began.wait()
        await run.cancel("first")
        await run.cancel("second")
        cleaning.set()
        with pytest.raises(hf.RunCancelled, match="first"):
            await run.result()
        before = [e for e in await run.events() if e.type == "RunCancelRequested"]
        await run.cancel("third")
        assert [e.data["reason"] for e in before] == ["first"]
        assert [e for e in await run.events() if e.type == "RunCancelRequested"] == before
    check_file(db)


async def test_cancelling_a_completed_run_is_refused(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(add, a=1)
        await run.result()
        with pytest.raises(hf.Refused, match="completed"):
            await run.cancel()
        assert await run.result() == 3


async def test_resume_of_a_run_that_is_being_driven_is_harmless(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def waits(ctx: hf.Context) -> str:
        await gate.wait()
        return "once"

    async with hf.open(url(db)) as engine:
        run = await engine.start(waits, run_id="r")
        await gate.began.wait()
        again = await engine.resume("r")
        await asyncio.gather(*(engine.resume("r") for _ in range(5)))
        gate.open.set()
        assert await again.result() == await run.result() == "once"
        assert gate.entered == 1
        assert "RunTakenOver" not in types(await run.events())


async def test_resume_of_a_finished_run_gives_its_result(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        await (await engine.start(add, a=1, run_id="r")).result()
    async with hf.open(url(db), recover=False) as engine:
        assert await (await engine.resume("r")).result() == 3


async def test_a_run_waits_in_the_store_for_an_engine_that_may_drive_it(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def long(ctx: hf.Context) -> str:
        await gate.wait()
        return "done"

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(long, run_id="r")
        await gate.began.wait()
    gate.open.set()
    async with hf.open(url(db), recover=False) as engine:
        run = engine.get("r")
        assert await run.status() == "running"
        assert gate.entered == 1
        await engine.resume("r")
        assert await run.result() == "done"
        assert gate.entered == 2
    check_file(db)


async def test_leaving_the_engine_loses_no_attempt(db: Path) -> None:
    """An orderly stop is not an attempt: the body runs again later with the same number and the same key."""
    gate, seen = Gate(), []

    @hf.node
    async def body(ctx: hf.Context) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key))
        await gate.wait()
        return "done"

    @hf.workflow
    def stopped():
        return body()

    for _ in range(3):
        async with hf.open(url(db), grace_seconds=0) as engine:
            await engine.start(stopped, run_id="r")
            await gate.began.wait()
            gate.began.clear()
    gate.open.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "done"
        assert node_of(await engine.get("r").nodes(), "body")["attempt"] == 1
        assert (await engine.get("r").show())["recoveries"] == 0
    assert len(seen) == 4
    assert len(set(seen)) == 1
    check_file(db)


async def test_leaving_the_engine_lets_bodies_end_within_the_grace_time(db: Path) -> None:
    gate = Gate()

    @hf.node
    async def body() -> str:
        await gate.wait()
        return "ended in time"

    @hf.workflow
    def graceful():
        return body()

    async with hf.open(url(db), grace_seconds=30) as engine:
        await engine.start(graceful, run_id="r")
        await gate.began.wait()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "ended in time"
        assert gate.entered == 1
    check_file(db)


async def test_a_closed_engine_refuses_calls_instead_of_hanging(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(add, a=1)
        await run.result()
    with pytest.raises(hf.StoreError):
        await engine.start(add, a=1)
    with pytest.raises(hf.StoreError):
        await run.result()


async def test_result_does_not_hang_when_its_engine_is_left(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def stuck(ctx: hf.Context) -> None:
        await gate.wait()

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(stuck)
        await gate.began.wait()
        waiting = asyncio.ensure_future(run.result())
        following = asyncio.ensure_future(_all(run))
        await until(lambda: engine.hub.listening)
    with pytest.raises(hf.StoreError):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(hf.StoreError):
        await asyncio.wait_for(following, 30)


async def _all(run: hf.Run) -> list[int]:
    return [event.seq async for event in run.follow()]


async def test_sixty_four_concurrent_callers_just_work(db: Path) -> None:
    async with hf.open(url(db)) as engine:

        async def caller(i: int) -> int:
            run = await engine.start(add, a=i, run_id=f"caller-{i}")
            assert (await run.events())[0].type == "RunCreated"
            total = await run.result()
            assert await run.status() == "completed"
            return total

        assert await asyncio.gather(*(caller(i) for i in range(64))) == [i + 2 for i in range(64)]
    check_file(db)


async def test_two_engines_on_one_file_share_the_work_without_doing_it_twice(db: Path) -> None:
    ran: list[str] = []

    @hf.node
    async def work(name: str) -> str:
        ran.append(name)
        await asyncio.sleep(0)
        return name

    @hf.workflow
    def shared(name: str):
        return work.named("b")(work.named("a")(name))

    async with hf.open(url(db)) as one, hf.open(url(db)) as two:
        runs = [await (one, two)[i % 2].start(shared, name=f"n{i}", run_id=f"r{i}") for i in range(20)]
        # each run's result is asked of the engine that does not drive it
        results = await asyncio.gather(*((two, one)[i % 2].get(run.run_id).result() for i, run in enumerate(runs)))
        assert results == [f"n{i}" for i in range(20)]
    assert sorted(ran) == sorted([f"n{i}" for i in range(20)] * 2)
    check_file(db)


async def test_another_engine_cancels_a_run_that_this_one_drives(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        await gate.wait()

    async with hf.open(url(db)) as one, hf.open(url(db), recover=False) as two:
        run = await one.start(waits, run_id="r")
        await gate.began.wait()
        await two.get("r").cancel("from afar")
        with pytest.raises(hf.RunCancelled, match="from afar"):
            await run.result()
    check_file(db)


async def test_a_run_can_be_cancelled_while_nobody_drives_it(db: Path) -> None:
    gate = Gate()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        await gate.wait()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(waits, run_id="r")
        await gate.began.wait()
    async with hf.open(url(db), recover=False) as engine:
        await engine.get("r").cancel("nobody home")
        with pytest.raises(hf.RunCancelled, match="nobody home"):
            await engine.get("r").result()
    assert gate.entered == 1
    check_file(db)


async def test_a_sleeping_run_can_be_cancelled_while_nobody_drives_it(db: Path) -> None:
    @hf.workflow
    async def sleeps(ctx: hf.Context) -> None:
        await ctx.sleep("1d")

    async with hf.open(url(db)) as engine:
        run = await engine.start(sleeps, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(db), recover=False) as engine:
        await engine.get("r").cancel("enough")
        with pytest.raises(hf.RunCancelled, match="enough"):
            await engine.get("r").result()
        assert await engine.get("r").waits() == []
    check_file(db)


async def _is(run: hf.Run, status: str) -> bool:
    return await run.status() == status


def test_run_is_a_one_liner_with_the_same_answers(tmp_path: Path) -> None:
    where = url(tmp_path / "one.db")
    assert hf.run(sell, order=Order("a", 2), db=where, run_id="r") == {"label": "a:4", "total": 4}
    assert hf.run(sell, order=Order("a", 2), db=where, run_id="r") == {"label": "a:4", "total": 4}
    with pytest.raises(hf.RunFailed, match="no z"):
        hf.run(sell_badly, order=Order("z", 1), db=where)
    with pytest.raises(hf.RunExists):
        hf.run(sell, order=Order("b", 2), db=where, run_id="r")
    check_file(tmp_path / "one.db")


async def test_run_inside_async_code_says_what_to_use_instead(tmp_path: Path) -> None:
    with pytest.raises(hf.UsageError, match=r"hf\.open"):
        hf.run(add, a=1, db=url(tmp_path / "one.db"))


def test_run_leaves_the_other_unfinished_runs_of_the_store_alone_and_says_how_many_there_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "one.db"
    gates: list[Gate] = []

    @hf.workflow
    async def other(ctx: hf.Context) -> None:
        gates.append(Gate())
        await gates[-1].wait()

    async def leave_one() -> None:
        async with hf.open(url(path), grace_seconds=0) as engine:
            await engine.start(other, run_id="other")
            await until(lambda: gates)

    @hf.workflow
    async def asks(ctx: hf.Context) -> str:
        return await ctx.ask("Well?", schema=str)

    assert hf.run(add, a=1, db=url(path)) == 3
    with pytest.raises(hf.RunSuspended):
        hf.run(asks, db=url(path), run_id="asks")
    assert hf.run(add, a=1, db=url(path)) == 3
    assert caplog.messages == []
    asyncio.run(leave_one())
    told = "there is 1 other unfinished run that no engine drives; `hf.open()` takes over what is unfinished"
    assert hf.run(add, a=1, db=url(path)) == 3
    assert caplog.messages == [told]
    with pytest.raises(hf.RunSuspended):
        hf.run(asks, db=url(path), run_id="asks")
    assert caplog.messages == [told, told]
    assert len(gates) == 1
    states = check_file(path)
    assert states["other"].status == "running"


def test_run_waits_for_timers(tmp_path: Path) -> None:
    @hf.workflow
    async def naps(ctx: hf.Context) -> str:
        await ctx.sleep(0.05)
        return "rested"

    assert hf.run(naps, db=url(tmp_path / "one.db")) == "rested"
