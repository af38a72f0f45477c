"""Branching: a run continues from another point of its history.

Owns: asking for a fork, jump or retry, carrying one out under the run's lease, and a fork that becomes a run by itself.
Never: decides what is kept (rules/branch_cut.py), drives the new branch: opening it releases the run,
and the ordinary takeover continues it, here or in another engine.
Invariants: leaving a branch and opening the next is one commit. No event is copied. Whole journals are read and folded
in a thread, never on the loop. A request that is refused stops no body.
On crash: before the commit nothing has happened, and the request is a message that the next owner applies.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import msgspec

from holdfast.engine.branch_plans import Plan, plan_branch
from holdfast.engine.messages import Inbox, message_rows
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.recovering import DRIVEN, Recovered, RunRecovery
from holdfast.engine.run.actor import RunActor
from holdfast.engine.run_inputs import check_run_id, prepare
from holdfast.engine.run_requests import RunRequests
from holdfast.engine.runtime import Runtime
from holdfast.engine.starting import Starting
from holdfast.engine.undriven_commits import (
    LowToken,
    answer_commit,
    copies,
    opening_commit,
    refusal_commit,
    refuse_retired,
    signals_to_redeliver,
)
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import (
    CannotBeRepaired,
    CorruptJournal,
    HoldfastError,
    LeaseLost,
    NewerFormat,
    Refused,
    RunExists,
    StoreError,
)
from holdfast.model.naming import derived
from holdfast.model.state import RunState
from holdfast.model.views import command_line
from holdfast.rules import branch_opening, previews
from holdfast.rules.branch_opening import Asked, Preview
from holdfast.rules.draft import Draft, Refusal
from holdfast.store.records import state_rows
from holdfast.store.records.journal import DAMAGE, History, hold_reason
from holdfast.store.records.run_records import find_run
from holdfast.store.records.stored_values import held_value
from holdfast.store.row_types import Commit, CommitResult, MessageOutcome, MessageRow, RunRow

log = logging.getLogger("holdfast.engine")
_asked = msgspec.json.Decoder(Asked).decode
_encode = msgspec.json.Encoder().encode


class Branching:
    """Opens branches of the runs of one store."""

    def __init__(
        self,
        runtime: Runtime,
        custody: Custody,
        starting: Starting,
        claims: Claims,
        inbox: Inbox,
        requests: RunRequests,
        recovery: RunRecovery,
    ) -> None:
        self._runtime = runtime
        self._custody = custody
        self._starting = starting
        self._claims = claims
        self._inbox = inbox
        self._requests = requests
        self._recovery = recovery

    # --- asking --------------------------------------------------------------------------------------------

    async def ask(
        self, run_id: str, kind: str, asked: Asked, edits: dict[str, Any] | None, *, drive: bool = True
    ) -> int:
        """Ask the run's owner (or become it) to open a branch; return its number once committed. `drive`: also
        drive the run here, if no other engine does."""
        plan = await self._plan_request(run_id, kind, asked, edits)  # an impossible one is not sent
        row = plan.history.row
        # the same request again, after a crash or by another caller, means the same branch
        message_id = derived("m_", row.run_id, row.last_seq, kind, _encode(asked).decode())
        outcome = await self._requests.request(row.run_no, kind, asked, message_id=message_id)
        if drive:
            await self._claims.drive(row)
        return int(outcome["branch"])

    async def preview(self, run_id: str, kind: str, asked: Asked, edits: dict[str, Any] | None) -> Preview:
        """What a request would reuse and run again; nothing is changed. Raises Refused when it would be refused."""
        plan = await self._plan_request(run_id, kind, asked, edits)
        version = plan.history.plan(plan.branch.version)
        begun = self._draft(plan, kind).state
        return previews.preview(plan.opening, plan.branch, plan.asked.edits, plan.line, plan.head, begun, version)

    async def _plan_request(
        self, run_id: str, kind: str, asked: Asked, edits: dict[str, Any] | None, *, as_run: bool = False
    ) -> Plan:
        row = await self._runtime.read(find_run, self._runtime.store, run_id)
        actor = self._custody.actors.get(row.run_no)
        if actor is not None:  # its row has moved, or does once what it has buffered is written
            await actor.flushed()
            row = await self._runtime.read(find_run, self._runtime.store, run_id)
        return await asyncio.to_thread(self._prepare, row, kind, asked, edits, as_run)

    def _prepare(self, row: RunRow, kind: str, asked: Asked, edits: dict[str, Any] | None, as_run: bool) -> Plan:
        history = self._history(row, asked, as_run)
        head = history.state(row.branch if asked.branch is None else asked.branch)
        asked.edits = prepare(edits, history, head)
        try:
            plan = self._plan(history, kind, asked)
            self._draft(plan, kind)
        except Refusal as refusal:
            raise Refused(f"run {row.run_id}: {refusal.why}", refusal.code) from None
        return plan

    def _history(self, row: RunRow, asked: Asked, as_run: bool) -> History:
        """The journal of a run, read whole. Of a damaged one, a run that is forked off at an earlier event (`as_run`)
        needs only what is before."""
        store, versions = self._runtime.store, self._runtime.versions
        try:
            return History(store, versions, row)
        except NewerFormat:
            raise
        except CorruptJournal:
            if not (as_run and isinstance(asked.target, int)):
                raise
            return History(store, versions, row, until=asked.target)

    # --- carrying out --------------------------------------------------------------------------------------

    async def apply_to(self, actor: RunActor, message: MessageRow) -> None:
        """Carry out a request for a run that this engine drives. The run decides nothing else meanwhile; its bodies are
        stopped only when the request is accepted."""
        await actor.pause()
        try:
            row = await self._runtime.read(self._runtime.store.run_by_no, actor.run_no)
            if actor.is_detached or row is None:
                self._inbox.deliver_soon()  # its next owner, if it has one yet, finds the message
                return
            if message.kind == "recover":
                mine = f"engine {self._runtime.lease.engine} drives it, and has found its rows and its journal in order"
                found: Commit | Refusal = Refusal(DRIVEN, mine)
            else:
                found = await asyncio.to_thread(self._carry_out, row, message)
        except StoreError:  # the run continues, and the next delivery brings the request again
            actor.delivered.discard(message.message_id)
            actor.unpause()
            raise
        if isinstance(found, Refusal):
            actor.unpause()
            actor.submit(cmd.Message(message.message_id, message.kind, message.payload, (found.code, found.why)))
        elif not actor.is_detached:
            actor.detach(LeaseLost(f"run {row.run_id} continues on another branch"))
            await self.land(found)
            await self._claims.claim([row.run_no])

    async def apply(self, row: RunRow, message: MessageRow) -> None:
        """Carry out a request for a run that this engine has claimed and does not drive. The commit releases it."""
        found = await asyncio.to_thread(self._carry_out, row, message)
        await self.land(refusal_commit(row, message, found) if isinstance(found, Refusal) else found)

    async def open_branch(self, row: RunRow, message: MessageRow) -> None:
        """Open a branch of a run that was claimed for it, then claim the run again: nothing of it starts before."""
        await self.apply(row, message)
        await self._claims.claim([row.run_no])
        await self._inbox.deliver_new()

    async def repair(self, row: RunRow, wish: MessageRow | None) -> None:
        """Recover a claimed run whose rows and journal do not end at the same event, or put it on hold. `wish` is the
        message of an operator who asked for it, and who receives the outcome."""
        try:
            commit = await asyncio.to_thread(self._recovery.commit, row, wish)
            if isinstance(commit, LowToken):
                await self._raise_token(row, commit.raised)
                return
            if isinstance(commit, Recovered):  # the doctor compares more than this engine does
                raise CannotBeRepaired(commit.what)
        except (CannotBeRepaired, *DAMAGE) as e:
            why = hold_reason(e)
            log.error("run %s is put on hold: %s", row.run_id, why)
            await self._custody.put_on_hold(row.run_no, row.token, why, unused=True)
            if wish is not None:
                await self.refuse(row, wish, e)
            return
        await self.land(commit)
        await self._claims.claim([row.run_no])
        if wish is not None:
            await self._inbox.deliver_new()

    async def _raise_token(self, row: RunRow, token: int) -> None:
        """Give a run whose row fell behind its journal a token above those of its events, and claim it again: its next
        owner repairs the rest."""
        runtime = self._runtime
        await runtime.committer.insist(runtime.store.raise_token, row.run_no, row.token, runtime.lease.engine, token)
        await self._claims.claim([row.run_no])
        await self._inbox.deliver_new()

    async def refuse(self, row: RunRow, message: MessageRow, error: HoldfastError) -> None:
        """Refuse a request for a run whose token is unchanged."""
        await self.land(refusal_commit(row, message, Refusal(error.code, error.message)))

    def _carry_out(self, row: RunRow, message: MessageRow) -> Commit | Refusal:
        """The commit that a request leads to, or why there is none."""
        try:
            if message.kind == "recover":
                found = self._recovery.commit(row, message)
                if isinstance(found, LowToken):  # its rows agree with its journal otherwise: its row was edited
                    raise CannotBeRepaired(
                        f"its last event has token {found.journal}, and its row has only reached {row.token}; "
                        f"{command_line('doctor', row.run_id, '--rebuild')} raises it"
                    )
                return (
                    found
                    if isinstance(found, Commit)
                    else answer_commit(row, message, {"outcome": "applied", **msgspec.to_builtins(found)})
                )
            history = History(self._runtime.store, self._runtime.versions, row)
            return self._commit(self._plan(history, message.kind, _asked(message.payload)), message)
        except Refusal as refusal:
            return refusal
        except HoldfastError as e:
            return Refusal(e.code, e.message)
        except msgspec.MsgspecError as e:
            return Refusal("bad_request", f"this request cannot be read: {e}")

    def _plan(self, history: History, kind: str, asked: Asked) -> Plan:
        plan = plan_branch(history, kind, asked)
        refuse_retired(self._runtime.store, history.row.workflow, plan.branch.version)
        return plan

    def check(self, plan: Plan, kind: str) -> None:
        """Raise Refusal if the branch of a planned request could not begin."""
        self._draft(plan, kind)

    def _draft(self, plan: Plan, kind: str) -> Draft:
        """The events that leave the current branch and begin the next one."""
        row = plan.history.row
        current = plan.history.state(row.branch)
        current.head_hash, current.seq = row.head_hash, row.last_seq
        draft, base = (
            Draft(current, self._runtime.clock.now(), self._runtime.clock.elapsed()),
            plan.base(row.run_no, row.run_id),
        )
        request = branch_opening.REQUESTS[kind]
        asked = request(plan.opening.target, plan.branch.branch, None, plan.asked.actor)
        branch_opening.leave(draft, base, asked, same_keys=plan.branch.key_epoch == current.fold.key_epoch)
        branch_opening.begin(draft, base, plan.opening, plan.branch, plan.asked.edits)
        return draft

    def _commit(self, plan: Plan, message: MessageRow) -> Commit:
        draft = self._draft(plan, message.kind)
        draft.emit(ev.MessageConsumed(message.message_id, message.kind))
        commit = opening_commit(self._runtime.store, plan.history.row, draft, plan.branch)
        commit.change = state_rows.run_change(draft.state, None)
        commit.waits = state_rows.wait_rows(draft.state, draft.entries)
        commit.timers = state_rows.timer_rows(draft.state, draft.entries)
        commit.messages = message_rows(self._runtime.store, draft, {})
        verdict = {"outcome": "applied", "branch": plan.branch.branch}
        returned = signals_to_redeliver(self._runtime.store, plan.history.row.run_no, plan.history.entries, plan.kept)
        commit.outcomes = [MessageOutcome(message.message_id, "consumed", _encode(verdict)), *returned]
        return commit

    async def land(self, commit: Commit) -> None:
        """Write a commit of a run that no engine drives."""
        _raise_unless_durable(await self._runtime.committer.commit_one(commit))
        self._runtime.values.forget(commit.run_no)
        self._runtime.hub.notify(commit.run_no)
        if commit.messages:
            self._inbox.deliver_soon()

    # --- a run of its own ----------------------------------------------------------------------------------

    async def fork_as_run(
        self, run_id: str, as_run: str, asked: Asked, edits: dict[str, Any] | None, *, drive: bool = True
    ) -> RunRow:
        """A new run that has another one's history, up to a point, as its own. The other one is not touched. Asking
        twice for the same is one fork."""
        check_run_id(as_run)
        runtime = self._runtime
        plan = await self._plan_request(run_id, "fork", asked, edits, as_run=True)
        existing = await runtime.read(runtime.store.run, as_run)
        if existing is None:
            while True:
                run_no = await self._starting.number()
                commit = await asyncio.to_thread(self._new_run, plan, run_no, as_run)
                landed = await runtime.committer.commit_one(commit)
                if landed.refusal != "number_taken":
                    break
                self._starting.forget_numbers([run_no])
            if landed.refusal not in (None, "run_exists"):
                raise StoreError(f"run {as_run} could not be forked: {landed.detail}")
            existing = await runtime.read(find_run, runtime.store, as_run)
        if existing.input_hash != _request_hash(plan):
            raise RunExists(f"run {as_run} exists, and it is not this fork of {run_id}. Choose another run id.")
        if drive:
            await self._claims.drive(existing)
        return existing

    def _new_run(self, plan: Plan, run_no: int, run_id: str) -> Commit:
        now = self._runtime.clock.now()
        blank = RunState.new(plan.head.plan, run_no, run_id, now)
        blank.seq, blank.head_hash = plan.opening.cutoff_seq, plan.history.hash_at(plan.opening.cutoff_seq)
        draft, base = Draft(blank, now, self._runtime.clock.elapsed()), plan.base(run_no, run_id)
        base.created_at = now
        base.format = max(base.format, plan.history.row.format)  # their journals share their beginning
        created = _created(plan, base)
        edits = msgspec.structs.replace(plan.asked.edits, input={})  # its own first event holds it
        branch_opening.begin(draft, base, plan.opening, plan.branch, edits, created)
        made = state_rows.run_row(base, 1, None, created.input_hash, None, run_no)
        commit = opening_commit(self._runtime.store, made, draft, plan.branch, plan.history.row.run_no)
        # what the other run waits for is the other's: nothing of it is taken over, so there is nothing to close
        opened = {e.event.wait_id for e in draft.entries if type(e.event) is ev.WaitOpened}
        commit.waits = [wait for wait in state_rows.wait_rows(base, draft.entries) if wait.wait_id in opened]
        commit.timers = [timer for timer in state_rows.timer_rows(base, draft.entries) if timer.status == "set"]
        commit.create = state_rows.run_row(base, 1, None, created.input_hash, None, run_no)
        origin = plan.history.row.run_no
        commit.messages = copies(self._runtime.store, origin, plan.history.entries, plan.kept, run_no, run_id)
        return commit


def _created(plan: Plan, base: RunState) -> ev.RunCreated:
    """The beginning of a run that was forked: the other's, with its own input, and without a parent that waits."""
    edits = plan.asked.edits
    first = next(e.event for e in reversed(plan.line) if type(e.event) is ev.RunCreated)
    held = next(e for e in plan.line if e.seq == base.fold.input_seq)
    return msgspec.structs.replace(
        first,
        input=msgspec.Raw(_encode(edits.input) if edits.input else held_value(held.event)),
        input_hash=_request_hash(plan),
        captured=edits.input_captured if edits.input else base.fold.input_captured,
        version=plan.branch.version,
        parent=None,
        depth=0,
        actor=plan.asked.actor,
    )


def _request_hash(plan: Plan) -> str:
    """What a fork was made of, however often it is asked for, and wherever its origin is by then."""
    asked = plan.asked
    facts = _encode([plan.history.row.run_id, asked.target, asked.branch, asked.edits])
    return hashlib.blake2b(facts, digest_size=16).hexdigest()


def _raise_unless_durable(landed: CommitResult) -> None:
    if landed.refusal is not None:
        raise LeaseLost(f"the branch was not opened: {landed.refusal} {landed.detail}")
