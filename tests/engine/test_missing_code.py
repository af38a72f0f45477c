"""Missing code: an engine says at once which handler of which run it lacks, and what it has instead."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model import capabilities, handlers
from holdfast.opening import open_engine  # which registers the built-in handlers
from tests.engine.kit import check_file, until, url


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test defines is gone after it."""
    monkeypatch.setattr(handlers, "_handlers", dict(handlers._handlers))
    monkeypatch.setattr(handlers, "_workflows", dict(handlers._workflows))


def before(ship: str) -> Any:
    @hf.node(name=ship)
    async def second(ok: bool) -> str:
        return f"shipped {ok}"

    @hf.workflow(name="order")
    def order() -> str:
        return second(hf.ask("Ship?", schema=bool))

    return order


async def waiting(db: Path) -> None:
    """A run whose question was answered while no engine that drives was there; then its function is renamed."""
    async with open_engine(url(db)) as engine:
        await engine.start(before("shop.ship"), run_id="r1")
        await until(lambda: engine.store.run("r1").status == "suspended", "it asks")  # type: ignore[union-attr]
    async with open_engine(url(db), drive=False) as client:
        (wait,) = await client.get("r1").waits()
        await client.get("r1").respond(wait.wait_id, True)
    del handlers._handlers["shop.ship"]


