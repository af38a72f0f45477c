"""Redelivery: signals that a line of history has not received, though another one has.

Owns: which signals of a run are given back when it goes on from elsewhere, and which ones a run that is forked off gets
copies of.
Rules: a signal that was received behind the cut, or by an instance that is dropped, is `new` again; the next owner
takes it as if it had just come. One that was received on the part that is kept counts as received, also when it was
given back before, on another branch. What nobody has received yet stays where it is; where others are given back it is
taken note of once more behind them, so that all come in the order in which they were sent. Other messages have their
one effect on one line of history and are never taken twice: an answer is bound to its question, which is asked anew
under another id.
A run that is forked off has its own inbox: it gets a copy of each signal that its history has not received, under an id
of its own, and the other run keeps the original.
Invariants: on every line of history each signal is received at most once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model import events as ev
from holdfast.model.naming import derived
from holdfast.store.contract import Store
from holdfast.store.row_types import MessageOutcome, MessageRow

_encode = msgspec.json.Encoder().encode


def signals_to_redeliver(
    store: Store, run_no: int, journal: Iterable[ev.Entry], kept: Sequence[ev.Entry]
) -> list[MessageOutcome]:
    """What becomes of the signals of a run whose new branch inherits `kept`."""
    now, rows = _taken(kept), _signals(store, run_no, journal)
    received = [row for row in rows if row.message_id in now and row.status != _STATUS[type(now[row.message_id])]]
    returned = [row for row in rows if row.message_id not in now and row.status in ("consumed", "dead")]
    if returned:
        returned += [row for row in rows if row.message_id not in now and row.status == "held"]
    outcomes = [outcome(now[row.message_id]) for row in received]
    return outcomes + [MessageOutcome(row.message_id, "new", None) for row in returned]


def copies(
    store: Store, run_no: int, journal: Iterable[ev.Entry], kept: Sequence[ev.Entry], to_run_no: int, to_run_id: str
) -> list[MessageRow]:
    """The signals of a run that a run which is forked off it, and inherits `kept`, has yet to receive."""
    now = _taken(kept)
    unreceived = [row for row in _signals(store, run_no, journal) if row.message_id not in now]
    return [
        MessageRow(derived("m_", to_run_id, "copy", row.message_id), to_run_no, row.kind, row.payload, row.created_at)
        for row in unreceived
    ]


_STATUS = {ev.MessageConsumed: "consumed", ev.MessageRefused: "dead"}


def _taken(entries: Iterable[ev.Entry]) -> dict[str, ev.MessageConsumed | ev.MessageRefused]:
    """Signals that an instance has received (or could not make sense of), by id. One that was refused when it came has
    no instance: its sender knows that it was not taken."""
    return {
        entry.event.message_id: entry.event
        for entry in entries
        if type(entry.event) in _STATUS and entry.event.kind == "signal" and entry.node is not None
    }


def _signals(store: Store, run_no: int, journal: Iterable[ev.Entry]) -> list[MessageRow]:
    """Those that were received on some branch, and those that wait to be, in order of arrival."""
    rows = {row.message_id: row for row in (*store.held_messages([run_no]), *store.new_messages([run_no]))}
    for message_id in _taken(journal):
        row = store.message(message_id)
        if row is not None and row.run_no == run_no:  # else it was sent to the run that this one was forked off
            rows[message_id] = row
    return sorted((row for row in rows.values() if row.kind == "signal"), key=lambda row: row.no)


def outcome(event: ev.MessageConsumed | ev.MessageRefused) -> MessageOutcome:
    """What the row of a message says that a run has received, or refused."""
    if isinstance(event, ev.MessageRefused):
        verdict = {"outcome": "refused", "code": event.code, "why": event.why}
        return MessageOutcome(event.message_id, "dead", _encode(verdict))
    return MessageOutcome(event.message_id, "consumed", _encode({"outcome": "applied"}))
