"""What a loop carries, or a variable, returned by the items of a map: its list keeps the value of its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model.limits import INLINE_LIMIT_BYTES
from holdfast.testing import explore
from tests.engine.kit import check_journal, url
from tests.servers import PostgresServer

UNDONE: list[Any] = []


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own, of either kind."""
    if request.param == "sqlite":
        yield url(tmp_path / "runs.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    yield server.url(schema=f"carried_{abs(hash(request.node.name)):x}")


async def outcome(address: str, workflow: Any, **inputs: Any) -> Any:
    """The result of a run, whose journal and rows the doctor has proved."""
    async with hf.open(address) as engine:
        run = await engine.start(workflow, **inputs)
        try:
            return await run.result(timeout=60)
        finally:
            row = engine.store.run(run.run_id)
            assert row is not None
            check_journal(engine.store, row)


def never(result: Any) -> Any:
    return hf.size(result) > 1_000


@hf.node
async def carried_bump(x: int) -> int:
    return x + 1


@hf.node
async def carried_total(items: list[dict[str, Any]]) -> int:
    return sum(item["n"] for item in items)


@hf.node
async def carried_fails(x: int) -> int:
    raise ValueError("it always fails")


# --- the value itself ------------------------------------------------------------------------------------------------


@hf.workflow
def carried_directly(n: int = 0) -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return {"acc": acc, "b": carried_bump(i), "i": i}

        return hf.map(each, [1, 2])

    return hf.loop(round_, start=n, until=never, max_visits=3, at_limit="take")


def directly(rounds: int, start: Any = 0) -> Any:
    acc = start
    for _ in range(rounds):
        acc = [{"acc": acc, "b": i + 1, "i": i} for i in (1, 2)]
    return acc


async def test_items_return_the_value_of_their_own_round(address: str) -> None:
    assert await outcome(address, carried_directly) == directly(3)


async def test_items_of_a_lazy_run_return_the_value_of_their_own_round(tmp_path: Path) -> None:
    assert await outcome(url(tmp_path / "runs.db"), carried_directly, persistence="lazy") == directly(3)


def test_no_crash_at_any_write_changes_what_a_round_returns() -> None:
    report = explore(carried_directly, idempotent=["carried_bump"])
    assert report.safe, report.explain()
    assert report.schedules > 10


# --- the value as the list of the map --------------------------------------------------------------------------------


@hf.workflow
def carried_as_the_list() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return {"id": i["id"], "n": carried_bump(i["n"])}

        return hf.map(each, acc)

    start = [{"id": "a", "n": 0}, {"id": "b", "n": 10}]
    return hf.loop(round_, start=start, until=never, max_visits=200, at_limit="take")


async def test_a_field_that_items_pass_on_survives_many_rounds(tmp_path: Path) -> None:
    """More rounds than a chain of references through all of them could be followed."""
    result = await outcome(url(tmp_path / "runs.db"), carried_as_the_list)
    assert result == [{"id": "a", "n": 200}, {"id": "b", "n": 210}]


@hf.workflow
def carried_empty() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return {"i": i, "n": carried_bump(1)}

        return hf.map(each, acc)

    return hf.loop(round_, start=[], until=never, max_visits=3, at_limit="take")


async def test_an_empty_list_is_carried(address: str) -> None:
    assert await outcome(address, carried_empty) == []


# --- through other parameters, and read in the same round ------------------------------------------------------------


@hf.workflow
def carried_deeply() -> Any:
    """The value of the outer loop reaches the inner items as an argument, and as an item of the map between."""

    def outer(acc: Any) -> Any:
        def group(g: Any, whole: Any) -> Any:
            def inner(m: Any) -> Any:
                def each(i: Any) -> Any:
                    return {"n": carried_bump(i), "whole": hf.size(whole), "g": g["n"], "m": hf.size(m)}

                return hf.map(each, [1])

            grown = hf.loop(inner, start=[], until=never, max_visits=2, at_limit="take")
            return {"n": carried_total(grown), "inner": grown[0], "before": g}

        return hf.map(group, acc, whole=acc)

    return hf.loop(outer, start=[{"n": 5}], until=never, max_visits=3, at_limit="take")


def deeply() -> Any:
    acc: list[dict[str, Any]] = [{"n": 5}]
    for _ in range(3):
        inner = [{"n": 2, "whole": len(acc), "g": g["n"], "m": 1} for g in acc]
        acc = [{"n": 2, "inner": inner[i], "before": g} for i, g in enumerate(acc)]
    return acc


async def test_it_is_found_through_arguments_and_maps_between(address: str) -> None:
    assert await outcome(address, carried_deeply) == deeply()


@hf.workflow
def carried_collecting() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            with hf.when(i > 1):
                failed = carried_fails(i)
            return {"n": carried_bump(i), "before": hf.size(acc), "failed": failed}

        return hf.map(each, [1, 2], errors="collect")

    return hf.loop(round_, start=[7], until=never, max_visits=2, at_limit="take")


async def test_failures_that_a_map_collects_are_items(address: str) -> None:
    first, second = await outcome(address, carried_collecting)
    assert first == {"n": 2, "before": 2, "failed": None}
    assert "it always fails" in str(second)


# --- later readers ---------------------------------------------------------------------------------------------------


@hf.node
async def carried_undo(output: Any, items: list[dict[str, Any]]) -> None:
    UNDONE.append([item["before"] for item in items])


@hf.node(compensate=carried_undo)
async def carried_books(items: list[dict[str, Any]]) -> int:
    return len(items)


@hf.workflow(on_failure="compensate")
def carried_undone() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return {"before": acc, "n": carried_bump(i)}

        return carried_books(hf.map(each, [1, 2])) + acc

    return carried_fails(hf.loop(round_, start=1, until=lambda n: n > 4, max_visits=5))


async def test_a_compensation_is_given_what_its_round_had(address: str) -> None:
    UNDONE.clear()
    with pytest.raises(hf.RunFailed):
        await outcome(address, carried_undone)
    assert UNDONE == [[3, 3], [1, 1]]


# --- variables -------------------------------------------------------------------------------------------------------


@hf.node
async def carried_sets(ctx: hf.Context, value: int, after: Any = None) -> int:
    ctx.vars["level"] = value
    return value


@hf.node
async def carried_reads(items: list[dict[str, Any]], after: Any = None) -> list[int]:
    return [item["level"] for item in items]


@hf.workflow(variables={"level": int})
def carried_variable() -> Any:
    first = carried_sets.named("first")(1)

    def each(i: Any, first: Any) -> Any:
        return {"n": carried_bump(i), "level": hf.var("level"), "first": first}

    listed = hf.map(each, [1, 2], first=first)
    before = carried_reads.named("before")(listed)
    second = carried_sets.named("second")(2, before)
    return [before, carried_reads.named("after")(listed, second), listed[0]["level"]]


async def test_a_list_with_a_variable_stays_the_same_when_the_variable_is_set_again(address: str) -> None:
    assert await outcome(address, carried_variable) == [[1, 1], [1, 1], 1]


# --- what cannot be stored -------------------------------------------------------------------------------------------


@hf.node
async def carried_large(x: int) -> str:
    return "x" * (INLINE_LIMIT_BYTES // 3)


@hf.workflow
def carried_too_large() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return [acc, carried_large(i)]

        return hf.map(each, [1, 2, 3, 4])

    return hf.loop(round_, start=1, until=never, max_visits=2, at_limit="take")


async def test_a_list_that_is_too_large_to_be_stored_fails_its_map_by_name(tmp_path: Path) -> None:
    with pytest.raises(hf.RunFailed, match=r"1,000,000 are stored.*pass that through a node") as failed:
        await outcome(url(tmp_path / "runs.db"), carried_too_large)
    assert (failed.value.error.node, failed.value.error.path) == ("each", ".round_.0.")


@hf.workflow
def carried_not_a_number() -> Any:
    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return [acc + carried_bump(i)]

        return hf.map(each, [1])

    return hf.loop(round_, start="text", until=never, max_visits=2, at_limit="take")


async def test_an_item_without_a_value_fails_its_map(tmp_path: Path) -> None:
    with pytest.raises(hf.RunFailed, match="its output: "):
        await outcome(url(tmp_path / "runs.db"), carried_not_a_number)


# --- maps outside loops ----------------------------------------------------------------------------------------------


@hf.workflow
def carried_nothing(xs: list[int]) -> Any:
    def each(i: Any) -> Any:
        return {"i": i, "n": carried_bump(i)}

    def round_(acc: Any) -> Any:
        def of_round(i: Any) -> Any:
            return {"i": i, "n": carried_bump(acc)}

        return carried_total(hf.map(of_round, xs))

    return [hf.map(each, xs), hf.loop(round_, start=1, until=lambda n: n > 20, max_visits=5)]


async def test_a_map_that_returns_nothing_carried_stores_no_second_copy(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        run = await engine.start(carried_nothing, xs=[1, 2])
        assert await run.result(timeout=60) == [[{"i": 1, "n": 2}, {"i": 2, "n": 3}], 22]
        completed = [e for e in await run.events() if e.type == "NodeCompleted" and e.node in ("each", "of_round")]
    assert len(completed) == 1 + 3
    assert all(e.data["virtual"] for e in completed)
