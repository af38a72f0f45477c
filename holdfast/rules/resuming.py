"""Resuming: the one way in which a person lets a run go on that waits for one.

Owns: which waits a `resume` ends (a pause, a basket, a hold), variables that it brings, an operator's pause, and
picking up everything that was held back.
Rules: `resume` may name a wait, or the path on which one lies. Without a name it ends the pause; where there is none,
all holds and the basket of the pend path: the deepest path that lies in one, the oldest of several.
While a run is paused nothing new starts: no node, no further attempt, no item or round. Bodies at work finish their
node or are left at their next call on ctx; what waits stays where it is, also when its answer comes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import answers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.problems import near
from holdfast.model.references import captured, check_size
from holdfast.model.state import NodeState, WaitState
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import nodes, pends, questions, scopes, waits
from holdfast.rules.draft import Draft, Refusal

RESUMABLE = ("pause", "hold", "basket")


class Resume(msgspec.Struct):
    """The payload of `resume`."""

    actor: str = ""
    wait: str | None = None
    path: str | None = None
    vars: dict[str, msgspec.Raw] = {}


def pause(d: Draft, reason: str, actor: str) -> None:
    """An operator stops a run between its nodes. A second pause is a no-op."""
    if d.state.fold.closing:
        raise Refusal("closing", f"the run is {d.state.fold.closing}; it cannot be paused any more")
    if d.state.fold.paused:
        return
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, "pause", {}, None, {"reason": reason, "actor": actor}))
    d.extra.pauses = True


def resume(d: Draft, c: cmd.Message, asked: Resume) -> list[str]:
    """A person lets the run go on; the waits that ended with it."""
    if d.state.fold.closing:
        raise Refusal("closing", f"the run is {d.state.fold.closing}; there is nothing to resume")
    chosen = _choose(d, c, asked)
    changed = _variables(d, asked.vars)
    if changed is not None:
        d.emit(msgspec.structs.replace(changed, actor=asked.actor))
    for wait in chosen:
        _end(d, wait, asked.actor)
    return [wait.wait_id for wait in chosen]


def _choose(d: Draft, c: cmd.Message, asked: Resume) -> list[WaitState]:
    open_waits = d.state.waits.values()
    if asked.wait is not None:
        wait = questions.find(d, asked.wait, c)
        if wait.kind not in RESUMABLE:
            how = {"input": "answer it with respond", "signal": "send its signal"}.get(wait.kind, "it ends by itself")
            raise Refusal("not_resumable", f"{wait.wait_id} is a wait of kind {wait.kind}: {how}")
        return [wait]
    resumable = [wait for wait in open_waits if wait.kind in RESUMABLE]
    if asked.path is not None:
        there = [wait for wait in resumable if wait.path == asked.path and wait.kind != "pause"]
        if not there:
            paths = ", ".join(sorted({wait.path for wait in resumable if wait.kind != "pause"})) or "nothing"
            raise Refusal("not_pended", f"nothing on path {asked.path} waits to be resumed; what does: {paths}")
        return there
    paused = [wait for wait in resumable if wait.kind == "pause"]
    if paused:
        return paused
    baskets = sorted((w for w in resumable if w.kind == "basket"), key=lambda w: pend_order(w.path, w.since))
    return [*(wait for wait in resumable if wait.kind == "hold"), *baskets[:1]]


def pend_order(path: str, since: int) -> tuple[int, int]:
    """Of several paths that lie in baskets the deepest is resumed first, the oldest of equally deep ones."""
    return -path.count("."), since


def _variables(d: Draft, given: dict[str, msgspec.Raw]) -> ev.VariablesSet | None:
    """Variables that are injected: of the declared type, added or changed, never deleted."""
    if not given:
        return None
    declared, plan = d.state.plan.definition.variables, d.state.plan
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in declared:
            hint = near(name, declared) or f"declared: {', '.join(declared) or 'none'}"
            raise Refusal("bad_variable", f"variable {name} is not declared ({hint})")
        wrong = answers.problems(declared[name], bytes(value))
        if wrong:
            raise Refusal("bad_variable", f"variable {name}: {'; '.join(wrong)}")
        try:
            of_one = captured(bytes(value), plan.var_captures.get(name, ()), f"variable {name}")
        except HoldfastError as e:
            raise Refusal("bad_variable", e.message) from None
        found |= {f"{name}:{key}": part for key, part in of_one.items()}
    try:
        check_size(found, "the variables")
    except HoldfastError as e:
        raise Refusal("bad_variable", e.message) from None
    return ev.VariablesSet(given, found)


def _end(d: Draft, wait: WaitState, actor: str) -> None:
    match wait.kind:
        case "basket":
            pends.take_out(d, wait, actor)
        case "pause":
            d.emit(ev.WaitClosed(wait.wait_id, "resumed", actor=actor))
            waits.wake_run(d, wait.kind)
            pick_up(d)
        case _:
            ns = d.state.nodes.get((wait.node, wait.path))
            d.emit(ev.WaitClosed(wait.wait_id, "released", actor=actor), ns)
            waits.wake_run(d, wait.kind)
            if ns is not None and ns.status is NodeStatus.SUSPENDED:  # its attempt was cut off: this is another one
                waits.try_again(d, ns, wait.wait_id)


def pick_up(d: Draft) -> None:
    """Go on with everything that was held back: bodies that were left, starts, items and rounds, nodes to decide."""
    for ns in list(d.state.nodes.values()):
        go_on(d, ns)
    for owner in list(d.state.nodes.values()):
        if owner.plan.body is not None and owner.status is NodeStatus.RUNNING:
            reopen(d, owner)
    d.extra.opened.extend(d.state.scopes.values())


def go_on(d: Draft, ns: NodeState) -> None:
    """Go on with an instance that waits for nothing but to be picked up."""
    if d.state.fold.paused:
        return
    match ns.status:
        case NodeStatus.SUSPENDED if was_left(d, ns) and not nodes.lacks_params(d, ns.scope):
            waits.wake_run(d, "takeover")
            d.emit(ev.NodeResumed("takeover"), ns)
            nodes.go_on(d, ns)
        case NodeStatus.SCHEDULED if ns.start_timer not in d.state.timers and waits.may_start(d, ns):
            d.scheduled.append(ns)


def was_left(d: Draft, ns: NodeState) -> bool:
    """A body that was left in an orderly way, perhaps while a part of it waited. (One that only waited runs again for
    nothing: what it remembers costs no effect.)"""
    if not ns.waits:
        return True
    has_ended = any(d.state.waits[w].is_of_ended_body for w in ns.waits)
    return d.state.status is RunStatus.RUNNING and not has_ended


def reopen(d: Draft, owner: NodeState) -> None:
    """Items that had begun, and those that may begin now."""
    counters = owner.counters
    assert counters is not None
    for key in range(counters.opened):
        if key not in counters.done:
            d.state.scope_at(f"{owner.path}{owner.node}.{key}.")
    owner.next_key = counters.opened
    scopes.advance(d, owner)
