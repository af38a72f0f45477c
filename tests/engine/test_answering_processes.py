"""Answers against each other, a cancel and a deadline, from real processes: one wins, the others learn."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import check_file, closed_waits, hold_time, until, url, waiting

SCRIPT = Path(__file__).with_name("answering_process.py")
ROOT = Path(__file__).resolve().parents[2]
SOON = 0.05
"""Seconds until requests are made, so that both processes make theirs at the same time."""


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Somebody:
    """A process that makes requests."""

    def __init__(self, db: Path, actor: str) -> None:
        command = [sys.executable, str(SCRIPT), str(db), actor]
        environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    async def hear(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def ask(self, *request: Any) -> list[str] | None:
        """What came of a request: None, or the code and message of its refusal."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(await self.hear())  # type: ignore[no-any-return]


@pytest.fixture
async def people(db: Path) -> AsyncIterator[tuple[Somebody, Somebody]]:
    async with hf.open(url(db)):
        pass  # the file is there
    found = (Somebody(db, "ada"), Somebody(db, "bob"))
    try:
        for somebody in found:
            assert await somebody.hear() == "ready"
        yield found
    finally:
        for somebody in found:
            await asyncio.to_thread(somebody.process.communicate)


@hf.workflow
async def proc_asks(ctx: hf.Context) -> str:
    return await ctx.ask("Well?", schema=str)


@hf.workflow
async def proc_asks_until(ctx: hf.Context, seconds: float) -> str:
    return await ctx.ask("Well?", schema=str, deadline=seconds, default="nobody")


@pytest.mark.parametrize("owner", ["live", "none"])
async def test_of_two_processes_that_answer_at_once_one_wins_and_the_other_learns_who(
    db: Path, people: tuple[Somebody, Somebody], owner: str
) -> None:
    ada, bob = people
    async with hf.open(url(db), idle_seconds=5 if owner == "live" else 0) as engine:
        for _ in range(8):
            run = await engine.start(proc_asks)
            (wait,) = await waiting(run, "input")
            if owner == "none":
                await until(lambda: not engine.actors, "nobody owns it")
            at = time.time() + SOON
            outcomes = await asyncio.gather(
                ada.ask("answer", run.run_id, wait.wait_id, "ada", at),
                bob.ask("answer", run.run_id, wait.wait_id, "bob", at),
            )
            (lost,) = [outcome for outcome in outcomes if outcome is not None]
            winner = "ada" if outcomes[0] is None else "bob"
            assert lost[0] == "refused"
            assert winner in lost[1]
            assert await run.result() == winner
            assert closed_waits(await run.events()) == [("answered", winner)]
    check_file(db)


async def test_an_answer_and_a_cancel_from_two_processes_have_one_winner(
    db: Path, people: tuple[Somebody, Somebody]
) -> None:
    ada, bob = people
    async with hf.open(url(db)) as engine:
        for number in range(8):
            run = await engine.start(proc_asks)
            (wait,) = await waiting(run, "input")
            at = time.time() + SOON
            answered, cancelled = await asyncio.gather(
                ada.ask("answer", run.run_id, wait.wait_id, "yes", at + (number % 3 - 1) * 0.002),
                bob.ask("cancel", run.run_id, at),
            )
            assert answered is None or cancelled is None
            (ended,) = closed_waits(await run.events())
            if cancelled is not None:  # the run had completed before that
                assert (ended, await run.result()) == (("answered", "ada"), "yes")
            else:
                with pytest.raises(hf.RunCancelled):
                    await run.result()
                assert ended[0] == ("answered" if answered is None else "cancelled")
    check_file(db)


async def test_an_answer_against_the_deadline_has_one_winner_whose_word_is_the_result(
    db: Path, people: tuple[Somebody, Somebody]
) -> None:
    ada, bob = people
    async with hf.open(url(db)) as engine:
        for number in range(8):
            clock = hold_time(engine)
            run = await engine.start(proc_asks_until, seconds=0.3)
            (wait,) = await waiting(run, "input")
            clock.go_on()
            assert wait.until is not None
            at = wait.until.timestamp() + (number - 4) * 0.004
            outcomes = await asyncio.gather(
                ada.ask("answer", run.run_id, wait.wait_id, "ada", at),
                bob.ask("answer", run.run_id, wait.wait_id, "bob", at + 0.002),
            )
            winners = [who for who, outcome in zip(("ada", "bob"), outcomes, strict=True) if outcome is None]
            assert len(winners) <= 1
            assert await run.result() == (winners[0] if winners else "nobody")
            assert closed_waits(await run.events()) == [("answered", winners[0] if winners else "deadline")]
            for lost in (outcome for outcome in outcomes if outcome is not None):
                assert lost[0] == "refused"
    check_file(db)
