"""Baskets on real engines: what `hf.pend` leads to, failures that lie in a basket, and who takes what out again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from tests.engine.kit import (
    attempts,
    check_file,
    check_harness,
    closed_waits,
    node_of,
    types,
    until,
    url,
    waiting,
    without_code_of,
)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@dataclass
class Case:
    name: str
    score: int = 0


CALLS: Counter[str] = Counter()
WORLD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _world() -> None:
    CALLS.clear()
    WORLD.clear()


@hf.node
async def bas_verify(ctx: hf.Context, case: Case) -> Case:
    CALLS["verify"] += 1
    noted = await ctx.step(note, "looked it up")
    if WORLD.get("down"):
        return hf.pend("retry_queue", rerun=True, error=f"registry is down, {noted}")
    ctx.vars["verified"] = True
    if case.name == "Mallory":
        return hf.ticket("reject")
    if case.name == "Trudy":
        return hf.pend("second_look", ticket="reject")
    return hf.pend("second_look", output=Case(case.name, 5))


def note(what: str) -> str:
    CALLS[what] += 1
    return what


@hf.node
async def bas_open(ctx: hf.Context, case: Case) -> str:
    CALLS["open"] += 1
    return f"an account for {case.name}, score {case.score}, verified: {ctx.vars['verified']}"


@hf.node
async def bas_reject(case: Case) -> str:
    CALLS["reject"] += 1
    return f"a letter to {case.name}"


@hf.workflow(variables={"verified": bool, "note": str}, tickets={"reject": "bas_reject"}, on_failure="pend:errors")
def bas_onboarding(case: Case) -> str:
    account = bas_open(bas_verify(case))
    with hf.when(hf.skipped(account)):
        letter = bas_reject(case)
    return hf.first(account, letter)


# --- the three ways -------------------------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_a_pended_node_waits_in_its_basket_and_the_next_one_runs_on_resume(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(bas_onboarding, case=Case("Ada"))
        (wait,) = await waiting(run, "basket")
        assert (wait.basket, wait.mode, wait.node, wait.error) == ("second_look", "next", "bas_verify", None)
        assert CALLS["open"] == 0
        assert await run.resume(actor="cy") == [wait.wait_id]
        assert await run.result() == "an account for Ada, score 5, verified: True"
        assert CALLS["verify"] == 1, "a body that has completed does not run again"
        assert closed_waits(await run.events()) == [("resumed", "cy")]
        assert node_of(await run.nodes(), "bas_verify")["output"] == {"name": "Ada", "score": 5}
    check_file(db)


async def test_external_failure_pends_as_an_error_and_the_same_node_runs_again_on_resume() -> None:
    """S3-56: into e.g. retry_queue, retried on resume; code, message and flag survive a reload."""
    WORLD["down"] = True
    async with harness() as h:
        run = await h.start(bas_onboarding, case=Case("Ada"))
        await h.crash()
        (wait,) = await run.waits()
        assert (wait.basket, wait.mode) == ("retry_queue", "error")
        assert wait.error == {"code": "pended", "message": "registry is down, looked it up"}
        node = node_of(await run.nodes(), "bas_verify")
        assert node["status"] == "suspended"
        await run.resume()  # it is still down: it lies in the basket again
        (again,) = await run.waits()
        assert again.wait_id != wait.wait_id
        WORLD.clear()
        await run.resume()
        (last,) = await run.waits()
        assert last.basket == "second_look"
        await run.resume()
        assert await run.result() == "an account for Ada, score 5, verified: True"
        events = await run.events()
        assert attempts(events, "bas_verify") == [1, 2, 3]
        assert [e.data["error"]["message"] for e in events if e.type == "NodeFailed"] == [
            "registry is down, looked it up"
        ] * 2
        assert CALLS["looked it up"] == 3, "with rerun nothing is remembered"
        check_harness(h)


async def test_an_error_without_rerun_keeps_what_was_remembered() -> None:
    @hf.node
    async def fragile(ctx: hf.Context) -> str:
        found = await ctx.step(note, "looked")
        if ctx.attempt == 1:
            return hf.pend("errors", error=ConnectionError("no answer"))
        return found

    @hf.workflow
    def bas_fragile() -> str:
        return fragile()

    async with harness() as h:
        run = await h.start(bas_fragile)
        (wait,) = await run.waits()
        assert wait.error is not None
        assert "no answer" in wait.error["message"]
        await run.resume()
        assert await run.result() == "looked"
        assert CALLS["looked"] == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_rerun_begins_with_an_empty_memory_and_is_no_failure(db: Path, kind: str) -> None:
    @hf.node
    async def asynchronous(ctx: hf.Context) -> list[str]:
        found = [await ctx.step(note, "step"), await ctx.ask("Sure?", schema=str)]
        if CALLS["step"] < 2:
            hf.pend("desk", rerun=True)
        return found

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> list[str]:
        found = [ctx.step(note, "step"), ctx.ask("Sure?", schema=str)]
        if CALLS["step"] < 2:
            return hf.pend("desk", rerun=True)
        return found

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"bas_rerun_{kind}")
    def reruns() -> list[str]:
        return node.named("body")()

    async with hf.open(url(db)) as engine:
        run = await engine.start(reruns)
        (asked,) = await waiting(run, "input")
        await run.respond(asked.wait_id, "first")
        (wait,) = await waiting(run, "basket")
        assert wait.mode == "same"
        await run.resume()
        (again,) = await waiting(run, "input")
        assert again.wait_id != asked.wait_id, "it asks again: it remembers nothing"
        await run.respond(again.wait_id, "second")
        assert await run.result() == ["step", "second"]
        events = await run.events()
        assert attempts(events, "body") == [1, 1]
        assert "NodeFailed" not in types(events)
    check_file(db)


async def test_what_follows_a_pended_node_reads_its_output_also_in_conditions_and_maps() -> None:
    @hf.node
    async def lists() -> list[int]:
        return hf.pend("desk", output=[1, 2, 3])

    @hf.node
    async def double(x: int) -> int:
        return 2 * x

    @hf.workflow
    def bas_lists() -> list[int]:
        found = lists()
        with hf.when(hf.size(found) > 2):
            doubled = hf.map(double, found)
        return hf.first(doubled, None)

    async with harness() as h:
        run = await h.start(bas_lists)
        await h.crash()
        await run.resume()
        assert await run.result() == [2, 4, 6]
        check_harness(h)


async def test_a_pend_with_an_output_that_cannot_be_stored_fails_its_node() -> None:
    @hf.node
    async def wrong() -> Any:
        return hf.pend("desk", output=object())

    @hf.workflow
    def bas_wrong_output() -> Any:
        return wrong()

    async with harness() as h:
        run = await h.start(bas_wrong_output)
        with pytest.raises(hf.RunFailed, match="result"):
            await run.result()


@hf.node(process=True)
def bas_in_a_process(way: str, marker: str) -> str:
    first = not Path(marker).exists()
    Path(marker).touch()
    if first and way == "next":
        hf.pend("desk", output="pended")
    if first and way == "same":
        hf.pend("desk", rerun=True)
    if first and way == "error":
        hf.pend("desk", error=ConnectionError("no answer"))
    return "again"


@hf.node(inline=True)
def bas_inline(way: str, marker: str) -> str:
    return bas_in_a_process.fn(way, marker)  # type: ignore[no-any-return]


@hf.workflow
def bas_by_kind(kind: str, way: str, marker: str) -> str:
    with hf.route(kind) as kinds:
        with kinds("process"):
            a = bas_in_a_process(way, marker)
        with kinds("inline"):
            b = bas_inline(way, marker)
    return hf.first(a, b)


@pytest.mark.parametrize("kind", ["process", "inline"])
@pytest.mark.parametrize("way", ["next", "same", "error"])
async def test_bodies_of_every_kind_pend_in_every_way(db: Path, kind: str, way: str) -> None:
    async with hf.open(url(db), processes=1) as engine:
        run = await engine.start(bas_by_kind, kind=kind, way=way, marker=str(db.with_suffix(".ran")))
        (wait,) = await waiting(run, "basket")
        assert (wait.basket, wait.mode) == ("desk", way)
        if way == "error":
            assert wait.error is not None
            assert "no answer" in wait.error["message"]
        await run.resume()
        assert await run.result() == ("pended" if way == "next" else "again")
    check_file(db)


async def test_a_pend_inside_a_map_of_steps_or_a_task_ends_the_whole_body() -> None:
    async def pends_at_two(n: int) -> int:
        CALLS[f"step {n}"] += 1
        if n == 2 and not WORLD.get("fine"):
            hf.pend("desk", error="two is not there")
        return n

    @hf.workflow
    async def bas_in_steps(ctx: hf.Context) -> list[int]:
        return await ctx.map(pends_at_two, [1, 2, 3], limit=1)

    @hf.workflow
    async def bas_in_tasks(ctx: hf.Context) -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(pends_at_two, n)) for n in (1, 2, 3)]
        return [task.result() for task in tasks]

    async with harness() as h:
        runs = [await h.start(bas_in_steps), await h.start(bas_in_tasks)]
        for run in runs:
            (wait,) = await run.waits()
            assert wait.error is not None
            assert wait.error["message"] == "two is not there"
        WORLD["fine"] = True
        for run in runs:
            await run.resume()
            assert await run.result() == [1, 2, 3]
        assert CALLS["step 1"] == 2, "what was done is remembered"
        check_harness(h)


async def test_durable_code_pends_as_a_whole() -> None:
    @hf.workflow
    async def bas_code(ctx: hf.Context) -> str:
        await ctx.step(note, "once")
        if CALLS["once"] == 1:
            hf.pend("desk", rerun=True)
        return "done"

    async with harness() as h:
        run = await h.start(bas_code)
        assert [w.basket for w in await run.waits()] == ["desk"]
        await run.resume()
        assert await run.result() == "done"
        assert CALLS["once"] == 2


# --- tickets and variables ------------------------------------------------------------------------------------------


async def test_a_ticket_with_a_pend_is_redeemed_on_resume() -> None:
    async with harness() as h:
        run = await h.start(bas_onboarding, case=Case("Trudy"))
        await h.crash()
        assert (CALLS["reject"], [w.basket for w in await run.waits()]) == (0, ["second_look"])
        await run.resume()
        assert await run.result() == "a letter to Trudy"
        assert CALLS["open"] == 0
        check_harness(h)


async def test_variables_are_injected_on_resume_typed_and_all_or_nothing() -> None:
    async with harness() as h:
        run = await h.start(bas_onboarding, case=Case("Ada"))
        (wait,) = await run.waits()
        for wrong in ({"verified": "yes"}, {"note": "fine", "verified": None}, {"verifid": False}):
            with pytest.raises(hf.Refused, match="variable"):
                await run.resume(vars=wrong)
        assert await run.waits() == [wait], "nothing was resumed"
        assert "VariablesSet" not in types(await run.events())
        await run.resume(vars={"verified": False, "note": "checked by hand"}, actor="cy")
        assert await run.result() == "an account for Ada, score 5, verified: False"
        (given,) = [e for e in await run.events() if e.type == "VariablesSet"]
        assert given.data["actor"] == "cy"
        check_harness(h)


# --- failures -------------------------------------------------------------------------------------------------------


async def test_on_failure_pend_puts_an_exception_into_the_basket_and_resume_tries_again() -> None:
    @hf.node(retry=hf.Retry(attempts=2, backoff=0))
    async def fails(ctx: hf.Context) -> str:
        CALLS["fails"] += 1
        if not WORLD.get("mended"):
            raise ValueError("broken")
        return "mended"

    @hf.workflow(on_failure="pend:errors")
    def bas_fails() -> str:
        return fails()

    async with harness() as h:
        run = await h.start(bas_fails)
        (wait,) = await run.waits()
        assert (wait.basket, wait.mode, CALLS["fails"]) == ("errors", "error", 2)
        assert wait.error is not None
        assert "broken" in wait.error["message"]
        await run.resume()
        assert CALLS["fails"] == 4, "all its tries again"
        WORLD["mended"] = True
        await h.crash()
        await run.resume()
        assert await run.result() == "mended"
        check_harness(h)


async def test_hf_run_says_which_basket_it_lies_in(db: Path) -> None:
    with pytest.raises(hf.RunSuspended) as caught:
        await asyncio.to_thread(lambda: hf.run(bas_onboarding, case=Case("Ada"), run_id="r", db=url(db)))
    assert "second_look" in caught.value.message
    assert caught.value.command == "holdfast resume r"


# --- which one ------------------------------------------------------------------------------------------------------


@hf.node
async def bas_branch(region: str) -> str:
    CALLS[region] += 1
    return hf.pend("managers", output=region.upper())


@hf.node
async def bas_after(region: str) -> str:
    CALLS[f"after {region}"] += 1
    return f"{region}!"


@hf.workflow
def bas_three(regions: list[str]) -> list[str]:
    return hf.map(lambda region: bas_after(bas_branch(region)), regions)


REGIONS = ["north", "middle", "south"]


@pytest.mark.parametrize("by", ["wait", "path"])
async def test_of_three_pended_branches_the_second_is_resumed_alone(by: str) -> None:
    """B3-01: two managers approve in any order."""
    async with harness() as h:
        run = await h.start(bas_three, regions=REGIONS)
        waits = {w.path: w for w in await run.waits()}
        second = waits[".map.1."]
        named = {"wait": second.wait_id} if by == "wait" else {"path": ".map.1."}
        assert await run.resume(**named) == [second.wait_id]
        assert [CALLS[f"after {r.upper()}"] for r in REGIONS] == [0, 1, 0]
        await h.crash()
        assert {w.path for w in await run.waits()} == {".map.0.", ".map.2."}
        for path in (".map.2.", ".map.0."):
            await run.resume(path=path)
        assert await run.result() == ["NORTH!", "MIDDLE!", "SOUTH!"]
        assert [CALLS[r] for r in REGIONS] == [1, 1, 1]
        check_harness(h)


async def test_only_the_branch_that_was_cut_off_runs_again() -> None:
    """S3-33: three branches, the middle one interrupted; its siblings are untouched."""

    @hf.node
    async def slow(region: str) -> str:
        CALLS[region] += 1
        if region == "middle" and CALLS[region] == 1:
            await asyncio.Event().wait()
        return hf.pend("managers", output=region)

    @hf.workflow
    def bas_cut_off(regions: list[str]) -> list[str]:
        return hf.map(slow, regions)

    async with harness() as h:
        run = await h.start(bas_cut_off, regions=REGIONS)
        await h.crash()
        assert [CALLS[r] for r in REGIONS] == [1, 2, 1]
        for _ in REGIONS:
            await run.resume()
        assert await run.result() == REGIONS
        events = await run.events()
        assert [attempts(events, "slow", f".slow.{key}.") for key in range(3)] == [[1], [1, 2], [1]]


async def test_a_name_that_fits_nothing_says_what_there_is() -> None:
    async with harness() as h:
        run = await h.start(bas_three, regions=REGIONS)
        with pytest.raises(hf.Refused, match=r"\.map\.0\., \.map\.1\., \.map\.2\."):
            await run.resume(path=".map.9.")
        with pytest.raises(hf.Refused):
            await run.resume(wait="w_nothing")
        assert len(await run.waits()) == 3


async def test_of_two_who_resume_the_same_node_one_wins_and_it_goes_on_once(db: Path) -> None:
    async with hf.open(url(db)) as engine, hf.open(url(db)) as other:
        run = await engine.start(bas_three, regions=REGIONS)
        waits = await waiting(run, "basket", "basket", "basket")
        for wait in waits:
            outcomes = await asyncio.gather(
                run.resume(wait=wait.wait_id, actor="ada"),
                other.get(run.run_id).resume(wait=wait.wait_id, actor="bob"),
                return_exceptions=True,
            )
            (lost,) = [o for o in outcomes if isinstance(o, hf.Refused)]
            assert "was resumed by" in lost.message
        assert await run.result() == ["NORTH!", "MIDDLE!", "SOUTH!"]
        assert set(CALLS.values()) == {1}
    check_file(db)


async def test_a_node_can_be_moved_to_another_basket_with_a_trace_and_counted() -> None:
    async with harness() as h:
        run = await h.start(bas_three, regions=REGIONS)
        waits = await run.waits()
        await run.reassign(waits[0].wait_id, basket="night shift", actor="cy")
        await h.crash()
        found = {b["basket"]: (b["questions"], b["pended"]) for b in await h.wait(h.engine.baskets())}
        assert found == {"managers": (0, 2), "night shift": (0, 1)}
        (edited,) = [e for e in await run.events() if e.type == "RunEdited"]
        assert (edited.data["actor"], edited.data["before"]["basket"], edited.data["after"]["basket"]) == (
            "cy",
            "managers",
            "night shift",
        )
        assert [w.wait_id for w in await h.wait(h.engine.asked(basket="night shift"))] == [waits[0].wait_id]
        await run.resume(wait=waits[0].wait_id)
        assert CALLS["after NORTH"] == 1


async def test_engine_resume_takes_a_node_out_of_its_basket_too(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(bas_three, regions=REGIONS, run_id="r")
        await waiting(run, "basket", "basket", "basket")
    async with hf.open(url(db), recover=False) as engine:
        await engine.resume("r", path=".map.1.")
        await until(lambda: CALLS["after MIDDLE"] == 1, "it goes on here")
        await waiting(engine.get("r"), "basket", "basket")
    check_file(db)


async def test_a_basket_is_left_with_no_engine_running_and_no_code(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(bas_three, regions=["north"], run_id="r")
        await waiting(run, "basket")
    with without_code_of("bas_three"):
        async with hf.open(url(db)) as engine:
            await engine.get("r").resume(actor="ada")
            with pytest.raises(hf.Refused):
                await engine.get("r").resume(path=".map.0.")
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == ["NORTH!"]
    check_file(db)


async def test_a_run_in_a_basket_is_evicted_and_goes_on_when_another_engine_resumes_it(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(bas_onboarding, case=Case("Ada"))
        await until(lambda: not engine.actors, "it is evicted")
        await other.get(run.run_id).resume()
        assert await run.result() == "an account for Ada, score 5, verified: True"
        assert CALLS == {"verify": 1, "open": 1, "looked it up": 1}
    check_file(db)


async def test_a_run_in_a_basket_can_be_cancelled_and_what_it_did_is_undone() -> None:
    @hf.node
    async def undo(receipt: str) -> None:
        CALLS[f"undo {receipt}"] += 1

    @hf.node(compensate=undo)
    async def pays() -> str:
        return hf.pend("desk", output="receipt")

    @hf.workflow(on_failure="compensate")
    def bas_paid() -> str:
        return pays()

    async with harness() as h:
        run = await h.start(bas_paid)
        await h.crash()
        await run.cancel("no longer wanted")
        with pytest.raises(hf.RunCancelled):
            await run.result()
        assert CALLS == {"undo receipt": 1}
        check_harness(h)


async def test_a_task_that_a_pended_body_left_behind_does_not_take_it_out_of_its_basket(db: Path) -> None:
    finish = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def slow_step() -> str:
        await finish.wait()
        return "late"

    @hf.node
    async def leaves_a_task(ctx: hf.Context) -> str:
        tasks.append(asyncio.create_task(ctx.step(slow_step)))
        await asyncio.sleep(0)
        await ctx.step(note, "first")
        return hf.pend("desk", output="pended")

    @hf.workflow
    def bas_left_behind() -> str:
        return leaves_a_task()

    async with hf.open(url(db)) as engine:
        run = await engine.start(bas_left_behind)
        (wait,) = await waiting(run, "basket")
        finish.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await run.waits() == [wait]
        assert await run.status() == "suspended"
        await run.resume()
        assert await run.result() == "pended"
    check_file(db)
