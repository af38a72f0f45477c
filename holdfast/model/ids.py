"""Ids: names that are made, not chosen.

Owns: run and engine ids (a time, then chance, so that they sort roughly by age), and ids derived from facts (waits,
children, idempotency keys).
Never: gives order; `seq` does.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time


def unique(prefix: str) -> str:
    """A fresh id such as `run_0199a8c4e1f0...`: 48 bits of milliseconds, 64 random bits, in 28 characters."""
    milliseconds = time.time_ns() // 1_000_000
    return prefix + (milliseconds.to_bytes(6, "big") + os.urandom(8)).hex()


def derived(prefix: str, *facts: object, size: int = 10) -> str:
    """The same facts give the same id, everywhere and for ever."""
    text = "\x1f".join(str(f) for f in facts)
    raw = hashlib.blake2b(text.encode(), digest_size=size).digest()
    return prefix + base64.b32hexencode(raw).decode().rstrip("=").lower()
