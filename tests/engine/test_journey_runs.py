"""Journeys driven by a real engine: loops, parallel paths, baskets, tickets, forks, reopening, milestones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model import handlers
from holdfast.model.definition import Definition, Milestone, NodeDef, Settings
from holdfast.model.handlers import CodeLocation, RegisteredWorkflow
from tests.engine.kit import check_file, until, url
from tests.rules.units import TWO_BRANCHES, route, step

RAN: list[str] = []
DOES: dict[str, Any] = {}


@hf.node(name="jr.unit")
async def unit(ctx: hf.Context) -> Any:
    name = ctx.node if ctx.path == "." else f"{ctx.node}@{ctx.path}"
    RAN.append(name)
    does = DOES.get(ctx.node)
    answer = does(ctx) if callable(does) else does
    return await answer if asyncio.iscoroutine(answer) else answer


def _using(node: NodeDef) -> NodeDef:
    return node if node.unit == "join" else NodeDef(**{**_fields(node), "uses": "jr.unit"})


def _fields(node: NodeDef) -> dict[str, Any]:
    return {name: getattr(node, name) for name in NodeDef.__struct_fields__}


def register(name: str, *units: NodeDef, **options: Any) -> str:
    definition = Definition(name=name, nodes=tuple(map(_using, units)), start=units[0].id, **options)
    code = CodeLocation(kind="process")
    annotated = dict.fromkeys(definition.variables, Any)
    made = RegisteredWorkflow(definition=definition, code=code, params=(), returns=Any, variables=annotated)
    handlers.register_workflow(name, lambda: made)
    return name


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Path]:
    """A database file; afterwards the doctor finds nothing wrong in it."""
    RAN.clear()
    DOES.clear()
    yield tmp_path / "j.db"
    check_file(tmp_path / "j.db")


def again() -> list[str]:
    ran = sorted(RAN)
    RAN.clear()
    return ran


async def waits_of(run: hf.Run[Any], count: int) -> list[Any]:
    """The open waits of a run, once there are so many."""
    while len(found := await run.waits()) < count:  # noqa: ASYNC110 - nothing says when a commit has landed
        await asyncio.sleep(0.01)
    return found


LOOP = (step("a", "r"), route("r", again="a", done="z"), step("z", "end"))


async def test_a_journey_with_a_way_back_runs_to_its_end(db: Path) -> None:
    answers = iter(["again", "again", "done"])
    DOES["r"] = lambda ctx: next(answers)
    flow = register("jr_loop", *LOOP)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await run.result(timeout=30)
        assert RAN == ["a", "r", "a", "r", "a", "r", "z"]


async def test_parallel_paths_pend_and_are_resumed_in_any_order(db: Path) -> None:
    DOES["split"] = ["eu", "us"]
    DOES["e1"] = lambda ctx: hf.pend("desk", output=1)
    DOES["u1"] = lambda ctx: hf.pend("desk", output=2)
    flow = register("jr_pend", *TWO_BRANCHES)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await waits_of(run, 2)
        shown = await run.process_info()
        assert [p["pend_workbasket"] for p in shown["exec_paths"] if p["name"] != "."] == ["desk", "desk"]
        assert shown["last_executed_step"] in {"e1", "u1"}
        assert shown["last_executed_comp_name"] == "jr.unit"
        assert (shown["is_complete"], shown["ticket"]) == (False, "")
        assert shown["ts"] == int((await run.events())[-1].at.timestamp() * 1000)
        await run.resume(path=".split.us.")
        await run.resume(path=".split.eu.")
        await run.result(timeout=30)
        assert RAN[-2:] == ["e2@.split.eu.", "z"]
        paths = {p["name"]: p for p in (await run.paths())["paths"]}
        assert paths[".split.us."]["previous_basket"] == "desk"


async def test_a_fork_at_a_unit_runs_it_again_and_what_followed_on_its_path(db: Path) -> None:
    DOES["split"] = ["eu", "us"]
    flow = register("jr_fork", *TWO_BRANCHES)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await run.result(timeout=30)
        again()
        await run.fork(at="e1@.split.eu.")
        await run.result(timeout=30)
        assert again() == ["e1@.split.eu.", "e2@.split.eu.", "z"]
        await run.fork(at="split")
        await run.result(timeout=30)
        assert again() == ["e1@.split.eu.", "e2@.split.eu.", "split", "u1@.split.us.", "z"]
        await run.fork(at="start")
        await run.result(timeout=30)
        assert again() == ["a", "e1@.split.eu.", "e2@.split.eu.", "split", "u1@.split.us.", "z"]


async def test_a_fork_at_any_event_comes_to_the_same_end(db: Path) -> None:
    DOES["split"] = ["eu", "us"]
    flow = register("jr_fork_at", *TWO_BRANCHES)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await run.result(timeout=30)
        events = [e for e in await run.events() if e.type not in ("RunCompleted", "PathEnded")]
        for event in events:
            branch_1 = await run.fork(at=event.seq, branch=1)
            await branch_1.result(timeout=30)
            done = [n["node"] for n in await run.nodes() if n["status"] == "completed"]
            assert sorted(done) == ["a", "e1", "e2", "split", "u1", "z"], f"forked at {event.seq} {event.type}"


async def test_a_failed_unit_is_retried_and_the_journey_goes_to_its_end(db: Path) -> None:
    def broken(ctx: Any) -> None:
        raise ValueError("broken")

    DOES["split"] = ["eu", "us"]
    DOES["e2"] = broken
    flow = register("jr_retry", *TWO_BRANCHES)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        with pytest.raises(hf.RunFailed):
            await run.result(timeout=30)
        DOES.pop("e2")
        again()
        await run.retry()
        await run.result(timeout=30)
        assert again()[-2:] == ["e2@.split.eu.", "z"]


async def test_a_jump_to_a_unit_that_has_not_run_ends_every_path(db: Path) -> None:
    DOES["split"] = ["eu", "us"]
    DOES["e1"] = DOES["u1"] = lambda ctx: hf.pend("desk")
    flow = register("jr_jump", *TWO_BRANCHES)
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await waits_of(run, 2)
        again()
        await run.jump("z")
        await run.result(timeout=30)
        assert again() == ["z"]


async def test_a_completed_journey_is_reopened_by_a_ticket_in_a_basket_with_variables(db: Path) -> None:
    flow = register(
        "jr_reopen",
        step("a", "b"),
        step("b", "end"),
        tickets={"appeal": "b"},
        variables={"reason": {"type": "string"}},
        result=["var", "reason"],
        milestones=(Milestone(name="late", set_on="reopen", after=3600),),
    )
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        assert await run.result(timeout=30) is None
        again()
        with pytest.raises(hf.Refused, match="there is no ticket 'apeal'"):
            await run.reopen("apeal")
        await run.reopen("appeal", basket="second_look", vars={"reason": "complaint"}, actor="ann")
        waits = await waits_of(run, 1)
        assert (waits[0].kind, waits[0].basket) == ("pause", "second_look")
        assert [b["basket"] for b in await engine.baskets()] == ["second_look"]
        assert RAN == []
        await run.resume()
        assert await run.result(timeout=30) == "complaint"
        assert again() == ["b"]
        DOES["s"] = lambda ctx: hf.pend("desk")
        other = await engine.start(register("jr_waits", step("s", "end")), run_id="other")
        with pytest.raises(hf.Refused, match="only a run that has completed"):
            await other.reopen("appeal")


async def test_milestones_of_a_basket_move_the_path_and_then_resume_it(db: Path) -> None:
    DOES["a"] = lambda ctx: hf.pend("desk", output=None)
    entry: dict[str, Any] = {"set_on": "entry", "clears": "exit"}
    flow = register(
        "jr_milestones",
        step("a", "b"),
        step("b", "end"),
        milestones=(
            Milestone(name="late", basket="desk", after=0.05, action="move", to="boss", **entry),
            Milestone(name="later", basket="boss", after=0.05, action="resume", **entry),
        ),
    )
    async with hf.open(url(db)) as engine:
        run = await engine.start(flow)
        await run.result(timeout=30)
        reached = [e.data["milestone"] for e in await run.events() if e.type == "MilestoneReached"]
        assert reached == ["late", "later"]
        assert RAN == ["a", "b"]


async def test_a_journey_that_was_left_at_work_continues_in_the_next_engine(db: Path) -> None:
    DOES["split"] = ["eu", "us"]
    DOES["u1"] = lambda ctx: asyncio.sleep(3600)

    flow = register("jr_next_engine", *TWO_BRANCHES, settings=Settings(on_failure="pend:errors"))
    async with hf.open(url(db), grace_seconds=0.1) as engine:
        await engine.start(flow, run_id="r")
        await until(lambda: "e2@.split.eu." in RAN)
    DOES.pop("u1")
    again()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.result(timeout=30)
        assert "e1@.split.eu." not in again()
