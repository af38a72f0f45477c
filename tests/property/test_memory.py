"""Remembered calls (SEMANTICS 8): what a body did before it was cut off is never done twice and never told wrongly."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import StepMismatch
from holdfast.worker.recorded_calls import Call
from holdfast.worker.replay import Replay, idempotency_key
from tests.engine.kit import hold_time, until

Made = tuple[str, Any]
"""A call as a body makes it: name and argument."""


def value_of(name: str, args: Any) -> str:
    return f"{name}({args})"


class Life:
    """One life of a body, without a body: calls are made, answered from memory or done, and written down."""

    def __init__(self, journal: list[tuple[str, bytes]]) -> None:
        self.journal = journal
        self.replay = Replay.read(journal)
        self.done: list[Made] = []

    def make(self, name: str, args: Any = None, scope: str = "", key: str | None = None, kind: str = "step") -> Call:
        return self.replay.call(scope, kind, name, args, key)

    def finish(self, call: Call, args: Any = None) -> str:
        """The call's value: remembered, or made now and written down."""
        recorded = self.replay.recall(call)
        if recorded is not None and recorded.output is not None:
            return str(msgspec.json.decode(recorded.output))
        self.done.append((call.name, args))
        value = value_of(call.name, args)
        self.write(
            ev.StepCompleted(
                call.scope,
                call.position,
                call.kind,
                call.name,
                call.digest,
                msgspec.Raw(msgspec.json.encode(value)),
                call.key,
            )
        )
        return value

    def step(self, name: str, args: Any = None, scope: str = "", key: str | None = None) -> str:
        return self.finish(self.make(name, args, scope, key), args)

    def write(self, event: Any) -> None:
        self.journal.append((type(event).__name__, journal_format.encode(event)))


def first_life(calls: Iterable[Made]) -> list[tuple[str, bytes]]:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    for name, args in calls:
        life.step(name, args)
    return journal


# --- the same code again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(5))
def test_what_was_done_before_the_cut_is_remembered_and_the_rest_is_new(cut: int) -> None:
    calls: list[Made] = [("a", 1), ("b", 1), ("a", 2), ("a", 1)]
    life = Life(first_life(calls[:cut]))
    assert [life.step(*c) for c in calls] == [value_of(*c) for c in calls]
    assert life.done == calls[cut:]


def test_equal_calls_keep_their_order() -> None:
    """The second of two equal calls gets the second record, though both agree with both."""
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    for nth in ("first", "second"):
        call = life.make("roll")
        life.write(ev.StepCompleted("", call.position, "step", "roll", call.digest, msgspec.Raw(f'"{nth}"'.encode())))
    again = Life(journal)
    assert [again.step("roll"), again.step("roll")] == ["first", "second"]
    assert again.done == []


def test_a_call_takes_its_position_when_it_is_made_and_not_when_it_is_awaited() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    first, second = life.make("a", 1), life.make("b", 2)
    life.finish(second, 2)  # it came back first, and then the process died
    again = Life(journal)
    first, second = again.make("a", 1), again.make("b", 2)
    assert [again.finish(first, 1), again.finish(second, 2)] == ["a(1)", "b(2)"]
    assert again.done == [("a", 1)]


def test_a_thousand_random_interleavings_of_lanes_never_give_a_wrong_value_or_do_a_call_twice() -> None:
    for seed in range(1000):
        chance = random.Random(seed)
        lanes = {
            f"t{n}/": [(chance.choice("ab"), chance.randrange(3)) for _ in range(chance.randrange(1, 5))]
            for n in range(chance.randrange(1, 5))
        }
        journal: list[tuple[str, bytes]] = []
        done: list[tuple[str, int]] = []
        for life_no in range(3):
            life, at = Life(journal), dict.fromkeys(lanes, 0)
            stop = chance.randrange(12) if life_no < 2 else 10_000
            while (ready := [lane for lane in lanes if at[lane] < len(lanes[lane])]) and stop:
                lane = chance.choice(ready)
                name, args = lanes[lane][at[lane]]
                before = len(life.done)
                assert life.step(name, args, scope=lane) == value_of(name, args), f"seed {seed}"
                done += [(lane, at[lane])] * (len(life.done) - before)
                at[lane], stop = at[lane] + 1, stop - 1
        assert len(done) == len(set(done)) == sum(map(len, lanes.values())), f"seed {seed}"


