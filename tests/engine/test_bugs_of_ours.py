"""An exception that nothing expects, in the engine's own code: its run is put on hold with it, others continue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine import rule_inputs
from holdfast.store.records import state_rows
from holdfast.store.records.stored_values import Values
from tests.engine.kit import check_file, until, url


class Bug(Exception):
    """What no code expects."""


@hf.node
async def bug_double(x: int) -> int:
    return 2 * x


@hf.node
async def bug_async(xs: list[int]) -> int:
    return sum(xs)


@hf.node
def bug_sync(xs: list[int]) -> int:
    return sum(xs)


@hf.node(inline=True)
def bug_inline(xs: list[int]) -> int:
    return sum(xs)


@hf.node(process=True)
def bug_process(xs: list[int]) -> int:
    return sum(xs)


@hf.node
def bug_of_one(x: int) -> int:
    return x


BODIES = {"async": bug_async, "sync": bug_sync, "inline": bug_inline, "process": bug_process}


def summing(body: Any) -> Any:
    @hf.workflow(name=f"bug_{body.name.rpartition('.')[2]}_flow")
    def flow(xs: list[int]) -> int:
        return body(hf.map(bug_double, xs))  # type: ignore[no-any-return]

    return flow


FLOWS = {kind: summing(body) for kind, body in BODIES.items()}


@hf.workflow
def bug_listed(xs: list[int]) -> Any:
    return hf.map(bug_double, xs)


@hf.workflow
def bug_one(xs: list[int]) -> int:
    return bug_of_one(xs[0])


@hf.workflow
def bug_carried(xs: list[int]) -> Any:
    def round_(acc: Any) -> Any:
        return hf.map(lambda x: {"acc": hf.size(acc), "x": bug_double(x)}, xs)

    return hf.loop(round_, start=xs, until=lambda r: hf.size(r) > 5, max_visits=1, at_limit="take")


@hf.workflow
def bug_conditional(xs: list[int]) -> Any:
    def each(x: int) -> Any:
        with hf.when(x > 0):
            doubled = bug_double(x)
        return doubled

    return hf.map(each, xs)


def raises(*_: Any, **__: Any) -> Any:
    raise Bug("it was not expected")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def breaks(what: str) -> None:
        owner: Any = Values if hasattr(Values, what) else rule_inputs
        monkeypatch.setattr(owner, what, raises)

    return breaks


def _held_and_released(engine: hf.Engine) -> Any:
    row = engine.store.run("r")
    return row if row is not None and row.hold and row.engine is None else None


CASES = [
    *((flow, "_item_values", 18) for flow in FLOWS.values()),
    (bug_listed, "_item_values", [2, 4, 12]),
    (bug_carried, "items_of", [{"acc": 3, "x": n} for n in (2, 4, 12)]),
    (bug_one, "_part", 1),
    (bug_conditional, "params", [2, 4, 12]),
]


@pytest.mark.parametrize(("flow", "what", "result"), CASES, ids=[f"{flow.name}-{what}" for flow, what, _ in CASES])
async def test_a_run_is_held_with_the_reason_others_continue_and_a_resume_repairs_it(
    flow: Any,
    what: str,
    result: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        with caplog.at_level(logging.CRITICAL):
            broken(what)
            run = await engine.start(flow, xs=[1, 2, 6], run_id="r")
            row = await until(lambda: _held_and_released(engine), "it is held")
        assert row.hold == "internal_error: Bug: it was not expected"
        assert len([r for r in caplog.records if r.levelno == logging.CRITICAL]) == 1
        monkeypatch.undo()
        other = await engine.start(bug_listed, xs=[5])
        assert await other.result(timeout=30) == [10]
        await engine.resume("r")
        assert await run.result(timeout=30) == result
    check_file(tmp_path / "runs.db")


@pytest.mark.parametrize("persistence", ["aggressive", "lazy"])
@pytest.mark.parametrize("what", ["event_rows", "changed_nodes"])
async def test_a_run_whose_commit_cannot_be_built_is_held_too(
    what: str, persistence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = getattr(state_rows, what)
    calls: list[None] = []

    def raises_at_the_second(*args: Any) -> Any:
        calls.append(None)
        return raises() if len(calls) == 2 else built(*args)

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        monkeypatch.setattr(state_rows, what, raises_at_the_second)
        run = await engine.start(FLOWS["async"], xs=[1, 2, 6], run_id="r", persistence=persistence)
        row = await until(lambda: _held_and_released(engine), "it is held")
        assert row.hold == "internal_error: Bug: it was not expected"
        monkeypatch.undo()
        await engine.resume("r")
        assert await run.result(timeout=30) == 18
    check_file(tmp_path / "runs.db")
