"""Failures of steps (SEMANTICS 7, 8): a body sees the same exception when it is raised and when it is replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model.errors import StepFailed
from holdfast.testing import explore
from tests.engine.kit import check_file, until, until_async, url


class ApiError(Exception):
    def __init__(self, status: int, text: str, response: object = None) -> None:
        super().__init__(text)
        self.status = status
        self.response = response


@dataclass(frozen=True)
class Refused(Exception):
    reason: str


async def call_async(status: int) -> None:
    raise ApiError(status, "slow down", response=object()) from ConnectionError("reset")


def call_sync(status: int) -> None:
    raise ApiError(status, "slow down", response=object())


def _seen(error: BaseException) -> dict[str, Any]:
    return {
        "class": type(error).__name__,
        "text": str(error),
        "args": list(error.args),
        "attributes": sorted(name for name in vars(error) if not name.startswith("__")),
        "status": getattr(error, "status", None),
        "cause": repr(error.__cause__),
        "context": repr(error.__context__),
        "notes": len(error.__notes__),
    }


async def _twice(db: Path, body: Any) -> list[Any]:
    """What a body saw in its first life, and after it was evicted."""
    seen: list[Any] = []

    @hf.workflow(name="sees")
    async def sees(ctx: hf.Context) -> None:
        seen.append(await body(ctx))
        await ctx.receive("go")

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(sees, run_id="r")

        async def waits() -> bool:
            return await run.status() == "suspended"

        await until_async(waits)
        await until(lambda: not engine.actors, "the run is evicted")
        await run.signal("go")
        await run.result(timeout=30)
    check_file(db)
    assert len(seen) == 2
    return seen


@pytest.mark.parametrize("step", [call_async, call_sync])
async def test_both_passes_see_the_same_exception(tmp_path: Path, step: Any) -> None:
    async def body(ctx: hf.Context) -> Any:
        try:
            await ctx.step(step, 429)
        except ApiError as error:
            return _seen(error)

    first, second = await _twice(tmp_path / "runs.db", body)
    assert first == second
    assert (first["class"], first["status"], first["text"]) == ("ApiError", 429, "slow down")
    assert first["attributes"] == ["status"], "an attribute that is not JSON is gone from the start"


async def test_both_passes_see_the_same_exception_of_a_map_and_of_a_race(tmp_path: Path) -> None:
    async def body(ctx: hf.Context) -> Any:
        found = []
        for call in (ctx.map(call_async, [500]), ctx.race(ctx.step(call_async, 503), ctx.sleep("1h"))):
            try:
                await call
            except ApiError as error:
                found.append(_seen(error))
        return found

    first, second = await _twice(tmp_path / "runs.db", body)
    assert first == second
    assert [each["status"] for each in first] == [500, 503]


async def _refuse(reason: str) -> None:
    raise Refused(reason)


async def test_a_class_that_lets_no_attribute_be_set_is_raised_all_the_same(tmp_path: Path) -> None:
    async def body(ctx: hf.Context) -> Any:
        try:
            await ctx.step(_refuse, "closed")
        except Refused as error:
            return error.reason, error.__notes__

    first, second = await _twice(tmp_path / "runs.db", body)
    assert first == second
    assert first[0] == "closed"
    assert "in _refuse: " in first[1][-1]


async def _call_both() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(call_async(429))
        group.create_task(_refuse("closed"))


async def test_a_group_of_exceptions_is_raised_with_the_exceptions_in_it(tmp_path: Path) -> None:
    async def body(ctx: hf.Context) -> Any:
        found: list[Any] = []
        try:
            await ctx.step(_call_both)
        except* ApiError as group:
            found += [_seen(error) for error in group.exceptions]
        except* Refused as group:
            found += [error.reason for error in group.exceptions if isinstance(error, Refused)]
        return found

    first, second = await _twice(tmp_path / "runs.db", body)
    assert first == second
    assert (first[0]["class"], first[0]["status"], first[1]) == ("ApiError", 429, "closed")


async def test_a_class_that_cannot_be_made_again_is_a_failed_step_from_the_start(tmp_path: Path) -> None:
    async def body(ctx: hf.Context) -> Any:
        class Local(Exception):
            pass

        async def fails() -> None:
            raise Local("no")

        try:
            await ctx.step(fails)
        except StepFailed as error:
            return _seen(error)

    first, second = await _twice(tmp_path / "runs.db", body)
    assert first == second
    assert first["class"] == "StepFailed"


async def _sold_out() -> None:
    raise hf.Fail("sold out", retryable=False, details={"left": 0})


async def test_details_of_a_failure_reach_the_body_the_parent_and_the_caller(tmp_path: Path) -> None:
    left: list[Any] = []

    @hf.workflow
    async def detailed(ctx: hf.Context) -> None:
        try:
            await ctx.step(_sold_out)
        except hf.Fail as failed:
            left.append(failed.details)
            raise

    @hf.workflow
    async def parent_of_detailed(ctx: hf.Context) -> Any:
        try:
            await ctx.child(detailed)
        except hf.ChildFailed as failed:
            return failed.error.details

    @hf.node
    async def item(n: int) -> int:
        raise hf.Fail("sold out", retryable=False, details=n)

    @hf.node
    def details(found: list[int | hf.Failed]) -> list[Any]:
        return [each.error.details for each in found if isinstance(each, hf.Failed)]

    @hf.workflow
    def collected() -> list[Any]:
        return details(hf.map(item, [1, 2], errors="collect"))

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        with pytest.raises(hf.RunFailed) as caught:
            await (await engine.start(detailed)).result(timeout=30)
        assert [caught.value.error.details, *left] == [{"left": 0}] * 2
        assert any("in _sold_out: " in frame for frame in caught.value.error.frames)
        assert await (await engine.start(parent_of_detailed)).result(timeout=30) == {"left": 0}
        assert await (await engine.start(collected)).result(timeout=30) == [1, 2]


@hf.workflow
async def backs_off(ctx: hf.Context) -> str:
    try:
        await ctx.step(call_async, 429)
    except ApiError as error:
        await ctx.sleep(60)
        return "later" if error.status == 429 else "never"
    return "done"


def test_no_crash_changes_what_a_body_makes_of_a_failure() -> None:
    report = explore(backs_off, idempotent=["call_async"])
    assert report.safe, report.explain()