def test_a_thousand_random_orders_in_one_scope_give_right_values_or_a_mismatch() -> None:
    """A body that iterates over a set, or whose tasks overtake each other inside one scope."""
    right = mismatches = 0
    for seed in range(1000):
        chance = random.Random(seed)
        calls: list[Made] = [(chance.choice("abc"), chance.randrange(4)) for _ in range(chance.randrange(2, 7))]
        order = chance.sample(calls, len(calls))
        life = Life(first_life(order[: chance.randrange(len(order) + 1)]))
        remembered = len(life.journal)
        for name, args in chance.sample(calls, len(calls)):
            try:
                assert life.step(name, args) == value_of(name, args), f"seed {seed}"
            except StepMismatch:
                mismatches += 1
                break
        else:
            right += 1
            assert len(life.journal) == len(calls), "what was remembered was used, each record once"
            assert len(life.done) == len(calls) - remembered
    assert right > 200
    assert mismatches > 200


def test_a_set_under_two_hash_seeds_gives_right_values_or_a_mismatch() -> None:
    names = [f"name{i}" for i in range(8)]

    def iterated(seed: int) -> list[str]:
        code = f"print(*set({names!r}))"
        out = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, check=True
        )
        return out.stdout.decode().split()

    one, two = iterated(1), iterated(2)
    assert one != two
    for cut in range(len(names) + 1):
        life = Life(first_life([("fetch", name) for name in one[:cut]]))
        try:
            for name in two:
                assert life.step("fetch", name) == value_of("fetch", name)
        except StepMismatch:
            assert 0 < cut < len(names)  # with everything remembered, or nothing, any order is right


# --- other code ----------------------------------------------------------------------------------------------------

BEFORE: list[Made] = [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("after", "new", "mismatch"),
    [
        ([("a", 1), ("b", 2), ("c", 3)], [], None),
        ([("a", 1), ("c", 3)], [], None),  # removed: the others are found by what they are
        ([("b", 2), ("c", 3), ("a", 1)], [], None),  # moved
        ([("a", 1), ("b", 2), ("c", 3), ("d", 4)], [("d", 4)], None),  # added at the end: a new call
        ([("a", 1), ("d", 4), ("b", 2)], [], "the function and the arguments"),  # added before the end
        ([("a", 1), ("z", 2), ("c", 3)], [], "the function"),  # renamed
        ([("a", 1), ("b", 99), ("c", 3)], [], "the arguments"),  # with other arguments
        ([("a", 1), ("a", 1)], [], "the function and the arguments"),  # there was one such call, not two
    ],
    ids=["same", "removed", "moved", "appended", "inserted", "renamed", "other arguments", "doubled"],
)
def test_code_that_changed_between_two_lives(after: list[Made], new: list[Made], mismatch: str | None) -> None:
    life = Life(first_life(BEFORE))
    got: list[str] = []
    told = None
    try:
        for name, args in after:
            got.append(life.step(name, args))
    except StepMismatch as e:
        told = str(e)
    assert (told is None) == (mismatch is None)
    if told is not None:
        assert f"{mismatch} differ" in told
        assert "ctx.patched" in told
    assert got == [value_of(*c) for c in after[: len(got)]], "never a wrong value"
    assert life.done == new


def test_another_kind_of_call_at_the_same_place_is_a_mismatch() -> None:
    life = Life(first_life([("a", None)]))
    with pytest.raises(StepMismatch, match="the kind of call"):
        life.finish(life.make("a", kind="sleep"))


# --- keys ----------------------------------------------------------------------------------------------------------


