"""A run as execution paths, and what resuming makes of those that were cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.inspect.paths import TEMP_HOLD, ExecutionPath, sanitised
from holdfast.opening import open_engine
from holdfast.testing import corrupt

CALLS: list[str] = []
STUCK = {"on": False}


@hf.node
async def path_item(x: int) -> int:
    CALLS.append(f"item {x}")
    if x == 2 and STUCK["on"]:
        await asyncio.sleep(3600)
    return x * 10


@hf.node
async def path_sum(items: list[int]) -> int:
    CALLS.append("sum")
    return sum(items)


@hf.workflow
def path_parallel(numbers: list[int]) -> Any:
    return path_sum(hf.map(path_item, numbers))


@hf.node
async def path_one(x: int) -> int:
    CALLS.append("one")
    return x + 1


@hf.node
async def path_two(x: int) -> int:
    CALLS.append("two")
    return x + 1


@hf.workflow
def path_chain(x: int) -> Any:
    return path_two(path_one(x))


@hf.node
async def path_look(x: int) -> int:
    CALLS.append(f"look {x}")
    match x:
        case 0:
            return hf.pend("second_look", output=0)
        case 1 if CALLS.count("look 1") == 1:
            return hf.pend("again", rerun=True)
        case 2 if CALLS.count("look 2") == 1:
            return hf.pend("errors", error="it is down")
    return x


@hf.node
async def path_before() -> int:
    return hf.pend("shallow", output=7)


@hf.workflow
def path_baskets() -> Any:
    return {"looked": hf.map(path_look, [0, 1, 2]), "before": path_before()}


@pytest.fixture
def url(tmp_path: Path) -> str:
    CALLS.clear()
    STUCK["on"] = False
    return f"sqlite:///{tmp_path}/paths.db"


@pytest.mark.parametrize(
    ("response", "resumes_with"),
    [(None, "ok_pend_eor"), ("ok_proceed", "ok_pend"), ("ok_pend", "ok_pend"), ("error_pend", "error_pend")],
)
def test_a_path_that_was_cut_off_counts_as_completed_and_lies_in_the_temporary_basket(
    response: str | None, resumes_with: str
) -> None:
    cut_off = ExecutionPath(".", "started", "a", response)
    assert sanitised(cut_off) == ExecutionPath(".", "completed", "a", resumes_with, TEMP_HOLD)


def test_a_path_that_was_cut_off_keeps_the_basket_it_had() -> None:
    assert sanitised(ExecutionPath(".", "started", "a", None, "finance")).basket == "finance"


def test_a_path_that_was_cut_off_returns_to_the_basket_that_it_was_in_before() -> None:
    cut_off = ExecutionPath(".", "started", "a", None, previous_basket="finance")
    assert sanitised(cut_off).basket == "finance"


def test_a_singular_route_that_was_cut_off_is_evaluated_again() -> None:
    cut_off = ExecutionPath(".", "started", "r", "ok_proceed", unit="route")
    assert sanitised(cut_off).response == "ok_pend_eor"


def test_a_path_that_was_not_cut_off_stays_as_it_is() -> None:
    pended = ExecutionPath(".", "completed", "a", "ok_pend", "finance")
    assert sanitised(pended) == pended


async def test_a_crash_during_a_step_shows_that_the_step_will_run_again(url: str) -> None:
    async with hf.open(url) as engine:
        await (await engine.start(path_chain, x=1, run_id="r")).result(timeout=20)
    corrupt(url, "r", "C1")
    CALLS.clear()
    async with open_engine(url, recover=False) as engine:
        shown = await engine.get("r").paths()
        assert shown["pend_path"] == "."
        (path,) = shown["paths"]
        assert path["name"] == "."
        assert (path["status"], path["step"], path["response"]) == ("completed", "path_two", "ok_pend_eor")
        assert path["basket"] == TEMP_HOLD
        assert await (await engine.resume("r")).result(timeout=20) == 3
    assert CALLS == ["two"]


async def test_of_three_parallel_paths_only_the_one_that_was_cut_off_runs_again(url: str) -> None:
    STUCK["on"] = True
    async with hf.open(url, grace_seconds=0.1) as engine:
        run = await engine.start(path_parallel, numbers=[1, 2, 3], run_id="r")
        while len(await completed(run)) < 2:  # noqa: ASYNC110 - nobody tells when a commit has landed
            await asyncio.sleep(0.005)
        live = {path["name"]: path["status"] for path in (await run.paths())["paths"]}
        assert live[".path_item.1."] == "started"
    STUCK["on"] = False
    CALLS.clear()
    async with open_engine(url, recover=False) as engine:
        shown = {path["name"]: path for path in (await engine.get("r").paths())["paths"]}
        assert (await engine.get("r").paths())["pend_path"] == ".path_item.1."
        assert shown[".path_item.0."]["response"] == "ok_proceed"
        assert shown[".path_item.1."]["response"] == "ok_pend_eor"
        assert await (await engine.resume("r")).result(timeout=20) == 60
    assert CALLS == ["item 2", "sum"]


async def completed(run: Any) -> list[Any]:
    return [node for node in await run.nodes() if node["node"] == "path_item" and node["status"] == "completed"]


async def test_a_finished_run_is_complete_and_has_no_path_to_resume(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(path_chain, x=1, run_id="r")
        await run.result(timeout=20)
        shown = await run.paths()
    assert shown["complete"]
    assert shown["pend_path"] is None


async def test_pended_paths_lie_in_their_baskets_with_the_answer_that_their_unit_gave(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(path_baskets, run_id="r")
        await _pended(run, 4)
        shown = {
            path["name"]: (path["status"], path["response"], path["basket"]) for path in (await run.paths())["paths"]
        }
        (broken,) = [wait for wait in await run.waits() if wait.basket == "errors"]
        await run.reassign(str(broken.wait_id), basket="retry_queue")
        moved = {path["name"]: path["basket"] for path in (await run.paths())["paths"]}
    assert shown[".path_look.0."] == ("completed", "ok_pend", "second_look")
    assert shown[".path_look.1."] == ("completed", "ok_pend_eor", "again")
    assert shown[".path_look.2."] == ("completed", "error_pend", "errors")
    assert moved[".path_look.2."] == "retry_queue"


async def test_the_pend_path_is_the_deepest_in_a_basket_and_a_plain_resume_takes_it(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(path_baskets, run_id="r")
        await _pended(run, 4)
        taken = []
        while (pend_path := (await run.paths())["pend_path"]) is not None:
            waits = {wait.wait_id: wait.path for wait in await run.waits()}
            taken += [waits[wait_id] for wait_id in await run.resume()]
            assert taken[-1] == pend_path
            await _pended(run, len(waits) - 1)
        assert taken[-1] == "."
        assert sorted(taken[:-1]) == [".path_look.0.", ".path_look.1.", ".path_look.2."]
        assert await run.result(timeout=20) == {"looked": [0, 1, 2], "before": 7}
    assert (CALLS.count("look 0"), CALLS.count("look 1"), CALLS.count("look 2")) == (1, 2, 2)


async def _pended(run: Any, count: int) -> None:
    while len(await run.waits()) != count or (count and await run.status() != "suspended"):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.005)
