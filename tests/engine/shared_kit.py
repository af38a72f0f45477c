"""What the tests of several engines on one PostgreSQL store share: a shop with processes in it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.store.contract import Store
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import EngineRow
from tests.engine import worker_process
from tests.engine.kit import check_journal

SCRIPT = Path(__file__).with_name("shared_process.py")
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def beside(url: str) -> Iterator[Store]:
    """The store as somebody sees it who is no engine."""
    store = PostgresStore(url)
    store.open()
    try:
        yield store
    finally:
        store.close()


class Shop:
    """One store, a folder in which bodies leave their traces, and processes that drive the same runs."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._processes: list[Other] = []

    def patient(self) -> hf.Workflow[..., Any]:
        """A workflow whose only body waits until it may go on."""
        return worker_process.declare(self.folder)

    async def other(self, *run_ids: str, **environment: str) -> Other:
        """Another process, which starts these runs."""
        process = Other(self.url, self.folder, run_ids, environment)
        self._processes.append(process)
        await process.ready()
        return process

    def go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def attempts(self, name: str) -> list[int]:
        """The attempts whose bodies have begun."""
        path = self.folder / f"{name}.began"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def look(self, work: Callable[[Store], Any]) -> Any:
        with beside(self.url) as store:
            return work(store)

    def engines(self) -> list[EngineRow]:
        found: list[EngineRow] = self.look(lambda store: store.engines())
        return found

    def check(self) -> None:
        """Prove every journal."""
        with beside(self.url) as store:
            for row in store.runs(limit=1_000_000):
                check_journal(store, row)

    def close(self) -> None:
        for process in self._processes:
            process.end()


class Other:
    """Another process, until it is told to end."""

    def __init__(self, url: str, folder: Path, run_ids: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), url, str(folder), *run_ids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": os.defpath, **environment},
        )

    async def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line == "ready\n", line + self.process.stderr.read()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self) -> tuple[list[str], str]:
        """Let it end in order; the names that its engine had first and last, and its log."""
        output, log = await asyncio.to_thread(self.process.communicate, "", 60)
        assert self.process.returncode == 0, log
        return json.loads(output), log

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