def test_a_call_with_a_key_is_known_by_it_wherever_it_stands_and_whatever_it_is_given() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    life.step("a", 1, key="first")
    life.step("b", 2)
    again = Life(journal)
    assert again.step("b", 2) == "b(2)"
    assert again.step("new", 0, key="other") == "new(0)"
    assert again.step("a", 99, key="first") == "a(1)", "the author said that it is the same"
    assert again.done == [("new", 0)]


def test_a_key_that_stands_for_another_function_is_a_mismatch() -> None:
    journal: list[tuple[str, bytes]] = []
    Life(journal).step("a", 1, key="k")
    with pytest.raises(StepMismatch, match="the function"):
        Life(journal).step("b", 1, key="k")


def test_idempotency_keys_survive_reordering_and_differ_among_equal_calls() -> None:
    def keys(order: Iterable[Made]) -> dict[Any, list[str]]:
        life, found = Life([]), {}
        for name, args in order:
            found.setdefault((name, args), []).append(life.make(name, args).step_key)
        return {call: [idempotency_key("r", 1, "n", ".", 1, k) for k in keys] for call, keys in found.items()}

    calls: list[Made] = [("a", 1), ("b", 2), ("a", 1), ("a", 3)]
    assert keys(calls) == keys(reversed(calls))
    assert len({k for found in keys(calls).values() for k in found}) == len(calls)


def test_arguments_that_cannot_be_encoded_go_by_position() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    calls = [life.make("a", object()), life.make("a", object())]
    assert calls[0].digest == ""
    assert calls[0].step_key != calls[1].step_key
    for i, call in enumerate(calls):
        life.finish(call, i)
    again = Life(journal)
    assert [again.finish(again.make("a", object())) for _ in range(2)] == ["a(0)", "a(1)"]


# --- failures and checkpoints in the journal -------------------------------------------------------------------------


def failed_step(life: Life, name: str, retry_at: int | None = None) -> Call:
    call = life.make(name)
    error = ev.ErrorInfo("error", "no", ("ValueError",))
    life.write(ev.StepFailed("", call.position, "step", name, call.digest, error, None, 1, retry_at))
    return call


def test_a_failed_step_is_remembered_after_a_crash_and_tried_again_after_a_failed_attempt() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    life.step("before")
    failed_step(life, "flaky")
    again = Life(journal)
    again.step("before")
    recorded = again.replay.recall(again.make("flaky"))
    assert recorded is not None
    assert recorded.error is not None
    life.write(ev.NodeFailed(1, ev.ErrorInfo("error", "no"), retryable=True))
    after = Life(journal)
    assert after.step("before") == "before(None)"
    assert after.replay.recall(after.make("flaky")) is None
    assert after.done == []


def test_a_failed_child_is_forgotten_with_the_attempt_and_a_completed_one_is_not() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    for name, outcome in (("good", "completed"), ("bad", "failed")):
        call = life.make(name, kind="child")
        life.write(ev.WaitOpened(f"w_{name}", "child", call.as_dict()))
        life.write(ev.WaitClosed(f"w_{name}", outcome, msgspec.Raw(b"1")))
    life.write(ev.NodeFailed(1, ev.ErrorInfo("error", "no"), retryable=True))
    again = Life(journal)
    good = again.replay.recall(again.make("good", kind="child"))
    assert good is not None
    assert (good.outcome, good.output) == ("completed", b"1")
    assert again.replay.recall(again.make("bad", kind="child")) is None


def test_a_checkpoint_closes_the_memory_before_it() -> None:
    journal: list[tuple[str, bytes]] = []
    life = Life(journal)
    life.step("a", 1)
    life.write(ev.NodeCheckpointed(msgspec.Raw(b'{"at":1}'), {}, 1))
    life.replay.close(b'{"at":1}')
    life.step("b", 2)
    again = Life(journal)
    assert again.replay.checkpoint == b'{"at":1}'
    assert again.step("b", 2) == "b(2)"  # positions start again
    assert again.step("a", 1) == "a(1)"
    assert again.done == [("a", 1)], "older recorded calls are not read"


