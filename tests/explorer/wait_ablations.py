"""More broken engines: safeguards of questions, signals, baskets and pauses, taken away one at a time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec

from holdfast.engine import messages
from holdfast.engine.committer import Committer
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership import load
from holdfast.engine.run.turn import Turn
from holdfast.engine.run_requests import RunRequests
from holdfast.model import events as ev
from holdfast.model.naming import unique
from holdfast.rules import decide, questions, resuming, waits
from holdfast.rules.draft import Draft, Outcome, Refusal
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.explorer import waiting
from tests.explorer.ablations import Ablation, _all, _consumed_on_delivery, _messages_later, _method

STEPS = {"idempotent": ["xp_step"]}
ANSWERED = {**STEPS, "answers": waiting.ANSWERS}


def _closed_waits_stay(seen: dict[str, Any]) -> Any:
    """Whoever names a wait gets it, whether it is open or not."""

    def find(d: Any, wait_id: str, c: Any) -> Any:
        wait = seen.setdefault(wait_id, d.state.waits.get(wait_id))
        if wait is None:
            raise Refusal("unknown_wait", wait_id)
        return wait

    return find


async def _told_at_once(
    self: RunRequests, row: Any, message: Any, moved: Any, timeout: float, *, is_known: bool
) -> Any:
    """Success is told when the request is stored."""
    return {}


def _whenever_it_was_sent(original: Any) -> Any:
    def answer(d: Any, wait_id: str, value: bytes, actor: str, c: Any) -> Any:
        return original(d, wait_id, value, actor, msgspec.structs.replace(c, sent_at=0))

    return answer


def _held_counts_as_consumed(message_id: str, status: str, *args: Any, **kwargs: Any) -> Outcome:
    return Outcome(message_id, "consumed" if status == "held" else status, *args, **kwargs)  # type: ignore[arg-type]


def _nothing_forgotten(original: Any) -> Any:
    def emit(self: Draft, event: Any, ns: Any = None) -> Any:
        if isinstance(event, ev.NodeSuspended):
            event = msgspec.structs.replace(event, forgets=False)
        return original(self, event, ns)

    return emit


def _output_in_memory(original: Any) -> Any:
    """What a pended node gave is kept by whoever ran it, and not in the journal."""

    def fill(self: Turn) -> None:
        actor, draft = self.actor, self.draft
        for index, entry in enumerate(draft.entries):
            event = entry.event
            if isinstance(event, ev.NodeSuspended) and event.mode == "next":
                actor.runtime.values.put(actor.run_no, entry.seq, bytes(event.output))
                nothing = msgspec.structs.replace(event, output=msgspec.Raw(b"null"))
                draft.entries[index] = msgspec.structs.replace(entry, event=nothing)
        original(self)

    return fill


def _deadline_passes_anyway() -> Any:
    """Nobody looks whether the question was answered."""
    asked: dict[str, Any] = {}
    fire = decide._fire

    def fire_unasked(d: Any, c: Any) -> None:
        if c.timer not in asked:
            fire(d, c)
            return
        d.emit(ev.TimerFired(c.timer))
        questions.expire(d, asked[c.timer])

    return _all(
        lambda: mock.patch.object(decide, "_fire", fire_unasked),
        _method(questions, "asked", lambda d, wait: asked.update({wait.wait_id: wait})),
        _method(waits, "timers_of", lambda state, wait: []),
    )()


def _unpaused_when_loaded(original: Any) -> Any:
    def load(*args: Any) -> Any:
        state = original(*args)
        state.fold.paused = ""
        return state

    return load


def _another_basket(d: Any, c: Any, asked: Any) -> Any:
    resumable = [wait for wait in d.state.waits.values() if wait.kind in resuming.RESUMABLE]
    return [wait for wait in resumable if wait.wait_id != asked.wait][:1] or resumable


OF_WAITS = [
    Ablation("answer applied twice", "nobody looks whether a question is still open", waiting.asks_in_code,
             lambda: mock.patch.object(questions, "find", _closed_waits_stay({})), ANSWERED),
    Ablation("success before it is true", "a sender is told when its request is stored, not when it is applied",
             waiting.asks_until_people_answer, _method(RunRequests, "_outcome", _told_at_once), ANSWERED),
    Ablation("late answers win", "nobody looks when an answer was sent", waiting.asks_until_people_answer,
             _method(questions, "answer", _whenever_it_was_sent(questions.answer)), {**ANSWERED, "deadline": "9s"}),
    Ablation("deadline and answer", "a deadline passes although the question was answered", waiting.asks_and_goes_on,
             _deadline_passes_anyway, ANSWERED),
    Ablation("answer consumed on delivery", "outside the commit of what it leads to", waiting.asks,
             _method(Inbox, "deliver", _consumed_on_delivery), ANSWERED),
    Ablation("signals without an id", "a signal that is sent again is another one", waiting.receives_many,
             _method(messages, "signal_message_id", lambda run_id, signal_id, refusals=0: unique("m_")),
             {**STEPS, "signals": waiting.NOTES}),
    Ablation("kept signals forgotten", "a takeover does not read the signals that came early", waiting.receives_many,
             _method(load, "held_signals", lambda messages: {}),
             {**STEPS, "signals": waiting.NOTES}),
    Ablation("kept signals counted as received", "their rows say that they were taken", waiting.receives_many,
             _method(decide, "Outcome", _held_counts_as_consumed),
             {**STEPS, "signals": waiting.NOTES}),
    Ablation("signal sent after the commit", "the call is remembered, then the signal goes out",
             waiting.sends_to_another_run, _all(_method(Committer, "_try", _messages_later),
                  _method(SqliteStore, "waits_for_ended", lambda self, *page: ([], 0))), STEPS),
    Ablation("pended output in memory", "what a pended node gave is not stored", waiting.pends,
             _method(Turn, "fill", _output_in_memory(Turn.fill)), {"people_take": 0}),
    Ablation("memory kept for a rerun", "a node that runs again remembers its first time", waiting.pends_code,
             _method(Draft, "emit", _nothing_forgotten(Draft.emit)), {**STEPS, "resumes": waiting.CHECKED}),
    Ablation("pause forgotten at a takeover", "a run that is read again is not paused", waiting.paused,
             _method(load, "state_from_rows", _unpaused_when_loaded(load.state_from_rows)),
             {"pause_after": "first"}),
    Ablation("resume of another basket", "of several baskets another one is emptied than the one that was named",
             waiting.pends_twice, _method(resuming, "_choose", _another_basket)),
]  # fmt: skip
