"""Capabilities: what an engine can run, as every other process reads it from the engine's row.

Owns: the form in which an engine publishes which code it has loaded, which queues it serves and how many runs it drives
at once; and whether that fits a run.
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
    """The fingerprints of that code, for workflows that refuse to continue with changed code."""
    queues: tuple[str, ...] | None = None
    """The queues that it serves; None: all."""
    concurrency: int | None = None
    """How many runs it drives at once; None: any number."""
    lease_seconds: float = 0.0
    threaded: frozenset[str] = frozenset()
    """Those of its handlers whose bodies need a thread."""
    lost_threads: int = 0
    """Threads lost to bodies that did not stop, if there are so many that the engine starts no more sync bodies."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def missing(self, needed: Iterable[str]) -> list[str]:
        """Those of these handlers that the engine has not loaded."""
        return [name for name in needed if name not in self.handlers]

    def lacks_threads(self, needed: Iterable[str]) -> bool:
        """Whether one of these handlers needs a thread, and the engine has lost too many."""
        return self.lost_threads > 0 and not self.threaded.isdisjoint(needed)

    def changed(self, fingerprints: Mapping[str, str]) -> list[str]:
        """Those of these handlers whose code has another fingerprint there; unpublished ones count as unchanged."""
        return [name for name, was in sorted(fingerprints.items()) if self.fingerprints.get(name, was) != was]

    def has_code(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether its code has these fingerprints."""
        return all(self.fingerprints.get(name) == fingerprint for name, fingerprint in fingerprints.items())


NOTHING = EngineCapabilities()
_decoder = msgspec.json.Decoder(EngineCapabilities)


def decode(can_run: bytes) -> EngineCapabilities:
    """Read what an engine published; NOTHING if another version of Holdfast published it in another form."""
    try:
        return _decoder.decode(can_run)
    except msgspec.MsgspecError:
        return NOTHING
