"""What an engine reads to take a run over: its rows, the last event of its journal, and values that are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import check_file, until_async, url

GATE: list[asyncio.Event] = []


@hf.node(inline=True)
def reads_add(x: int) -> int:
    return x + 1


@hf.node
async def reads_gate(x: int) -> int:
    await GATE[0].wait()
    return x


@hf.workflow
def reads_chain(x: int) -> Any:
    for _ in range(100):
        x = reads_add(x)
    return reads_add.named("last")(reads_gate(x))


async def test_takeover_reads_rows_and_the_last_event_however_long_the_journal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "runs.db"
    GATE[:] = [asyncio.Event()]
    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(reads_chain, x=0, run_id="r")
        await until_async(lambda: _runs(run, "reads_gate"), "it is at its gate")
        journal = await run.events()
    assert len(journal) > 300
    GATE[0].set()

    read: list[int] = []
    for name in ("events", "events_of", "event_data", "event_data_of"):
        monkeypatch.setattr(SqliteStore, name, _counted(getattr(SqliteStore, name), read))
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result(timeout=20) == 101
    assert 1 <= sum(read) <= 10, "one value is the input of the gate, one the result of the run"
    check_file(db)


def _counted(method: Callable[..., Any], read: list[int]) -> Callable[..., Any]:
    """A reading method of the store that notes how many events it has returned."""

    def reads(*args: Any, **options: Any) -> Any:
        found = method(*args, **options)
        parts = found.values() if isinstance(found, dict) else [found]
        read.append(sum(len(part) if isinstance(part, list) else 1 for part in parts))
        return found

    return reads


async def _runs(run: hf.Run[Any], node: str) -> bool:
    return any(n["node"] == node and n["status"] == "running" for n in await run.nodes())
