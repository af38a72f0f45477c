"""Signals: runs that wait for news, from people and from each other.

    python examples/signals.py
    holdfast run examples/signals.py:parcel --run-id parcel-1
    holdfast signal parcel-1 scanned '{"at": "the depot"}'
    holdfast crashtest examples/signals.py:parcel --signal 'scanned={"at": "the depot", "delivered": true}'

Shows `ctx.receive` and `run.signal`. A signal that comes early is kept until somebody asks for it; one with an `id` is
the same signal however often it is sent; one of another type is refused. A body signals another run with `ctx.signal`,
once, also over crashes. Past its deadline `receive` gives its default, or raises `hf.DeadlinePassed`. `ctx.checkpoint`
lets a run like this one last for years: what came before it is not read again.
"""

import asyncio
import tempfile
from dataclasses import dataclass

import holdfast as hf


@dataclass
class Scan:
    at: str
    delivered: bool = False


@hf.workflow
async def parcel(ctx: hf.Context, shop: str = "") -> list[str]:
    """Follows a parcel from scan to scan until it is delivered, then tells the shop."""
    seen: list[str] = ctx.checkpointed or []
    while True:
        scan = await ctx.receive("scanned", schema=Scan, deadline="30d")
        seen.append(scan.at)
        if scan.delivered:
            break
        await ctx.checkpoint(seen)
    if shop:
        await ctx.signal(shop, "delivered", {"stops": len(seen)}, id=f"delivered-{ctx.run_id}")
    return seen


@hf.workflow
async def shop(ctx: hf.Context, parcels: int = 2) -> str:
    """Waits until every parcel has arrived, but not for ever."""
    stops = 0
    for number in range(parcels):
        try:
            news = await ctx.receive("delivered", deadline="60d")
        except hf.DeadlinePassed:
            return f"{parcels - number} parcels are lost"
        stops += news["stops"]
    return f"{parcels} parcels arrived after {stops} stops"


async def main(url: str) -> None:
    async with hf.open(url) as engine:
        orders = await engine.start(shop, parcels=2, run_id="shop")
        runs = [await engine.start(parcel, shop="shop", run_id=f"parcel-{n}") for n in (1, 2)]
        for run in runs:
            await run.signal("scanned", Scan("the depot"), id="scan-1")
            await run.signal("scanned", Scan("the depot"), id="scan-1")  # the scanner says everything twice
            try:
                await run.signal("scanned", Scan("the moon"), id="scan-1")
            except hf.Refused as refusal:
                print(run.run_id, refusal.code)
        try:
            await runs[0].signal("scanned", {"at": 5})
        except hf.Refused as refusal:
            print("wrong:", str(refusal).partition("at: ")[2])
        for run in runs:
            await run.signal("scanned", Scan("the door", delivered=True))
            print(run.run_id, await run.result())
        print(await orders.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/signals.db"))