def test_an_equal_call_after_a_checkpoint_is_another_call_with_another_key() -> None:
    life = Life([])
    before = life.make("charge", 1)
    life.replay.close(b"1")
    after = life.make("charge", 1)
    assert before.position == after.position == 0
    assert before.scope != after.scope, "the checkpoint's number is part of the scope"
    assert before.step_key != after.step_key


# --- through the engine ----------------------------------------------------------------------------------------------

done: list[Any] = []


async def remember(what: Any) -> Any:
    done.append(what)
    return f"did {what}"


TWICE = hf.Retry(attempts=2, backoff=0)


async def run(body: Callable[[hf.Context], Awaitable[Any]], retry: hf.Retry | None = TWICE) -> Any:
    """A body as the only node of a workflow; its first attempt may fail, the second finds what the first remembered."""
    done.clear()

    async def fn(ctx: hf.Context) -> Any:
        return await body(ctx)

    fn.__name__ = fn.__qualname__ = f"{body.__name__}_{id(body)}"
    node = hf.node(retry=retry)(fn)

    def graph() -> Any:
        return node()

    graph.__name__ = graph.__qualname__ = f"graph_of_{fn.__name__}"
    async with hf.open("sqlite://") as engine:
        return await (await engine.start(hf.workflow(graph))).result(timeout=30)


def fail_first(ctx: hf.Context) -> None:
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt does not make it")


async def test_steps_that_were_gathered_come_back_in_another_order_with_the_right_values() -> None:
    async def body(ctx: hf.Context) -> Any:
        async def one(i: int) -> str:
            await asyncio.sleep((i if ctx.attempt == 1 else 3 - i) / 500)
            return await remember(i)  # type: ignore[no-any-return]

        values = await asyncio.gather(*(ctx.step(one, i) for i in range(4)))
        fail_first(ctx)
        return values

    assert await run(body) == [f"did {i}" for i in range(4)]
    assert sorted(done) == [0, 1, 2, 3]


async def test_two_lanes_whose_latencies_are_reversed_between_the_lives() -> None:
    async def body(ctx: hf.Context) -> Any:
        async def lane(name: str, pause: float) -> list[str]:
            found = []
            for i in range(3):
                found.append(await ctx.step(remember, f"{name}{i}"))
                await asyncio.sleep(pause)
            return found

        pauses = (0.004, 0.0) if ctx.attempt == 1 else (0.0, 0.004)
        values = await asyncio.gather(lane("a", pauses[0]), lane("b", pauses[1]))
        fail_first(ctx)
        return values

    assert await run(body) == [[f"did {lane}{i}" for i in range(3)] for lane in "ab"]
    assert sorted(done) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("cut", range(1, 7))
async def test_lanes_that_start_in_another_order_give_right_values(cut: int) -> None:
    """Tasks are numbered by their creation: which of them calls first does not matter."""

    async def body(ctx: hf.Context) -> Any:
        calls = 0

        async def lane(name: str, pause: float) -> list[str]:
            nonlocal calls
            await asyncio.sleep(pause)
            found = []
            for i in range(3):
                found.append(await ctx.step(remember, f"{name}{i}"))
                calls += 1
                if calls == cut and ctx.attempt == 1:
                    raise RuntimeError("cut")
                await asyncio.sleep(0.001)
            return found

        pauses = (0.0, 0.01) if ctx.attempt == 1 else (0.01, 0.0)
        return await asyncio.gather(*(lane(name, pause) for name, pause in zip("ab", pauses, strict=True)))

    assert await run(body) == [[f"did {lane}{i}" for i in range(3)] for lane in "ab"]


async def test_each_item_of_a_map_has_a_memory_of_its_own() -> None:
    async def body(ctx: hf.Context) -> Any:
        async def one(i: int) -> str:
            await asyncio.sleep((i if ctx.attempt == 1 else 5 - i) / 1000)
            if i == 3 and ctx.attempt == 1:
                raise RuntimeError("the item fails the attempt")
            return await remember(i)  # type: ignore[no-any-return]

        return await ctx.map(one, range(5), limit=3)

    assert await run(body) == [f"did {i}" for i in range(5)]
    assert sorted(done) == [0, 1, 2, 3, 4]


