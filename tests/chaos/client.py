"""Client: a program that runs nothing itself. It starts runs, answers, signals and cancels, and keeps a ledger.

What it is told is true: `Ledger` holds what was acknowledged, and all of that must be found afterwards. What was not
acknowledged (the server was away, the owner died) is asked for again until it is.

It lives in a thread: while the server is away its event loop stands still, and somebody has to start the server again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from tests.chaos import flows
from tests.chaos.orders import LETTERS, Order

LOOK_SECONDS = 0.2
"""How often it looks for questions, and whether a run has come to its sleep."""
WAVE_RUNS = 40
"""Runs that are started together, about: enough for all workers."""
AT_ONCE = 20
"""Questions that are answered together."""


@dataclass
class Ledger:
    """What the client was told, and what it asked for."""

    started: list[Order] = field(default_factory=list)
    answered: dict[str, str] = field(default_factory=dict)
    """Run id → the answer that was acknowledged."""
    tried: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Run id → the answers that were sent; one of them counts, also when nobody was told."""
    signalled: set[tuple[str, str]] = field(default_factory=set)
    """(run id, the signal's id)."""
    cancelled: set[str] = field(default_factory=set)
    asked_again: int = 0
    """Calls that had to be made again because nobody told what became of them."""


class Client(threading.Thread):
    """Asks for all of the orders within some seconds, and answers what their runs ask until it is stopped."""

    def __init__(self, url: str, orders: list[Order], seconds: float, chance: random.Random) -> None:
        super().__init__(name="chaos-client", daemon=True)
        self.ledger = Ledger()
        self.error: BaseException | None = None
        self.has_asked = threading.Event()
        """All orders are acknowledged, and whatever is to be sent to their runs."""
        self._url = url
        self._orders = orders
        self._seconds = seconds
        self._chance = chance
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever stops the client
            self.error = error

    def leave(self) -> None:
        """Ask for nothing more; nobody wants to know what it was told."""
        self._stopping.set()

    def stop(self) -> Ledger:
        """What it was told, when it has ended."""
        self.leave()
        self.join()
        if self.error is not None:
            raise self.error
        return self.ledger

    async def _work(self) -> None:
        async with hf.open(self._url, drive=False) as self._engine, asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(self._answer_all())
            dialogues = [tasks.create_task(self._see_to(order, self._moment())) for order in self._orders]
            await asyncio.gather(*dialogues)
            self.has_asked.set()
            await answering

    def _moment(self) -> float:
        """When a run is started. They come in waves, so that all workers are busy when somebody is killed."""
        waves = len(self._orders) // WAVE_RUNS + 1
        return self._seconds * self._chance.randrange(waves) / waves

    async def _see_to(self, order: Order, moment: float) -> None:
        """Start a run, and send it what it waits for."""
        await asyncio.sleep(moment)
        run = await self._told(lambda: self._engine.start(order.shape.workflow, run_id=order.run_id, **order.inputs))
        self.ledger.started.append(order)
        if order.shape.workflow is flows.chaos_letters:
            for n in range(LETTERS):
                await self._signal(run, n)
        elif order.shape.workflow is flows.chaos_abandoned:
            while await run.status() != "suspended":  # noqa: ASYNC110 - other processes move it
                await asyncio.sleep(LOOK_SECONDS)
            await self._told(lambda: run.cancel("enough", actor="client"))
            self.ledger.cancelled.add(order.run_id)

    async def _signal(self, run: hf.Run[Any], n: int) -> None:
        signal_id = f"letter-{n}"
        await self._told(lambda: run.signal("letter", n, id=signal_id))
        self.ledger.signalled.add((run.run_id, signal_id))

    async def _answer_all(self) -> None:
        while not self._stopping.is_set():
            waits = await self._engine.asked(basket=flows.BASKET, limit=AT_ONCE)
            await asyncio.gather(*map(self._answer, waits))
            await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, wait: hf.Wait) -> None:
        """Answer a question, each time with another answer. When an earlier one came through without our knowing,
        this one is refused; when nobody tells, the question is found again, or is answered."""
        tried = self.ledger.tried[wait.run_id]
        answer = f"answer {len(tried) + 1}"
        tried.add(answer)
        try:
            await self._engine.get(wait.run_id).respond(wait.wait_id, answer, actor="client")
        except (hf.Refused, hf.NotYetApplied):
            self.ledger.asked_again += 1
        else:
            self.ledger.answered[wait.run_id] = answer

    async def _told(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call until its success was told. All of these may be made twice."""
        while True:
            try:
                return await call()
            except hf.NotYetApplied:
                self.ledger.asked_again += 1
