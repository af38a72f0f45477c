"""Questions to people, on real engines: asked once, answered once, by whoever is first, engine or no engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    hold_time,
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
class Decision:
    approved: bool
    note: str = ""


@dataclass
class Order:
    id: str
    amount: int


CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _calls() -> None:
    CALLS.clear()


def count(what: str) -> str:
    CALLS[what] += 1
    return what


@hf.workflow
async def ask_once(ctx: hf.Context, order: Order) -> Decision:
    CALLS["bodies"] += 1
    return await ctx.ask(
        "Ship this order?", about=order, schema=Decision, assignee="ann", basket="finance", deadline="2d"
    )


ORDER = Order("42", 1500)


# --- asking ---------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_a_question_waits_in_a_row_and_its_answer_comes_back_typed(db: Path) -> None:
    @hf.node
    async def ship(decision: Decision) -> str:
        return f"shipped, {decision.note}"

    @hf.workflow
    def ask_in_a_graph(order: Order) -> str:
        ok = hf.ask("Ship this order?", about=order, schema=Decision, basket="finance", deadline="2d")
        with hf.when(ok.approved):
            return ship(ok)

    async with hf.open(url(db)) as engine:
        run = await engine.start(ask_in_a_graph, order=ORDER)
        (wait,) = await waiting(run, "input")
        assert (wait.node, wait.path, wait.question, wait.basket) == ("ask", ".", "Ship this order?", "finance")
        assert wait.about == {"id": "42", "amount": 1500}
        assert wait.until is not None
        assert wait.since is not None
        assert abs(wait.until - wait.since - timedelta(days=2)) < timedelta(minutes=1)
        assert wait.schema["$defs"]["Decision"]["required"] == ["approved"]
        await run.respond(wait.wait_id, Decision(True, "gladly"), actor="ada")
        assert await run.result() == "shipped, gladly"
        assert closed_waits(await run.events()) == [("answered", "ada")]
        assert node_of(await run.nodes(), "ask")["output"] == {"approved": True, "note": "gladly"}
    check_file(db)


async def test_what_the_wait_says_is_what_json_shows() -> None:
    async with harness() as h:
        run = await h.start(ask_once, order=ORDER, run_id="r")
        (wait,) = await run.waits()
        shown = wait.as_json()
        assert (shown["run_id"], shown["workflow"], shown["kind"], shown["assignee"]) == (
            "r",
            "ask_once",
            "input",
            "ann",
        )
        assert datetime.fromisoformat(shown["until"]) == wait.until
        assert await h.wait(h.engine.asked()) == [wait]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_body_that_runs_again_gets_its_earlier_answers_back_and_asks_only_what_is_new(kind: str) -> None:
    @hf.node
    async def asynchronous(ctx: hf.Context) -> list[Any]:
        CALLS["bodies"] += 1
        found = [await ctx.ask("first?", schema=int), await ctx.step(count, "between")]
        return [*found, await ctx.ask("second?", schema=str), await ctx.ask("third?", schema=bool)]

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> list[Any]:
        CALLS["bodies"] += 1
        found = [ctx.ask("first?", schema=int), ctx.step(count, "between")]
        return [*found, ctx.ask("second?", schema=str), ctx.ask("third?", schema=bool)]

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"ask_in_a_row_{kind}")
    def in_a_row() -> list[Any]:
        return node.named("body")()

    async with harness() as h:
        run = await h.start(in_a_row)
        for answer in (1, "two", True):
            await h.crash()
            (wait,) = await run.waits()
            await run.respond(wait.wait_id, answer)
        assert await run.result() == [1, "between", "two", True]
        events = await run.events()
        assert [e.data["about"]["question"] for e in events if e.type == "WaitOpened"] == [
            "first?",
            "second?",
            "third?",
        ]
        assert CALLS["between"] == 1
        assert CALLS["bodies"] > 3
        assert attempts(events, "body") == [1], "waiting is no attempt, and neither is a crash meanwhile"
        check_harness(h)


async def test_a_body_asks_several_people_at_once_and_goes_on_with_each_answer() -> None:
    @hf.workflow
    async def ask_at_once(ctx: hf.Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask_and_note(ctx, who)) for who in ("ann", "bob", "cy")]
        return [task.result() for task in tasks]

    async def ask_and_note(ctx: hf.Context, who: str) -> str:
        said = await ctx.ask("Yes?", assignee=who, schema=str)
        return await ctx.step(count, f"{who} {said}")

    async with harness() as h:
        run = await h.start(ask_at_once)
        waits = {w.assignee: w.wait_id for w in await run.waits()}
        assert set(waits) == {"ann", "bob", "cy"}
        await run.respond(waits["cy"], "no")
        assert CALLS == {"cy no": 1}, "it does not wait for the others"
        await h.crash()
        await run.respond(waits["ann"], "yes")
        await h.crash()
        await run.respond(waits["bob"], "perhaps")
        assert await run.result() == ["ann yes", "bob perhaps", "cy no"]
        assert set(CALLS.values()) == {1}
        assert types(await run.events()).count("WaitOpened") == 3
        check_harness(h)


async def test_gathered_questions_are_asked_once_over_crashes() -> None:
    @hf.workflow
    async def ask_gathered(ctx: hf.Context) -> list[int]:
        return await asyncio.gather(*(ctx.ask(f"Number {n}?", schema=int) for n in range(3)))

    async with harness() as h:
        run = await h.start(ask_gathered)
        for n in (2, 0, 1):
            await h.crash()
            (wait,) = [w for w in await run.waits() if w.question == f"Number {n}?"]
            await run.respond(wait.wait_id, n * 10)
        assert await run.result() == [0, 10, 20]
        assert types(await run.events()).count("WaitOpened") == 3
        check_harness(h)


async def test_a_sync_body_gives_its_thread_back_while_it_waits(db: Path) -> None:
    @hf.node
    def asks(ctx: hf.SyncContext, number: int) -> int:
        CALLS["bodies"] += 1
        return ctx.ask(f"Number {number}?", schema=int)

    @hf.workflow
    def ask_in_threads() -> list[int]:
        return hf.map(asks, list(range(8)))

    async with hf.open(url(db), threads=1) as engine:
        run = await engine.start(ask_in_threads)
        waits = await waiting(run, *["input"] * 8)
        for wait in waits:
            await run.respond(wait.wait_id, len(wait.question or ""))
        assert await run.result() == [9] * 8
        assert types(await run.events()).count("WaitOpened") == 8
    assert CALLS["bodies"] == 16
    check_file(db)


async def test_a_question_in_every_item_of_a_map_is_answered_each_by_itself() -> None:
    @hf.workflow
    def ask_for_items(orders: list[Order]) -> list[bool]:
        return hf.map(lambda order: hf.ask("Ship?", about=order, schema=bool), orders)

    async with harness() as h:
        run = await h.start(ask_for_items, orders=[Order("a", 1), Order("b", 2)])
        by_path = {w.path: w for w in await run.waits()}
        assert {p: w.about["id"] for p, w in by_path.items()} == {".map.0.": "a", ".map.1.": "b"}
        await run.respond(by_path[".map.1."].wait_id, False)
        assert [w.path for w in await run.waits()] == [".map.0."]
        await run.respond(by_path[".map.0."].wait_id, True)
        assert await run.result() == [True, False]


async def test_the_same_question_in_every_round_is_another_question() -> None:
    """The status shows what is asked now, not what was asked first."""

    @hf.workflow
    async def ask_until_content(ctx: hf.Context) -> int:
        rounds = 0
        while not await ctx.ask("Good enough?", schema=bool):
            rounds += 1
        return rounds

    async with harness() as h:
        run = await h.start(ask_until_content)
        seen = []
        for answer in (False, False, True):
            (wait,) = await run.waits()
            seen.append(wait.wait_id)
            await run.respond(wait.wait_id, answer)
        assert len(set(seen)) == 3
        assert await run.result() == 2


# --- answers --------------------------------------------------------------------------------------------------------


async def test_a_wrong_answer_is_told_everything_that_is_wrong_and_the_question_stays_open() -> None:
    @hf.workflow
    async def ask_for_an_order(ctx: hf.Context) -> Order:
        return await ctx.ask("Which?", schema=Order)

    async with harness() as h:
        run = await h.start(ask_for_an_order)
        (wait,) = await run.waits()
        before = len(await run.events())
        with pytest.raises(hf.InvalidInput) as caught:
            await run.respond(wait.wait_id, {"id": 5})
        assert "id" in caught.value.message
        assert "amount" in caught.value.message
        assert len(await run.events()) == before, "it is never stored as an answer"
        assert await run.waits() == [wait]
        await run.respond(wait.wait_id, {"id": "5", "amount": 1})
        assert await run.result() == Order("5", 1)


async def test_of_two_who_answer_at_once_one_wins_and_the_other_learns_who(db: Path) -> None:
    async with hf.open(url(db)) as engine, hf.open(url(db)) as other:
        for number in range(10):
            run = await engine.start(ask_once, order=ORDER, run_id=f"r{number}")
            (wait,) = await waiting(run, "input")
            outcomes = await asyncio.gather(
                run.respond(wait.wait_id, Decision(True), actor="ada"),
                other.get(run.run_id).respond(wait.wait_id, Decision(False), actor="bob"),
                return_exceptions=True,
            )
            (lost,) = [o for o in outcomes if o is not None]
            winner = "ada" if outcomes[0] is None else "bob"
            assert isinstance(lost, hf.Refused)
            assert f"was answered by {winner}" in lost.message
            assert await run.result() == Decision(winner == "ada")
            assert closed_waits(await run.events()) == [("answered", winner)]
    check_file(db)


async def test_an_answer_against_a_cancel_has_one_winner(db: Path) -> None:
    async with hf.open(url(db)) as engine, hf.open(url(db)) as other:
        for number in range(10):
            run = await engine.start(ask_once, order=ORDER, run_id=f"r{number}")
            (wait,) = await waiting(run, "input")
            asked = [
                other.get(run.run_id).respond(wait.wait_id, Decision(True), actor="ada"),
                run.cancel("changed my mind", actor="bob"),
            ]
            outcomes = await asyncio.gather(*(asked if number % 2 else asked[::-1]), return_exceptions=True)
            refused = [o for o in outcomes if o is not None]
            assert all(isinstance(o, hf.Refused) for o in refused), outcomes
            status = await until_ended(run)
            answers = [outcome for outcome, _ in closed_waits(await run.events())]
            if status == "completed":
                assert answers == ["answered"]
            else:  # the answer was taken, and then the run was cancelled; or it came second
                assert answers == (["cancelled"] if refused else ["answered"])
    check_file(db)


async def until_ended(run: hf.Run[Any]) -> str:
    try:
        await run.result()
    except hf.RunCancelled:
        return "cancelled"
    return "completed"


async def test_an_answer_needs_neither_an_engine_that_runs_nor_the_code(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(ask_once, order=ORDER, run_id="r")
        (wait,) = await waiting(run, "input")
    with without_code_of("ask_once"):
        async with hf.open(url(db)) as engine:
            with pytest.raises(hf.InvalidInput):
                await engine.get("r").respond(wait.wait_id, {"approved": "yes"})
            await engine.get("r").respond(wait.wait_id, {"approved": True}, actor="ada")
            with pytest.raises(hf.Refused, match="answered by ada"):
                await engine.get("r").respond(wait.wait_id, {"approved": False}, actor="bob")
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == Decision(True)
    check_file(db)


async def test_a_compensation_may_ask_a_person() -> None:
    @hf.node
    async def refund(ctx: hf.Context, receipt: str) -> None:
        note = await ctx.ask(f"Was {receipt} paid back?", schema=str)
        await ctx.step(count, note)

    @hf.node(compensate=refund)
    async def charge() -> str:
        return "receipt-1"

    @hf.node
    async def breaks(receipt: str) -> None:
        raise ValueError("no")

    @hf.workflow(on_failure="compensate")
    def ask_while_undoing() -> None:
        breaks(charge())

    async with harness() as h:
        run = await h.start(ask_while_undoing)
        await h.crash()
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, "yes, by hand")
        with pytest.raises(hf.RunFailed):
            await run.result()
        assert CALLS == {"yes, by hand": 1}
        check_harness(h)


async def test_a_run_that_waits_costs_a_row_and_is_woken_by_the_answer_that_another_engine_takes(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(ask_once, order=ORDER)
        await until(lambda: not engine.actors, "it is evicted")
        (wait,) = await run.waits()
        assert CALLS["bodies"] == 1
        await other.get(run.run_id).respond(wait.wait_id, Decision(True))
        assert await run.result() == Decision(True)
        assert attempts(await run.events(), "ask_once") == [1]
    check_file(db)


async def test_answers_to_the_wrong_run_or_wait_are_refused() -> None:
    async with harness() as h:
        one, two = await h.start(ask_once, order=ORDER), await h.start(ask_once, order=ORDER)
        (wait,) = await one.waits()
        with pytest.raises(hf.Refused):
            await two.respond(wait.wait_id, Decision(True))
        with pytest.raises(hf.Refused):
            await one.respond("w_nothing", Decision(True))
        assert await one.waits() == [wait]


async def test_a_question_is_answered_at_any_later_time() -> None:
    """B1 and B2: a question without an answer is normal; nothing recovers it, nothing times out."""

    @hf.workflow
    async def ask_without_a_deadline(ctx: hf.Context) -> str:
        return await ctx.ask("Anybody there?", schema=str)

    async with harness() as h:
        run = await h.start(ask_without_a_deadline)
        before = types(await run.events())
        for _ in range(3):
            await h.advance(days=400)
            await h.crash()
        assert types(await run.events()) == before, "waiting leaves no trace, and neither does a crash meanwhile"
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, "yes")
        assert await run.result() == "yes"


async def test_hf_run_says_what_it_waits_for_and_which_command_answers(tmp_path: Path) -> None:
    def run_it() -> Any:
        return hf.run(ask_once, order=ORDER, run_id="r", db=url(tmp_path / "runs.db"))

    with pytest.raises(hf.RunSuspended) as caught:
        await asyncio.to_thread(run_it)
    suspended = caught.value
    (wait,) = suspended.waits
    assert (suspended.run_id, wait.question) == ("r", "Ship this order?")
    assert suspended.command == f"holdfast respond {wait.wait_id}"
    async with hf.open(url(tmp_path / "runs.db"), recover=False) as engine:
        await engine.get("r").respond(wait.wait_id, Decision(True))
    assert await asyncio.to_thread(run_it) == Decision(True)


# --- deadlines ------------------------------------------------------------------------------------------------------


@hf.workflow
async def ask_with_a_default(ctx: hf.Context) -> Decision:
    return await ctx.ask("Well?", schema=Decision, deadline="2d", default=Decision(False, "nobody"))


async def test_past_the_deadline_the_default_answers() -> None:
    async with harness() as h:
        run = await h.start(ask_with_a_default)
        (wait,) = await run.waits()
        await h.advance(days=1, hours=23)
        assert await run.status() == "suspended", "never early"
        await h.advance(hours=1)
        assert await run.result() == Decision(False, "nobody")
        assert closed_waits(await run.events()) == [("answered", "deadline")]
        with pytest.raises(hf.Refused):
            await run.respond(wait.wait_id, Decision(True))
        check_harness(h)


async def test_past_the_deadline_without_a_default_the_call_raises_and_may_be_caught() -> None:
    @hf.workflow
    async def ask_twice(ctx: hf.Context) -> str:
        try:
            return await ctx.ask("Ann?", assignee="ann", schema=str, deadline="1h")
        except hf.DeadlinePassed:
            return await ctx.ask("Bob, then?", assignee="bob", schema=str)

    async with harness() as h:
        run = await h.start(ask_twice)
        await h.advance(hours=1)
        await h.crash()
        (wait,) = await run.waits()
        assert wait.assignee == "bob"
        await run.respond(wait.wait_id, "yes")
        assert await run.result() == "yes"
        check_harness(h)


async def test_past_the_deadline_without_a_default_the_node_fails_and_no_policy_repeats_it() -> None:
    @hf.node(retry=hf.Retry(attempts=5))
    async def asks(ctx: hf.Context) -> str:
        return await ctx.ask("Well?", schema=str, deadline="1h")

    @hf.workflow
    def ask_in_vain() -> str:
        return asks()

    async with harness() as h:
        run = await h.start(ask_in_vain)
        await h.advance(hours=1)
        with pytest.raises(hf.RunFailed) as caught:
            await run.result()
        assert caught.value.error.code == "deadline_passed"
        assert "Well?" in caught.value.error.message
        assert attempts(await run.events(), "asks") == [1]
        assert types(await run.events()).count("WaitOpened") == 1


async def test_on_failure_decides_what_a_passed_deadline_leads_to() -> None:
    @hf.workflow(on_failure="continue")
    def ask_and_go_on() -> list[str | None]:
        nobody = hf.ask("Well?", schema=str, deadline="1h", named="nobody")
        return [hf.first(nobody, None), hf.ask("And you?", schema=str, named="you")]

    @hf.workflow(on_failure="pend:unanswered")
    def ask_then_pend() -> str:
        return hf.ask("Well?", schema=str, deadline="1h")

    async with harness() as h:
        going_on, pended = await h.start(ask_and_go_on), await h.start(ask_then_pend)
        await h.advance(hours=1)
        assert node_of(await going_on.nodes(), "nobody")["status"] == "failed"
        (wait,) = await going_on.waits()
        await going_on.respond(wait.wait_id, "here")
        assert node_of(await going_on.nodes(), "you")["output"] == "here"
        (basket,) = await pended.waits()
        assert (basket.kind, basket.basket) == ("basket", "unanswered")
        assert basket.error is not None
        assert basket.error["code"] == "deadline_passed"


async def test_a_retry_of_a_node_whose_deadline_passed_asks_again() -> None:
    """What it remembers is that nobody answered; a person who lets it try again wants it to ask again."""

    @hf.workflow(on_failure="pend:unanswered")
    def ask_again() -> str:
        return hf.ask("Well?", schema=str, deadline="1h")

    async with harness() as h:
        run = await h.start(ask_again)
        (first,) = await run.waits()
        await h.advance(hours=1)
        await run.resume()
        (second,) = await run.waits()
        assert (second.kind, second.question) == ("input", "Well?")
        assert second.wait_id != first.wait_id
        await run.respond(second.wait_id, "yes")
        assert await run.result() == "yes"
        check_harness(h)


async def test_an_answer_that_is_sent_past_the_deadline_loses_although_nobody_was_awake(db: Path) -> None:
    @hf.workflow
    async def ask_briefly(ctx: hf.Context) -> str:
        return await ctx.ask("Quick?", schema=str, deadline=1.5, default="too late")

    async with hf.open(url(db)) as engine:
        hold_time(engine)
        run = await engine.start(ask_briefly, run_id="r")
        (wait,) = await waiting(run, "input")
    deadline = wait.until
    assert deadline is not None
    await until(lambda: datetime.now(UTC) > deadline, "the deadline has passed")
    with without_code_of("ask_briefly"):
        async with hf.open(url(db)) as engine:  # without the code: nothing wakes the run by itself
            with pytest.raises(hf.Refused, match="has passed its deadline"):
                await engine.get("r").respond(wait.wait_id, "now")
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "too late"
    check_file(db)


async def test_a_deadline_may_be_an_instant_a_duration_or_a_reference() -> None:
    @hf.workflow
    async def ask_until_an_instant(ctx: hf.Context) -> str:
        until = await ctx.now() + timedelta(hours=3)
        return await ctx.ask("Well?", deadline=until, default="nobody")

    @hf.workflow
    def ask_for_seconds(seconds: float) -> str:
        return hf.ask("Well?", deadline=seconds, default="nobody")

    async with harness() as h:
        runs = [await h.start(ask_until_an_instant), await h.start(ask_for_seconds, seconds=3 * 3600)]
        await h.advance(hours=2, minutes=59)
        assert [await run.status() for run in runs] == ["suspended"] * 2
        await h.advance(minutes=1)
        assert [await run.result() for run in runs] == ["nobody"] * 2


# --- reminders, escalation, handing on -------------------------------------------------------------------------------


async def test_reminders_come_until_the_answer_and_the_question_goes_to_others_meanwhile() -> None:
    @hf.workflow
    async def ask_and_remind(ctx: hf.Context) -> str:
        CALLS["bodies"] += 1
        return await ctx.ask(
            "Well?",
            assignee="ann",
            schema=str,
            remind="1d",
            escalate=[hf.Escalate("2d12h", assignee="boss"), hf.Escalate("4d", basket="managers")],
        )

    async with harness() as h:
        run = await h.start(ask_and_remind)

        async def reminders() -> int:
            return len([e for e in await run.events() if e.type == "RunEdited" and e.data["actor"] == "reminder"])

        await h.advance(days=2)
        assert await reminders() == 2
        assert [w.assignee for w in await run.waits()] == ["ann"]
        await h.crash()
        await h.advance(days=1)
        (wait,) = await run.waits()
        assert (wait.assignee, wait.basket) == ("boss", None)
        await h.advance(days=1)
        (wait,) = await run.waits()
        assert (wait.assignee, wait.basket, await reminders()) == ("boss", "managers", 4)
        assert [w.wait_id for w in await h.wait(h.engine.asked(basket="managers"))] == [wait.wait_id]
        bodies = CALLS["bodies"]
        await run.respond(wait.wait_id, "at last")
        assert await run.result() == "at last"
        before = len(await run.events())
        await h.advance(days=30)
        assert len(await run.events()) == before, "an answered question reminds nobody"
        assert bodies <= 2, "reminders wake no body"
        check_harness(h)


async def test_a_person_hands_a_question_on_with_a_trace() -> None:
    async with harness() as h:
        run = await h.start(ask_once, order=ORDER)
        (wait,) = await run.waits()
        await run.reassign(wait.wait_id, assignee="bob", actor="cy")
        await h.crash()
        (moved,) = await run.waits()
        assert (moved.wait_id, moved.assignee, moved.basket) == (wait.wait_id, "bob", "finance")
        (edited,) = [e for e in await run.events() if e.type == "RunEdited"]
        assert (edited.data["actor"], edited.data["before"]["assignee"], edited.data["after"]["assignee"]) == (
            "cy",
            "ann",
            "bob",
        )
        assert await h.wait(h.engine.asked(assignee="ann")) == []
        assert [w.wait_id for w in await h.wait(h.engine.asked(assignee="bob"))] == [wait.wait_id]
        with pytest.raises(hf.UsageError, match="say to whom"):
            await run.reassign(wait.wait_id)
        await run.respond(wait.wait_id, Decision(True))
        with pytest.raises(hf.Refused):
            await run.reassign(wait.wait_id, assignee="dee")


# --- what is asked of everybody -------------------------------------------------------------------------------------


async def test_asked_lists_what_all_runs_ask_oldest_first_and_filters() -> None:
    @hf.workflow
    async def ask_in_basket(ctx: hf.Context, basket: str, assignee: str) -> None:
        await ctx.ask("Well?", basket=basket, assignee=assignee)

    async with harness() as h:
        for basket, assignee in (("x", "ann"), ("y", "ann"), ("x", "bob")):
            await h.start(ask_in_basket, basket=basket, assignee=assignee)
            await h.advance(seconds=1)

        async def asked(**options: Any) -> list[tuple[str | None, str | None]]:
            return [(w.basket, w.assignee) for w in await h.wait(h.engine.asked(**options))]

        assert await asked() == [("x", "ann"), ("y", "ann"), ("x", "bob")]
        assert await asked(basket="x") == [("x", "ann"), ("x", "bob")]
        assert await asked(assignee="ann") == [("x", "ann"), ("y", "ann")]
        assert await asked(basket="x", assignee="bob") == [("x", "bob")]
        assert await asked(limit=1) == [("x", "ann")]


# --- wrong questions ------------------------------------------------------------------------------------------------


class Unmakeable:
    """No JSON value becomes one."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"question": ""}, "the question is a text"),
        ({"question": "\ud800?"}, "cannot be stored"),
        ({"question": "Well?" * 2_001}, "at most 10,000"),
        ({"question": "Well?", "deadline": "9999999d"}, "not a time to wait"),
        ({"question": "Well?", "deadline": float("nan")}, "nan is not a time to wait"),
        ({"question": "Well?", "deadline": -1}, "-1 is not a time to wait"),
        ({"question": "Well?", "deadline": 10**400}, "inf is not a time to wait"),
        ({"question": "Well?", "deadline": datetime(9999, 12, 31, tzinfo=UTC)}, "1,000 years away"),
        ({"question": "Well?", "remind": float("nan")}, "remind: nan is not a time"),
        ({"question": "Well?", "escalate": "boss"}, "not 'boss'"),
        ({"question": "Well?", "assignee": "a\udfff"}, "assignee: .* cannot be stored"),
        ({"question": "Well?", "basket": "x" * 201}, "basket has 201 characters"),
        ({"question": "Well?", "schema": Unmakeable}, "a Unmakeable cannot be made from JSON"),
        ({"question": "Well?", "schema": dict[str, list[Unmakeable | None]]}, "a Unmakeable cannot be made"),
        ({"question": "Well?", "schema": "int"}, "cannot be read from JSON"),
        ({"question": "Well?", "default": 1}, "say deadline="),
        ({"question": "Well?", "schema": int, "deadline": "1h", "default": "x"}, "default"),
        ({"question": "Well?", "remind": 0.1}, "too often"),
        ({"question": "Well?", "assignee": 5}, "assignee is a name"),
        ({"question": "Well?", "schema": {"type": "nonsense"}}, "the schema of an answer"),
        ({"question": "Well?", "deadline": datetime(2030, 1, 1)}, "needs a time zone"),  # noqa: DTZ001 - that is the mistake
    ],
)
async def test_a_question_that_cannot_be_asked_fails_its_node_and_says_why(
    options: dict[str, Any], message: str
) -> None:
    wrong = f"ask_wrongly_{abs(hash(message))}"

    @hf.workflow(name=wrong)
    async def asks_wrongly(ctx: hf.Context) -> None:
        await ctx.ask(**options)

    async with harness() as h:
        run = await h.start(asks_wrongly)
        with pytest.raises(hf.RunFailed, match=message):
            await run.result()
        assert "WaitOpened" not in types(await run.events())


