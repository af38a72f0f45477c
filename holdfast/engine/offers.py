"""Offers: what this process can run.

Owns: what the code that is loaded in this process adds up to (model/capabilities.py has the form).
"""

from __future__ import annotations

import logging

from holdfast.model import handlers
from holdfast.model.capabilities import EngineCapabilities
from holdfast.model.plans import handlers_of

log = logging.getLogger("holdfast.engine")


def of_this_process(
    queues: tuple[str, ...] | None, concurrency: int | None, lease_seconds: float
) -> EngineCapabilities:
    """What the code that is loaded here can do."""
    return EngineCapabilities(
        handlers=frozenset(handlers.names()),
        fingerprints=_strict_fingerprints(),
        queues=queues,
        concurrency=concurrency,
        lease_seconds=lease_seconds,
        threaded=frozenset(name for name in handlers.names() if _needs_thread(name)),
    )


def _needs_thread(name: str) -> bool:
    handler = handlers.find(name)
    return handler is not None and handler.kind == "sync"


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
