"""Random trees of tasks (SEMANTICS 8): whatever the latencies, and however often the body is evicted, stopped or
killed, no step that was committed runs again, every step keeps its idempotency key, and the result is the same."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from tests.budget import seeds
from tests.engine.kit import check_file, url

Tree = tuple[Any, ...]


class Grower:
    """Makes a random tree: what a body does, as tuples. A task may await any task that was started before it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.steps = 0
        self.signals = 0

    def body(self) -> Tree:
        """Several tasks that wait for each other, in a body that is replayed when all of them have ended."""
        parts: list[Tree] = [("task", self.grow(2, 0))]
        parts += [("task", ("all", [self._wait(n), *self.grow(2, n)[1]])) for n in (1, 2)]
        parts += self.grow(3, 3)[1]
        return ("all", [*parts, self._receive(), self._step("step")])

    def grow(self, depth: int, tasks: int) -> Tree:
        """`tasks` have been started before by those around, and may be awaited here."""
        parts: list[Tree] = []
        if tasks and self.chance.random() < 0.5:  # when it first calls ctx depends on another task
            parts.append(self._wait(tasks))
        for _ in range(self.chance.randrange(1, 4)):
            kind = self.chance.choice(["step", "keyed", "inner", "gather", "task", "wait", "receive", "as_completed"])
            if kind == "gather" and depth:
                parts.append(("gather", [self.grow(depth - 1, tasks) for _ in range(self.chance.randrange(2, 4))]))
            elif kind == "task" and depth:
                parts.append(("task", self.grow(depth - 1, tasks)))
                tasks += 1
            elif kind == "wait" and tasks:
                parts.append(self._wait(tasks))
            elif kind == "receive" and self.signals < 3:
                parts.append(self._receive())
            elif kind == "as_completed":
                parts.append(("as_completed", [self._step("keyed") for _ in range(3)]))
            else:
                parts.append(self._step(kind if kind in ("keyed", "inner") else "step"))
        return ("all", parts)

    def _wait(self, tasks: int) -> Tree:
        return ("wait", self.chance.randrange(tasks))

    def _receive(self) -> Tree:
        self.signals += 1
        return ("receive", f"s{self.signals}")

    def _step(self, kind: str) -> Tree:
        self.steps += 1
        return (kind, self.steps)


class Player:
    """Runs a tree as a body, and writes down what its steps do."""

    def __init__(self, tree: Tree, chance: random.Random) -> None:
        self.tree = tree
        self.chance = chance
        self.acts: dict[Any, list[str]] = {}
        """The keys under which a step has acted, in order."""
        self.told: dict[Any, Any] = {}
        """What the body was told of a step: from then on it is committed."""

    async def act(self, ctx: hf.Context, number: Any, _before: int) -> float:
        assert number not in self.told, f"step {number} is committed, and runs again"
        self.acts.setdefault(number, []).append(ctx.idempotency_key)
        await self._pause()
        return round(self.chance.random(), 6)  # another one each time: only what is committed counts

    async def act_inside(self, ctx: hf.Context, number: Any, before: int) -> Any:
        """A step that has tasks of its own, which call ctx."""

        async def one(part: str) -> Any:
            await self._pause()
            return await ctx.step(self.act, f"{number}{part}", before)

        return await asyncio.gather(one("a"), one("b"))

    async def _pause(self) -> None:
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)
        if self.chance.random() < 0.2:
            await asyncio.sleep(0.001)

    async def play(self, ctx: hf.Context) -> list[Any]:
        told: list[Any] = []

        async def step(number: int, call: hf.Context, function: Any) -> None:
            await self._pause()
            value = await call.step(function, number, len(str(number)))
            assert self.told.setdefault(number, value) == value
            told.append((number, value))

        async def run(tree: Tree, tasks: list[asyncio.Task[None]]) -> None:
            started: list[asyncio.Task[None]] = []
            for kind, what in [tree] if tree[0] != "all" else tree[1]:
                match kind:
                    case "gather":
                        await asyncio.gather(*(run(part, [*tasks, *started]) for part in what))
                    case "task":
                        started.append(asyncio.create_task(run(what, [*tasks, *started])))
                    case "wait":
                        await [*tasks, *started][what]
                    case "receive":
                        await ctx.receive(what)
                    case "as_completed":  # the order of creation depends on time: only keys tell the calls apart
                        delays = [asyncio.create_task(self._late(part)) for part in what]
                        late = [asyncio.create_task(run(await done, [])) for done in asyncio.as_completed(delays)]
                        await asyncio.gather(*late)
                    case "keyed":
                        await step(what, ctx.keyed(f"key {what}"), self.act)
                    case "inner":
                        await step(what, ctx, self.act_inside)
                    case _:
                        await step(what, ctx, self.act)
            for task in started:
                await task

        await run(self.tree, [])
        return sorted(told)

    async def _late(self, part: Tree) -> Tree:
        await self._pause()
        return part

    def check(self, result: Any, steps: int) -> None:
        assert result == [list(pair) for pair in sorted(self.told.items())]
        assert len(self.told) == steps
        for number, keys in self.acts.items():
            assert len(set(keys)) == 1, f"step {number} acted under several keys"
        assert len({keys[0] for keys in self.acts.values()}) == len(self.acts)


@pytest.mark.parametrize("seed", seeds(90))
async def test_a_tree_of_tasks_survives_evictions_and_crashes(seed: int) -> None:
    chance = random.Random(seed)
    grower = Grower(chance)
    player = Player(grower.body(), chance)

    @hf.workflow(name="grown")
    async def grown(ctx: hf.Context) -> Any:
        return await player.play(ctx)

    async with harness() as h:
        run = await h.start(grown, run_id="r")
        for signal in range(1, grower.signals + 1):
            for _ in range(chance.randrange(4)):
                await h.advance(seconds=chance.random() * 0.01)
                await h.crash()
                await run.resume()  # three crashes in a row without progress would put it on hold
            await h.advance(seconds=chance.choice([0, 0.01, 60]))  # after a minute the body is evicted where it waits
            await run.signal(f"s{signal}", signal, id=f"s{signal}")
        await h.advance(seconds=60)
        assert await run.status() == "completed", (await run.show()).get("hold")
        result = await run.result()
        committed = [e.data["name"] for e in await run.events() if e.type == "StepCompleted"]
    player.check(result, grower.steps)
    assert len([name for name in committed if name.endswith(".act")]) == len(player.acts), "a step was committed twice"


@pytest.mark.parametrize("seed", seeds(10))
async def test_a_tree_of_tasks_survives_evictions_and_stops(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    grower = Grower(chance)
    player = Player(grower.body(), chance)
    db = url(tmp_path / "runs.db")

    @hf.workflow(name="grown")
    async def grown(ctx: hf.Context) -> Any:
        return await player.play(ctx)

    async with hf.open(db, idle_seconds=0, grace_seconds=0) as engine:
        await engine.start(grown, run_id="r")
        await asyncio.sleep(chance.random() * 0.02)
    for signal in range(1, grower.signals + 1):  # each life ends somewhere, or waits until it is evicted
        async with hf.open(db, idle_seconds=0, grace_seconds=0) as engine:
            await engine.get("r").signal(f"s{signal}", signal, id=f"s{signal}")
            await asyncio.sleep(chance.random() * 0.02)
    async with hf.open(db, idle_seconds=0) as engine:
        run = engine.get("r")
        result = await run.result(timeout=30)
    player.check(result, grower.steps)
    check_file(tmp_path / "runs.db")
