"""Futures: telling whoever waits on the loop what came of something."""

from __future__ import annotations

import asyncio
from typing import Any


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Tell it, unless whoever waited has given up."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
