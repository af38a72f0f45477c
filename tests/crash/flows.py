"""Flows: the program that the supervisor starts and kills (nursery.py forks it).

    main([DATABASE, EFFECTS, WORKFLOW:RUN_ID, WORKFLOW:PREFIX*COUNT, resume:RUN_ID, cancel:RUN_ID, ...])

It opens an engine, starts those of the runs that do not exist, and ends when nothing is unfinished but what waits for
people. What people ask for (`answer:RUN_ID:WAIT=JSON`, `signal:RUN_ID:NAME:ID=JSON`, `pause:RUN_ID`, `release:RUN_ID`)
is `told` when it was acknowledged; with CRASH_CLIENT the process only asks, and does not wait for any end.

Every body and step writes a line to the effects file when it acts, as an outside receiver would see it: what acted,
under which idempotency key, in which attempt. Each returns its own name, so that the journal tells what is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import holdfast as hf
from tests.crash import faults

EFFECTS = os.environ.get("CRASH_EFFECTS", "")
"""The file that stands for the world outside; a process that was spawned for a body finds it in its environment."""


def act(ctx: Any, what: str) -> str:
    """The outside effect of a body or a step."""
    name = f"{ctx.run_id}/{what}"
    line = {"name": name, "key": ctx.idempotency_key, "attempt": ctx.attempt, "pid": os.getpid()}
    fd = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.fsync(fd)
    os.close(fd)
    return name


def say(marker: str) -> None:
    """In one piece: a body's thread and the loop may speak at the same moment, and `print` ends a line apart."""
    sys.stdout.write(f"{marker}\n")
    sys.stdout.flush()


def wait_for_the_end(marker: str) -> None:
    """Stay inside a body until the supervisor kills the process; only the first life of the body waits."""
    if os.environ.get("CRASH_STAY") == marker:
        say(marker)
        while True:
            time.sleep(3600)


# --- a chain ---


@hf.node
async def one(ctx: hf.Context) -> str:
    name = act(ctx, "one")
    wait_for_the_end("inside one")
    return name


@hf.node
def two(ctx: hf.SyncContext, before: str) -> str:
    name = act(ctx, "two")
    wait_for_the_end("inside two")
    return name


@hf.node(inline=True)
def three(ctx: hf.Context, before: str) -> str:
    return act(ctx, "three")


@hf.workflow
def chain():
    return three(two(one()))


# --- two that want one place ---


@hf.node(concurrency=1)
async def alone(ctx: hf.Context, which: str) -> str:
    name = act(ctx, which)
    wait_for_the_end(f"inside {which}")
    return name


@hf.workflow
def queue():
    return [alone.named("first")("first"), alone.named("second")("second")]


# --- parallel branches and a join ---


@hf.node
async def branch(ctx: hf.Context, which: str) -> str:
    name = act(ctx, which)
    if os.environ.get("CRASH_STAY") == f"inside {which}":
        say(f"inside {which}")
        await asyncio.Event().wait()
    if os.environ.get("CRASH_STAY") == "inside all":
        await asyncio.Event().wait()
    return name


@hf.node
async def join(ctx: hf.Context, parts: list[str]) -> list[str]:
    act(ctx, "join")
    return sorted(parts)


@hf.workflow
def parallel():
    return join([branch.named(name)(name) for name in ("a", "b", "c")])


# --- one that waits beside one that works ---


@hf.node
async def sleeper(ctx: hf.Context) -> str:
    await ctx.sleep(3600)
    return act(ctx, "sleeper")


@hf.node
def sync_sleeper(ctx: hf.SyncContext) -> str:
    act(ctx, "falls asleep")
    ctx.sleep(3600)
    return act(ctx, "sync sleeper")


@hf.workflow
def beside():
    return [sleeper(), sync_sleeper(), branch.named("works")("works")]


# --- a body that outlives its lease ---


@hf.node
async def slow(ctx: hf.Context) -> str:
    name = act(ctx, "slow")
    while ctx.attempt == 1 and not os.path.exists(f"{EFFECTS}.gate"):  # noqa: ASYNC110 - the gate is another process
        await asyncio.sleep(0.005)
    return name


@hf.workflow
def slowly():
    return three(two(slow()))


# --- durable code, also lazy ---


async def step(ctx: hf.Context, i: int) -> str:
    return act(ctx, f"step {i}")


async def _steps(ctx: hf.Context) -> list[str]:
    act(ctx, "body")
    done = [await ctx.step(step, i) for i in range(5)]
    if os.environ.get("CRASH_STAY") == "after five steps":
        say("after five steps")
        await asyncio.Event().wait()
    return done


@hf.workflow
async def steps(ctx: hf.Context) -> list[str]:
    return await _steps(ctx)


@hf.workflow(persistence="lazy")
async def lazy_steps(ctx: hf.Context) -> list[str]:
    return await _steps(ctx)


@hf.workflow(persistence="lazy")
async def lazy_sleep(ctx: hf.Context) -> list[str]:
    done = [await ctx.step(step, i) for i in range(3)]
    await ctx.sleep(0.01)
    done += [await ctx.step(step, i) for i in range(3, 6)]
    if os.environ.get("CRASH_STAY") == "after the sleep":
        say("after the sleep")
        await asyncio.Event().wait()
    return done


