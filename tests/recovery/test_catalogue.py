"""The catalogue of inconsistent states: each is made on a stopped store, recovered, and led to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.model.errors import CannotBeRepaired, Refused
from holdfast.opening import open_engine
from holdfast.testing import corrupt
from tests.engine.kit import check_file

CALLS: list[str] = []
BROKEN = {"on": False}


@hf.node
async def cat_first(x: int) -> int:
    CALLS.append("first")
    return x + 1


@hf.node
async def cat_waits(ctx: hf.Context, x: int) -> int:
    CALLS.append("waits")
    await ctx.sleep(0.02)
    return x * 2


@hf.node
async def cat_last(x: int) -> int:
    CALLS.append("last")
    return x + 100


@hf.workflow
def cat_chain(x: int) -> Any:
    with hf.phase("only"):
        last = cat_last(cat_waits(cat_first(x)))
    return last


@hf.node(retry=hf.Retry(attempts=2, backoff=0.01))
async def cat_flaky(ctx: hf.Context, x: int) -> int:
    CALLS.append(f"flaky {ctx.attempt}")
    if ctx.attempt == 1 or BROKEN["on"]:
        raise ValueError("not today")
    return x


@hf.workflow
def cat_retries(x: int) -> Any:
    return cat_flaky(cat_first(x))


@pytest.fixture
def url(tmp_path: Path) -> str:
    CALLS.clear()
    BROKEN["on"] = False
    return f"sqlite:///{tmp_path}/catalogue.db"


async def run_it(url: str, workflow: Any = cat_chain) -> None:
    async with hf.open(url, idle_seconds=0.01) as engine:
        run = await engine.start(workflow, x=1, run_id="r")
        try:
            await run.result(timeout=20)
        except hf.RunFailed:
            assert BROKEN["on"]
    CALLS.clear()


@asynccontextmanager
async def stopped(url: str) -> AsyncIterator[Engine]:
    """An engine that takes nothing over by itself."""
    async with open_engine(url, recover=False) as engine:
        yield engine


async def journal(engine: Engine) -> list[tuple[int, str, str | None]]:
    return [(e.branch, e.type, e.node) for e in await engine.get("r").events()]


async def recovered(url: str, case: str, workflow: Any = cat_chain, **options: Any) -> tuple[Any, Any, list[Any]]:
    """Make the case, recover it, let the run end: what recovering said, the result, the journal."""
    await run_it(url, workflow)
    corrupt(url, "r", case)
    async with stopped(url) as engine:
        before = await journal(engine)
        said = await engine.recover("r", **options)
        result = await engine.get("r").result(timeout=20)
        again = await engine.recover("r")
        after = await journal(engine)
    assert after[: len(before)] == before, "nothing is ever deleted or rewritten in the journal"
    assert not again.needed, "recovering twice is recovering once"
    check_file(url.removeprefix("sqlite:///"))
    return said, result, after


async def test_a1_goes_on_behind_the_completion_that_followed_the_answer(url: str) -> None:
    said, result, events = await recovered(url, "A1")
    assert (said.needed, said.case, said.branch) == (True, "A1", 2)
    assert events[said.cutoff_seq - 1] == (1, "NodeCompleted", "cat_waits")
    assert (result, CALLS) == (104, ["last"])
    assert [e for e in events if e[0] == 2][:2] == [(2, "BranchOpened", None), (2, "RunRecovered", None)]


async def test_a1_with_the_answer_only_goes_on_with_it_and_asks_nobody_again(url: str) -> None:
    said, result, events = await recovered(url, "A1-answer")
    assert (said.case, result, CALLS) == ("A1", 104, ["waits", "last"])
    assert events[said.cutoff_seq - 1] == (1, "WaitClosed", "cat_waits")
    assert not [e for e in events if e[0] == 2 and e[1] == "WaitOpened"]


async def test_a2_goes_back_to_the_start_of_the_node_that_asks_which_asks_again(url: str) -> None:
    said, result, events = await recovered(url, "A2")
    assert (said.case, result, CALLS) == ("A2", 104, ["waits", "last"])
    assert events[said.cutoff_seq - 1] == (1, "NodeStarted", "cat_waits")
    assert [e for e in events if e[0] == 2 and e[1] == "WaitOpened"] == [(2, "WaitOpened", "cat_waits")]


@hf.workflow
async def cat_steps(ctx: hf.Context, x: int) -> int:
    found = await ctx.step(_cat_step, x)
    await ctx.sleep(0.02)
    return found


async def _cat_step(x: int) -> int:
    CALLS.append("step")
    return x + 100


async def test_a2_steps_that_were_completed_before_the_question_are_remembered(url: str) -> None:
    said, result, _ = await recovered(url, "A2", cat_steps)
    assert (said.case, result, CALLS) == ("A2", 101, [])


async def test_a3_writes_only_the_missing_end_and_repeats_no_effect(url: str) -> None:
    said, result, events = await recovered(url, "A3")
    assert (said.case, result, CALLS) == ("A3", 104, [])
    assert events[said.cutoff_seq - 1] == (1, "NodeCompleted", "cat_last")
    assert [e[1] for e in events if e[0] == 2] == [
        "BranchOpened",
        "PhaseCompleted",
        "RunRecovered",
        "MessageConsumed",
        "RunTakenOver",
        "RunCompleted",
    ]


async def test_a3_runs_the_last_node_again_when_asked_to_verify(url: str) -> None:
    said, result, _ = await recovered(url, "A3", reverify=True)
    assert (said.case, result, CALLS) == ("A3", 104, ["last"])


async def test_a4_tries_again_what_its_policy_lets_try_again(url: str) -> None:
    said, result, events = await recovered(url, "A4", cat_retries)
    assert (said.case, result, CALLS) == ("A4", 2, ["flaky 2"])
    assert events[said.cutoff_seq - 1] == (1, "NodeFailed", "cat_flaky")


async def test_a4_fails_the_run_with_the_nodes_error_when_nothing_is_left_to_try(url: str) -> None:
    BROKEN["on"] = True
    await run_it(url, cat_retries)
    corrupt(url, "r", "A4")
    async with stopped(url) as engine:
        said = await engine.recover("r")
        with pytest.raises(hf.RunFailed, match="not today"):
            await engine.get("r").result(timeout=20)
    assert (said.case, CALLS) == ("A4", [])


async def test_a5_a_run_shown_as_completed_gets_its_end_into_the_journal(url: str) -> None:
    said, result, events = await recovered(url, "A5")
    assert (said.case, result, CALLS) == ("A5", 104, [])
    assert events[-1][1] == "RunCompleted"


@pytest.mark.parametrize(
    ("case", "again"),
    [("B1", ["waits", "last"]), ("B2", ["waits", "last"]), ("C1", ["last"]), ("C2", ["last"]), ("D1", [])],
)
async def test_what_is_no_issue_is_not_forked(url: str, case: str, again: list[str]) -> None:
    await run_it(url)
    corrupt(url, "r", case)
    async with stopped(url) as engine:
        said = await engine.recover("r")
        assert not said.needed
        await engine.resume("r")
        assert await engine.get("r").result(timeout=20) == 104
        assert {branch for branch, _, _ in await journal(engine)} == {1}
    assert again == CALLS


async def test_d2_goes_on_before_the_request_which_can_be_made_again(url: str) -> None:
    said, result, events = await recovered(url, "D2")
    assert (said.case, result, CALLS) == ("D2", 104, [])
    assert events[said.cutoff_seq] == (1, "JumpRequested", None)
    async with stopped(url) as engine:
        run = await engine.get("r").jump(to="cat_last")
        assert await run.result(timeout=20) == 104
    assert CALLS == ["last"]


async def test_e1_without_a_version_is_an_error_that_changes_nothing(url: str) -> None:
    await run_it(url)
    corrupt(url, "r", "E1")
    async with stopped(url) as engine:
        before = await journal(engine)
        with pytest.raises(CannotBeRepaired, match=r"cannot be repaired: .*E1.*restore a backup.*fork"):
            await engine.recover("r")
        assert await journal(engine) == before


async def test_e2_goes_on_under_the_version_that_it_began_with(url: str) -> None:
    said, result, _ = await recovered(url, "E2", force=True)
    assert (said.case, result, CALLS) == ("E2", 104, [])


@pytest.mark.parametrize("case", ["D2", "E2"])
async def test_d2_and_e2_a_run_that_had_failed_has_failed_still_and_can_be_retried(url: str, case: str) -> None:
    BROKEN["on"] = True
    await run_it(url, cat_retries)
    corrupt(url, "r", case)
    async with stopped(url) as engine:
        said = await engine.recover("r")
        assert (said.case, said.branch) == (case, 2)
        with pytest.raises(hf.RunFailed, match="not today"):
            await engine.get("r").result(timeout=20)
        assert CALLS == [], "nothing runs again"
        assert not (await engine.recover("r")).needed
        BROKEN["on"] = False
        run = await engine.get("r").retry()
        assert await run.result(timeout=20) == 2
    check_file(url.removeprefix("sqlite:///"))


@pytest.mark.parametrize("case", ["D2", "E2"])
async def test_d2_and_e2_a_run_that_was_cancelled_is_cancelled_still(url: str, case: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(cat_asleep, run_id="r")
        await run.cancel("enough")
        with pytest.raises(hf.RunCancelled):
            await run.result(timeout=20)
    corrupt(url, "r", case)
    async with stopped(url) as engine:
        assert (await engine.recover("r")).case == case
        with pytest.raises(hf.RunCancelled, match="enough"):
            await engine.get("r").result(timeout=20)
    check_file(url.removeprefix("sqlite:///"))


@hf.workflow
async def cat_asleep(ctx: hf.Context) -> None:
    await ctx.sleep(36_000)


async def test_e2_without_any_version_cannot_be_repaired(url: str, tmp_path: Path) -> None:
    import apsw

    await run_it(url)
    connection = apsw.Connection(str(tmp_path / "catalogue.db"))
    connection.execute("DELETE FROM workflow_versions")
    connection.close()
    async with stopped(url) as engine:
        with pytest.raises(CannotBeRepaired, match="cannot be repaired"):
            await engine.recover("r")


async def test_resume_recovers_first_and_then_goes_on_in_the_same_call(url: str) -> None:
    await run_it(url)
    corrupt(url, "r", "A1")
    async with stopped(url) as engine:
        run = await engine.resume("r")
        assert await run.result(timeout=20) == 104
        assert (2, "RunRecovered", None) in await journal(engine)


async def test_an_engine_that_takes_a_torn_run_over_recovers_it_by_itself(url: str) -> None:
    await run_it(url)
    corrupt(url, "r", "A2")
    async with hf.open(url) as engine:
        assert await engine.get("r").result(timeout=20) == 104
        assert (2, "RunRecovered", None) in await journal(engine)


async def test_recovering_a_run_that_an_engine_owns_is_refused_with_who_owns_it(url: str) -> None:
    gate = asyncio.Event()
    GATES.append(gate)
    async with hf.open(url) as engine:
        run = await engine.start(cat_held, x=1, run_id="r")
        async with stopped(url) as other:
            with pytest.raises(Refused, match=f"owned by engine {engine.lease.engine}.*process"):
                await other.recover("r")
        gate.set()
        assert await run.result(timeout=20) == 1


GATES: list[asyncio.Event] = []


@hf.node
async def cat_gate(x: int) -> int:
    await GATES[0].wait()
    return x


@hf.workflow
def cat_held(x: int) -> Any:
    return cat_gate(x)


@pytest.mark.parametrize(("kept", "last"), [(2, "PhaseStarted"), (3, "NodeScheduled"), (4, "NodeStarted")])
async def test_nothing_stable_is_an_error_and_the_run_is_left_untouched(
    url: str, tmp_path: Path, kept: int, last: str
) -> None:
    import apsw

    await run_it(url)
    corrupt(url, "r", "A5")
    connection = apsw.Connection(str(tmp_path / "catalogue.db"))
    connection.execute("DELETE FROM run_events WHERE seq > ?", (kept,))
    connection.close()
    async with stopped(url) as engine:
        before = await journal(engine)
        assert before[-1][1] == last
        with pytest.raises(CannotBeRepaired, match="no event to continue from"):
            await engine.recover("r")
        assert await journal(engine) == before


@hf.workflow
async def cat_with_a_child(ctx: hf.Context, x: int) -> int:
    CALLS.append("parent")
    return await ctx.child(cat_chain, x=x) + 1


async def test_c1_a_body_that_starts_its_child_again_waits_for_the_one_that_is_there(url: str) -> None:
    await run_it(url, cat_with_a_child)
    corrupt(url, "r", "C1")
    async with stopped(url) as engine:
        run = await engine.resume("r")
        assert await run.result(timeout=20) == 105
        started = [kind for _, kind, _ in await journal(engine)].count("NodeStarted")
    assert (started, CALLS) == (2, ["parent"]), "it is started once more, and its child is not"
    check_file(url.removeprefix("sqlite:///"))
