"""Catalogue: recovering a run whose rows and journal tell different stories.

Owns: `recover`: the lease first, then the check, then a branch cut at the last stable event, `RunRecovered`, and all
rows of the run written anew from its journal, in one commit; then the ordinary resume.
Never: tells the cases apart (rules/catalogue.py), deletes anything from a journal.
Invariants: recovering a run that is in order commits no event, so recovering twice is recovering once.
On crash: before the commit nothing has happened; the request is a message that the next owner applies.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import redelivery, rows
from holdfast.engine.history import History
from holdfast.engine.inbox import message_rows
from holdfast.engine.reads import find_run
from holdfast.engine.register import Register
from holdfast.model import events as ev
from holdfast.model.errors import CannotBeRepaired, CorruptJournal, IllegalTransition, Refused
from holdfast.model.graph import Plan
from holdfast.model.lineage import carried, fold, inherited
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules import branches, catalogue, nodes, runs
from holdfast.rules.catalogue import Finding, NothingStable
from holdfast.rules.draft import Draft
from holdfast.store.api import Commit, MessageOutcome, MessageRow, RunRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
_encode = msgspec.json.Encoder().encode


class Recovered(msgspec.Struct, omit_defaults=True):
    """What recovering a run came to."""

    needed: bool
    case: str | None = None
    what: str = ""
    branch: int | None = None
    """The branch that it goes on with."""
    cutoff_seq: int | None = None


class Wish(msgspec.Struct, omit_defaults=True):
    """The payload of `recover`."""

    reverify: bool = False
    actor: str = ""


class Catalogue:
    """Recovers the runs of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def recover(self, run_id: str, *, reverify: bool = False, actor: str = "") -> Recovered:
        """Check a run and repair it if it is one of the catalogue's cases, then go on with it. Raises Refused when
        another engine owns it, CannotBeRepaired when its journal is of no use."""
        engine = self._engine
        await engine.recovery.bury_dead()
        row = await engine.read(find_run, engine.store, run_id)
        await engine.read(self._refuse_if_owned, row)
        found = await engine.read(self._examine, row, reverify)
        if found is None:
            if row.status not in RUN_TERMINAL:
                await engine.recovery.go_on_with(row)
            return Recovered(False, what="its rows and its journal agree")
        outcome = await engine.inbox.request(row.run_no, "recover", Wish(reverify, actor))
        await engine.recovery.go_on_with(row)
        return msgspec.convert({k: v for k, v in outcome.items() if k != "outcome"}, Recovered)

    def _refuse_if_owned(self, row: RunRow) -> None:
        if row.engine is None:
            return
        owner = next((e for e in self._engine.store.engines() if e.engine == row.engine), None)
        where = "" if owner is None else f" (process {owner.pid} on {owner.host})"
        raise Refused(f"run {row.run_id} is owned by engine {row.engine}{where}, which is alive; stop it first")

    def look_at(self, run_id: str) -> tuple[RunRow, bool]:
        """A run, and whether nobody owns it and something about it looks odd."""
        row = find_run(self._engine.store, run_id)
        return row, row.engine is None and self.looks_odd(row)

    def looks_odd(self, row: RunRow) -> bool:
        """Whether a run's rows, and its last event, give reason to read its whole journal. Costs a few reads."""
        store = self._engine.store
        tail = store.events(row.run_no, row.last_seq - 1)
        if [event.seq for event in tail] != [row.last_seq] or tail[0].hash != row.head_hash:
            return True
        if store.version(row.workflow, row.version) is None:
            return True
        try:
            plan = self._engine.versions.numbered(row.workflow, row.version)
            numbers = [row.run_no]
            waits, timers = store.open_waits(numbers), store.set_timers(numbers)
            state = rows.state_from_rows(plan, row, store.open_nodes(numbers), waits, timers)
        except rows.UNREADABLE:
            return True
        return catalogue.looks_odd(row.status, state, tail[0].type)

    # --- under the lease -----------------------------------------------------------------------------------

    def commit(self, row: RunRow, message: MessageRow | None) -> Commit | None:
        """The commit that repairs a run whose lease we hold; None when there is nothing to repair."""
        wish = Wish() if message is None else msgspec.json.decode(message.payload, type=Wish)
        found = self._examine(row, wish.reverify)
        if found is None:
            return None
        finding, history, plan = found
        commit, recovered = self._repair(row, finding, history, plan, wish.actor, message)
        if message is not None:
            verdict = {"outcome": "applied", **msgspec.to_builtins(recovered)}
            commit.outcomes = [MessageOutcome(message.message_id, "consumed", _encode(verdict)), *commit.outcomes]
        log.warning("run %s is recovered (%s): %s", row.run_id, finding.case, finding.what)
        return commit

    def _examine(self, row: RunRow, reverify: bool) -> tuple[Finding, History, Plan] | None:
        """Which case a run is, if any, with the plan that it goes on under."""
        try:
            history = History(self._engine.store, self._engine.versions, row)
            if row.version < 1:
                raise _hopeless(row, "it does not say which version of its workflow it runs (E1)")
            moved = self._other_version(row, history)
            if moved is not None:
                return moved
            line = history.line(row.branch)
            truth = history.state(row.branch, line)
            finding = catalogue.diagnose(row.status, line, truth, reverify=reverify)
        except NothingStable:
            raise _hopeless(row, "nothing in it has been completed, so there is no event to go on from") from None
        except (CorruptJournal, IllegalTransition, KeyError, AssertionError, StopIteration) as e:
            raise _hopeless(row, f"{type(e).__name__}: {e}") from e
        return None if finding is None else (finding, history, truth.plan)

    def _other_version(self, row: RunRow, history: History) -> tuple[Finding, History, Plan] | None:
        """E2: a version that is not there. The journal knows which one the run began with, and may know a better
        one for the rows."""
        store = self._engine.store
        pinned = history.branch(row.branch).version
        if store.version(row.workflow, row.version) is not None and pinned == row.version:
            return None
        if store.version(row.workflow, pinned) is not None:
            plan = history.plan(pinned)
            return catalogue.other_version(history.line(row.branch), row.version), history, plan
        first = next(iter(history.branches.values()))
        if store.version(row.workflow, first.version) is None:
            raise _hopeless(row, f"version {pinned} of workflow {row.workflow} is not in the store (E2)")
        # back to where it left the version that it began with
        left = next(b for b in history.branches.values() if b.version != first.version)
        finding = catalogue.other_version([e for e in history.entries if e.seq <= left.cutoff_seq], row.version)
        return finding, history, history.plan(first.version)

    def _repair(
        self,
        row: RunRow,
        finding: Finding,
        history: History,
        plan: Plan,
        actor: str,
        message: MessageRow | None,
    ) -> tuple[Commit, Recovered]:
        engine, opening = self._engine, finding.opening
        source = opening.parent if finding.case == "E2" and plan.version != row.version else row.branch
        line = history.line(source)
        truth = fold(plan, row.run_no, row.run_id, line)
        truth.branch, truth.seq, truth.head_hash = row.branch, history.rows[-1].seq, history.rows[-1].hash
        opening.leave_out(*carried(history.branches, source, opening.parent, line))
        branch = opening.as_branch(max(history.branches) + 1, truth.fold.key_epoch, plan.version, actor)
        kept = inherited(line, branch, plan)
        base = fold(plan, row.run_no, row.run_id, kept)
        draft = Draft(truth, engine.clock.now())
        branches.begin(draft, base, opening, branch, branches.Edits())
        draft.emit(ev.RunRecovered(finding.case, row.branch, branch.branch, opening.cutoff_seq, finding.what))
        if message is not None:
            draft.emit(ev.MessageConsumed(message.message_id, message.kind))
        if finding.failed is not None:
            node, path, error = finding.failed
            nodes.fail_for_good(draft, base.instance(node, path), error)
        if finding.ended is not None:
            runs.end(draft, finding.ended)
        commit = engine.branching.opening(row, draft, branch)
        commit.change = rows.run_change(base, None)
        register = Register((*history.entries, *draft.entries))
        commit.waits = list(register.wait_rows(base, history.shared_until).values())
        commit.timers = list(register.timer_rows(base, history.shared_until).values())
        commit.messages = message_rows(engine.store, draft, {})  # a parent that was told already is not told again
        commit.outcomes = redelivery.given_back(engine.store, row.run_no, history.entries, kept)
        return commit, Recovered(True, finding.case, finding.what, branch.branch, opening.cutoff_seq)


def not_needed() -> dict[str, Any]:
    """The verdict on a request to recover a run that is in order."""
    return {"outcome": "applied", **msgspec.to_builtins(Recovered(False, what="its rows and its journal agree"))}


def _hopeless(row: RunRow, why: str) -> CannotBeRepaired:
    return CannotBeRepaired(
        f"run {row.run_id} cannot be repaired: {why}. Nothing was changed. Ways out: restore a backup; fork it at an "
        f"event before the damage (`holdfast events {row.run_id}` shows them, `holdfast fork {row.run_id} --at SEQ "
        "--as-run ID`); correct it by hand and let `holdfast doctor` check it; or start it again."
    )
