"""Statuses and events in the words of other designs, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.inspect.vocabulary import SOURCES, events_as, run_as
from holdfast.model import events as ev
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.views import EventView

PAGE = Path(__file__).parents[2] / "docs" / "vocabulary.md"
RUN_WORDS = {
    "s0": {"created", "processing", "awaiting_input", "completed", "error"},
    "s1": {"running", "suspended", "completed", "failed", "cancelled", "recovering"},
    "s2": {"running", "completed", "error"},
    "s3": {"started", "pended", "completed"},
    "s4": {"PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"},
}
NODE_WORDS = {
    "s1": {"idle", "scheduled", "running", "completed", "failed", "suspended"},
    "s4": {"PENDING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"},
}
EVENT_WORDS = {
    "s0": {
        "step_started", "step_completed", "module_started", "module_completed", "interaction_requested",
        "interaction_response", "jump_requested", "workflow_completed", "workflow_recovered",
    },
    "s2": {
        "RunCreated", "RunCancelled", "RunCompleted", "RunFailed", "NodeScheduled", "NodeStarted", "NodeCheckpointed",
        "NodeCompleted", "NodeFailed",
    },
    "s3": {
        "ON_PROCESS_START", "ON_PROCESS_RESUME", "ON_PROCESS_PEND", "ON_PROCESS_COMPLETE", "ON_TICKET_RAISED",
        "ON_PROCESS_REOPEN",
    },
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_every_status_of_ours_has_a_word_in_every_design(source: str) -> None:
    words = SOURCES[source]
    assert {str(s) for s in RunStatus} | {"recovering"} <= words.runs.keys()
    assert words.nodes.keys() == {str(s) for s in NodeStatus}


@pytest.mark.parametrize("source", SOURCES)
def test_every_word_of_a_design_leads_back_to_one_of_ours(source: str) -> None:
    words = SOURCES[source]
    for word in RUN_WORDS[source]:
        assert words.our_run_status(word) in {*map(str, RunStatus), "recovering"}
    for word in NODE_WORDS.get(source, ()):
        assert words.our_node_status(word) in set(map(str, NodeStatus))
    for word in EVENT_WORDS.get(source, ()):
        assert words.our_event(word) in ev.TYPES
    with pytest.raises(KeyError):
        words.our_run_status("no such word")


@pytest.mark.parametrize("source", SOURCES)
def test_a_word_that_has_one_meaning_survives_the_way_there_and_back(source: str) -> None:
    words = SOURCES[source]
    for table, back in ((words.runs, words.our_run_status), (words.nodes, words.our_node_status)):
        for ours, theirs in table.items():
            if list(table.values()).count(theirs) == 1:
                assert back(theirs) == ours.partition(":")[0]


def view(seq: int, name: str, **data: Any) -> EventView:
    return EventView(seq, 1, name, "n", ".", datetime(2026, 1, 1, tzinfo=UTC), data)


def test_a_question_is_an_interaction_and_a_basket_is_not() -> None:
    journal = [
        view(1, "WaitOpened", wait_id="w1", kind="input"),
        view(2, "WaitOpened", wait_id="w2", kind="basket"),
        view(3, "WaitClosed", wait_id="w2", outcome="resumed"),
        view(4, "WaitClosed", wait_id="w1", outcome="answered"),
    ]
    assert [(e.seq, e.type) for e in events_as("s0", journal)] == [
        (1, "interaction_requested"),
        (4, "interaction_response"),
    ]
    assert [(e.seq, e.type) for e in events_as("s3", journal)] == [(2, "ON_PROCESS_PEND"), (3, "ON_PROCESS_RESUME")]


def test_a_run_that_waits_for_a_person_is_awaiting_input_and_one_that_sleeps_is_processing() -> None:
    def run(kind: str) -> dict[str, Any]:
        return {"status": "suspended", "waits": [{"kind": kind}], "nodes": [{"node": "a", "status": "scheduled"}]}

    assert run_as("s0", run("input"))["status"] == "awaiting_input"
    assert run_as("s0", run("timer"))["status"] == "processing"
    assert run_as("s4", run("pause"))["status"] == "PAUSED"
    assert run_as("s4", run("timer"))["nodes"] == [{"node": "a", "status": "QUEUED"}]


@hf.node
async def words_add(x: int) -> int:
    return x + 1


@hf.workflow
def words_flow(x: int) -> Any:
    with hf.phase("first"):
        return words_add(x)


async def test_the_journal_of_a_real_run_reads_as_steps_and_modules(tmp_path: Path) -> None:
    async with hf.open(f"sqlite:///{tmp_path}/w.db") as engine:
        run = await engine.start(words_flow, x=1, run_id="r")
        await run.result(timeout=20)
        types = [e.type for e in events_as("s0", await run.events())]
    assert types == [
        "workflow_created",
        "step_started",
        "module_started",
        "module_completed",
        "step_completed",
        "workflow_completed",
    ]


def test_the_published_page_has_every_word_of_the_tables() -> None:
    text = PAGE.read_text()
    for source, words in SOURCES.items():
        section = text.partition(f"## {source}")[2].partition("\n## ")[0]
        for table in (words.runs, words.nodes, words.events):
            for ours, theirs in table.items():
                assert re.search(rf"\| `{re.escape(ours)}` \| `{re.escape(theirs)}` \|", section), (source, ours)
