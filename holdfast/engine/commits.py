"""Commits: what a turn decided, as one commit.

Owns: which rows a turn writes: its events, the instances they changed, the run's own row, its waits and timers; what
became of messages, messages to other runs; and the children that begin with it.
Never: decides (rules), writes (committer), knows the columns (rows.py).
Invariants: what has changed is in one commit: once that is made, it counts as written.
On crash: nothing of a commit has happened, or all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine import rows
from holdfast.engine.inbox import message_rows, verdict
from holdfast.model.errors import RunExists
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules.draft import ChildToCreate, Draft
from holdfast.store.api import Commit, MessageOutcome, RunChange, RunRow, RunStep

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor


def of_turn(actor: RunActor, draft: Draft) -> Commit:
    """The commit of a turn, and of what was held back before it."""
    state = actor.state
    entries = actor.held.take() + draft.entries if actor.held.entries else draft.entries
    events, aside = rows.event_rows(state, entries, actor.token)
    changed = rows.changed_nodes(state)
    ends = state.status in RUN_TERMINAL
    owner = None if ends or actor.is_for_others else actor.engine.lease.engine
    written = (state.status, owner, state.branch, state.started_at)
    create: RunRow | None = None
    change: RunChange | RunStep | None = None
    if actor.creating is not None:
        new = actor.creating
        create = rows.run_row(state, actor.token, owner, new.event.input_hash, new.parent_no, new.root_no)
        actor.row = create
    elif state.fold_changed or actor.written != written:
        change = rows.run_change(state, owner)
    else:
        change = RunStep(state.seq, state.head_hash, state.recoveries)
    actor.written = written
    if state.fold_changed:
        state.fold_changed = False
    commit = Commit(actor.run_no, actor.token, actor.expected_seq, change, create, changed, events, ends=ends)
    if aside:
        commit.waits = rows.wait_rows(state, entries)
        commit.timers = rows.timer_rows(state, entries)
    extras = draft.extras
    if extras is not None:
        commit.outcomes = [MessageOutcome(o.message_id, o.status, verdict(o)) for o in extras.outcomes]
        commit.children = [_child(actor, spec) for spec in extras.children if not _is_there(actor, spec)]
        born = {child.run_id: child.run_no for child in actor.children}  # they are not in the store yet
        commit.messages = message_rows(actor.engine.store, draft, born)
    return commit


def _child(actor: RunActor, spec: ChildToCreate) -> Commit:
    child = actor.engine.starting.child(actor, spec)
    actor.children.append(child)
    return child.first_commit()


def _is_there(actor: RunActor, spec: ChildToCreate) -> bool:
    """A branch that inherits its idempotency keys asks for the same children again, and so does a run whose journal
    has lost its end: they are waited for. A run of its first owner cannot meet them."""
    is_first_life = actor.token == 1 and not actor.state.fold.ancestors
    existing = None if is_first_life else actor.engine.store.run(spec.run_id)
    if existing is None:
        return False
    if (existing.workflow, existing.input_hash) != (spec.spec.workflow, spec.spec.input_hash):
        raise RunExists(f"child {spec.run_id} of run {actor.run_id} exists with another input")
    if not spec.spec.detached:
        actor.engine.spawn(_follow_when_committed(actor, spec.run_id))
    return True


async def _follow_when_committed(actor: RunActor, run_id: str) -> None:
    await actor.flushed()
    if not actor.gone:
        actor.follow_child(run_id)
