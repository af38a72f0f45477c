"""A process that recovers a run and leads it to its end, if it lives that long."""

from __future__ import annotations

import asyncio
import sys

import tests.recovery.test_catalogue  # noqa: F401 - the workflows
from holdfast.opening import open_engine


async def main(url: str) -> None:
    async with open_engine(url, recover=False) as engine:
        await engine.recover("r")
        print(await engine.get("r").result(timeout=20))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
