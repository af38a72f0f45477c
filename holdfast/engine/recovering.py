"""Recovering: `resume` of a run that no engine drives, and `recover` of one whose rows and journal disagree.

Owns: what `resume` does before it claims a run. `recover`: the lease first, then the check, then a branch cut at the
last stable event, `RunRecovered`, and all rows of the run written again from its journal, in one commit; then the
ordinary takeover. Where only the rows differ from an intact journal, they are written again and no branch is opened
(undriven_commits.py).
Never: tells the cases apart (rules/recovery_cases.py), deletes anything from a journal.
Invariants: recovering a run that is in order commits no event, so recovering twice is recovering once.
On crash: before the commit nothing has happened; the request is a message that the next owner applies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import msgspec

from holdfast.engine import missing, undriven_commits
from holdfast.engine.messages import message_rows
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.run_requests import RunRequests
from holdfast.engine.runtime import Runtime
from holdfast.engine.undriven_commits import Difference, LowToken, opening_commit, signals_to_redeliver
from holdfast.model import events as ev
from holdfast.model.errors import CannotBeRepaired, CorruptJournal, IllegalTransition, NewerFormat, Refused
from holdfast.model.lineage import carried, fold, inherited
from holdfast.model.plans import Plan
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.views import command_line
from holdfast.rules import body_reports, branch_opening, recovery_cases, runs
from holdfast.rules.draft import Draft
from holdfast.rules.recovery_cases import Finding, NothingStable
from holdfast.rules.resuming import RESUMABLE
from holdfast.store.contract import Store
from holdfast.store.records import state_rows
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.journal import History, readable, refuse_newer
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import Commit, MessageOutcome, MessageRow, RunRow

log = logging.getLogger("holdfast.engine")
DRIVEN = "driven"
"""Why the owner of a run refuses to recover it: it drives it, and has found it in order."""
_encode = msgspec.json.Encoder().encode


class Recovered(msgspec.Struct, omit_defaults=True):
    """What recovering a run came to."""

    needed: bool
    case: str | None = None
    what: str = ""
    branch: int | None = None
    """The branch that was opened for it; None: its rows were written again, and it continues where it was."""
    cutoff_seq: int | None = None


class Wish(msgspec.Struct, omit_defaults=True):
    """The payload of `recover`."""

    reverify: bool = False
    actor: str = ""
    force: bool = False


class RunRecovery:
    """Recovers and resumes the runs of one store."""

    def __init__(self, runtime: Runtime, custody: Custody, claims: Claims, requests: RunRequests) -> None:
        self._runtime = runtime
        self._custody = custody
        self._claims = claims
        self._requests = requests

    async def recover(self, run_id: str, *, reverify: bool = False, force: bool = False, actor: str = "") -> Recovered:
        """Check a run and repair it if it is one of the catalogue's cases, then drive it. Raises Refused when
        another engine owns it, CannotBeRepaired when its journal is of no use."""
        runtime = self._runtime
        await self._claims.release_dead_engines()
        row = await runtime.read(find_run, runtime.store, run_id)
        if row.run_no in self._custody.actors:
            return Recovered(False, what="this engine drives it, and has found its rows and its journal in order")
        await runtime.read(self._refuse_if_owned, row)
        wish = Wish(reverify, actor, force)
        found = await asyncio.to_thread(self._examine, row, wish)
        if isinstance(found, Recovered):
            if row.status not in RUN_TERMINAL:
                await self._claims.drive(row)
            return found
        recovered = await self._ask_owner(row, wish)
        await self._claims.drive(row)
        return recovered

    async def _ask_owner(self, row: RunRow, wish: Wish) -> Recovered:
        """Have the run repaired by its next owner, which is this engine unless another one is quicker. If an engine
        claimed the run first because of another message, it was repaired then."""
        runtime = self._runtime
        last = await runtime.read(lambda: _last_seq(runtime.store, row))
        try:
            outcome = await self._requests.request(row.run_no, "recover", wish)
        except Refused as refusal:
            done = await runtime.read(lambda: runtime.store.events(row.run_no, last, types=("RunRecovered",)))
            if refusal.reason != DRIVEN or not done:
                raise
            e = readable(row.run_id, done[0].seq, done[0].type, done[0].data)
            branch = None if e.new_branch == e.previous_branch else e.new_branch
            return Recovered(True, e.case, e.what, branch, e.cutoff_seq)
        return msgspec.convert({k: v for k, v in outcome.items() if k != "outcome"}, Recovered)

    def _refuse_if_owned(self, row: RunRow) -> None:
        if row.engine in (None, self._runtime.lease.engine):
            return
        owner = next((e for e in self._runtime.store.engines() if e.engine == row.engine), None)
        where = "" if owner is None else f" (process {owner.pid} on {owner.host})"
        raise Refused(f"run {row.run_id} is owned by engine {row.engine}{where}, which is alive; stop it first")

    # --- resuming --------------------------------------------------------------------------------------------

    async def resume(self, run_id: str, asked: dict[str, Any]) -> tuple[RunRow, list[str]]:
        """Drive a run that no engine drives, or that waits for a person to resume it: repair it if its rows look odd,
        lift its hold, release the leases of dead engines, claim it. `asked` is a request of `resume_request`. Returns
        the run, and the waits that ended. Raises MissingCode when its code is not loaded here, Refused when the run
        stays on hold."""
        runtime = self._runtime
        row, is_odd = await runtime.read(self._find, run_id)
        if row.engine is None and row.status not in RUN_TERMINAL:
            refuse_newer(row)
        if is_odd:
            await self.recover(row.run_id, actor=asked["actor"])
            row = await runtime.read(find_run, runtime.store, run_id)
        is_named = asked["wait"] is not None or asked["path"] is not None or bool(asked["vars"])
        if row.status in RUN_TERMINAL:  # a request that names something is refused, with the reason
            return row, await self._requests.resume(row.run_no, asked) if is_named else []
        waits = await runtime.read(runtime.store.open_waits, [row.run_no])
        is_asked = is_named or any(wait.kind in RESUMABLE for wait in waits)
        if row.run_no in self._custody.actors and not is_asked:
            return row, []
        await self._refuse_hold(row)
        if not runtime.drives:  # the engine that does receives the request
            return row, await self._requests.resume(row.run_no, asked) if is_asked else []
        if (error := await runtime.read(missing.error_for, runtime, row)) is not None:
            raise error
        if self._claims.only_root_runs is not None:
            self._claims.only_root_runs.add(row.root_no)
        self._custody.code_change_accepted.add(row.run_no)
        if row.hold is not None:
            await self._custody.lift_hold(row)
        await self._claims.release_dead_engines()
        ended = await self._requests.resume(row.run_no, asked) if is_asked else []
        await self._claims.claim([row.run_no])
        await self._claims.sweep()
        return row, ended

    async def _refuse_hold(self, row: RunRow) -> None:
        """Raise Refused if a run is on hold and this engine cannot lift the hold."""
        if row.hold is None:
            return
        if not self._runtime.drives:
            raise Refused(
                f"run {row.run_id} is on hold ({row.hold}); only an engine that drives it can resume it: "
                f"{command_line('resume', row.run_id)}",
                reason="hold",
            )
        damage = await self._custody.damage_of(row)
        if damage is not None:
            raise Refused(f"run {row.run_id} stays on hold: {damage}", reason="hold")

    def _find(self, run_id: str) -> tuple[RunRow, bool]:
        """A run, and whether it has no owner and its rows look odd."""
        row = find_run(self._runtime.store, run_id)
        return row, row.engine is None and self.looks_odd(row)

    def looks_odd(self, row: RunRow) -> bool:
        """Whether a run's rows, and its last event, give reason to read its whole journal. Costs a few reads."""
        store = self._runtime.store
        tail = store.events(row.run_no, row.last_seq - 1)
        if [event.seq for event in tail] != [row.last_seq] or tail[0].hash != row.head_hash:
            return True
        if store.version(row.workflow, row.version) is None:
            return True
        try:
            plan = self._runtime.versions.numbered(row.workflow, row.version)
            numbers = [row.run_no]
            waits, timers = store.open_waits(numbers), store.set_timers(numbers)
            state = state_rows.state_from_rows(plan, row, store.open_nodes(numbers), waits, timers)
        except state_rows.UNREADABLE:
            return True
        return recovery_cases.looks_odd(row.status, state, tail[0].type)

    # --- under the lease -----------------------------------------------------------------------------------

    def commit(self, row: RunRow, message: MessageRow | None) -> Commit | Recovered | LowToken:
        """The commit that repairs a run whose lease we hold, or why there is nothing to repair, or that its token must
        be raised first. Without a message no operator has asked for it: then a run whose journal lacks events is not
        touched."""
        wish = Wish() if message is None else msgspec.json.decode(message.payload, type=Wish)
        found = self._examine(row, wish)
        if isinstance(found, Recovered | LowToken):
            return found
        if isinstance(found, Difference):
            if found.lacks_events and message is None:
                raise CannotBeRepaired(f"{found.what}; {command_line('recover', row.run_id)} continues from there")
            commit = undriven_commits.rebuild_commit(self._runtime.store, found, self._runtime.clock.now(), message)
            recovered = Recovered(True, undriven_commits.CASE, found.what, None, found.expected.seq)
        else:
            commit, recovered = self._repair(row, *found, wish.actor, message)
        if message is not None:
            verdict = {"outcome": "applied", **msgspec.to_builtins(recovered)}
            status: Literal["consumed", "dead"] = "consumed" if commit.events else "dead"  # no event tells of it
            commit.outcomes = [MessageOutcome(message.message_id, status, _encode(verdict)), *commit.outcomes]
        at = "" if recovered.branch is None else _where(recovered)
        log.warning("run %s is recovered (%s): %s%s", row.run_id, recovered.case, recovered.what, at)
        return commit

    def _examine(self, row: RunRow, wish: Wish) -> tuple[Finding, History, Plan] | Difference | LowToken | Recovered:
        """Which case a run is, with the plan that it continues under, or how its rows differ from its journal; or that
        nothing is to be done."""
        store, versions = self._runtime.store, self._runtime.versions
        refuse_newer(row)
        try:
            history = History(store, versions, row)
            if (low := undriven_commits.low_token(history.rows, row)) is not None:
                return low
            if row.version < 1:
                raise _hopeless(row, "it does not say which version of its workflow it runs (E1)")
            moved = self._other_version(row, history)
            if moved is not None:
                return moved if wish.force or row.status != RunStatus.COMPLETED else _left_alone(row)
            line = history.line(row.branch)
            truth = history.state(row.branch, line)
            finding = recovery_cases.diagnose(row.status, line, truth, reverify=wish.reverify)
            if finding is not None:
                return finding, history, truth.plan
            differs = undriven_commits.difference(self._runtime.inspector.audit(row), row)
        except NewerFormat:
            raise
        except NothingStable:
            raise _hopeless(row, "nothing in it has been completed, so there is no event to continue from") from None
        except (CorruptJournal, IllegalTransition, KeyError, AssertionError, StopIteration) as e:
            raise _hopeless(row, f"{type(e).__name__}: {e}") from e
        if isinstance(differs, str):
            doctor = command_line("doctor", row.run_id)
            what = f"its rows and its journal agree, but {differs}; {doctor} says what to do"
            return Recovered(False, what=what)
        return differs or Recovered(False, what="its rows and its journal agree")

    def _other_version(self, row: RunRow, history: History) -> tuple[Finding, History, Plan] | None:
        """E2: a version that is not there. The journal knows which one the run began with, and may know a better
        one for the rows."""
        store = self._runtime.store
        pinned = history.branch(row.branch).version
        if store.version(row.workflow, row.version) is not None and pinned == row.version:
            return None
        if store.version(row.workflow, pinned) is not None:
            plan = history.plan(pinned)
            return recovery_cases.other_version(history.line(row.branch), row.version), history, plan
        first = next(iter(history.branches.values()))
        if store.version(row.workflow, first.version) is None:
            raise _hopeless(row, f"version {pinned} of workflow {row.workflow} is not in the store (E2)")
        # back to where it left the version that it began with
        left = next(b for b in history.branches.values() if b.version != first.version)
        finding = recovery_cases.other_version([e for e in history.entries if e.seq <= left.cutoff_seq], row.version)
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
        runtime, opening = self._runtime, finding.opening
        source = opening.parent if finding.case == "E2" and plan.version != row.version else row.branch
        line = history.line(source)
        truth = fold(plan, row.run_no, row.run_id, line)
        truth.branch, truth.seq, truth.head_hash = row.branch, history.rows[-1].seq, history.rows[-1].hash
        opening.inherit_omissions(*carried(history.branches, source, opening.parent, line))
        branch = opening.as_branch(max(history.branches) + 1, truth.fold.key_epoch, plan.version, actor)
        kept = inherited(line, branch, plan)
        base = fold(plan, row.run_no, row.run_id, kept)
        draft = Draft(truth, runtime.clock.now(), runtime.clock.elapsed())
        branch_opening.begin(draft, base, opening, branch, branch_opening.Edits())
        draft.emit(ev.RunRecovered(finding.case, row.branch, branch.branch, opening.cutoff_seq, finding.what))
        if message is not None:
            draft.emit(ev.MessageConsumed(message.message_id, message.kind))
        if finding.failed is not None:
            node, path, error = finding.failed
            body_reports.fail_for_good(draft, base.instance(node, path), error)
        if finding.ended is not None:
            runs.end(draft, finding.ended)
        commit = opening_commit(runtime.store, row, draft, branch)
        commit.begins = None  # it began before its version was retired, if it is
        commit.change = state_rows.run_change(base, None)
        register = WaitAndTimerHistory((*history.entries, *draft.entries))
        commit.waits = list(register.wait_rows(base, history.shared_until).values())
        commit.timers = list(register.timer_rows(base, history.shared_until).values())
        commit.messages = message_rows(runtime.store, draft, {})  # a parent that was told already is not told again
        commit.outcomes = signals_to_redeliver(runtime.store, row.run_no, history.entries, kept)
        return commit, Recovered(True, finding.case, finding.what, branch.branch, opening.cutoff_seq)


def _last_seq(store: Store, row: RunRow) -> int:
    """The last event of a run's journal, whatever its row says."""
    return max((event.seq for event in store.events(row.run_no, row.last_seq)), default=row.last_seq)


def _where(recovered: Recovered) -> str:
    return f"; it continues on branch {recovered.branch}, cut off at event {recovered.cutoff_seq}"


def _left_alone(row: RunRow) -> Recovered:
    what = (
        f"version {row.version} of workflow {row.workflow} is not in the store; the run has completed, and its result "
        "is in its journal, so nothing was changed (--force decides it again under the version that it began with)"
    )
    return Recovered(False, "E2", what)


def _hopeless(row: RunRow, why: str) -> CannotBeRepaired:
    return CannotBeRepaired(
        f"run {row.run_id} cannot be repaired: {why}. Nothing was changed. Ways out: restore a backup; fork it at an "
        f"event before the damage ({command_line('events', row.run_id)} shows them, "
        f"{command_line('fork', row.run_id, '--at', 'SEQ', '--as-run', 'ID')}); correct it by hand and let "
        f"{command_line('doctor')} check it; or start it again."
    )
