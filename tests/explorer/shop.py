"""Shop: workflows that do something to the world outside, well and badly."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
import uuid

import holdfast as hf


class Payments:
    """A service that some of the workflows call."""

    def pay(self, amount: int, key: str) -> str:
        return f"paid {amount}"


payments = Payments()


async def charge(amount: int, idempotency_key: str | None = None) -> str:
    return f"charged {amount}"


def charge_sync(amount: int, key: str = "") -> str:
    return f"charged {amount}"


@hf.node
async def pay_without_key(amount: int) -> str:
    return await charge(amount)


@hf.node
async def pay_with_key(ctx: hf.Context, amount: int) -> str:
    return await charge(amount, idempotency_key=ctx.idempotency_key)


@hf.node
async def pay_with_new_key(amount: int) -> str:
    return await charge(amount, idempotency_key=str(uuid.uuid4()))


@hf.node
def pay_sync(ctx: hf.SyncContext, amount: int) -> str:
    return charge_sync(amount, key=f"order-{ctx.idempotency_key}")


@hf.node(retry=hf.Retry(attempts=2, backoff=0.01, jitter=0))
async def pay_again(ctx: hf.Context, amount: int) -> str:
    return await charge(amount, idempotency_key=f"{ctx.idempotency_key}-{ctx.attempt}")


@hf.node
def pay_by_method(ctx: hf.SyncContext, amount: int) -> str:
    return payments.pay(amount, ctx.idempotency_key)


@hf.node(idempotent=True)
async def lottery(x: int) -> float:
    return random.random()


@hf.node
async def book(x: int) -> int:
    return x


@hf.node
async def book_with_key(ctx: hf.Context, x: int) -> int:
    assert ctx.idempotency_key
    return x


@hf.workflow(name="shop_without_key")
def without_key(amount: int = 10) -> str:
    return pay_without_key(amount)


@hf.workflow(name="shop_with_key")
def with_key(amount: int = 10) -> str:
    return pay_with_key(amount)


@hf.workflow(name="shop_with_new_key")
def with_new_key(amount: int = 10) -> str:
    return pay_with_new_key(amount)


@hf.workflow(name="shop_sync")
def sync(amount: int = 10) -> str:
    return pay_sync(amount)


@hf.workflow(name="shop_again")
def again(amount: int = 10) -> str:
    return pay_again(amount)


@hf.workflow(name="shop_by_method")
def by_method(amount: int = 10) -> str:
    return pay_by_method(amount)


@hf.workflow(name="shop_lottery")
def gamble(x: int = 1) -> float:
    return lottery(x)


@hf.workflow(name="shop_books")
def books(x: int = 1) -> int:
    return book_with_key(book(x))


@hf.workflow(name="shop_code")
async def code(ctx: hf.Context, amount: int = 10) -> str:
    receipt = await ctx.step(charge, amount)
    return await ctx.step(pay_with_key, len(receipt))


# --- what cannot be explored ----------------------------------------------------------------------------------------


def nap() -> None:
    time.sleep(0.001)


@hf.node
def sleeps(x: int) -> int:
    nap()
    return x


@hf.node
def connects(x: int) -> int:
    with socket.socket() as s:
        s.connect(("127.0.0.1", 9))
    return x


@hf.node
def threads(x: int) -> int:
    threading.Thread(target=print).start()
    return x


@hf.node
def forks(x: int) -> int:
    subprocess.run(["true"], check=True)
    return x


@hf.node
async def asks(x: int) -> int:
    import asyncio

    await asyncio.open_connection("127.0.0.1", 9)
    return x


@hf.workflow(name="shop_sleeps")
def real_sleep(x: int = 1) -> int:
    return sleeps(x)


@hf.workflow(name="shop_connects")
def real_socket(x: int = 1) -> int:
    return connects(x)


@hf.workflow(name="shop_threads")
def real_thread(x: int = 1) -> int:
    return threads(x)


@hf.workflow(name="shop_forks")
def real_process(x: int = 1) -> int:
    return forks(x)


@hf.workflow(name="shop_asks")
def real_connection(x: int = 1) -> int:
    return asks(x)


@hf.workflow(name="shop_waits")
def timer(seconds: float) -> float:
    return naps(seconds)


@hf.node(idempotent=True)
async def naps(seconds: float) -> float:
    import asyncio

    await asyncio.sleep(seconds)
    return seconds


@hf.workflow(name="shop_depth")
def depth(depth: int = 1) -> int:
    """Its input is called like an option of the explorer."""
    return book_with_key(depth)