# --- what may not be repeated ---


@hf.node(on_crash="fail")
async def careful(ctx: hf.Context) -> str:
    name = act(ctx, "careful")
    wait_for_the_end("inside careful")
    return name


@hf.workflow
def once():
    return careful()


@hf.workflow(persistence="lazy")
def once_lazily():
    return careful.after(one())()


@hf.node(on_crash="fail", retry=hf.Retry(attempts=3, backoff=0))
async def careful_step(ctx: hf.Context) -> str:
    name = act(ctx, "careful step")
    path = f"{EFFECTS}.{ctx.run_id}.failed"
    if not os.path.exists(path):
        open(path, "w").close()
        raise OSError("the first try fails")
    wait_for_the_end("inside the second try")
    return name


@hf.workflow
async def once_in_code(ctx: hf.Context) -> str:
    return await ctx.step(careful_step)


# --- compensation ---


@hf.node
async def undo(ctx: hf.Context, output: str) -> str:
    name = act(ctx, f"undo {output.rpartition('/')[2]}")
    wait_for_the_end(f"inside undo {output.rpartition('/')[2]}")
    return name


@hf.node(compensate=undo)
async def booked(ctx: hf.Context, what: str, before: str = "") -> str:
    return act(ctx, what)


@hf.node
async def refused(ctx: hf.Context, before: str) -> str:
    act(ctx, "refused")
    raise ValueError("no seat")


@hf.workflow(on_failure="compensate")
def trip():
    flight = booked.named("flight")("flight")
    return refused(booked.named("hotel")("hotel", flight))


# --- what waits for people and for others ---


@hf.workflow
async def approval(ctx: hf.Context) -> list[str]:
    first = await ctx.step(step, 1)
    answer = await ctx.ask("Ship it?", schema=str)
    second = await ctx.step(step, 2)
    return [first, answer, second]


@hf.node
def asks_in_a_thread(ctx: hf.SyncContext, before: str) -> list[str]:
    first = ctx.step(step, 1)
    answer = ctx.ask("Ship it?", schema=str)
    return [first, answer, ctx.step(step, 2)]


@hf.workflow
def sync_approval():
    return asks_in_a_thread(one())


@hf.node(retry=hf.Retry(attempts=3, backoff=1.1, factor=1, jitter=0))
async def flaky_step(ctx: hf.Context, fails: int, name: str = "flaky step") -> str:
    done = act(ctx, name)
    if ctx.attempt <= fails:
        raise ConnectionError("not yet")
    return done


@hf.workflow
async def retried_steps(ctx: hf.Context) -> list[Any]:
    """A step that is tried three times, then two items of a map that are tried twice, at the same time."""
    before = await ctx.step(step, 1)
    first = await ctx.step(flaky_step, 2)
    items = await ctx.map(functools.partial(flaky_step, 1), ["item a", "item b"])
    return [before, first, *items]


@hf.workflow
async def deadline(ctx: hf.Context) -> str:
    return await ctx.ask("Ship it?", schema=str, deadline=float(os.environ["CRASH_DEADLINE"]), default="nobody")


@hf.workflow
async def collector(ctx: hf.Context) -> list[int]:
    """Signals, until a negative one comes; each leads to a step."""
    found: list[int] = []
    while True:
        number = await ctx.receive("number", schema=int)
        if number < 0:
            return found
        await ctx.step(step, number)
        found.append(number)


@hf.node
async def doubtful(ctx: hf.Context, before: str) -> str:
    hf.pend("second_look", output=act(ctx, "doubtful"))


@hf.workflow
def pended():
    return three(doubtful(one()))


# --- everything at once ---


@hf.node
async def item(ctx: hf.Context, i: int) -> str:
    return act(ctx, f"item {i}")


@hf.node
def sync_item(ctx: hf.SyncContext, i: int) -> str:
    name = act(ctx, f"sync {i}")
    ctx.step(lambda: i)
    return name


@hf.node(retry=hf.Retry(attempts=4, backoff=0.001, max_delay=0.002))
async def flaky(ctx: hf.Context, parts: list[str]) -> str:
    name = act(ctx, "flaky")
    path = f"{EFFECTS}.{ctx.run_id}.failed"
    if not os.path.exists(path):
        open(path, "w").close()
        raise OSError("the first try fails")
    return name


@hf.node(inline=True)
def more(n: int) -> int:
    return n + 1


@hf.workflow
async def kid(ctx: hf.Context, n: int) -> list[str]:
    found = [await ctx.step(step, i) for i in range(n)]
    await ctx.sleep(0.002)
    return [*found, *await ctx.map(step, [10, 11, 12])]


@hf.workflow
def mixed():
    items = hf.map(item, [0, 1, 2, 3], limit=2)
    threads = hf.map(sync_item, [0, 1, 2])
    counted = hf.loop(more, start=0, until=lambda n: n >= 3)
    tried = flaky(items)
    child = kid(n=2)
    with hf.when(counted > 100):
        never = three.named("never")(tried)
    return {
        "items": items,
        "threads": threads,
        "counted": counted,
        "tried": tried,
        "child": child,
        "never": hf.first(never, None),
    }