async def test_time_and_chance_are_remembered() -> None:
    seen: list[Any] = []

    async def body(ctx: hf.Context) -> None:
        seen.append((await ctx.now(), await ctx.random(), await ctx.uuid()))
        fail_first(ctx)

    await run(body)
    assert seen[0] == seen[1]


async def test_a_failed_step_is_tried_again_by_the_next_attempt_and_not_by_the_same_one() -> None:
    async def body(ctx: hf.Context) -> Any:
        async def flaky() -> str:
            done.append("flaky")
            if ctx.attempt == 1:
                raise KeyError("gone")
            return "there"

        kept = await ctx.step(remember, "kept")
        return [kept, await ctx.step(flaky)]

    assert await run(body) == ["did kept", "there"]
    assert done == ["kept", "flaky", "flaky"]


async def test_a_failure_that_the_body_dealt_with_is_raised_again_without_running_it_again() -> None:
    """Until the attempt itself fails: here the body is left in an orderly way, and goes on in the next engine."""

    async def body(ctx: hf.Context) -> Any:
        async def refused() -> None:
            done.append("asked")
            raise ValueError("no")

        try:
            await ctx.step(refused)
        except ValueError as e:
            caught = str(e)
        await ctx.sleep(0.15)
        return caught

    done.clear()

    @hf.workflow(name="deals_with_failure")
    async def deals(ctx: hf.Context) -> Any:
        done.append("life")
        return await body(ctx)

    async with hf.open("sqlite://", idle_seconds=0) as engine:
        clock = hold_time(engine)
        run = await engine.start(deals)
        await until(lambda: not engine.actors, "the body is left")
        clock.go_on()
        assert await run.result(timeout=30) == "no"
    assert done.count("asked") == 1
    assert done.count("life") >= 2


async def test_a_body_goes_on_from_its_checkpoint() -> None:
    async def body(ctx: hf.Context) -> Any:
        state = ctx.checkpointed or {"at": 0, "sum": []}
        while state["at"] < 4:
            state["sum"].append(await ctx.step(remember, state["at"]))
            state["at"] += 1
            await ctx.checkpoint(state)
            if state["at"] == 2:
                fail_first(ctx)
        return state["sum"]

    assert await run(body) == [f"did {i}" for i in range(4)]
    assert done == [0, 1, 2, 3]


async def test_a_body_that_does_not_look_at_its_checkpoint_fails_with_the_hint() -> None:
    async def body(ctx: hf.Context) -> Any:
        await ctx.step(remember, 0)
        await ctx.checkpoint(1)
        await ctx.step(remember, 1)
        fail_first(ctx)

    with pytest.raises(hf.RunFailed, match=r"ctx\.checkpointed was not read"):
        await run(body)
    assert done == [0, 1]


async def test_a_keyed_step_survives_a_change_of_its_place_and_arguments() -> None:
    async def body(ctx: hf.Context) -> Any:
        if ctx.attempt == 2:
            assert await ctx.keyed("extra").step(remember, "extra") == "did extra"
        value = await ctx.keyed("charge").step(remember, f"charge {ctx.attempt}")
        fail_first(ctx)
        return value

    assert await run(body) == "did charge 1"
    assert done == ["charge 1", "extra"]


async def test_code_that_changed_under_a_running_body_holds_its_run_with_both_calls_shown() -> None:
    @hf.node(name="holds", retry=TWICE)
    async def body(ctx: hf.Context) -> Any:
        await ctx.step(remember, f"attempt {ctx.attempt}")
        fail_first(ctx)

    @hf.workflow
    def held() -> Any:
        return body()

    async with hf.open("sqlite://") as engine:
        await engine.start(held, run_id="r")
        hold = await until(lambda: getattr(engine.store.run("r"), "hold", None), "the run is put on hold")
    assert "the arguments differ" in hold
