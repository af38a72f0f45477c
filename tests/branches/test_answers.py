"""Answers as edits of a branch: what a person would have said, without asking again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended
from tests.engine.kit import closed_waits, types, until_async, url, waiting


@hf.node
async def br_quotes(ctx: hf.Context, x: int) -> int:
    """Asks twice in a row."""
    world.here.enter("quotes")
    price = await ctx.ask("Which price?", schema=int, about=x, basket="sales")
    count = await ctx.ask(
        "How many?", schema=int, assignee="ann", remind="1h", escalate=hf.Escalate("2h", assignee="boss")
    )
    return int(price * count)


@hf.workflow
def br_quoted(x: int):
    return add.named("after")(br_quotes(add.named("before")(x)))


async def asks(run: hf.Run[Any], question: str) -> str:
    """The id of the one question that a run asks, once it is this one."""

    async def asked() -> str | None:
        found = [w for w in await run.waits() if w.question == question]
        return found[0].wait_id if found and await run.status() == "suspended" else None

    return str(await until_async(asked, f"{run} asks {question!r}"))


async def test_a_question_that_is_open_is_answered_by_the_commit_that_opens_the_branch(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        wait = await asks(run, "Which price?")
        await run.fork(edits={"answers": {wait: 7}}, actor="ann")
        second = await asks(run, "How many?")
        opened = [e for e in await run.events(branch=2) if e.branch == 2]
        first = next(i for i, e in enumerate(opened) if e.type == "AnswerEdited")
        assert [e.type for e in opened[first : first + 2]] == ["AnswerEdited", "WaitClosed"]
        assert (opened[first + 1].data["value"], opened[first + 1].data["actor"]) == (7, "ann")
        assert "RunTakenOver" in types(opened[first:]), "nothing ran before"
        await run.respond(second, 3)
        assert await ended(run) == 22
        assert bodies.again().count("before") == 1


async def test_a_question_that_is_asked_again_has_the_answer_at_once_and_the_others_are_asked(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        price = await asks(run, "Which price?")
        await run.respond(price, 1)
        count = await asks(run, "How many?")
        await run.respond(count, 1)
        assert await ended(run) == 2
        await run.fork(at="br_quotes", edits={"answers": {count: 10}}, actor="bob")
        again = await asks(run, "Which price?")
        assert again != price
        await run.respond(again, 5, actor="ann")
        assert await ended(run) == 51
        assert closed_waits([e for e in await run.events() if e.branch == 2]) == [
            ("answered", "ann"),
            ("answered", "bob"),
        ]
        row = engine.store.run(run.run_id)
        assert row is not None
        assert b"answers" not in (row.fold or b""), "it has served its purpose"


async def test_an_answer_behind_the_cut_is_replaced_and_what_came_before_it_is_kept(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        price, _ = await asks(run, "Which price?"), None
        await run.respond(price, 4)
        count = await asks(run, "How many?")
        await run.respond(count, 1)
        assert await ended(run) == 5
        put = next(e.seq for e in await run.events() if e.type == "WaitOpened" and e.data["wait_id"] == count)
        await run.fork(at=put, edits={"answers": {count: 2}})
        assert await ended(run) == 9
        assert bodies.again().count("before") == 1


async def test_answers_that_do_not_fit_or_have_no_question_change_nothing(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        wait = await asks(run, "Which price?")
        with pytest.raises(hf.InvalidInput, match="this does not answer"):
            await run.fork(edits={"answers": {wait: "much"}})
        with pytest.raises(hf.InvalidInput, match=f"there is no question w_none on this branch; there are: {wait}"):
            await run.fork(at="br_quotes", edits={"answers": {"w_none": 1}})
        with pytest.raises(hf.InvalidInput, match="edited answers are an object"):
            await run.fork(edits={"answers": [1]})
        await run.respond(wait, 1)
        await asks(run, "How many?")
        with pytest.raises(hf.Refused, match=r"has ended before the cut.*fork at br_quotes"):
            await run.fork(edits={"answers": {wait: 2}})
        assert len(await run.branches()) == 1
        await run.cancel()


async def test_only_questions_have_answers(db: Path, bodies: World) -> None:
    @hf.workflow
    async def br_only_sleeps(ctx: hf.Context) -> None:
        await ctx.sleep("1h")

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_only_sleeps)
        (wait,) = await waiting(run, "timer")
        with pytest.raises(hf.InvalidInput, match="is no question but a timer"):
            await run.fork(edits={"answers": {wait.wait_id: 1}})
        await run.cancel()


async def test_an_answer_waits_for_its_question_through_a_crash_and_another_branch(db: Path, bodies: World) -> None:
    @hf.node
    async def br_asks_late(ctx: hf.Context, x: int) -> str:
        return str(await ctx.ask("Late?", schema=str))

    @hf.workflow
    def br_late(x: int):
        return br_asks_late(add.named("first")(x))

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_late, x=0, run_id="late")
        wait = await asks(run, "Late?")
        await run.respond(wait, "no")
        assert await ended(run) == "no"
        bodies.broken = {"first"}
        await run.fork(at="first", edits={"answers": {wait: "yes"}})
        assert "first is broken" in await ended(run)
    bodies.broken = set()
    async with hf.open(url(db)) as engine:
        run = engine.get("late")
        await run.retry()
        assert await ended(run) == "yes", "the retry dropped nothing of it"
        await run.fork(at="br_asks_late")
        await run.respond(await asks(run, "Late?"), "asked")
        assert await ended(run) == "asked", "who drops the question drops the answer that was given to it"


async def test_an_answer_to_another_question_is_not_used(db: Path, bodies: World) -> None:
    """The new input leads to another question: a person answers it."""
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        wait = await asks(run, "Which price?")
        await run.fork(at="start", edits={"input": {"x": 5}, "answers": {wait: 7}})
        assert await asks(run, "Which price?") != wait
        await run.cancel()


async def test_a_run_of_its_own_gets_the_answer_when_it_asks(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        wait = await asks(run, "Which price?")
        other = await run.fork(as_run="other", edits={"answers": {wait: 6}})
        await other.respond(await asks(other, "How many?"), 2)
        assert await ended(other) == 13
        assert await asks(run, "Which price?") == wait, "the first run waits as before"
        await run.cancel()


async def test_the_engines_own_question_can_be_answered_by_a_branch(db: Path, bodies: World) -> None:
    @hf.node(on_crash="ask")
    async def br_charges(x: int) -> int:
        world.here.enter("charges")
        await world.here.wait()
        return x

    @hf.workflow
    def br_charged(x: int):
        return add.named("after")(br_charges(x))

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_charged, x=1, run_id="charged")
        await bodies.waiting.wait()
        row = engine.store.run("charged")
        assert row is not None
        engine.actors[row.run_no].detach(None)
        await engine.committer.call(engine.store.release, engine.lease.engine, [(row.run_no, row.token)])
        await engine.claims.claim([row.run_no])
        (wait,) = await waiting(run, "input")
        with pytest.raises(hf.InvalidInput):
            await run.fork(edits={"answers": {wait.wait_id: {"done": "perhaps"}}})
        await run.fork(edits={"answers": {wait.wait_id: {"done": True, "output": 40}}})
        assert await ended(run) == 41
        assert bodies.again() == ["after", "charges"]
        with pytest.raises(hf.Refused, match="an attempt that is not on the new branch"):
            await run.fork(at="br_charges", edits={"answers": {wait.wait_id: {"done": False}}})


async def test_a_dry_run_says_which_answers_it_brings(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_quoted, x=0)
        wait = await asks(run, "Which price?")
        shown = await run.preview("fork", "br_quotes", edits={"answers": {wait: 1}})
        assert shown["answered"] == [wait]
        await run.cancel()


async def test_a_phase_ends_when_a_branch_brings_what_its_last_node_would_have_said(db: Path, bodies: World) -> None:
    @hf.node
    async def br_last_of_phase(ctx: hf.Context) -> int:
        return int(await ctx.ask("When?", schema=int))

    @hf.workflow
    def br_phased():
        with hf.phase("only"):
            last = br_last_of_phase()
        return add.named("behind")(last)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_phased)
        await asks(run, "When?")
        await run.fork(edits={"outputs": {"br_last_of_phase": 4}})
        assert await ended(run) == 5
        assert types(await run.events()).count("PhaseCompleted") == 1
