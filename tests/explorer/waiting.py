"""Workflows that wait, one for each way of waiting, and what the outside brings them. The explorer breaks them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

import holdfast as hf
from tests.explorer.scenarios import Flaky, xp_add, xp_double, xp_step


class Decision(msgspec.Struct):
    approved: bool
    note: str = ""


class Case(NamedTuple):
    """A workflow that waits, and what comes from outside."""

    workflow: Any
    result: Any
    """None: it waits for ever."""
    options: Mapping[str, Any] = MappingProxyType({})


# --- questions ----------------------------------------------------------------------------------------------------


@hf.workflow(name="xw_ask")
def asks(x: int = 1) -> dict[str, Any]:
    first = xp_add(x)
    decision = hf.ask("Ship it?", about={"x": first}, schema=Decision)
    return {"x": xp_double.after(decision)(first), "decision": decision}


@hf.workflow(name="xw_ask_code")
async def asks_in_code(ctx: hf.Context, x: int = 1) -> list[Any]:
    """Two in a row, with steps around them."""
    before = await ctx.step(xp_step, x)
    decision = await ctx.ask("Ship it?", schema=Decision)
    between = await ctx.step(xp_step, before)
    price = await ctx.ask("At which price?", schema=int)
    return [before, decision.approved, between, price, await ctx.step(xp_step, price)]


@hf.node(idempotent=True)
def xw_sync_asker(ctx: hf.SyncContext, x: int) -> list[Any]:
    before = ctx.step(xp_step, x)
    decision = ctx.ask("Ship it?", schema=Decision)
    return [before, decision.approved, ctx.ask("At which price?", schema=int)]


@hf.workflow(name="xw_ask_sync")
def asks_in_a_thread(x: int = 1) -> list[Any]:
    return xw_sync_asker(xp_add(x))


@hf.workflow(name="xw_ask_two")
async def asks_two_at_once(ctx: hf.Context) -> list[Any]:
    first, second = await asyncio.gather(ctx.ask("Ship it?", schema=Decision), ctx.ask("At which price?", schema=int))
    return [first.approved, second, await ctx.step(xp_step, second)]


@hf.workflow(name="xw_deadline")
def asks_until(x: int = 1) -> Any:
    decision = hf.ask("Ship it?", schema=Decision, deadline="1h", default={"approved": False})
    return [decision, xp_add.after(decision)(x)]


@hf.workflow(name="xw_deadline_close")
async def asks_until_people_answer(ctx: hf.Context, deadline: str = "10s") -> Any:
    """The answer comes when the deadline passes, or a moment later."""
    decision = await ctx.ask("Ship it?", schema=Decision, deadline=deadline, default={"approved": False})
    return await ctx.step(xp_step, 1 if decision.approved else 0)


@hf.workflow(name="xw_deadline_later")
async def asks_and_goes_on(ctx: hf.Context) -> Any:
    """The deadline passes when the question was answered long ago."""
    decision = await ctx.ask("Ship it?", schema=Decision, deadline="1m", default={"approved": False})
    await ctx.sleep("2m")
    return await ctx.step(xp_step, 1 if decision.approved else 0)


@hf.workflow(name="xw_remind")
def reminded(x: int = 1) -> Any:
    decision = hf.ask("Ship it?", remind="20s", escalate=[hf.Escalate("30s", assignee="boss", basket="managers")])
    return [decision, xp_add.after(decision)(x)]


@hf.node(idempotent=True, on_crash="ask")
async def xw_careful(x: int) -> int:
    return x + 1


@hf.workflow(name="xw_on_crash_ask")
def asks_what_happened(x: int = 1) -> int:
    return xp_add(xw_careful(xp_add(x)))


# --- signals ------------------------------------------------------------------------------------------------------


@hf.workflow(name="xw_receive")
def receives(x: int = 1) -> Any:
    hurry = hf.receive("hurry", schema=dict)
    return [hurry, xp_add.after(hurry)(x)]


@hf.workflow(name="xw_receive_many")
async def receives_many(ctx: hf.Context) -> list[Any]:
    """The first ones come early, the others while it waits."""
    await ctx.sleep("15s")
    first = await ctx.receive("note", schema=int)
    done = await ctx.step(xp_step, first)
    return [first, done, await ctx.receive("other"), await ctx.receive("note", schema=int)]


@hf.workflow(name="xw_receive_until")
async def receives_until(ctx: hf.Context) -> list[Any]:
    await ctx.step(xp_step, 1)
    return [await ctx.receive("hurry", deadline="1h", default="nobody")]


@hf.workflow(name="xw_receiver")
async def receiver(ctx: hf.Context) -> list[int]:
    return [await ctx.receive("part", schema=int), await ctx.receive("part", schema=int)]


@hf.workflow(name="xw_sender")
async def sends_to_another_run(ctx: hf.Context) -> list[int]:
    await ctx.child(receiver, run_id="xw-receiver", detached=True)
    await ctx.signal("xw-receiver", "part", 1)
    done = await ctx.step(xp_step, 1)
    await ctx.sleep("1m")
    await ctx.signal("xw-receiver", "part", done, id="second")
    return await ctx.child(receiver, run_id="xw-receiver")


@hf.workflow(name="xw_sleep_beside_question")
async def sleeps_beside_a_question(ctx: hf.Context) -> list[Any]:
    """A part of the body wakes by itself while another one waits on."""

    async def nap() -> int:
        await ctx.sleep("1m")
        return await ctx.step(xp_step, 1)

    rested, decision = await asyncio.gather(nap(), ctx.ask("Ship it?", schema=Decision))
    return [rested, decision.approved]


# --- baskets and pauses -------------------------------------------------------------------------------------------


@hf.node(idempotent=True)
async def xw_pended(x: int) -> int:
    hf.pend("second_look", output=x + 1)


@hf.workflow(name="xw_pend_next")
def pends(x: int = 1) -> int:
    return xp_double(xw_pended(xp_add(x)))


@hf.node(idempotent=True)
async def xw_rerun(ctx: hf.Context, x: int) -> int:
    if not ctx.vars.get("checked"):
        hf.pend("second_look", rerun=True)
    return x + 1


@hf.workflow(name="xw_pend_same", variables={"checked": bool})
def pends_itself(x: int = 1) -> int:
    return xp_double(xw_rerun(xp_add(x)))


@hf.node(idempotent=True)
async def xw_rerun_code(ctx: hf.Context, x: int) -> list[int]:
    """What it remembers is forgotten when it runs again."""
    seen = await ctx.step(xp_step, x + (100 if ctx.vars.get("checked") else 0))
    if not ctx.vars.get("checked"):
        hf.pend("second_look", rerun=True)
    return [seen, await ctx.step(xp_step, seen)]


@hf.workflow(name="xw_pend_same_code", variables={"checked": bool})
def pends_code(x: int = 1) -> list[int]:
    return xw_rerun_code(xp_add(x))


@hf.node(idempotent=True)
async def xw_pends_error(ctx: hf.Context, x: int) -> int:
    if not ctx.vars.get("checked"):
        hf.pend("repair", error="the numbers do not add up")
    return x + 1


@hf.workflow(name="xw_pend_error", variables={"checked": bool})
def pends_with_an_error(x: int = 1) -> int:
    return xp_double(xw_pends_error(xp_add(x)))


@hf.node(idempotent=True)
async def xw_fails_unchecked(ctx: hf.Context, x: int) -> int:
    if not ctx.vars.get("checked"):
        raise Flaky("not checked")
    return x + 1


@hf.workflow(name="xw_on_failure", on_failure="pend:repair", variables={"checked": bool})
def pends_what_failed(x: int = 1) -> int:
    return xp_double(xw_fails_unchecked(xp_add(x)))


@hf.workflow(name="xw_two_baskets")
def pends_twice(x: int = 1) -> list[int]:
    """Two branches lie in baskets at once."""
    return [xp_double(xw_pended.named("left")(x)), xp_double(xw_pended.named("right")(x))]


@hf.workflow(name="xw_pause")
def paused(x: int = 1) -> int:
    for name in ("first", "second", "third", "fourth", "fifth", "sixth"):
        x = xp_add.named(name)(x)
    return xp_double(x)


@hf.node(idempotent=True)
async def xw_body(ctx: hf.Context, x: int) -> int:
    await ctx.sleep("5s")
    return await ctx.step(xp_step, x)


@hf.workflow(name="xw_pause_body")
def paused_in_a_body(x: int = 1) -> int:
    """While the run is paused, a body beside it waits for a timer, which fires meanwhile."""
    first = xp_add.named("first")(x)
    return xp_add(xw_body(x), first)


# --- time ---------------------------------------------------------------------------------------------------------


@hf.workflow(name="xw_race")
async def races(ctx: hf.Context) -> list[Any]:
    """A question against the clock: once the person wins, once the clock."""
    first = await ctx.race(ctx.ask("Ship it?", schema=Decision), ctx.sleep("1h"))
    second = await ctx.race(ctx.sleep("5s"), ctx.ask("At which price?", schema=int), ctx.receive("hurry"))
    return [first.index, first.value.approved, second.index, await ctx.step(xp_step, second.index)]


@hf.workflow(name="xw_sleep")
def sleeps(x: int = 1) -> int:
    nap = hf.sleep("1h")
    return xp_double.after(nap)(xp_add(x))


@hf.node(idempotent=True, delay="1m")
async def xw_later(x: int) -> int:
    return x + 1


@hf.workflow(name="xw_delay")
def delayed(x: int = 1) -> list[int]:
    return [xp_double(xw_later(xp_add(x))), xw_later.named("also_later")(x)]


ANSWERS = {"Ship it?": {"approved": True, "note": "now"}, "At which price?": 20}
AT_ONCE = {"answers": ANSWERS, "people_take": 0}
CHECKED = {"second_look": {"checked": True}, "repair": {"checked": True}}
NOT_DONE = {"xw_careful was running when its engine died. Was it done?": {"done": False}}
NOTES = (("note", 1), ("note", 2), ("other", "x"))
SHIPPED = {"decision": ANSWERS["Ship it?"], "x": 4}
NOTED = [1, 2, "x", 2]

CASES = {
    "a question": Case(asks, SHIPPED, {"answers": ANSWERS}),
    "a question that is answered at once": Case(asks, SHIPPED, AT_ONCE),
    "a question that is answered through another engine than its owner": Case(
        asks, SHIPPED, {"answers": ANSWERS, "people_take": 0.5}
    ),
    "a question that nobody answers": Case(asks, None),
    "questions in a row in durable code": Case(asks_in_code, [2, True, 3, 20, 21], {"answers": ANSWERS}),
    "questions in a row that are answered at once": Case(asks_in_code, [2, True, 3, 20, 21], AT_ONCE),
    "questions in a row in a thread": Case(asks_in_a_thread, [3, True, 20], {"answers": ANSWERS}),
    "questions in a thread that are answered at once": Case(asks_in_a_thread, [3, True, 20], AT_ONCE),
    "two questions at once": Case(asks_two_at_once, [True, 20, 21], {"answers": ANSWERS}),
    "two questions at once that are answered at once": Case(asks_two_at_once, [True, 20, 21], AT_ONCE),
    "a deadline that passes": Case(asks_until, [{"approved": False, "note": ""}, 2]),
    "a deadline that does not pass": Case(asks_until, [ANSWERS["Ship it?"], 2], {"answers": ANSWERS}),
    "an answer in the moment of the deadline": Case(asks_until_people_answer, 1, {"answers": ANSWERS}),
    "an answer that comes too late": Case(asks_until_people_answer, 1, {"answers": ANSWERS, "deadline": "9s"}),
    "a deadline that passes after the answer": Case(asks_and_goes_on, 2, {"answers": ANSWERS}),
    "reminders and an escalation": Case(reminded, [ANSWERS["Ship it?"], 2], {"answers": ANSWERS, "people_take": 50}),
    "a body that only a person may repeat": Case(asks_what_happened, 4, {"answers": NOT_DONE}),
    "a signal": Case(receives, [{"by": 3}, 2], {"signals": [("hurry", {"by": 3})]}),
    "a signal that comes at once": Case(
        receives, [{"by": 3}, 2], {"signals": [("hurry", {"by": 3})], "people_take": 0}
    ),
    "signals that come early, and in order": Case(receives_many, NOTED, {"signals": NOTES}),
    "signals that come late": Case(receives_many, NOTED, {"signals": NOTES, "people_take": 20}),
    "a signal that does not come in time": Case(receives_until, ["nobody"]),
    "a signal from another run": Case(sends_to_another_run, [1, 2]),
    "a node in a basket": Case(pends, 6),
    "a node in a basket that is resumed at once": Case(pends, 6, {"people_take": 0}),
    "a node in a basket that nobody resumes": Case(pends, None, {"resumes": False}),
    "a node that runs again": Case(pends_itself, 6, {"resumes": CHECKED}),
    "a node that forgets and runs again": Case(pends_code, [103, 104], {"resumes": CHECKED}),
    "a node with an error in a basket": Case(pends_with_an_error, 6, {"resumes": CHECKED}),
    "a failure in a basket": Case(pends_what_failed, 6, {"resumes": CHECKED}),
    "two nodes in baskets": Case(pends_twice, [4, 4]),
    "a pause": Case(paused, 14, {"pause_after": "first"}),
    "a pause while a body waits": Case(paused_in_a_body, 4, {"pause_after": "first"}),
    "a race": Case(races, [0, True, 0, 1], {"answers": ANSWERS}),
    "a race that is answered at once": Case(
        races, [0, True, 0, 1], {"answers": {"Ship it?": {"approved": True}}, "people_take": 0}
    ),
    "a sleep": Case(sleeps, 4),
    "a sleep beside a question": Case(sleeps_beside_a_question, [2, True], {"answers": ANSWERS, "people_take": 3600.0}),
    "a delay": Case(delayed, [6, 2]),
}
"""What no crash may change, by what is waited for."""