def test_hf_run_of_a_run_whose_function_was_renamed_raises_missing_code(registry: None, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    asyncio.run(waiting(db))
    with pytest.raises(hf.MissingCode) as raised:
        hf.run(before("parcels.ship"), run_id="r1", db=url(db))
    assert "run r1 of workflow order needs shop.ship, which is not loaded here" in str(raised.value)
    assert "loaded here: parcels.ship" in str(raised.value)
    assert '@hf.node(name="shop.ship")' in str(raised.value)


async def test_an_engine_that_opens_the_store_logs_the_run_that_it_cannot_drive_once(
    registry: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "runs.db"
    await waiting(db)
    before("parcels.ship")
    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        async with open_engine(url(db)) as engine:
            await engine.claims.sweep()
    (line,) = [record.getMessage() for record in caplog.records if "missing_code" in record.getMessage()]
    assert "run r1 (and perhaps others) of workflow order is not driven: it needs shop.ship" in line
    assert "loaded here: parcels.ship" in line


async def test_an_engine_logs_a_waiting_run_whose_function_was_renamed_before_it_wakes(
    registry: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "runs.db"
    async with open_engine(url(db)) as engine:
        await engine.start(before("shop.ship"), run_id="r1")
        await until(lambda: engine.store.run("r1").status == "suspended", "it asks")  # type: ignore[union-attr]
    del handlers._handlers["shop.ship"]
    workflow = handlers._workflows.pop("order")

    async def opened() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast.engine"):
            async with open_engine(url(db)) as engine:
                await engine.claims.sweep()
        return [record.getMessage() for record in caplog.records if "missing_code" in record.getMessage()]

    assert await opened() == [], "a run of another program"
    handlers._workflows["order"] = workflow
    before("parcels.ship")
    (line,) = await opened()
    assert "run r1 (and perhaps others) of workflow order waits, and cannot be driven when it wakes" in line
    assert "it needs shop.ship, which is not loaded here (loaded here: parcels.ship" in line
    before("shop.ship")
    assert await opened() == []


async def test_no_warning_and_no_error_while_another_engine_has_the_code(
    registry: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "runs.db"
    await waiting(db)
    async with open_engine(url(db), drive=False) as other:
        able = capabilities.EngineCapabilities(
            handlers=frozenset([*handlers.names(), "shop.ship"])
        )  # and takes its time
        await other.committer.call(other.lease.register, able.encode())
        with caplog.at_level(logging.WARNING, "holdfast.engine"):
            async with open_engine(url(db)):
                pass
    assert [record for record in caplog.records if "missing_code" in record.getMessage()] == []


async def test_a_run_holds_when_the_compensation_of_a_step_is_not_loaded_after_a_takeover(
    registry: None, tmp_path: Path
) -> None:
    undone: list[str] = []

    async def refund(charge: str) -> None:
        undone.append(charge)

    @hf.node(name="shop.charge", compensate=hf.node(name="shop.refund")(refund))
    async def charge(order: str) -> str:
        return f"charge of {order}"

    @hf.workflow(name="order", on_failure="compensate")
    async def order(ctx: hf.Context) -> None:
        await ctx.step(charge, "o1")
        await ctx.ask("Ship?", schema=bool)

    db = tmp_path / "runs.db"
    async with open_engine(url(db)) as engine:
        await engine.start(order, run_id="r1")
        await until(lambda: engine.store.run("r1").status == "suspended", "it asks")  # type: ignore[union-attr]
    removed = handlers._handlers.pop("shop.refund")
    async with open_engine(url(db)) as engine:
        await engine.get("r1").cancel()
        await until(lambda: engine.store.run("r1").hold is not None, "it is put on hold")  # type: ignore[union-attr]
        hold = engine.store.run("r1").hold  # type: ignore[union-attr]
        assert hold.startswith("missing_code: run r1 needs shop.refund, which is not loaded here"), hold
    handlers._handlers["shop.refund"] = removed
    async with open_engine(url(db)) as engine:
        run = engine.get("r1")
        await run.resume()
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert cancelled.value.others == ()
    assert undone == ["charge of o1"]
    check_file(db)


# --- ending a run whose compensations cannot run --------------------------------------------------------------------


async def compensating(db: Path, undone: list[str]) -> None:
    """A run with three steps to undo, which waits for an answer."""

    async def refund(charge: str) -> None:
        undone.append(charge)

    async def unbook(booking: str) -> None:
        undone.append(booking)

    @hf.node(name="shop.book", compensate=hf.node(name="shop.unbook")(unbook))
    async def book(order: str) -> str:
        return f"booking of {order}"

    @hf.node(name="shop.charge", compensate=hf.node(name="shop.refund")(refund))
    async def charge(order: str) -> str:
        return f"charge of {order}"

    @hf.workflow(name="order", on_failure="compensate")
    async def order(ctx: hf.Context) -> None:
        await ctx.step(charge, "o0")
        await ctx.step(book, "o1")
        await ctx.step(charge, "o1")
        await ctx.ask("Ship?", schema=bool)

    async with open_engine(url(db)) as engine:
        await engine.start(order, run_id="r1")
        await until(lambda: engine.store.run("r1").status == "suspended", "it asks")  # type: ignore[union-attr]


async def held_for_missing_code(db: Path) -> None:
    del handlers._handlers["shop.refund"]
    async with open_engine(url(db)) as engine:
        await engine.get("r1").cancel("out of stock")
        await until(lambda: engine.store.run("r1").hold is not None, "it is put on hold")  # type: ignore[union-attr]


async def test_cancelling_a_run_on_hold_ends_it_without_the_compensations_that_cannot_run(
    registry: None, tmp_path: Path
) -> None:
    db, undone = tmp_path / "runs.db", list[str]()
    await compensating(db, undone)
    await held_for_missing_code(db)
    async with open_engine(url(db)) as engine:
        run = engine.get("r1")
        assert "`holdfast cancel r1` ends it (compensations that cannot run" in await run.why()
        await run.cancel("give up", actor="ann")
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert str(cancelled.value).endswith("out of stock"), "it ends as it was about to"
        first, second = cancelled.value.others
        assert (first.code, first.node) == ("not_undone", "charge~undo")
        assert "no engine has loaded its compensation shop.refund" in first.message == second.message
        assert undone == ["booking of o1"], "what can be undone is"
        _, asked = [e.data for e in await run.events() if e.type == "RunCancelRequested"]
        assert (asked["reason"], asked["actor"], asked["gives_up_undo"]) == ("give up", "ann", True)
    check_file(db)


async def test_compensations_that_were_given_up_are_retried_with_their_keys_when_there_is_code_for_them(
    registry: None, tmp_path: Path
) -> None:
    db, undone = tmp_path / "runs.db", list[str]()
    await compensating(db, undone)
    refund = handlers._handlers["shop.refund"]
    await held_for_missing_code(db)
    async with open_engine(url(db)) as engine:
        await engine.get("r1").cancel()
        await until(lambda: engine.store.run("r1").status == "cancelled", "it ends")  # type: ignore[union-attr]
    handlers._handlers["shop.refund"] = refund
    async with open_engine(url(db)) as engine:
        run = engine.get("r1")
        await run.retry()
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert cancelled.value.others == ()
    assert undone == ["booking of o1", "charge of o1", "charge of o0"]
    check_file(db)


async def test_a_client_without_code_leaves_compensations_to_an_engine_that_has_it(
    registry: None, tmp_path: Path
) -> None:
    db, undone = tmp_path / "runs.db", list[str]()
    await compensating(db, undone)
    await held_for_missing_code(db)
    async with open_engine(url(db)) as engine, open_engine(url(db), drive=False) as client:
        await client.get("r1").cancel()
        with pytest.raises(hf.RunCancelled) as cancelled:
            await engine.get("r1").result()
        assert len(cancelled.value.others) == 2
    assert undone == ["booking of o1"]
    check_file(db)


async def test_without_any_engine_that_has_the_code_all_compensations_are_given_up(
    registry: None, tmp_path: Path
) -> None:
    db, undone = tmp_path / "runs.db", list[str]()
    await compensating(db, undone)
    await held_for_missing_code(db)
    async with open_engine(url(db), drive=False) as client:
        run = client.get("r1")
        await run.cancel()
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert [other.node for other in cancelled.value.others] == ["charge~undo", "book~undo", "charge~undo"]
    assert undone == []
    check_file(db)


async def test_a_run_whose_whole_code_is_gone_ends_by_a_cancel_that_gives_its_compensations_up(
    registry: None, tmp_path: Path
) -> None:
    db, undone = tmp_path / "runs.db", list[str]()
    await compensating(db, undone)
    async with open_engine(url(db), drive=False) as client:
        run = client.get("r1")
        await run.cancel()
        await run.cancel()
        await until(lambda: client.store.run("r1").engine is None, "it is released")  # type: ignore[union-attr]
        assert await run.status() == "running", "an engine with its code may come"
        assert "`holdfast cancel r1 --give-up-undo` ends it without them" in await run.why()
        await run.cancel(give_up_undo=True)
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert len(cancelled.value.others) == 3
    check_file(db)


async def test_cancelling_gives_up_the_compensation_that_the_hold_is_about(registry: None, tmp_path: Path) -> None:
    acts: list[str] = []

    def act(what: str) -> None:
        acts.append(what)

    def define(first: str) -> Any:
        @hf.node(name="shop.refund")
        async def refund(ctx: hf.Context, charge: str) -> None:
            await ctx.step(act, first)
            await ctx.receive("go")

        @hf.node(name="shop.unbook")
        async def unbook(booking: str) -> None:
            acts.append("unbook")

        @hf.node(name="shop.book", compensate=unbook)
        async def book() -> str:
            return "booking"

        @hf.node(name="shop.charge", compensate=refund)
        async def charge(booking: str) -> str:
            return "charge"

        @hf.node(name="shop.ship")
        async def ship(charge: str) -> None:
            raise ValueError("no parcels")

        @hf.workflow(name="order", on_failure="compensate")
        def order() -> None:
            ship(charge(book()))

        return order

    db = tmp_path / "runs.db"
    async with open_engine(url(db)) as engine:
        await engine.start(define("refund"), run_id="r1")
        await until(lambda: engine.store.run("r1").status == "suspended", "it waits")  # type: ignore[union-attr]
    async with open_engine(url(db), drive=False) as client:
        await client.get("r1").signal("go")
    define("changed")
    async with open_engine(url(db)) as engine:
        await until(lambda: engine.store.run("r1").hold is not None, "it is put on hold")  # type: ignore[union-attr]
        run = engine.get("r1")
        await run.cancel()
        with pytest.raises(hf.RunFailed, match="no parcels") as failed:
            await run.result()
        (other,) = failed.value.others
        assert other.node == "charge~undo"
        assert "not undone, given up by a cancel: code_changed: charge~undo" in other.message
    assert acts == ["refund", "unbook"]
    check_file(db)
