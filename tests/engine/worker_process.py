"""A second process on the same file, for test_second_process.py.

    python worker_process.py DATABASE ACTION [RUN_ID ...]

Actions: `serve` (drive what there is until stdin closes), `start` (start slow runs and drive them until stdin closes),
`cancel` and `resume` and `result` and `follow` (ask for runs; the code of the workflows is loaded only for `serve`,
`start` and `resume`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import holdfast as hf


def declare(folder: Path) -> hf.Workflow:
    @hf.node(name="patient.waits")  # found by the same name from every process, however this file was loaded
    async def waits(ctx: hf.Context, name: str) -> str:
        with (folder / f"{name}.began").open("a") as file:
            file.write(f"{ctx.attempt}\n")
        while not (folder / f"{name}.go").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        return f"{name} went"

    @hf.workflow(name="patient")
    def patient(name: str):
        return waits(name)

    return patient


async def main(database: str, action: str, run_ids: list[str]) -> None:
    folder = Path(database).parent
    patient = declare(folder) if action in ("serve", "start", "resume") else None
    async with hf.open(f"sqlite:///{database}", recover=action == "serve", grace_seconds=0) as engine:
        match action:
            case "start":
                assert patient is not None
                for run_id in run_ids:
                    await engine.start(patient, name=run_id, run_id=run_id)
            case "cancel":
                for run_id in run_ids:
                    await engine.get(run_id).cancel("from another process")
            case "resume":
                for run_id in run_ids:
                    print(json.dumps(await (await engine.resume(run_id)).result()), flush=True)
            case "result":
                for run_id in run_ids:
                    print(json.dumps(await engine.get(run_id).result()), flush=True)
            case "follow":
                async for event in engine.get(run_ids[0]).follow():
                    print(json.dumps([event.seq, event.type]), flush=True)
        if action in ("serve", "start"):
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
