"""Placed: what may be said about a call in a graph before it is made.

Owns: `x.named("id")`, `x.after(ref)` and `x.delayed("5m")`, the same for nodes and for workflows that are called as
children.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any, Self

from holdfast.model.policies import delay_seconds


class Placed:
    """Something that becomes a node when it is called while tracing."""

    explicit_id = ""
    """The id that the author gave; empty: one is made from the name."""
    after_refs: tuple[Any, ...] = ()
    """What must be settled first, without data."""
    delay_seconds: float | None = None
    """How long it is put off; None: as it was declared."""

    def named(self, node_id: str) -> Self:
        """The same under an id of its own: `charge.named("charge_again")(order)`."""
        configured = copy.copy(self)
        configured.explicit_id = node_id
        return configured

    def after(self, *refs: Any) -> Self:
        """The same, started only when what `refs` came from is settled: `ship.after(label)(order)`."""
        configured = copy.copy(self)
        configured.after_refs = (*self.after_refs, *refs)
        return configured

    def delayed(self, duration: float | str | timedelta) -> Self:
        """The same, started that long after everything it needs is there: `remind.delayed("2d")(order)`. The delay is
        durable, and the run costs a row meanwhile."""
        configured = copy.copy(self)
        configured.delay_seconds = delay_seconds(duration, "delay")
        return configured
