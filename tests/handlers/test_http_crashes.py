"""kill -9 between the request and the commit of its result: the second request has the same Idempotency-Key."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.handlers.serving import Request, respond, serving
from tests.processes import child_process

CODE = """
import asyncio, sys
import holdfast as hf
from tests.handlers.serving import LOCAL, node

@hf.workflow(name="calls")
def calls(url: str):
    return node("http", {"url": url, "method": "POST", "body": {"amount": 1}})

async def main():
    async with hf.open(sys.argv[1], **LOCAL) as engine:
        run = await engine.start(calls, run_id="r", url=sys.argv[2])
        print(await run.result(), flush=True)

asyncio.run(main())
"""


async def test_a_request_that_a_crash_repeats_has_the_same_key(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CODE)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    async with serving() as server:
        pids: list[int] = []

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            if len(server.requests) == 1:  # the engine dies while it waits for the answer, which it never commits
                os.kill(pids[0], signal.SIGKILL)
                return
            await respond(200, {"done": True})(request, writer)

        server.answers["/charge"] = answer
        command = [sys.executable, "calls.py", f"sqlite:///{tmp_path / 'x.db'}", server.url("/charge")]
        import subprocess

        for _ in range(2):
            with child_process(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
                pids.insert(0, process.pid)
                said, _ = await asyncio.to_thread(process.communicate, timeout=120)
        keys = [request.headers["idempotency-key"] for request in server.requests]
    assert "'done': True" in said
    assert len(keys) == 2
    assert len(set(keys)) == 1
