"""Another process on the same PostgreSQL store, for the tests of shared leases and clocks.

    python shared_process.py URL FOLDER [RUN_ID ...]

Starts these runs (slow ones, see worker_process.py), drives whatever there is until stdin closes, and then prints, as
JSON, the names that its engine had. WALL_OFFSET_SECONDS: its machine's clock is wrong by so much.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

import holdfast as hf
from tests.engine.worker_process import declare


def set_wall_clock(offset_seconds: int) -> None:
    """From now on this process sees a wall clock that is wrong."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + offset_seconds
    time.time_ns = lambda: nanoseconds() + offset_seconds * 1_000_000_000


async def main(url: str, folder: Path, run_ids: list[str]) -> None:
    patient = declare(folder)
    async with hf.open(url, grace_seconds=0) as engine:
        began_as = engine.lease.engine
        for run_id in run_ids:
            await engine.start(patient, name=run_id, run_id=run_id)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps([began_as, engine.lease.engine]), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    set_wall_clock(int(os.environ.get("WALL_OFFSET_SECONDS", "0")))
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
