"""Second thoughts: continuing from elsewhere, with an edit; and trying again after a failure.

    python examples/second_thoughts.py

A trip is booked: a flight, a hotel, an invoice. The hotel is full, and the run fails. When there is a room again,
`retry` runs what failed again; the flight is not booked a second time. Then the customer wants another hotel: `fork`
continues before that node, with another input, and the first branch stays readable. At last `fork(as_run=...)`
asks what the trip would cost for two, in a run of its own that shares the beginning.

The same from the command line: `holdfast retry trip-1`, `holdfast fork trip-1 --at book_hotel --set input.hotel=Sea`,
`holdfast branches trip-1`, `holdfast diff trip-1 1 3`.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import holdfast as hf

booked: dict[str, str] = {}
"""What the outside world was asked for, by key: a second request with the same key changes nothing."""
full = {"Mountain"}
"""Hotels without a room."""


@hf.node
async def book_flight(ctx: hf.Context, guests: int) -> int:
    booked[ctx.idempotency_key] = f"flight for {guests}"
    return 200 * guests


@hf.node
async def book_hotel(ctx: hf.Context, hotel: str, guests: int) -> int:
    key = ctx.idempotency_key
    if hotel in full:
        raise RuntimeError(f"no room in hotel {hotel}")
    booked[key] = f"hotel {hotel} for {guests}"
    return 100 * guests


@hf.node(idempotent=True)
async def invoice(flight: int, hotel: int) -> str:
    return f"{flight + hotel} euros"


@hf.workflow
def trip(hotel: str, guests: int = 1) -> str:
    return invoice(book_flight(guests), book_hotel(hotel, guests))


async def main(database: Path) -> None:
    async with hf.open(f"sqlite:///{database}") as engine:
        run = await engine.start(trip, hotel="Mountain", run_id="trip-1")
        try:
            await run.result()
        except hf.RunFailed as failure:
            print("failed:", failure.error.message)

        full.clear()
        print("reused:", ", ".join((await run.preview("retry"))["reused"]))
        await run.retry()
        print("retried:", await run.result())

        await run.fork(at="book_hotel", edits={"input": {"hotel": "Sea"}})
        print("forked:", await run.result())

        for_two = await run.fork(at="start", edits={"input": {"guests": 2}}, as_run="trip-1-for-two")
        print("for two:", await for_two.result())

        for branch in await run.branches():
            what = " ".join(filter(None, (branch["reason"], branch["target"])))
            print(f"branch {branch['branch']}: {what}, {branch['status']}")
        assert list(booked.values()).count("flight for 1") == 1, "what is kept never runs again"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "trips.db"))
