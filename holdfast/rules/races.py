"""Races: which call of a `ctx.race` has won.

Owns: that the commit which ends a call also decides the races that it ends: in it, what the other calls wait for is
closed; what they ask for later is closed as it is opened.
Rule: who answers a call of a race and is told that it was taken has made that call the winner. A signal that comes
second is kept, an answer that comes second is refused. (Where a call of a race is a coroutine of several calls on ctx,
this is true of its end, not of each of them.)
On crash: which races are decided is not stored. The memory of the body tells it: the winner's answer is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.model import commands as cmd
from holdfast.model.state import NodeState, WaitState
from holdfast.rules.draft import Draft
from holdfast.rules.scopes import close_silently

RACE = "race"
"""Who closes what the losers of a race wait for."""


def answered(d: Draft, ns: NodeState, wait: WaitState) -> None:
    """A wait has its answer: the races in which it is all that a call does are won by it."""
    call = wait.call
    if "races" in call:
        won(d, ns, call["races"][: call["decides"]])


def won(d: Draft, ns: NodeState, races: Iterable[Sequence[Any]]) -> None:
    """A call of a race has ended, and with it perhaps the race as a call of the next one: the others have lost. Each
    race is its name and the place of the call in it; of a wait they come as lists, from its JSON."""
    if ns.races is None:
        ns.races = {}
    for race, index in races:
        if ns.races.setdefault(race, index) != index:
            break  # it has ended too late, and so have the races around it, as far as they go by it
    for wait_id in ns.waits:
        if has_lost(ns, d.state.waits[wait_id].call):
            lose(d, ns, wait_id)


def has_lost(ns: NodeState, call: Mapping[str, Any]) -> bool:
    """Whether a call is part of one that has lost a race."""
    decided = ns.races
    return decided is not None and any(decided.get(race, index) != index for race, index in call.get("races", ()))


def lose(d: Draft, ns: NodeState, wait_id: str) -> None:
    """Nobody waits for it any more; a child that it waited for is cancelled."""
    close_silently(d, wait_id, ns, "superseded", actor=RACE)


def winner(d: Draft, c: cmd.RecordStep) -> int | None:
    """The call that has won a race whose end a body reports with another winner; None: it may stand."""
    ns = d.state.nodes.get((c.node, c.path))
    if c.event.kind != "race" or not c.races or ns is None or ns.races is None:
        return None
    race, index = c.races[0]
    decided = ns.races.get(race, index)
    return None if decided == index else decided