# --- was it done? ---------------------------------------------------------------------------------------------------


@hf.node(on_crash="ask")
async def transfer(amount: int) -> str:
    CALLS["transfers"] += 1
    if CALLS["transfers"] == 1:
        await asyncio.Event().wait()
    return f"moved {amount}"


@hf.workflow
def ask_whether_done(amount: int) -> str:
    return transfer(amount)


@pytest.mark.parametrize(
    ("verdict", "result", "transfers"),
    [({"done": False}, "moved 5", 2), ({"done": True, "output": "moved by hand"}, "moved by hand", 1)],
)
async def test_on_crash_ask_asks_a_person_whether_it_was_done(
    verdict: dict[str, Any], result: str, transfers: int
) -> None:
    async with harness() as h:
        run = await h.start(ask_whether_done, amount=5)
        await h.crash()
        (wait,) = await run.waits()
        assert wait.kind == "input"
        assert "Was it done?" in (wait.question or "")
        assert [w.wait_id for w in await h.wait(h.engine.asked())] == [wait.wait_id], "it is in everybody's inbox"
        for wrong in ({"done": "maybe"}, {"done": True, "output": 5}, {}):
            with pytest.raises((hf.InvalidInput, hf.Refused)):
                await run.respond(wait.wait_id, wrong)
        await h.crash()
        await run.respond(wait.wait_id, verdict, actor="ada")
        assert await run.result() == result
        assert CALLS["transfers"] == transfers
        assert closed_waits(await run.events()) == [("answered", "ada")]
        check_harness(h)
