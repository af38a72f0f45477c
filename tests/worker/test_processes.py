"""Bodies in processes: another core, a real end when they must stop, and no orphan when the engine is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model import handlers
from holdfast.model.errors import BodyDied, NodeTimeout, UsageError
from holdfast.model.handlers import CodeLocation, Handler
from holdfast.worker.loading import load_file
from holdfast.worker.processes import BodyFailed, ProcessBodies

PREAMBLE = '''
from __future__ import annotations
import asyncio, dataclasses, datetime, os, subprocess, sys, time, typing
from holdfast.model import handlers
from holdfast.model.errors import Fail
from holdfast.model.handlers import CodeLocation, Handler, Parameter

def body(fn):
    """What the decorator does: a handler under the file's stem."""
    import inspect
    hints = typing.get_type_hints(fn)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    params = tuple(
        Parameter(
            p.name, hints.get(p.name, typing.Any), p.default is p.empty, stars.get(p.kind, ""),
            p.kind is p.POSITIONAL_ONLY, p.kind is p.KEYWORD_ONLY,
        )
        for p in inspect.signature(fn).parameters.values()
    )
    stem = os.path.basename(__file__)[:-3]
    handler = Handler(
        name=f"{stem}.{fn.__qualname__}", fn=fn, kind="process", takes_ctx=False, params=params,
        returns=hints.get("return", typing.Any), fingerprint="",
        code=CodeLocation(kind="file", file=__file__, module=stem, name=fn.__qualname__),
    )
    handlers.register(handler.name, lambda: handler)
    return fn

def begin(fifo):
    """Tell the test that the body runs. The test reads the end of the file when every holder of this is dead."""
    fd = os.open(fifo, os.O_WRONLY)
    os.set_inheritable(fd, True)
    os.write(fd, b"%d\\n" % os.getpid())
    return fd
