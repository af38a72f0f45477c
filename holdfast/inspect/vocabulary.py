"""Vocabulary: statuses and events in the words of five known designs of workflow engines.

Owns: one table for each design, from our words to its words and back, and views of events and runs in its words.
Never: decides anything; no other module knows these words.

The designs: `s0` event-sourced runs of steps and modules with interactions; `s1` state tables with a durable inbox;
`s2` an append-only run log of actors, triggers and an outbox; `s3` journeys with execution paths and baskets; `s4`
directed acyclic graphs on queues and workers. A word that a design lacks maps to the nearest one that it has; where
several of ours map to one of theirs, the way back gives the first of the table. An event that a design does not have
is left out of its view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.views import EventView


class Words(msgspec.Struct, frozen=True):
    """The words of one design."""

    about: str
    runs: Mapping[str, str]
    """Our status of a run to theirs. `suspended:input` is a run that waits for a person."""
    nodes: Mapping[str, str]
    events: Mapping[str, str]
    """Our type of an event to theirs. `WaitOpened:input` is a wait of that kind."""

    def run_status(self, status: str, wait_kinds: Iterable[str] = ()) -> str:
        """Their word for the status of a run that has these open waits."""
        for kind in wait_kinds:
            if f"{status}:{kind}" in self.runs:
                return self.runs[f"{status}:{kind}"]
        return self.runs[status]

    def our_run_status(self, word: str) -> str:
        """Our status of a run that they call `word`."""
        return _back(self.runs, word)

    def our_node_status(self, word: str) -> str:
        """Our status of a node that they call `word`."""
        return _back(self.nodes, word)

    def our_event(self, word: str) -> str:
        """Our type of the event that they call `word`."""
        return _back(self.events, word)


def _back(table: Mapping[str, str], word: str) -> str:
    for ours, theirs in table.items():
        if theirs == word:
            return ours.partition(":")[0]
    raise KeyError(word)


_SAME_RUNS: Final = {str(status): str(status) for status in RunStatus} | {"recovering": "recovering"}
_SAME_NODES: Final = {str(status): str(status) for status in NodeStatus}

SOURCES: Final[dict[str, Words]] = {
    "s0": Words(
        "steps and modules with interactions",
        runs={
            "created": "created",
            "running": "processing",
            "suspended:input": "awaiting_input",
            "suspended": "processing",
            "recovering": "processing",
            "completed": "completed",
            "failed": "error",
            "cancelled": "cancelled",
        },
        nodes={
            "pending": "pending",
            "scheduled": "pending",
            "running": "processing",
            "suspended": "awaiting_input",
            "completed": "completed",
            "failed": "error",
            "skipped": "skipped",
            "cancelled": "cancelled",
        },
        events={
            "RunCreated": "workflow_created",
            "RunResumed": "workflow_resumed",
            "RunTakenOver": "workflow_resumed",
            "RunCompleted": "workflow_completed",
            "RunFailed": "workflow_error",
            "RunCancelled": "workflow_cancelled",
            "RunRecovered": "workflow_recovered",
            "PhaseStarted": "step_started",
            "PhaseCompleted": "step_completed",
            "NodeStarted": "module_started",
            "NodeCompleted": "module_completed",
            "NodeFailed": "module_error",
            "StepStarted": "sub_action_started",
            "StepCompleted": "sub_action_completed",
            "WaitOpened:input": "interaction_requested",
            "WaitClosed:input": "interaction_response",
            "JumpRequested": "jump_requested",
            "RetryRequested": "retry_requested",
            "OutputEdited": "output_stored",
        },
    ),
    "s1": Words(
        "state tables with a durable inbox",
        runs=_SAME_RUNS | {"created": "running"},
        nodes=_SAME_NODES | {"pending": "idle", "skipped": "completed", "cancelled": "failed"},
        events={},
    ),
    "s2": Words(
        "an append-only log of actors",
        runs=_SAME_RUNS | {"created": "running", "suspended": "running", "recovering": "running", "failed": "error"},
        nodes=_SAME_NODES,
        events={
            name: name
            for name in (
                "RunCreated",
                "RunCompleted",
                "RunFailed",
                "RunCancelled",
                "NodeScheduled",
                "NodeStarted",
                "NodeCheckpointed",
                "NodeCompleted",
                "NodeFailed",
                "TriggerRegistered",
                "TriggerInputReceived",
                "TriggerCursorAdvanced",
            )
        }
        | {"MessageConsumed": "OutboxSent"},
    ),
    "s3": Words(
        "journeys with execution paths and baskets",
        runs={
            "created": "started",
            "running": "started",
            "suspended:basket": "pended",
            "suspended": "started",
            "recovering": "started",
            "completed": "completed",
            "failed": "error",
            "cancelled": "cancelled",
        },
        nodes={
            "pending": "not_reached",
            "scheduled": "started",
            "running": "started",
            "suspended": "pended",
            "completed": "completed",
            "failed": "error_pend",
            "skipped": "not_reached",
            "cancelled": "cancelled",
        },
        events={
            "RunCreated": "ON_PROCESS_START",
            "WaitClosed:basket": "ON_PROCESS_RESUME",
            "WaitOpened:basket": "ON_PROCESS_PEND",
            "RunCompleted": "ON_PROCESS_COMPLETE",
            "TicketRaised": "ON_TICKET_RAISED",
            "BranchOpened": "ON_PROCESS_REOPEN",
        },
    ),
    "s4": Words(
        "directed acyclic graphs on queues",
        runs={
            "created": "PENDING",
            "submitted": "PENDING",
            "running": "RUNNING",
            "suspended:pause": "PAUSED",
            "suspended": "RUNNING",
            "recovering": "RUNNING",
            "completed": "COMPLETED",
            "failed": "FAILED",
            "cancelled": "CANCELLED",
        },
        nodes={
            "pending": "PENDING",
            "scheduled": "QUEUED",
            "running": "RUNNING",
            "suspended": "PAUSED",
            "completed": "COMPLETED",
            "failed": "FAILED",
            "skipped": "CANCELLED",
            "cancelled": "CANCELLED",
        },
        events={},
    ),
}


def events_as(source: str, events: Iterable[EventView]) -> Iterator[EventView]:
    """The events of a whole journal in the words of a design; those that it does not have are left out."""
    words, kinds = SOURCES[source], dict[str, str]()
    for event in events:
        kind = ""
        if event.type in ("WaitOpened", "WaitClosed"):
            kind = kinds.setdefault(event.data["wait_id"], event.data.get("kind", ""))
        word = words.events.get(f"{event.type}:{kind}") or words.events.get(event.type)
        if word is not None:
            yield msgspec.structs.replace(event, type=word)


def run_as(source: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """A run (as `inspect` shows it) with its statuses and those of its nodes in the words of a design."""
    words = SOURCES[source]
    shown = dict(run)
    shown["status"] = words.run_status(run["status"], (wait["kind"] for wait in run.get("waits", ())))
    if "nodes" in run:
        shown["nodes"] = [{**node, "status": words.nodes[node["status"]]} for node in run["nodes"]]
    return shown
