"""Programs: the body of `shell`.

Owns: which programs may run (the operator's list of absolute paths), and one execution: its environment, its bounds of
time and output, and its end. A program runs in a process group of its own, which is killed when the body is cancelled
or the time is over: nothing that it started stays behind.
Never: uses a shell; arguments are a list. The program does not inherit the environment of the engine, in which there
may be secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Annotated, Any

from msgspec import Meta

from holdfast.handlers.registering import builtin, permissions_of, without_secrets
from holdfast.handlers.waiting import Duration
from holdfast.model.errors import Fail, UsageError
from holdfast.model.limits import SHELL_BYTES_MAX, SHELL_SECONDS
from holdfast.model.policies import delay_seconds
from holdfast.worker.context import Context

_INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")


@builtin("holdfast.shell")
async def shell(
    ctx: Context,
    argv: Annotated[list[str], Meta(min_length=1, description="The absolute path of a program, and its arguments.")],
    stdin: str = "",
    env: Annotated[dict[str, str], Meta(description="Further variables for the program.")] = {},  # noqa: B006
    cwd: str | None = None,
    expect: Annotated[list[int], Meta(description="Exit codes that complete the node.")] = [0],  # noqa: B006
    timeout: Annotated[Duration, Meta(description="Default 60 s.")] = SHELL_SECONDS,
    max_bytes: Annotated[int, Meta(ge=0, le=SHELL_BYTES_MAX, description="Of each output.")] = SHELL_BYTES_MAX,
) -> dict[str, Any]:
    """Run a program that the operator allows; the output is `{exit_code, stdout, stderr}`."""
    allowed = permissions_of(ctx).shell_allow
    if argv[0] not in allowed:
        raise UsageError(
            f"shell: {argv[0]!r} is not a program that the operator allows here; HOLDFAST_SHELL_ALLOW names "
            f"{', '.join(allowed) or 'none'}"
        )
    seconds = delay_seconds(timeout, "shell: timeout")
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ} | env
    variables["HOLDFAST_IDEMPOTENCY_KEY"] = ctx.idempotency_key
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as e:
        raise Fail(f"shell: {argv[0]} cannot be started: {e}", retryable=False) from None
    try:
        async with asyncio.timeout(seconds):
            outputs = await _exchange(process, stdin.encode(), max_bytes, argv[0])
            code = await process.wait()
    except TimeoutError:
        raise Fail(f"shell: {argv[0]} ran longer than {seconds:g} s and was killed", retryable=True) from None
    finally:
        await _end(process)
    stdout, stderr = (without_secrets(ctx, data.decode(errors="replace")) for data in outputs)
    if code not in expect:
        details = {"exit_code": code, "stdout": stdout[-2000:], "stderr": stderr[-2000:]}
        raise Fail(f"shell: {argv[0]} ended with {code}: {stderr.strip()[-500:]}", details=details)
    return {"exit_code": code, "stdout": stdout, "stderr": stderr}


async def _exchange(process: asyncio.subprocess.Process, stdin: bytes, limit: int, name: str) -> tuple[bytes, bytes]:
    """Feed a program and read what it writes, both within bounds."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def read(stream: asyncio.StreamReader) -> bytes:
        found = b""
        while chunk := await stream.read(65_536):
            found += chunk
            if len(found) > limit:
                raise Fail(f"shell: {name} wrote more than {limit:,} bytes and was killed", retryable=False)
        return found

    async def write(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not read all of it
            stream.write(stdin)
            await stream.drain()
        stream.close()

    writing = asyncio.ensure_future(write(process.stdin))
    reading = [asyncio.ensure_future(read(stream)) for stream in (process.stdout, process.stderr)]
    try:
        stdout, stderr = await asyncio.gather(*reading)
        return stdout, stderr
    finally:
        for task in (writing, *reading):
            task.cancel()
        await asyncio.gather(writing, *reading, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the group of a program, whatever it still does, and reap the program."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())