'''

Load = Callable[[str], Handler]

posix = pytest.mark.skipif(os.name != "posix", reason="fifos and signals")


@pytest.fixture
async def bodies() -> AsyncIterator[ProcessBodies]:
    pool = ProcessBodies(2)
    yield pool
    await pool.close()


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a file with one body named `work`, load it here as an engine would, and find its handler."""

    def load(text: str) -> Handler:
        file = tmp_path / f"user_{uuid.uuid4().hex}.py"
        file.write_text(PREAMBLE + textwrap.dedent(text))
        load_file(file)
        handler = handlers.find(f"{file.stem}.work")
        assert handler is not None
        return handler

    return load


class Fifo:
    """How a body says that it began, and how the test learns that it is dead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    async def began(self, task: asyncio.Task[Any] | None = None) -> int:
        """The pid of the body's process, once it runs; fails if `task`, which should run it, fails before."""
        self._reader = asyncio.StreamReader()
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(fd, "rb")
        )
        line = asyncio.create_task(self._reader.readline())
        await asyncio.wait([line, task] if task else [line], return_when=asyncio.FIRST_COMPLETED)
        if task and task.done() and task.exception() is not None:
            line.cancel()
            self._transport.close()
            task.result()
        return int(await line)

    async def dead(self) -> bytes:
        """Return once no process holds the other end; what else was written."""
        rest = await self._reader.read()
        self._transport.close()
        await asyncio.sleep(0)  # let it close
        return rest


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path / "fifo")


def args(**values: Any) -> bytes:
    return msgspec.json.encode(values)


async def run(bodies: ProcessBodies, handler: Handler, **values: Any) -> Any:
    return json.loads(await bodies.run(handler, args(**values), None))


# --- values ------------------------------------------------------------------------------------------------------


async def test_a_body_runs_in_another_process_which_is_used_again(bodies: ProcessBodies, load: Load) -> None:
    handler = load("""
        @body
        def work() -> list[int]:
            return [os.getpid(), os.getppid()]
    """)
    pid, parent = await run(bodies, handler)
    assert pid != os.getpid() == parent
    assert await run(bodies, handler) == [pid, parent]


async def test_arguments_are_decoded_and_the_result_encoded_by_annotation(bodies: ProcessBodies, load: Load) -> None:
    handler = load("""
        @dataclasses.dataclass
        class Order:
            id: int
            at: datetime.datetime

        @body
        def work(order: Order, /, days: int = 1, *more: datetime.date, flag: bool = False, **rest: Order) -> dict:
            assert type(order) is Order
            at = order.at + datetime.timedelta(days=days)
            return {"at": at, "more": [d.year for d in more], "flag": flag, "rest": {k: v.id for k, v in rest.items()}}
    """)
    order = {"id": 7, "at": "2026-01-01T00:00:00Z"}
    assert await run(bodies, handler, order=order) == {
        "at": "2026-01-02T00:00:00Z",
        "more": [],
        "flag": False,
        "rest": {},
    }
    full = {"order": order, "days": 2, "*": ["2020-01-01", "2021-01-01"], "flag": True, "extra": order}
    assert json.loads(await bodies.run(handler, msgspec.json.encode(full), None)) == {
        "at": "2026-01-03T00:00:00Z",
        "more": [2020, 2021],
        "flag": True,
        "rest": {"extra": 7},
    }


async def test_an_argument_nobody_asked_for_is_an_error(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work(n: int) -> int:\n    return n\n")
    with pytest.raises(BodyFailed, match="unexpected keyword argument 'm'"):
        await run(bodies, handler, n=1, m=2)


async def test_an_argument_of_the_wrong_type_is_named(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work(n: int) -> int:\n    return n\n")
    with pytest.raises(BodyFailed, match=f"argument n of {handler.name}") as caught:
        await run(bodies, handler, n="one")
    assert caught.value.error.code == "invalid_input"


async def test_an_async_body_runs_too(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\nasync def work(n: int) -> int:\n    await asyncio.sleep(0)\n    return n + 1\n")
    assert await run(bodies, handler, n=1) == 2


async def test_large_values_pass(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work(text: str) -> str:\n    return text[:400_000]\n")
    text = "é" * 3_000_000  # a map's whole output can be larger than one stored value
    assert await run(bodies, handler, text=text) == text[:400_000]


async def test_what_a_body_prints_goes_to_stderr_and_stdin_is_empty(
    bodies: ProcessBodies, load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = load("""
        @body
        def work() -> str:
            print("printed")
            os.write(1, b"raw\\n")
            subprocess.run([sys.executable, "-c", "print('from a subprocess')"])
            return sys.stdin.read()
    """)
    assert await run(bodies, handler) == ""
    assert await run(bodies, handler) == ""
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.split("\n")) == sorted(["", *["printed", "raw", "from a subprocess"] * 2])


async def test_bodies_run_side_by_side_up_to_the_size(load: Load, fifo: Fifo, tmp_path: Path) -> None:
    other = Fifo(tmp_path / "other")
    pool = ProcessBodies(2)
    handler = load("@body\ndef work(fifo: str) -> None:\n    begin(fifo)\n    time.sleep(600)\n")
    tasks = [asyncio.create_task(run(pool, handler, fifo=str(f.path))) for f in (fifo, other, fifo)]
    await asyncio.gather(fifo.began(tasks[0]), other.began(tasks[1]))
    assert pool.free == 0
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.gather(fifo.dead(), other.dead())
    assert pool.free == 2
    await pool.close()


# --- failures ----------------------------------------------------------------------------------------------------


async def test_an_exception_comes_back_with_its_classes_message_and_frames(bodies: ProcessBodies, load: Load) -> None:
    handler = load("""
        class Declined(ConnectionError):
            pass

        def charge(n):
            secret = "local"
            raise Declined(f"card {n}")

        @body
        def work(n: int):
            charge(n)
    """)
    with pytest.raises(BodyFailed) as caught:
        await run(bodies, handler, n=3)
    error = caught.value.error
    stem = handler.code.module
    assert (error.code, error.message, error.retryable) == ("error", "Declined: card 3", None)
    assert error.kinds == (f"{stem}.Declined", "ConnectionError", "OSError", "Exception")
    assert [frame.split(" in ", 1)[1] for frame in error.frames] == [
        "work: charge(n)",
        'charge: raise Declined(f"card {n}")',
    ]
    assert all(frame.startswith(handler.code.file) for frame in error.frames)
    assert "local" not in repr(error)


async def test_what_the_body_says_about_retrying_comes_back(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work():\n    raise Fail('no', retryable=False)\n")
    with pytest.raises(BodyFailed) as caught:
        await run(bodies, handler)
    assert (caught.value.error.code, caught.value.error.retryable) == ("fail", False)


async def test_an_endless_message_and_deep_recursion_are_cut(bodies: ProcessBodies, load: Load) -> None:
    handler = load("""
        @body
        def work(n: int):
            if not n:
                raise ValueError("x" * 1_000_000)
            work(n - 1)
    """)
    with pytest.raises(BodyFailed) as caught:
        await run(bodies, handler, n=900)
    assert len(msgspec.json.encode(caught.value.error)) <= 16_384
    assert caught.value.error.frames[-1].endswith('raise ValueError("x" * 1_000_000)')


@pytest.mark.parametrize("leave", ["sys.exit(3)", "raise KeyboardInterrupt"])
async def test_an_exit_is_the_bodys_failure_and_the_process_lives_on(
    bodies: ProcessBodies, load: Load, leave: str
) -> None:
    handler = load(f"@body\ndef work(leave: bool) -> int:\n    if leave:\n        {leave}\n    return os.getpid()\n")
    pid = await run(bodies, handler, leave=False)
    with pytest.raises(BodyFailed) as caught:
        await run(bodies, handler, leave=True)
    assert caught.value.error.kinds[0] in ("SystemExit", "KeyboardInterrupt")
    assert await run(bodies, handler, leave=False) == pid


async def test_a_result_that_cannot_be_stored_is_the_bodys_failure(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work():\n    return object()\n")
    with pytest.raises(BodyFailed) as caught:
        await run(bodies, handler)
    assert caught.value.error.code == "not_serialisable"


async def test_code_that_cannot_be_loaded_there_says_so(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work() -> int:\n    return 1\n")
    Path(handler.code.file).write_text("1 / 0\n")
    with pytest.raises(BodyFailed, match="cannot be imported: ZeroDivisionError"):
        await run(bodies, handler)
    Path(handler.code.file).write_text("# the body is gone\n")
    with pytest.raises(BodyFailed, match=f"no longer has a node {handler.name}"):
        await run(bodies, handler)


async def test_code_that_no_other_process_can_find_is_refused(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work() -> int:\n    return 1\n")
    local = msgspec.structs.replace(handler, code=CodeLocation(kind="process", name="work"))
    with pytest.raises(UsageError, match="Move it to the top level of a file"):
        await run(bodies, local)
    with pytest.raises(UsageError, match="takes a ctx"):
        await run(bodies, msgspec.structs.replace(handler, takes_ctx=True))


SCRIBBLE = """
def scribble() -> None:
    for handle in range(3, 99):
        try:
            os.write(handle, bytes([255]) * 64)
        except OSError:
            pass

"""
"""A function that writes into every file that its process has open."""


@posix
@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("os._exit(3)", "ended with exit status 3"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "ended by SIGKILL.*out of memory"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
        ("os.closerange(3, 99); time.sleep(600)", "closed its pipe to the engine .* and was killed"),
        ("scribble(); time.sleep(600)", "not an answer .* and was killed"),
        # what a body forked must not keep the pipe of a dead child open
        ("pid = os.fork(); time.sleep(600) if pid == 0 else os._exit(4)", "ended with exit status 4"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_process_that_dies_is_told_and_replaced(
    bodies: ProcessBodies, load: Load, end: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = load(
        f"{SCRIBBLE}@body\ndef work(die: bool) -> int:\n    if die:\n        {end}\n    return os.getpid()\n"
    )
    pid = await run(bodies, handler, die=False)
    with pytest.raises(BodyDied, match=f"the process of {handler.name} .*{says}"):
        await asyncio.wait_for(run(bodies, handler, die=True), 30)
    assert await run(bodies, handler, die=False) != pid
    assert bodies.free == 2
    capfd.readouterr()  # the traceback of the crash


@posix
async def test_a_process_that_died_while_idle_is_not_blamed_on_the_next_body(
    bodies: ProcessBodies, load: Load, fifo: Fifo
) -> None:
    handler = load("@body\ndef work(fifo: str) -> int:\n    begin(fifo)\n    return os.getpid()\n")
    task = asyncio.create_task(run(bodies, handler, fifo=str(fifo.path)))
    pid = await fifo.began(task)
    assert await task == pid
    os.kill(pid, signal.SIGKILL)
    await fifo.dead()
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    again = asyncio.create_task(run(bodies, handler, fifo=str(fifo.path)))
    assert await fifo.began(again) == await again != pid
    await bodies.close()
    await fifo.dead()


# --- the end -----------------------------------------------------------------------------------------------------

HANG = """
    @body
    def work(fifo: str, how: str) -> None:
        fd = begin(fifo)
        if how == "with a subprocess":
            subprocess.Popen(["sleep", "600"], pass_fds=[fd])
        if how == "holding the GIL":
            sum(range(10**12))
        time.sleep(600)
"""
HOW = ["asleep", "with a subprocess", "holding the GIL"]


@posix
@pytest.mark.parametrize("how", HOW)
async def test_a_cancelled_body_is_killed_with_all_it_started(
    bodies: ProcessBodies, load: Load, fifo: Fifo, how: str
) -> None:
    task = asyncio.create_task(run(bodies, load(HANG), fifo=str(fifo.path), how=how))
    pid = await fifo.began(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):  # reaped before the caller goes on
        os.kill(pid, 0)
    assert await fifo.dead() == b""
    assert bodies.free == 2


@posix
async def test_a_body_over_its_timeout_is_killed_and_the_next_one_gets_a_fresh_process(
    bodies: ProcessBodies, load: Load, fifo: Fifo
) -> None:
    quick = load("@body\ndef work() -> int:\n    return 1\n")
    assert await bodies.run(quick, b"{}", 60) == b"1"  # so that a process is up, whose start takes no time of the next
    handler = load(HANG)
    task = asyncio.create_task(bodies.run(handler, args(fifo=str(fifo.path), how="asleep"), 3))
    await fifo.began(task)
    with pytest.raises(NodeTimeout, match="ran longer than 3 seconds and was killed"):
        await task
    assert await fifo.dead() == b""
    assert await bodies.run(quick, b"{}", 60) == b"1"


@posix
async def test_a_body_that_is_cancelled_before_its_process_is_up_never_runs(bodies: ProcessBodies, load: Load) -> None:
    handler = load("@body\ndef work(file: str) -> None:\n    open(file, 'w').close()\n")
    file = Path(handler.code.file).with_suffix(".ran")
    task = asyncio.create_task(run(bodies, handler, file=str(file)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bodies.close()
    assert not file.exists()


@posix
async def test_close_kills_what_runs_and_refuses_what_comes(load: Load, fifo: Fifo) -> None:
    pool = ProcessBodies(1)
    handler = load(HANG)
    task = asyncio.create_task(run(pool, handler, fifo=str(fifo.path), how="with a subprocess"))
    waiting = asyncio.create_task(run(pool, handler, fifo=str(fifo.path), how="asleep"))
    await fifo.began(task)
    await pool.close()
    with pytest.raises(BodyDied):
        await task
    with pytest.raises(UsageError, match="closing"):
        await waiting
    assert await fifo.dead() == b""


@posix
@pytest.mark.parametrize("how", HOW)
async def test_an_engine_killed_with_9_leaves_no_orphan(load: Load, fifo: Fifo, how: str) -> None:
    handler = load(HANG)
    script = f"""
import asyncio
from holdfast.model import handlers
from holdfast.worker.loading import load_file
from holdfast.worker.processes import ProcessBodies

async def main():
    load_file({handler.code.file!r})
    handler = handlers.find({handler.name!r})
    await ProcessBodies().run(handler, {args(fifo=str(fifo.path), how=how)!r}, None)

asyncio.run(main())
"""
    engine = subprocess.Popen([sys.executable, "-c", script])
    await fifo.began()
    engine.kill()
    engine.wait()
    assert await fifo.dead() == b""  # comes only when the body's process and what it started are dead
