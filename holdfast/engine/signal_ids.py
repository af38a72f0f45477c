"""Signal ids: which signal a sender means by the id that it gives.

Owns: the message of a signal, once per run and id; when an id is free again; whether a payload is the one that was sent
before, in another spelling.
Never: sends anything (inbox.py), decides who receives a signal (rules).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model import canonical
from holdfast.model.naming import derived
from holdfast.model.state import HeldSignal
from holdfast.rules.decide import Signal
from holdfast.store.contract import Store
from holdfast.store.row_types import MessageRow

_signal = msgspec.json.Decoder(Signal).decode


def payload(name: str, value: bytes) -> dict[str, Any]:
    """What the message of a signal holds."""
    return {"name": name, "payload": msgspec.Raw(value)}


def message_id(run_id: str, signal_id: str, refusals: int = 0) -> str:
    """A signal is known by the id its sender gave it, once per run, and by how many were refused under that id."""
    return derived("m_", run_id, "signal", signal_id, *([refusals] if refusals else []))


def last(store: Store, run_id: str, signal_id: str) -> tuple[str, MessageRow | None]:
    """The message of a signal: the one that was not refused, or the id that the next one gets."""
    for refusals in itertools.count():
        found = message_id(run_id, signal_id, refusals)
        message = store.message(found)
        if message is None or not _was_refused(message):
            return found, message
    raise AssertionError


def is_refused(store: Store, message_id: str) -> bool:
    message = store.message(message_id)
    return message is not None and _was_refused(message)


def is_repeated(store: Store, message: MessageRow) -> bool:
    """Whether a message is a signal that was sent before, in another spelling."""
    earlier = store.message(message.message_id) if message.kind == "signal" else None
    return earlier is not None and is_same(store, earlier, message.payload)


def is_same(store: Store, earlier: MessageRow, payload: bytes) -> bool:
    """Whether this is the payload of a signal that was sent before: a webhook is redelivered with other spaces and
    another order of keys. The schema is that of the call which asks for the signal, once there was one."""
    if earlier.payload == payload:
        return True
    was, now = _signal(earlier.payload), _signal(payload)
    if was.name != now.name:
        return False
    asked = [msgspec.json.decode(row.data).get("about") for row in store.events(earlier.run_no, types=("WaitOpened",))]
    schemas = [about.get("schema") for about in asked if isinstance(about, dict) and about.get("name") == now.name]
    return any(canonical.same(schema, bytes(was.payload), bytes(now.payload)) for schema in (None, *schemas[-1:]))


def held_signals(messages: Iterable[MessageRow]) -> dict[int, list[HeldSignal]]:
    """The signals among these messages, by run, in order of arrival."""
    found: dict[int, list[HeldSignal]] = defaultdict(list)
    for message in messages:
        if message.kind == "signal":
            signal = _signal(message.payload)
            found[message.run_no].append(HeldSignal(message.message_id, signal.name, bytes(signal.payload)))
    return found


def _was_refused(message: MessageRow) -> bool:
    """Whether the run refused a message. One that came too late is not refused: a branch delivers it again."""
    if message.status != "dead" or message.outcome is None:
        return False
    return bool(msgspec.json.decode(message.outcome).get("code") != "finished")
