"""A project directory with workflows, and the command line in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main

FLOWS = '''
import asyncio
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf


def mark(name):
    with open(name, "a") as f:
        f.write("x")


async def until(name):
    while not os.path.exists(name):
        await asyncio.sleep(0.01)


@dataclass
class Order:
    id: str
    amount: int


@hf.node
def charge(order: Order) -> str:
    print("charging", flush=True)
    subprocess.run(["echo", "from a child process"])
    return f"receipt-{order.id}"


@hf.node
async def ship(order: Order, receipt: str) -> str:
    return f"label-{receipt}"


@hf.workflow
def fulfil(order: Order):
    receipt = charge(order)
    with hf.when(order.amount > 1000):
        label = ship(order, receipt)
    return {"receipt": receipt, "label": hf.first(label, None)}


@hf.node(retry=hf.Retry(attempts=2, backoff=0.01))
def decline(order: Order) -> str:
    raise ValueError(f"no money for {order.id} \\x1b[31mred")


@hf.workflow
def broken(order: Order):
    return decline(order)


async def add(n: int) -> int:
    mark("adds")
    return n + 1


@hf.workflow
async def gated(ctx: hf.Context, steps: int = 3) -> int:
    """Some steps, then a gate that the test opens, then some more."""
    total = 0
    for _ in range(steps):
        total = await ctx.step(add, total)
    mark(f"attempt-{ctx.attempt}")
    await until("go")
    for _ in range(steps):
        total = await ctx.step(add, total)
    return total


@hf.workflow
async def sleeper(ctx: hf.Context) -> str:
    await ctx.sleep(0.3)
    return "awake"


@hf.node(on_crash="ask")
async def once() -> str:
    mark("once")
    await until("go")
    return "done"


@hf.workflow
def careful():
    return once()


@hf.node
def unbook(room: str) -> None:
    mark("unbooked")


@hf.node(compensate=unbook)
def book() -> str:
    return "room 7"


@hf.node
async def travel(room: str) -> None:
    mark("travelling")
    await until("go")


@hf.workflow(on_failure="compensate")
def trip():
    travel(book())


@hf.node
async def enrich(n: int) -> int:
    await asyncio.sleep(0.06)
    return n * 2


@hf.node
async def crunch(ctx: hf.Context, numbers: list[int]) -> int:
    for i in range(10):
        ctx.progress(i, 10, f"block {i}")
        await asyncio.sleep(0.06)
    return sum(numbers)


@hf.workflow
def wide(count: int = 40):
    return crunch(hf.map(enrich, list(range(40)), limit=4))


@hf.workflow
def named(name: str, times: int = 1):
    return hf.text("{} {}", name, times)
'''

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "PYTHONDONTWRITEBYTECODE"}
COMMAND = [sys.executable, "-m", "holdfast"]
PATIENCE_SECONDS = 60.0
"""How long is waited for what must happen; it never decides whether something is quick enough."""


READING = frozenset(
    [
        "list",
        "show",
        "events",
        "why",
        "inbox",
        "baskets",
        "basket",
        "respond",
        "reassign",
        "move",
        "signal",
        "pause",
        "cancel",
        "branches",
        "diff",
        "engines",
        "doctor",
        "version",
        "db",
        "trust",
    ]
)
"""Verbs that load no code of the user and drive nothing: one process can run many of them, one after another."""


def in_process(*args: str, cwd: Path, stdin: str = "", env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, through `main`, as a process of its own would run it."""
    out, err = io.StringIO(), io.StringIO()
    before, where, keyboard = dict(os.environ), Path.cwd(), sys.stdin
    try:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.stdin = io.StringIO(stdin)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(args)
    finally:
        sys.stdin = keyboard
        os.chdir(where)
        os.environ.clear()
        os.environ.update(before)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def _in_loop() -> bool:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


class Project:
    """A directory with `flows.py` and a database that the commands find by themselves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'holdfast.db'}"
        self.started: list[subprocess.Popen[str]] = []

    def cli(self, *args: str, cwd: Path | None = None, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end: in this process if it loads no code of the user."""
        if args and args[0] in READING and not {"--follow", "-f"} & {*args} and not _in_loop():
            return self.here(*args, cwd=cwd, stdin=stdin, **env)
        return self.process(*args, cwd=cwd, stdin=stdin, **env)

    def here(
        self, *args: str, cwd: Path | None = None, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this process: for what is refused before any code is loaded."""
        return in_process(*args, cwd=cwd or self.directory, stdin=stdin, env=ENVIRONMENT | env)

    def process(
        self, *args: str, cwd: Path | None = None, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in a process of its own."""
        return subprocess.run(
            [*COMMAND, *args],
            cwd=cwd or self.directory,
            env=ENVIRONMENT | env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def json(self, *args: str, exit_code: int = 0, **env: str) -> Any:
        """Run a command with --json; what it printed."""
        done = self.cli(*args, "--json", **env)
        assert done.returncode == exit_code, done
        return json.loads(done.stdout)

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """Run a command beside the test."""
        process = subprocess.Popen(
            [*COMMAND, *args],
            cwd=self.directory,
            env=ENVIRONMENT | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def wait_for(self, name: str) -> None:
        """Wait until a body has made this mark."""
        eventually(lambda: (self.directory / name).exists(), f"{name} was never made")

    def open_gate(self) -> None:
        (self.directory / "go").touch()

    def marks(self, name: str) -> int:
        path = self.directory / name
        return len(path.read_text()) if path.exists() else 0

    def events(self, run_id: str, *types: str) -> list[dict[str, Any]]:
        printed = self.cli("events", run_id, "--json").stdout
        found = [json.loads(line) for line in printed.splitlines()]
        return [event for event in found if not types or event.get("type") in types]


def eventually(condition: Callable[[], bool], message: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


def ask_to_stop(worker: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> None:
    """Stop a worker that has runs as a service manager does; returns when the worker has said that it drains."""
    worker.send_signal(how)
    assert worker.stderr is not None
    said = ""
    while "stopping: " not in said:
        line = worker.stderr.readline()
        assert line, f"it ended without draining: {said}"
        said += line


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    tmp_path.chmod(0o700)
    (tmp_path / "flows.py").write_text(FLOWS)
    made = Project(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


ORDER = '{"order": {"id": "42", "amount": 1500}}'
CHEAP = '{"order": {"id": "43", "amount": 15}}'
