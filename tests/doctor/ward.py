"""Ward: a database with a run of every kind, and ways to harm a copy of it.

The runs are made by a real engine, once; each test gets a copy of the file, harms it with plain SQL while nobody has it
open, and asks the doctor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

import holdfast as hf
from holdfast.engine.repairs import Repairs, treat
from holdfast.inspect.doctor.check import check
from holdfast.inspect.inspector import Inspector
from holdfast.model import journal_format
from holdfast.model.violations import Report, Violation
from holdfast.store.clocks import clock_of
from holdfast.store.row_types import EventRow
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import until_async, url


@hf.node(inline=True)
def ward_add(n: int, more: int = 1) -> int:
    return n + more


@hf.node(inline=True)
def ward_sum(numbers: list[int]) -> int:
    return sum(numbers)


@hf.node(inline=True)
def ward_refund(paid: int) -> None:
    return None


@hf.node(inline=True, compensate=ward_refund)
def ward_pay(n: int) -> int:
    return n


@hf.node(inline=True, retry=hf.Retry(attempts=2, backoff=0.0))
def ward_break(n: int) -> int:
    raise ValueError("broken on purpose")


@hf.node(retry=hf.Retry(attempts=3, backoff=36_000.0, max_delay=36_000.0))
async def ward_stumble(n: int) -> int:
    raise ConnectionError("not now")


@hf.workflow
def ward_done(n: int):
    first = ward_add(n)
    many = ward_sum(hf.map(ward_add, [1, 2, 3]))
    return ward_add.named("last")(hf.loop(ward_add, first, until=lambda x: x >= 5), many)


@hf.workflow
def ward_chain(n: int):
    return ward_add.named("second")(ward_add.named("first")(n))


@hf.workflow
async def ward_asleep(ctx: hf.Context) -> str:
    await ctx.step(_greet, "x")
    await ctx.sleep(36_000)
    return "awake"


async def _greet(name: str) -> str:
    return f"hello {name}"


@hf.workflow
async def ward_parent(ctx: hf.Context) -> str:
    return str(await ctx.child(ward_asleep))


@hf.workflow
def ward_retrying(n: int):
    return ward_stumble(n)


@hf.workflow(on_failure="compensate")
def ward_failed(n: int):
    return ward_break(ward_pay.named("pay_again")(ward_pay(n)))


@hf.workflow
async def ward_cancelled(ctx: hf.Context) -> None:
    await ctx.sleep(36_000)


async def admit(path: Path) -> None:
    """Make one run of every kind: completed, asleep, waiting for a child and for a retry, forked, failed, cancelled."""
    async with hf.open(url(path)) as engine:
        assert await (await engine.start(ward_done, run_id="done", n=1)).result() == 14
        for name, workflow in (("asleep", ward_asleep), ("parent", ward_parent), ("cancelled", ward_cancelled)):
            run: Any = await engine.start(workflow, run_id=name)
            await until_async(lambda run=run: _has(run, "suspended"))
        await run.cancel("enough")
        retrying = await engine.start(ward_retrying, run_id="retrying", n=1)
        await until_async(lambda: _has(retrying, "suspended"))
        forked = await engine.start(ward_chain, run_id="forked", n=1)
        assert await forked.result() == 3
        assert await (await forked.fork("second")).result() == 3
        failed = await engine.start(ward_failed, run_id="failed", n=1)
        await until_async(lambda: _has(failed, "failed"))
        child = next(r for r in await engine.list(workflow="ward_asleep") if r["run_id"] != "asleep")
        await until_async(lambda: _has(engine.get(child["run_id"]), "suspended"))


async def _has(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(url(path))
    store.open()
    try:
        yield store
    finally:
        store.close()


def harm(path: Path, *statements: str, **values: object) -> None:
    """Plain SQL. `{done}`, `{asleep}`, ... are numbers of runs; `values` are more.

    By the SQLite that the store uses: where two are in one process, the one that closes a file takes the locks, and the
    WAL, from the other."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(60_000)
        connection.execute("BEGIN IMMEDIATE")
        numbers = {run_id: no for no, run_id in connection.execute("SELECT run_no, run_id FROM run_state")}
        for statement in statements:
            for name, value in (numbers | values).items():
                statement = statement.replace(f"{{{name}}}", str(value))
            connection.execute(statement)
        connection.execute("COMMIT")


def examine(path: Path, *, deep: bool = False, run_ids: list[str] | None = None, **options: Any) -> Report:
    with opened(path) as store:
        return check(store, run_ids, deep, **options)


def repair(path: Path, *, deep: bool = False, **options: Any) -> Report:
    """What `holdfast doctor --repair` does, without an engine for recoveries."""
    with opened(path) as store:
        repairs = Repairs(store, Inspector(store, clock_of(store)), time.time_ns() // 1000)
        return treat(repairs, check(store, None, deep), lambda: check(store, None, deep), **options)


def told(violations: list[Violation]) -> list[tuple[str, str | None]]:
    """(code, run) of each, and each once."""
    return list(dict.fromkeys((v.code, v.run_id) for v in violations))


# --- journals that lie consistently --------------------------------------------------------------------------------


def journal(path: Path, run_id: str) -> list[EventRow]:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        return store.events(row.run_no)


def event(like: EventRow, content: Any, **columns: Any) -> EventRow:
    """An event beside another one; `relink` gives it its place and its hash."""
    return like._replace(type=type(content).__name__, data=journal_format.encode(content), **columns)


def relink(rows: list[EventRow], run_id: str) -> list[EventRow]:
    """The same events, numbered without a gap and with a right hash chain: whoever forged them knew how."""
    linked: list[EventRow] = []
    previous = b""
    for seq, row in enumerate(rows, start=1):
        previous = journal_format.link(
            previous, run_id, seq, row.branch, row.type, row.node, row.path, row.visit, row.at, row.token, row.data
        )
        linked.append(row._replace(seq=seq, hash=previous))
    return linked
