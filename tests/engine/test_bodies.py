"""Where bodies run, how often, how long, and how they are stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model.limits import ERROR_BYTES_MAX
from holdfast.testing import harness
from tests.engine.kit import PATIENCE_SECONDS, attempts, check_file, node_of, types, until, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Tries:
    """Fails the first `failures` times."""

    def __init__(self, failures: int, error: Callable[[], BaseException] = lambda: ConnectionError("weather")) -> None:
        self.failures = failures
        self.error = error
        self.keys: list[tuple[int, str]] = []

    def __call__(self, ctx: Any) -> str:
        self.keys.append((ctx.attempt, ctx.idempotency_key))
        if len(self.keys) <= self.failures:
            raise self.error()
        return f"after {len(self.keys)}"


# --- kinds ---------------------------------------------------------------------------------------------------------


@hf.node(process=True)
def in_a_process(n: int) -> dict[str, int]:
    return {"pid": os.getpid(), "square": n * n}


@hf.node(process=True)
def fails_in_a_process(n: int) -> int:
    raise KeyError(n)


def tell_and_wait_for_ever(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()


@hf.node(process=True, timeout=0.5)
def never_ends_in_a_process(path: str) -> None:
    tell_and_wait_for_ever(path)


@hf.node(process=True)
def waits_in_a_process(path: str) -> None:
    tell_and_wait_for_ever(path)


@hf.workflow
def computes(n: int):
    return in_a_process(n)


@hf.workflow
def computes_badly(n: int):
    return fails_in_a_process(n)


@hf.workflow
def computes_too_long(path: str):
    return never_ends_in_a_process(path)


@hf.workflow
def computes_for_ever(path: str):
    return waits_in_a_process(path)


@pytest.mark.smoke
async def test_async_sync_and_inline_bodies_run_where_they_should(db: Path) -> None:
    threads: dict[str, int] = {}

    @hf.node
    async def on_the_loop(x: int) -> int:
        threads["async"] = threading.get_ident()
        return x + 1

    @hf.node
    def in_a_thread(x: int) -> int:
        threads["sync"] = threading.get_ident()
        return x + 1

    @hf.node(inline=True)
    def quick(x: int) -> int:
        threads["inline"] = threading.get_ident()
        return x + 1

    @hf.workflow
    def chain(x: int):
        return quick(in_a_thread(on_the_loop(x)))

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(chain, x=1)).result() == 4
    assert threads["async"] == threads["inline"] == threading.get_ident() != threads["sync"]
    check_file(db)


async def test_an_inline_body_gives_its_place_back_however_it_ends(db: Path) -> None:
    @hf.node(concurrency=1, inline=True)
    def straight(how: str) -> Any:
        if how == "raises":
            raise KeyError(how)
        if how == "cancels itself":
            raise asyncio.CancelledError
        return object() if how == "returns what cannot be stored" else how

    @hf.workflow
    def one(how: str):
        return straight(how)

    ways = {"raises": "KeyError", "cancels itself": "cancelled itself", "returns what cannot be stored": "as JSON"}
    async with hf.open(url(db)) as engine:
        for how, why in ways.items():
            with pytest.raises(hf.RunFailed, match=why):
                await (await engine.start(one, how=how)).result(timeout=30)
        assert await (await engine.start(one, how="returns")).result(timeout=30) == "returns"
    check_file(db)


TOLD: ContextVar[str] = ContextVar("TOLD", default="nothing")


@hf.node
async def tells_in_a_task(heard: str) -> str:
    await asyncio.sleep(0)
    heard += f" {TOLD.get()}"
    TOLD.set("in a task")
    return heard


@hf.node
async def tells_straight(heard: str) -> str:
    heard += f" {TOLD.get()}"
    TOLD.set("straight")
    return heard


@hf.node(inline=True)
def tells_inline(heard: str) -> str:
    heard += f" {TOLD.get()}"
    TOLD.set("inline")
    return heard


@hf.node
def tells_in_a_thread(heard: str) -> str:
    heard += f" {TOLD.get()}"
    TOLD.set("in a thread")
    return heard


@hf.workflow
def tells_all(heard: str):
    for tells in (tells_in_a_task, tells_straight, tells_inline, tells_in_a_thread) * 2:
        heard = tells(heard)
    return heard


@pytest.mark.parametrize("persistence", ["aggressive", "lazy"])
async def test_bodies_see_the_context_in_which_the_engine_was_opened_and_nothing_of_each_other(
    db: Path, persistence: str
) -> None:
    before = TOLD.set("before")
    async with hf.open(url(db)) as engine:
        TOLD.set("since")
        runs = [await engine.start(tells_all, heard="", persistence=persistence) for _ in range(2)]
        assert [await run.result() for run in runs] == [" before" * 8] * 2
    TOLD.reset(before)


def test_bodies_of_hf_run_see_what_was_set_before_and_nothing_of_each_other(db: Path) -> None:
    def program() -> str:
        TOLD.set("before")
        return hf.run(tells_all, heard="", db=url(db))

    assert copy_context().run(program) == " before" * 8


async def test_a_process_body_runs_in_another_process_and_its_failure_is_described(db: Path) -> None:
    async with hf.open(url(db), processes=1) as engine:
        result = await (await engine.start(computes, n=7)).result()
        assert result["square"] == 49
        assert result["pid"] != os.getpid()
        with pytest.raises(hf.RunFailed, match="KeyError") as caught:
            await (await engine.start(computes_badly, n=7)).result()
        assert "KeyError" in caught.value.error.kinds
    check_file(db)


async def test_a_process_body_past_its_timeout_is_killed(db: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with hf.open(url(db), processes=1) as engine:
        with pytest.raises(hf.RunFailed, match="timeout") as caught:
            await (await engine.start(computes_too_long, path=str(pid_file))).result()
        assert caught.value.error.code == "timeout"
        # if there is none, the machine was so slow that the child was killed before its body began
        if pid_file.exists() and (pid := pid_file.read_text()):
            await until(lambda: not _alive(int(pid)), "the child is gone")
    check_file(db)


async def test_a_cancelled_process_body_is_killed(db: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with hf.open(url(db), processes=1) as engine:
        run = await engine.start(computes_for_ever, path=str(pid_file))
        await until(lambda: pid_file.exists() and pid_file.read_text(), "the body runs")
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
        await until(lambda: not _alive(int(pid_file.read_text())), "the child is gone")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_calling_a_node_inside_a_body_names_the_durable_call(db: Path) -> None:
    @hf.node
    async def charge(amount: int) -> int:
        return amount

    @hf.node
    def sync_caller() -> Any:
        return charge(1)

    @hf.node(inline=True)
    def inline_caller() -> Any:
        return charge(1)

    @hf.node
    async def async_caller() -> Any:
        return charge(1)

    @hf.workflow
    async def code_caller(ctx: hf.Context) -> Any:
        return charge(1)

    async with hf.open(url(db)) as engine:
        for caller in (sync_caller, inline_caller, async_caller):

            def flow(caller=caller):
                return caller()

            flow.__name__ = f"flow_{caller.base_id}"
            flow.__signature__ = __import__("inspect").Signature()  # type: ignore[attr-defined]
            run = await engine.start(hf.workflow(name=flow.__name__)(flow))
            with pytest.raises(hf.RunFailed, match=r"ctx\.step\(charge, amount\)"):
                await run.result()
        with pytest.raises(hf.RunFailed, match=r"ctx\.step\(charge, amount\)"):
            await (await engine.start(code_caller)).result()


# --- retries -------------------------------------------------------------------------------------------------------


async def test_a_failing_node_is_tried_again_with_the_same_key_and_a_growing_attempt(db: Path) -> None:
    tries = Tries(2)

    @hf.node(retry=hf.Retry(attempts=3, backoff=0.001))
    async def flaky(ctx: hf.Context) -> str:
        return tries(ctx)

    @hf.workflow
    def retried():
        return flaky()

    async with hf.open(url(db)) as engine:
        run = await engine.start(retried)
        assert await run.result() == "after 3"
        assert attempts(await run.events(), "flaky") == [1, 2, 3]
        failed = [e for e in await run.events() if e.type == "NodeFailed"]
        assert [e.data["retryable"] for e in failed] == [True, True]
    assert [attempt for attempt, _ in tries.keys] == [1, 2, 3]
    assert len({key for _, key in tries.keys}) == 1
    check_file(db)


async def test_out_of_tries_the_last_error_counts(db: Path) -> None:
    tries = Tries(99, lambda: ConnectionError(f"no {len(tries.keys)}"))

    @hf.node(retry=hf.Retry(attempts=3, backoff=0.001))
    def flaky(ctx: hf.SyncContext) -> str:
        return tries(ctx)

    @hf.workflow
    def retried():
        return flaky()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="no 3") as caught:
            await (await engine.start(retried)).result()
        assert caught.value.error.attempt == 3
    assert len(tries.keys) == 3


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (lambda: ConnectionResetError("a subclass"), 3),
        (lambda: ValueError("another one"), 1),
        (lambda: hf.Fail("give up", retryable=False), 1),
        (lambda: hf.Fail("go on", retryable=True), 3),
    ],
)
async def test_only_what_the_policy_names_is_tried_again(db: Path, error: Any, tried: int) -> None:
    tries = Tries(99, error)

    @hf.node(retry=hf.Retry(attempts=3, backoff=0, on=(ConnectionError,)))
    async def flaky(ctx: hf.Context) -> str:
        return tries(ctx)

    @hf.workflow
    def picky():
        return flaky()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed):
            await (await engine.start(picky)).result()
    assert len(tries.keys) == tried


async def test_a_long_retry_delay_suspends_the_run_on_a_timer(db: Path) -> None:
    tries = Tries(1)

    @hf.node(retry=hf.Retry(attempts=2, backoff=1.05, jitter=0))
    async def flaky(ctx: hf.Context) -> str:
        return tries(ctx)

    @hf.workflow
    def delayed():
        return flaky()

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(delayed)
        assert await run.result() == "after 2"
        kinds = types(await run.events())
        assert [k for k in kinds if k.startswith(("Timer", "RunS", "RunR"))] == [
            "TimerSet",
            "RunSuspended",
            "TimerFired",
            "RunResumed",
        ]
    check_file(db)


# --- timeouts ------------------------------------------------------------------------------------------------------


async def test_an_async_body_past_its_timeout_is_cancelled_and_tried_again(db: Path) -> None:
    ended: list[str] = []

    @hf.node(timeout=1, retry=hf.Retry(attempts=2, backoff=0))  # the second attempt has to end in this time
    async def slow(ctx: hf.Context) -> str:
        if ctx.attempt == 2:
            return "in time"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        return "never"

    @hf.workflow
    def impatient():
        return slow()

    async with hf.open(url(db)) as engine:
        run = await engine.start(impatient)
        assert await run.result() == "in time"
        (failed,) = [e for e in await run.events() if e.type == "NodeFailed"]
        assert failed.data["error"]["code"] == "timeout"
        assert "1 s" in failed.data["error"]["message"]
    assert ended == ["cleaned up"]
    check_file(db)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_body_returns_after_its_timeout_does_not_count(db: Path, kind: str) -> None:
    timed_out = threading.Event()

    @hf.node(timeout=0.05)
    async def stubborn(ctx: hf.Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "never"

    @hf.node(timeout=0.05)
    def stubborn_thread(ctx: hf.SyncContext) -> str:
        while not ctx.cancelled:
            timed_out.wait(0.005)
        return "late"

    body = stubborn if kind == "async" else stubborn_thread

    @hf.workflow(name=f"late_{kind}")
    def late():
        return body.named("body")()

    async with hf.open(url(db)) as engine:
        run = await engine.start(late)
        with pytest.raises(hf.RunFailed) as caught:
            await run.result()
        assert caught.value.error.code == "timeout"
    check_file(db)


async def test_a_sync_body_past_its_timeout_sees_cancelled_and_the_next_attempt_waits_for_its_end(db: Path) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    @hf.node(timeout=1, retry=hf.Retry(attempts=2, backoff=0))
    def looks(ctx: hf.SyncContext) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        try:
            if ctx.attempt == 1:
                while not ctx.cancelled:
                    threading.Event().wait(0.005)
                raise RuntimeError("stopped")
            return ctx.attempt
        finally:
            with lock:
                inside -= 1

    @hf.workflow
    def polite():
        return looks()

    async with hf.open(url(db)) as engine:
        run = await engine.start(polite)
        assert await run.result() == 2
        (failed,) = [e for e in await run.events() if e.type == "NodeFailed"]
        assert failed.data["error"]["code"] == "timeout"
    assert most == 1


async def test_a_sync_body_that_ignores_its_timeout_is_given_up_after_the_grace_time(db: Path) -> None:
    release = threading.Event()
    calls: list[type[BaseException]] = []

    @hf.node(timeout=1, retry=hf.Retry(attempts=2, backoff=0))
    def deaf(ctx: hf.SyncContext) -> int:
        if ctx.attempt == 1:
            release.wait()
            try:
                ctx.now()
            except BaseException as e:
                calls.append(type(e))
                raise
        return ctx.attempt

    @hf.workflow
    def lost():
        return deaf()

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(lost)
        assert await run.result() == 2
        (failed,) = [e for e in await run.events() if e.type == "NodeFailed"]
        assert failed.data["error"]["message"] == (
            "deaf ran longer than its timeout of 1 s; it did not stop, and its thread was given up"
        )
        release.set()
        await until(lambda: calls)
        assert await run.result() == 2
    assert calls[0] in (hf.Suspended, asyncio.CancelledError)
    check_file(db)


async def test_a_body_without_heartbeats_fails_and_one_with_them_goes_on(db: Path) -> None:
    @hf.node(heartbeat=0.1)
    async def silent(ctx: hf.Context) -> None:
        await asyncio.Event().wait()

    @hf.node(heartbeat=2.5)
    async def lively(ctx: hf.Context) -> str:
        for _ in range(30):
            await asyncio.sleep(0.1)
            ctx.heartbeat()
        return "alive"

    @hf.node(heartbeat=2.5)
    def lively_thread(ctx: hf.SyncContext) -> str:
        for _ in range(30):
            threading.Event().wait(0.1)
            ctx.heartbeat()
        return "alive"

    @hf.workflow
    def quiet():
        return silent()

    @hf.workflow
    def beating():
        return [lively(), lively_thread()]

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed) as caught:
            await (await engine.start(quiet)).result()
        assert caught.value.error.code == "heartbeat_lost"
        assert await (await engine.start(beating)).result() == ["alive", "alive"]


async def test_time_spent_waiting_does_not_count_against_a_timeout() -> None:
    @hf.node(timeout=0.2)
    async def naps(ctx: hf.Context) -> str:
        await ctx.sleep(0.8)  # too short to be left: it is the same body that goes on
        return "rested"

    @hf.workflow
    def rests():
        return naps()

    async with harness() as h:
        run = await h.start(rests)
        await h.advance(seconds=1)
        assert await run.result() == "rested"


async def test_a_run_past_its_timeout_fails_and_its_bodies_are_stopped(db: Path) -> None:
    stopped: list[bool] = []

    @hf.workflow(timeout=0.05)
    async def endless(ctx: hf.Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    @hf.workflow(timeout=0.05)
    async def asleep(ctx: hf.Context) -> None:
        await ctx.sleep("1h")

    async with hf.open(url(db), idle_seconds=0) as engine:
        for workflow in (endless, asleep):
            with pytest.raises(hf.RunFailed) as caught:
                await (await engine.start(workflow)).result()
            assert caught.value.error.code == "run_timeout"
    assert stopped == [True]
    check_file(db)


# --- cancellation --------------------------------------------------------------------------------------------------


async def test_a_cancelled_body_cleans_up_and_what_it_returns_in_time_is_recorded(db: Path) -> None:
    began, cleaned = asyncio.Event(), []

    @hf.node
    async def tidy(ctx: hf.Context) -> str:
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(ctx.cancelled)
            return "half done"
        return "never"

    @hf.node
    async def after(x: str) -> str:
        cleaned.append("must not run")
        return x

    @hf.workflow
    def stopped():
        return after(tidy())

    async with hf.open(url(db)) as engine:
        run = await engine.start(stopped)
        await began.wait()
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
        node = node_of(await run.nodes(), "tidy")
        assert (node["status"], node["output"]) == ("completed", "half done")
    assert cleaned == [True]
    check_file(db)


async def test_a_cancelled_body_that_only_cleans_up_is_cancelled_with_an_unknown_outcome(db: Path) -> None:
    began, cleaned = asyncio.Event(), []

    @hf.node
    async def tidy() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    @hf.workflow
    def stopped():
        return tidy()

    async with hf.open(url(db)) as engine:
        run = await engine.start(stopped)
        await began.wait()
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
        (cancelled,) = [e for e in await run.events() if e.type == "NodeCancelled"]
        assert cancelled.data["outcome"] == "unknown"
    assert cleaned == [True]


async def test_a_cancelled_body_that_does_not_stop_is_given_up_after_the_grace_time(db: Path) -> None:
    began, release = threading.Event(), threading.Event()

    @hf.node
    def deaf() -> None:
        began.set()
        release.wait()

    @hf.workflow
    def stuck():
        return deaf()

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(stuck)
        await asyncio.to_thread(began.wait)
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
        release.set()
    check_file(db)


async def test_a_body_that_cancels_itself_fails_like_any_other(db: Path) -> None:
    @hf.node
    async def odd() -> None:
        raise asyncio.CancelledError

    @hf.workflow
    def cancels_itself():
        return odd()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="cancelled itself"):
            await (await engine.start(cancels_itself)).result()


# --- errors --------------------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Rude(BaseException):
    pass


class Declined(ValueError):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({code})")


def _too_deep() -> None:
    _too_deep()


def _raise(error: BaseException) -> None:
    password = "hunter2"
    assert password
    raise error


ODD_ERRORS: list[tuple[str, Callable[[], Any], str, str]] = [
    ("recursion", _too_deep, "RecursionError", "recursion"),
    ("unprintable", lambda: _raise(Unprintable()), "Unprintable", "cannot be read"),
    ("rude", lambda: _raise(Rude("base")), "Rude", "base"),
    ("exit", lambda: _raise(SystemExit(3)), "SystemExit", "3"),
    ("interrupt", lambda: _raise(KeyboardInterrupt()), "KeyboardInterrupt", "KeyboardInterrupt"),
    ("generator", lambda: _raise(GeneratorExit()), "GeneratorExit", "GeneratorExit"),
    ("group", lambda: _raise(ExceptionGroup("two", [ValueError("a"), OSError("b")])), "ExceptionGroup", "two"),
    ("huge", lambda: _raise(ValueError("x" * 1_000_000)), "ValueError", "xxx"),
    ("surrogate", lambda: _raise(ValueError("\ud800")), "ValueError", "ValueError"),
    ("stop", lambda: _raise(StopIteration(1)), "", ""),
    ("empty", lambda: _raise(ValueError()), "ValueError", "ValueError"),
    ("suspended", lambda: _raise(hf.Suspended()), "Suspended", r"raised hf\.Suspended itself"),
]


@pytest.mark.parametrize("kind", ["async", "sync", "inline"])
@pytest.mark.parametrize(("name", "fail", "cls", "text"), ODD_ERRORS, ids=[e[0] for e in ODD_ERRORS])
async def test_whatever_a_body_raises_fails_its_node_and_nothing_else(
    db: Path, kind: str, name: str, fail: Callable[[], Any], cls: str, text: str
) -> None:
    async def raises_async() -> None:
        fail()

    def raises() -> None:
        fail()

    node = hf.node(raises_async) if kind == "async" else hf.node(inline=kind == "inline")(raises)

    @hf.node
    async def fine() -> int:
        return 1

    @hf.workflow(name=f"odd_{kind}_{name}")
    def odd():
        return node.named("odd")()

    @hf.workflow(name=f"fine_{kind}_{name}")
    def good():
        return fine()

    async with hf.open(url(db)) as engine:
        bad, ok = await engine.start(odd), await engine.start(good)
        assert await ok.result() == 1
        with pytest.raises(hf.RunFailed, match=text or None) as caught:
            await bad.result(timeout=PATIENCE_SECONDS)
        error = caught.value.error
        assert error.node == "odd"
        assert not cls or error.kinds[0].endswith(cls)
        size = sum(len(part.encode()) for part in (error.message, *error.frames, *error.kinds))
        assert size <= ERROR_BYTES_MAX
    check_file(db)


async def test_an_error_names_its_bases_and_the_users_frames_and_never_locals(db: Path) -> None:
    @hf.node
    async def pays() -> None:
        secret = "4111-1111"
        assert secret
        _raise(Declined(51, "no funds"))

    @hf.workflow
    def shop():
        return pays()

    async with hf.open(url(db)) as engine:
        run = await engine.start(shop)
        with pytest.raises(hf.RunFailed) as caught:
            await run.result()
        error = caught.value.error
        events = repr(await run.events())
    assert error.message == "Declined: no funds (51)"
    assert [kind.rpartition(".")[2] for kind in error.kinds][:3] == ["Declined", "ValueError", "Exception"]
    assert len(error.frames) == 2
    assert "in pays" in error.frames[0]
    assert "in _raise" in error.frames[1]
    assert all("holdfast/" not in frame for frame in error.frames)
    assert "hunter2" not in events
    assert "4111" not in events.replace('secret = "4111-1111"', "")


async def test_one_call_of_ctx_log_is_one_line(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    @hf.node
    async def repeats_what_it_is_told(ctx: hf.Context, said: str) -> None:
        ctx.log.warning("said %s", said)
        ctx.log.warning("100%\rdone")
        ctx.log.warning("%(who)s said it", {"who": "a\nb"})
        ctx.log.warning("plain %d", 7)

    @hf.workflow
    def forged(said: str):
        return repeats_what_it_is_told(said)

    with caplog.at_level(logging.WARNING, logger="holdfast.node"):
        async with hf.open(url(db)) as engine:
            await (await engine.start(forged, said="hi\nERROR holdfast: \x1b[2Jforged\u2028")).result()
    records = [r for r in caplog.records if r.name == "holdfast.node"]
    assert [r.getMessage() for r in records] == [
        r"said hi\nERROR holdfast: \x1b[2Jforged\u2028",
        r"100%\rdone",
        r"a\nb said it",
        "plain 7",
    ]
    assert {r.funcName for r in records} == {"repeats_what_it_is_told"}
    assert (records[-1].msg, records[-1].args) == ("plain %d", (7,))  # what is harmless keeps its form


async def test_logs_are_bound_to_run_node_and_attempt_and_stay_out_of_the_journal(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(1)

    @hf.node(retry=hf.Retry(attempts=2, backoff=0))
    async def talks(ctx: hf.Context) -> str:
        ctx.log.warning("careful with %s", "that")
        return tries(ctx)

    @hf.workflow
    def chatty():
        return talks()

    with caplog.at_level(logging.WARNING, logger="holdfast.node"):
        async with hf.open(url(db)) as engine:
            run = await engine.start(chatty, run_id="r")
            await run.result()
            events = repr(await run.events())
    found = [(r.run_id, r.node, r.attempt, r.getMessage()) for r in caplog.records if r.name == "holdfast.node"]
    assert found == [("r", "talks", 1, "careful with that"), ("r", "talks", 2, "careful with that")]
    assert "careful" not in events
