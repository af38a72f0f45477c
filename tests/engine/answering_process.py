"""Somebody else on the same file, without the code of any workflow, for test_answering_processes.py.

    python answering_process.py DATABASE ACTOR

Reads requests from stdin, one JSON list a line: `["answer", run, wait, value, at]` or `["cancel", run, at]`, does each
at the instant `at` (seconds since 1970) and prints what came of it: null, or the code and message of the refusal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import holdfast as hf


async def main(database: str, actor: str) -> None:
    async with hf.open(f"sqlite:///{database}", recover=False) as engine:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await asked(engine, json.loads(line), actor)), flush=True)


async def asked(engine: hf.Engine, request: list[Any], actor: str) -> list[str] | None:
    kind, run_id, *rest, at = request
    await asyncio.sleep(max(0.0, at - time.time()))
    try:
        if kind == "answer":
            wait_id, value = rest
            await engine.get(run_id).respond(wait_id, value, actor=actor)
        else:
            await engine.get(run_id).cancel("changed my mind", actor=actor)
    except hf.HoldfastError as e:
        return [e.code, e.message]
    return None


asyncio.run(main(*sys.argv[1:]))
