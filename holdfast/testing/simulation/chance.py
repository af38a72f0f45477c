"""Chance: the same in every replay.

Owns: what `random`, `uuid.uuid4` and `secrets` draw from while a world runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def fixed() -> Iterator[Callable[[int], None]]:
    """Chance comes from a seed until the block is left; what is given sets the seed again."""
    state, urandom = random.getstate(), os.urandom
    hidden = random.Random(0)

    def reseed(seed: int) -> None:
        random.seed(seed)
        hidden.seed(seed + 1)

    os.urandom = hidden.randbytes
    random._urandom = hidden.randbytes  # type: ignore[attr-defined]  # what random.SystemRandom has bound
    reseed(0)
    try:
        yield reseed
    finally:
        os.urandom = urandom
        random._urandom = urandom  # type: ignore[attr-defined]
        random.setstate(state)
