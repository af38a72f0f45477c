"""Offers: what an engine can run, as all others can read it.

Owns: the words in which an engine says which code it has, which queues it serves and how much it takes on; and whether
an offer fits a run.
Never: decides who gets a run: whoever claims it first has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model import handlers
from holdfast.model.graph import handlers_of

log = logging.getLogger("holdfast.engine")


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine offers."""

    handlers: frozenset[str] = frozenset()
    """Names of the code that it has loaded."""
    fingerprints: dict[str, str] = {}
    """The state of that code, where a workflow refuses to go on with another one."""
    queues: tuple[str, ...] | None = None
    """The queues that it serves; None: all."""
    concurrency: int | None = None
    """How many runs it has at work at once; None: as many as there are."""
    lease_seconds: float = 0.0

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def missing(self, needed: Iterable[str]) -> list[str]:
        """Those of these handlers that it does not have."""
        return [name for name in needed if name not in self.handlers]

    def changed(self, fingerprints: Mapping[str, str]) -> list[str]:
        """Those of these handlers whose code is in another state here; what it says nothing about may be in this
        one."""
        return [name for name, was in sorted(fingerprints.items()) if self.fingerprints.get(name, was) != was]

    def has_code(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether its code is in this state."""
        return all(self.fingerprints.get(name) == fingerprint for name, fingerprint in fingerprints.items())


NOTHING = Offer()
_decoder = msgspec.json.Decoder(Offer)


def decode(can_run: bytes) -> Offer:
    """What an engine says; nothing when it is of another version of Holdfast and says it in other words."""
    try:
        return _decoder.decode(can_run)
    except msgspec.MsgspecError:
        return NOTHING


def of_this_process(queues: tuple[str, ...] | None, concurrency: int | None, lease_seconds: float) -> Offer:
    """What the code that is loaded here can do."""
    return Offer(
        handlers=frozenset(handlers.names()),
        fingerprints=_strict_fingerprints(),
        queues=queues,
        concurrency=concurrency,
        lease_seconds=lease_seconds,
    )


def _strict_fingerprints() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in handlers.strict_workflow_names():
        try:
            workflow = handlers.find_workflow(name)
            assert workflow is not None
            used = [handlers.find(uses) for uses in handlers_of(workflow.definition.nodes)]
        except Exception as e:  # noqa: BLE001 - it is the author's code that is traced; whoever starts it hears of it
            log.warning("workflow %s cannot be offered: %s", name, e)
            continue
        found.update((handler.name, handler.fingerprint) for handler in used if handler is not None)
    return found