# --- bodies that kill their engine, and those beside them ---


@hf.node
async def bystander(ctx: hf.Context) -> str:
    if os.environ.get("CRASH_STAY") == "all inside":
        await asyncio.Event().wait()
    await asyncio.sleep(0.001)
    return f"{ctx.run_id}/bystander"


@hf.workflow
def innocent():
    return bystander()


def inside(ctx: Any) -> None:
    """Say which process has a body of a run, wherever that is."""
    with open(f"{EFFECTS}.inside", "a") as found:
        found.write(f"{ctx.run_id} {ctx.attempt} {os.getpid()}\n")


@hf.node
async def killer(ctx: hf.Context) -> str:
    if os.environ.get("CRASH_STAY") == "all inside":
        inside(ctx)
        await asyncio.Event().wait()
    if not os.path.exists(f"{EFFECTS}.mended"):
        act(ctx, "kill")
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{ctx.run_id}/killer"


@hf.workflow
def guilty():
    return killer()


@hf.node
def exiter(ctx: hf.SyncContext) -> None:
    if os.environ.get("CRASH_STAY") == "all inside":
        time.sleep(3600)
    act(ctx, "exit")
    os._exit(EXITED)


@hf.workflow
def guilty_by_exit():
    return exiter()


@hf.node
async def patient(ctx: hf.Context) -> str:
    inside(ctx)
    while not os.path.exists(f"{EFFECTS}.gate"):  # noqa: ASYNC110 - the gate is another process
        await asyncio.sleep(0.005)
    return act(ctx, "patient")


@hf.workflow
def waits_for_gate():
    return patient()


EXITED = 9
"""How a body ends its process that does not use a signal."""
REFUSED = 3
"""How a process ends whose store or engine raised an error of ours."""

WORKFLOWS = {
    w.name: w
    for w in (
        chain,
        queue,
        parallel,
        steps,
        lazy_steps,
        lazy_sleep,
        once,
        once_lazily,
        once_in_code,
        trip,
        mixed,
        beside,
        slowly,
        innocent,
        guilty,
        guilty_by_exit,
        waits_for_gate,
        approval,
        sync_approval,
        retried_steps,
        deadline,
        collector,
        pended,
    )
}


async def drive(database: str, wanted: list[str]) -> None:
    is_client = "CRASH_CLIENT" in os.environ
    async with hf.open(database, recover=not is_client) as engine:
        say("open")
        for entry in wanted:
            await do(engine, entry)
        say("started")
        for row in [] if is_client else await engine.list(limit=100_000):
            if any(wait["kind"] == "hold" for wait in row["waits"]):
                continue
            with contextlib.suppress(hf.RunSuspended):
                await engine.get(row["run_id"]).until_quiet()
        if os.environ.get("CRASH_STAY") == "quiet":
            say("quiet")
            await asyncio.Event().wait()
        say("done")


async def do(engine: Any, entry: str) -> None:
    """What one argument asks for."""
    name, _, run_id = entry.partition(":")
    prefix, many, count = run_id.partition("*")
    if name == "resume":
        await engine.resume(run_id)
    elif name == "cancel":
        await engine.get(run_id).cancel("enough")
        say(f"told {entry}")
    elif name in ("answer", "signal", "pause", "release"):
        await ask(engine, name, run_id)
        say(f"told {entry}")
    elif many:
        await asyncio.gather(*(engine.start(WORKFLOWS[name], run_id=f"{prefix}{i}") for i in range(int(count))))
    else:
        await engine.start(WORKFLOWS[name], run_id=run_id)


async def ask(engine: Any, kind: str, what: str) -> None:
    """What a person or a program asks of a run. Raises what it is told instead of success."""
    to, _, data = what.partition("=")
    run_id, _, rest = to.partition(":")
    run = engine.get(run_id)
    if kind == "pause":
        await run.pause()
    elif kind == "release":
        (wait,) = [wait for wait in await run.waits() if wait.kind == "basket"] or [None]
        await run.resume(wait=None if wait is None else wait.wait_id)
    elif kind == "signal":
        name, _, signal_id = rest.partition(":")
        await run.signal(name, json.loads(data), id=signal_id)
    else:
        await run.respond(rest, json.loads(data), actor=f"process {os.getpid()}")


class Announcer(logging.Handler):
    """Says on the output what the engine logs about a full disk."""

    def emit(self, record: logging.LogRecord) -> None:
        if "disk is full" in record.getMessage():
            say("disk full")


def main(arguments: list[str]) -> None:
    global EFFECTS
    database, EFFECTS, *wanted = arguments
    os.environ["CRASH_EFFECTS"] = EFFECTS
    logging.basicConfig()
    logging.getLogger("holdfast.engine").addHandler(Announcer())
    faults.arrange()
    try:
        asyncio.run(drive(database, wanted))
    except KeyboardInterrupt:
        pass  # an orderly stop
    except hf.HoldfastError as error:
        say(f"error {error.code}: {error}")
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
