"""Decide: a command becomes events, or is refused.

Owns: which rule answers which command, and what is always asked at the end of a turn.
Pure: no clock, no I/O, no randomness, no await. `now` is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.state import RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.rules import nodes, recovery, runs, tickets, waits
from holdfast.rules.draft import Draft, Refusal


class ChildReport(msgspec.Struct):
    """The payload of `child_ended`."""

    child: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ev.ErrorInfo | None = None


class Asked(msgspec.Struct):
    """The payload of `cancel` and `resume`."""

    reason: str = ""
    actor: str = ""


T = TypeVar("T")
_child_report = msgspec.json.Decoder(ChildReport).decode
_asked = msgspec.json.Decoder(Asked).decode


def decide(state: RunState, command: Any, now: int) -> Draft:
    """The turn that one command leads to."""
    draft = Draft(state, now)
    apply(draft, command)
    return draft


def apply(d: Draft, command: Any) -> Any:
    """Add a command's consequences to a turn. Raises Refusal before anything was drafted for it."""
    if d.state.status in RUN_TERMINAL and type(command) is not cmd.Message:
        raise Refusal("finished", f"the run has {d.state.status}")
    answer = _RULES[type(command)](d, command)
    if type(command) is not cmd.Create:
        settle(d)
    return answer


def settle(d: Draft) -> None:
    """Draw every consequence of what was drafted, and ask whether the run rests or ends."""
    nodes.draw_consequences(d)
    state = d.state
    if state.fold.ticket is not None:
        tickets.redeem(d)
    if state.fold.closing or not state.scopes["."].unsettled:
        runs.conclude(d)
    if state.waits or state.timers:
        waits.suspend_run(d)


def _begin(d: Draft, c: cmd.Begin) -> None:
    if d.state.fold.closing or runs.is_finished(d.state.status):
        raise Refusal("stale", "the run was cancelled before it began")
    runs.begin(d)


def _start(d: Draft, c: cmd.StartNode) -> None:
    ns = d.state.nodes.get((c.node, c.path))
    if ns is None or ns.status is not NodeStatus.SCHEDULED:
        raise Refusal("stale", f"{c.node}@{c.path} is not scheduled any more")
    nodes.start(d, ns)


def _drop(d: Draft, c: cmd.DropNode) -> None:
    nodes.drop(d, nodes.current(d, c, NodeStatus.RUNNING))


def _record(d: Draft, c: cmd.RecordStep) -> None:
    ns = nodes.current(d, c, NodeStatus.RUNNING, NodeStatus.SUSPENDED)
    if ns.status is NodeStatus.SUSPENDED:  # a task of a parked body went on by itself
        nodes.wake(d, ns)
    d.emit(c.event, ns)


def _checkpoint(d: Draft, c: cmd.Checkpoint) -> None:
    ns = nodes.current(d, c, NodeStatus.RUNNING, NodeStatus.SUSPENDED)
    if ns.status is NodeStatus.SUSPENDED:
        nodes.wake(d, ns)
    raw = {name: msgspec.Raw(value) for name, value in c.vars.items()}
    d.emit(ev.NodeCheckpointed(msgspec.Raw(c.value), {}, c.number, raw, c.captured_vars), ns)


def _provide_params(d: Draft, c: cmd.ProvideParams) -> None:
    scope = d.state.scopes.get(c.scope_path)
    if scope is None:
        raise Refusal("stale", f"scope {c.scope_path} is closed")
    scope.params = c.values
    # scopes inside it were held back as well
    d.extra.opened += [inner for inner in d.state.scopes.values() if inner.path.startswith(scope.path)]
    nodes.params_known(d, scope)


def _message(d: Draft, c: cmd.Message) -> None:
    """A message is consumed with what it leads to, or refused for good; either way it is over."""
    try:
        if runs.is_finished(d.state.status):
            raise Refusal("finished", f"the run has {d.state.status} already")
        if c.refusal is not None:
            raise Refusal(*c.refusal)
        match c.kind:
            case "cancel":
                asked = _read(_asked, c)
                runs.cancel(d, asked.reason, asked.actor)
            case "resume":
                waits.release_holds(d, _read(_asked, c).actor)
            case "child_ended":
                report = _read(_child_report, c)
                waits.child_ended(d, report.child, report.status, bytes(report.result), report.error)
            case _:
                raise Refusal("unknown_kind", f"this version does not know messages of kind {c.kind!r}")
    except Refusal as refusal:
        d.extra.outcomes.append((c.message_id, "dead", refusal.code, refusal.why))
        if not runs.is_finished(d.state.status):
            d.emit(ev.MessageRefused(c.message_id, c.kind, refusal.code, refusal.why))
        return
    d.extra.outcomes.append((c.message_id, "consumed", None, ""))
    d.emit(ev.MessageConsumed(c.message_id, c.kind))


def _read(decode: Callable[[bytes], T], c: cmd.Message) -> T:
    try:
        return decode(c.payload)
    except msgspec.MsgspecError as e:
        raise Refusal("bad_request", f"this request cannot be read: {e}") from None


_RULES: dict[type[Any], Any] = {
    cmd.Create: lambda d, c: runs.create(d),
    cmd.Begin: _begin,
    cmd.StartNode: _start,
    cmd.CompleteNode: tickets.complete,
    cmd.FailNode: nodes.fail,
    cmd.DropNode: _drop,
    cmd.StopNode: runs.stop_node,
    cmd.RecordStep: _record,
    cmd.Checkpoint: _checkpoint,
    cmd.OpenWait: waits.open_wait,
    cmd.SuspendNode: waits.suspend_node,
    cmd.CloseWait: waits.give_up,
    cmd.FireTimer: waits.fire,
    cmd.ProvideParams: _provide_params,
    cmd.ProvideUndo: runs.provide_undo,
    cmd.FinishRun: runs.finish,
    cmd.FailRun: runs.fail,
    cmd.TakeOver: recovery.take_over,
    cmd.Message: _message,
}
