"""Capabilities: what an engine can run, as every other process reads it from the engine's row.

Owns: the form in which an engine publishes which code it has, which queues it serves and how much it takes on; and
whether that fits a run.
Never: decides which engine gets a run: the first one that claims it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class EngineCapabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine can run."""

    handlers: frozenset[str] = frozenset()
    """Names of the code that it has loaded."""
    fingerprints: dict[str, str] = {}
    """The state of that code, where a workflow refuses to go on with another one."""
    queues: tuple[str, ...] | None = None
    """The queues that it serves; None: all."""
    concurrency: int | None = None
    """How many runs it has at work at once; None: as many as there are."""
    lease_seconds: float = 0.0
    threaded: frozenset[str] = frozenset()
    """Those of its handlers whose bodies need a thread."""
    lost_threads: int = 0
    """Threads that it has lost to bodies that did not stop, where they are so many that it starts no sync bodies."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def missing(self, needed: Iterable[str]) -> list[str]:
        """Those of these handlers that it does not have."""
        return [name for name in needed if name not in self.handlers]

    def lacks_threads(self, needed: Iterable[str]) -> bool:
        """Whether one of these handlers needs a thread, and it has lost too many."""
        return self.lost_threads > 0 and not self.threaded.isdisjoint(needed)

    def changed(self, fingerprints: Mapping[str, str]) -> list[str]:
        """Those of these handlers whose code is in another state here; what it says nothing about may be in this
        one."""
        return [name for name, was in sorted(fingerprints.items()) if self.fingerprints.get(name, was) != was]

    def has_code(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether its code is in this state."""
        return all(self.fingerprints.get(name) == fingerprint for name, fingerprint in fingerprints.items())


NOTHING = EngineCapabilities()
_decoder = msgspec.json.Decoder(EngineCapabilities)


def decode(can_run: bytes) -> EngineCapabilities:
    """What an engine says; nothing when it is of another version of Holdfast and says it in other words."""
    try:
        return _decoder.decode(can_run)
    except msgspec.MsgspecError:
        return NOTHING
