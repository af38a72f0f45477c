"""A workflow whose bodies get secrets in a process of their own (test_isolated_handlers.py)."""

from __future__ import annotations

import os
from typing import Any

import holdfast as hf
from tests.handlers.serving import node


@hf.node
async def raises(ctx: hf.Context, token: str) -> None:
    ctx.log.warning("%s in %d", token, os.getpid())
    raise ValueError(f"cannot use {token}")


@hf.node
async def asks_for_it(ctx: hf.Context) -> int:
    return await ctx.step(len, hf.secret("TOKEN"))


@hf.workflow
def isolated_http(url: str) -> Any:
    asked = asks_for_it()
    return [asked, node("http", {"url": url, "headers": {"X-Key": hf.secret("TOKEN")}})]


@hf.workflow
def isolated_failure() -> Any:
    return raises(hf.secret("TOKEN"))
