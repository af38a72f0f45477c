"""The status `recovering`: shown between the claim of a new owner and the commit of its takeover, never stored."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.engine.ownership.load import Loader
from holdfast.inspect.inspector import Inspector
from holdfast.store.clocks import clock_of
from holdfast.store.row_types import RunRow
from tests.engine.kit import check_file, until, url


@hf.node
async def rec_slow(key: str) -> str:
    if os.environ.get("REC_BLOCKS"):
        await asyncio.sleep(60)
    return key


@hf.workflow
def rec_flow(key: str) -> str:
    return rec_slow(key=key)


async def test_a_run_is_recovering_until_its_new_owner_has_committed_the_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "runs.db"
    monkeypatch.setenv("REC_BLOCKS", "1")
    async with hf.open(url(db), drain_seconds=0.0) as engine:
        run = await engine.start(rec_flow, key="k", run_id="r")
        is_live = engine.executor.is_live
        await until(lambda: any(is_live(run_no, "rec_slow", ".") for run_no in engine.actors), "its body runs")
        assert await run.status() == "running"
        engine.store.remove_engine(engine.lease.engine)  # as an engine does that finds this one dead
    monkeypatch.delenv("REC_BLOCKS")

    shown: list[tuple[str, str, str]] = []
    load = Loader.load

    async def look_then_load(self: Loader, rows: list[RunRow], *, fire_only: bool = False) -> None:
        inspector = Inspector(self._runtime.store, clock_of(self._runtime.store))
        row = self._runtime.store.run("r")
        assert row is not None
        (listed,) = inspector.runs([row])
        shown.append((inspector.status(row), listed["status"], row.status))
        assert "run r is recovering: its new owner has claimed it" in inspector.why(row)
        await load(self, rows, fire_only=fire_only)

    monkeypatch.setattr(Loader, "load", look_then_load)
    async with hf.open(url(db)) as engine:
        assert shown == [("recovering", "recovering", "running")], "claimed, and nothing committed yet"
        assert await engine.get("r").result(timeout=20) == "k"
        assert await engine.get("r").status() == "completed"
    assert main(["list", "--json", "--db", url(db)]) == 0
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == ["completed"]
    check_file(db)
