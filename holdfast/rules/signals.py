"""Signals: messages with a name that a run receives when it is ready for them.

Owns: which wait a signal answers, and keeping those that nobody waits for yet.
Rules: the oldest wait for a name gets the oldest signal of it. A signal that arrives early is kept: its row in the
inbox is `held`, which wakes nobody, and the next call that asks for its name takes it. One that does not fit the schema
of the call that asks for it is refused.
"""

from __future__ import annotations

import msgspec

from holdfast.model import answers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.state import HeldSignal, NodeState, WaitState
from holdfast.rules import nodes, questions, waits
from holdfast.rules.draft import Draft, Outcome, Refusal, ToRun


def arrive(d: Draft, signal: HeldSignal, sent_at: int) -> NodeState | None:
    """A signal has come; the instance that receives it, or None: nobody waits for it yet."""
    for wait in list(d.state.waits.values()):
        if wait.kind == "signal" and wait.about["name"] == signal.name:
            if d.is_too_late(wait, sent_at):  # it came too late for this one
                questions.expire(d, wait)
                continue
            wrong = answers.problems(wait.about.get("schema"), signal.payload)
            if wrong:
                raise Refusal("invalid_signal", f"signal {signal.name!r}: {'; '.join(wrong)}")
            ns = d.state.nodes.get((wait.node, wait.path))
            _receive(d, wait, signal)
            return ns
    d.state.hold_signal(signal)
    return None


def wanted(d: Draft, wait: WaitState) -> None:
    """A body asks for a signal: perhaps it is here already."""
    name = wait.about["name"]
    ns = d.state.nodes.get((wait.node, wait.path))
    early = d.state.signals.get(name)
    while early:
        signal = early.popleft()
        wrong = answers.problems(wait.about.get("schema"), signal.payload)
        if wrong:
            why = f"signal {name!r}: {'; '.join(wrong)}"
            d.extra.outcomes.append(Outcome(signal.message_id, "dead", "invalid_signal", why))
            d.emit(ev.MessageRefused(signal.message_id, "signal", "invalid_signal", why), ns)
            continue
        d.extra.outcomes.append(Outcome(signal.message_id, "consumed"))
        _receive(d, wait, signal)
        d.emit(ev.MessageConsumed(signal.message_id, "signal"), ns)
        return


def _receive(d: Draft, wait: WaitState, signal: HeldSignal) -> None:
    waits.close_wait(d, wait, "received", answers.completed(wait.about.get("schema"), signal.payload))


def send(d: Draft, c: cmd.SendSignal) -> None:
    """A body signals another run: the message goes out with the commit that remembers it."""
    nodes.record(d, c, c.event)
    payload = {"name": c.name, "payload": msgspec.Raw(c.payload)}
    d.extra.messages.append(ToRun(c.to, c.message_id, "signal", payload))
