"""Quiet: what an exploration does not want to hear of, and cannot afford."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
from collections.abc import Callable, Iterator

SCHEDULES_PER_COLLECTION = 20


@contextlib.contextmanager
def collected_in_portions() -> Iterator[Callable[[], None]]:
    """Every schedule leaves a few thousand objects in cycles. Collected when we say so, and only the young ones, they
    cost little; what the exploration keeps is looked at once."""
    enabled = gc.isenabled()
    gc.disable()
    schedules = itertools.count(1)

    def collect() -> None:
        if next(schedules) % SCHEDULES_PER_COLLECTION == 0:
            gc.collect(0)

    try:
        yield collect
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """A thousand crashes would fill the log."""
    loggers = [logging.getLogger(name) for name in ("holdfast", "asyncio")]
    before = [logger.disabled for logger in loggers]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, disabled, level in zip(loggers, before, levels, strict=True):
            logger.disabled = disabled
            logger.setLevel(level)
