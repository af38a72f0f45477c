"""Placed: what may be said about a call in a graph before it is made.

Owns: `x.named("id")` and `x.after(ref)`, the same for nodes and for workflows that are called as children.
"""

from __future__ import annotations

import copy
from typing import Any, Self


class Placed:
    """Something that becomes a node when it is called while tracing."""

    explicit_id = ""
    """The id that the author gave; empty: one is made from the name."""
    after_refs: tuple[Any, ...] = ()
    """What must be settled first, without data."""

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
