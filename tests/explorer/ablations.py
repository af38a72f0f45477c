"""Ablations: engines that were broken on purpose, one safeguard at a time.

Each takes away one thing that the real engine does, with a patch, and names a scenario in which its absence must be
noticed. They prove that each safeguard carries weight, and that the explorer would see it missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from holdfast.engine.alarms import Alarms
from holdfast.engine.committer import Committer
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership import lease
from holdfast.engine.ownership import load as ownership_load
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.persistence import Persistence
from holdfast.engine.run.actor import RunActor
from holdfast.engine.run.bodies import BodyPort
from holdfast.engine.run.turn import Turn
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError, StoreError, StoreFull
from holdfast.model.statuses import NodeStatus
from holdfast.rules import decide, nodes, resuming, waits
from holdfast.store.records import state_rows
from holdfast.store.row_types import Commit, CommitResult, RunStep
from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.testing import Report, explore
from holdfast.testing.explorer.report import Kind
from holdfast.testing.simulation.process import SimulatedLease
from holdfast.testing.simulation.store import ProcessStore
from holdfast.worker import steps
from holdfast.worker.activation import Activation
from holdfast.worker.plain_context import PlainContext
from holdfast.worker.replay import Replay
from tests.explorer import scenarios

SQL = load("sqlite")
Patch = Callable[[], Any]


class Ablation(NamedTuple):
    """A broken engine, and where its fault must show."""

    name: str
    what: str
    workflow: Any
    patch: Patch
    options: Mapping[str, Any] = MappingProxyType({})


def _sql(name: str, old: str, new: str) -> Patch:
    def patch() -> Any:
        assert old in SQL[name], f"{name} does not contain {old!r} any more"
        return mock.patch.dict(SQL, {name: SQL[name].replace(old, new)})

    return patch


def _all(*patches: Patch) -> Patch:
    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch())
            yield

    return patched


def _method(owner: Any, name: str, replacement: Any) -> Patch:
    return lambda: mock.patch.object(owner, name, replacement)


# --- the fence ---------------------------------------------------------------------------------------------------

_no_token = _all(_sql("move_run", "AND token = ?2", "AND ?2 = ?2"), _sql("step_run", "AND token = ?2", "AND ?2 = ?2"))
_no_seq = _all(
    _sql("move_run", "AND last_seq = ?3 AND head_hash = coalesce(?4, head_hash)", "AND ?3 = ?3 AND ?4 IS ?4"),
    _sql("step_run", "AND last_seq = ?3 AND head_hash = coalesce(?4, head_hash)", "AND ?3 = ?3 AND ?4 IS ?4"),
)


def _checked_before(self: Committer, commit: Commit, lander: Any) -> None:
    """The token is compared when the commit is handed over, not when it is written."""
    row = self._store.run_by_no(commit.run_no)
    if row is not None and row.token != commit.token:
        self._loop.call_soon(lander.landed, CommitResult("fenced", "asked before"))
        return
    self._pending.append((commit, lander))


def _refusal_swallowed(original: Any) -> Any:
    return lambda self, outcome: original(self, CommitResult(None))


# --- one commit ----------------------------------------------------------------------------------------------------


def _two_transactions(self: Committer, group: Any) -> Any:
    """Rows first, then the events they come from."""
    commits = [commit for commit, _ in group]
    try:
        landed = self._store.commit([msgspec.structs.replace(c, events=()) for c in commits])
        events = [
            Commit(
                c.run_no,
                c.token,
                row.last_seq,
                change=RunStep(row.last_seq, row.head_hash, row.recoveries),
                events=c.events,
            )
            for c, outcome in zip(commits, landed, strict=True)
            if outcome.refusal is None and (row := self._store.run_by_no(c.run_no)) is not None
        ]
        self._store.commit(events)
    except HoldfastError as e:
        return [], e
    return landed, None


def _children_later(self: Committer, group: Any) -> Any:
    commits = [commit for commit, _ in group]
    try:
        landed = self._store.commit([msgspec.structs.replace(c, children=()) for c in commits])
        for c in commits:
            if c.children:
                self._store.commit(list(c.children))
    except HoldfastError as e:
        return [], e
    return landed, None


def _messages_first(self: Committer, group: Any) -> Any:
    commits = [commit for commit, _ in group]
    try:
        for c in commits:
            if c.messages:
                self._store.send(c.messages)
        return self._store.commit([msgspec.structs.replace(c, messages=()) for c in commits]), None
    except HoldfastError as e:
        return [], e


def _messages_later(self: Committer, group: Any) -> Any:
    commits = [commit for commit, _ in group]
    try:
        landed = self._store.commit([msgspec.structs.replace(c, messages=()) for c in commits])
        for c in commits:
            if c.messages:
                self._store.send(c.messages)
        return landed, None
    except HoldfastError as e:
        return [], e


def _told_as_failed(self: Committer, group: Any, error: BaseException) -> None:
    for _, lander in group:
        lander.landed(CommitResult("failed", str(error)))


def _act_before_commit(self: Turn) -> None:
    if self.draft.entries and self.actor.creating is None:
        replies, self.replies = self.replies, []
        self.apply()
        self.draft.started, self.replies = [], replies
    _hand_over(self)


_hand_over = Turn.hand_over


def _answer_before_commit(self: Turn) -> None:
    if self.draft.entries:
        for done, answer, refusal in self.replies:
            done(answer, refusal)
        self.replies = []
    _hand_over(self)


# --- messages, waits, timers ---------------------------------------------------------------------------------------


def _consumed_on_delivery(self: Inbox, actor: RunActor, message: Any) -> None:
    """A message counts as consumed when its owner has seen it, not with what it led to."""
    if message.message_id not in actor.delivered:
        actor.runtime.store._shared.write(  # type: ignore[attr-defined]
            "alter", "UPDATE run_inbox_messages SET status = 'consumed' WHERE message_id = ?", (message.message_id,)
        )
        actor.delivered.add(message.message_id)
        actor.submit(cmd.Message(message.message_id, message.kind, message.payload))


def _no_scan(original: Any) -> Any:
    return lambda self, run_nos=None: [] if run_nos is None else original(self, run_nos)


def _fire_early(self: Alarms, due_at: int, lasting: Any, function: Any, *args: Any) -> Any:
    return self._loop.call_later(0, function, *args)


def _fire_unchecked(d: Any, c: cmd.FireTimer) -> None:
    """The timer is taken at its word."""
    d.emit(ev.TimerFired(c.timer))
    wait = d.state.waits.get(c.timer)
    if wait is not None:
        waits.close_wait(d, wait, "fired", b"null")


def _ring_twice(original: Any) -> Any:
    def submit(self: RunActor, command: Any, done: Any = None) -> None:
        original(self, command, done)
        if isinstance(command, cmd.FireTimer):
            original(self, command)

    return submit


# --- recovery ------------------------------------------------------------------------------------------------------


def _completed_when_started(d: Any, ns: Any) -> None:
    """Whatever had been started counts as done."""
    d.emit(ev.NodeCompleted(ns.attempt, msgspec.Raw(b"null")), ns)
    d.todo.append(ns)


def _same_attempt(d: Any, ns: Any) -> None:
    d.emit(ev.NodeScheduled(ns.attempt), ns)
    if waits.may_start(d, ns):
        d.scheduled.append(ns)


def _interrupted_forgotten(d: Any, ns: Any) -> None:
    """A body that was cut off is not looked at."""


def _run_completed_again(d: Any, ns: Any) -> None:
    if ns.status is NodeStatus.COMPLETED and ns.plan.body is None:
        ns.status = NodeStatus.RUNNING
        resuming._cut_off(d, ns)
        return
    _go_on(d, ns)


_go_on = resuming.resume_instance


async def _load_without_claim(self: Claims, run_nos: Any, **options: Any) -> int:
    """The run is read and driven, and nobody asks who holds it."""
    runtime = self._runtime
    rows = [row for n in run_nos if n not in self._custody.actors and (row := runtime.store.run_by_no(n))]
    if rows:
        await self._loader.load([row._replace(engine=runtime.lease.engine) for row in rows])
    return len(rows)


async def _nobody(self: Any, *args: Any, **kwargs: Any) -> None:
    """It is not done at all."""


def _undo_nothing(*given: Any, **options: Any) -> cmd.ProvideUndo:
    return cmd.ProvideUndo(())


def _everybody_is_dead(original: Any) -> Any:
    """A clock that is an hour ahead judges the leases of the others."""
    return lambda self, now: original(self, now + 3_600_000_000)


def _renew_in_silence(self: lease.Lease) -> None:
    try:
        if not self._store.renew_engine(self.engine, self._clock.now() + self._micros):
            self._declared_dead = self.engine
    except Exception:  # noqa: BLE001, S110 - this is the fault
        pass


# --- bodies in processes of their own --------------------------------------------------------------------------------

all_isolated = _method(RunActor, "is_suspect", property(lambda self: True))
"""Every body executes in a process of its own from the start, and dies in it alone."""


def _death_fails_the_node(self: BodyPort, c: cmd.BodyDied) -> None:
    self.submit(cmd.FailNode(c.node, c.path, c.attempt, ev.ErrorInfo("error", c.how), visit=c.visit))


# --- bodies and their memory -------------------------------------------------------------------------------------


def _key_with_attempt(original: Any) -> Any:
    return property(lambda self: f"{original.fget(self)}:{self._activation.attempt.attempt}")


def _keyed_by_scope(original: Any) -> Any:
    def call(self: Replay, scope_name: str, kind: str, name: str, args: Any, key: str | None) -> Any:
        made = original(self, scope_name, kind, name, args, key)
        if key is not None:
            made.step_key = f"{made.scope}key {key}"
        return made

    return call


def _find_key_in_own_scope(self: Replay, call: Any, key: str) -> Any:
    return call.scope, next(
        (recorded for recorded in self._scope(call.scope).by_key.get(key, ()) if not recorded.used), None
    )


async def _memo_first(self: Any, ctx: Any, call: Any, args: Any, kwargs: Any) -> Any:
    recorded = ctx._activation.replay.recall(call)
    if recorded is not None and recorded.output is not None:
        return msgspec.json.decode(recorded.output)
    await ctx._record(call, b"0")
    return await self._call(ctx, self.attempt(call, 1), args, kwargs)


def _any_input_will_do(d: Any, scope: Any, plan: Any, path: str) -> bool:
    """A join counts arrivals, and takes the first for all."""
    missing = [n for n in plan.waits_for if not nodes._is_settled(d, scope, n)]
    return len(missing) < len(plan.waits_for)


def _hold_everything(self: Persistence, draft: Any, state: Any) -> bool:
    """A lazy run that lets things leave before they are committed."""
    return self.lazy and state.status not in ("completed", "failed", "cancelled") and not draft.finish


TWO_STEPS = {"idempotent": ["xp_step", "xp_sync_step"]}
FETCHES = {"idempotent": ["xp_fetch"]}

ALL = [
    Ablation(
        "claim without asking for the format",
        "an old engine takes the runs of a newer one",
        scenarios.chain,
        _all(
            _sql("unowned_versions", "AND format <= ?1", "AND ?1 = ?1"),
            _sql("claimable", "AND format <= ?4", "AND ?4 = ?4"),
            _sql("winnable", "AND format <= ?3", "AND ?3 = ?3"),
        ),
        {"newer": "marked"},
    ),
    Ablation(
        "unknown events are passed over",
        "a takeover does not ask whether it knows the last event",
        scenarios.chain,
        _sql("differing_heads", "AND e.type IN (SELECT value FROM json_each(?2))", "AND ?2 = ?2"),
        {"newer": "unmarked"},
    ),
    Ablation("no token in the fence", "WHERE names run and seq, and not the token", scenarios.chain, _no_token),
    Ablation(
        "token compared before the transaction",
        "the token is asked when the commit is handed over",
        scenarios.chain,
        _all(_no_token, _method(Committer, "submit", _checked_before)),
    ),
    Ablation(
        "refusal swallowed",
        "a refused commit counts as landed",
        scenarios.chain,
        _method(Turn, "landed", _refusal_swallowed(Turn.landed)),
    ),
    Ablation("no new token when freed", "freeing runs leaves their token", scenarios.chain,
             _sql("free_runs", "token = token + 1", "token = token")),
    Ablation("no new token when claimed", "claiming leaves the token", scenarios.code,
             _all(_sql("winnable", "token + 1", "token"), _sql("claim", "token = token + 1", "token = token")),
             TWO_STEPS),
    Ablation("claim without asking who holds it", "a live owner is robbed", scenarios.code,
             _all(*(_sql(name, "AND engine IS NULL", "")
                    for name in ("winnable", "claim", "unowned_versions", "claimable"))), TWO_STEPS),
    Ablation("recovery without a lease", "runs are driven that were not claimed", scenarios.chain,
             _method(Claims, "claim", _load_without_claim)),
    Ablation("lease judged by a wrong clock", "an engine whose clock is ahead buries the living", scenarios.code,
             _method(SimulatedLease, "dead_engines", _everybody_is_dead(SimulatedLease.dead_engines)), TWO_STEPS),
    Ablation("heartbeat swallows everything", "`except Exception: pass` around the renewal", scenarios.code,
             _method(lease.Lease, "renew_once", _renew_in_silence), TWO_STEPS),
    Ablation("bodies begin after the lease", "an engine that comes back begins what its commit orders, at once",
             scenarios.chain, _method(lease.Lease, "may_begin", property(lambda self: True))),
    Ablation("steps begin after the lease", "the same for the steps of a body that goes on", scenarios.code,
             _method(BodyPort, "may_begin", property(lambda self: True)), TWO_STEPS),
    Ablation("COMMIT error taken for a rollback", "an unknown outcome is tried again, no seq and hash in the fence",
             scenarios.chain, _all(_no_seq, _method(ProcessStore, "unknown", lambda self, verb: StoreFull(verb)))),
    Ablation("COMMIT error taken for a failure", "an unknown outcome is told as failed", scenarios.chain,
             _all(_method(ProcessStore, "unknown", lambda self, verb: StoreError(verb)),
                  _method(Committer, "_fail", _told_as_failed))),
    Ablation("events and rows in two transactions", "rows first, their events later", scenarios.chain,
             _method(Committer, "_try", _two_transactions)),
    Ablation("children in a second transaction", "the parent's commit first, then its child", scenarios.graph_parent,
             _method(Committer, "_try", _children_later)),
    Ablation("parent told before the child's end", "the message goes first", scenarios.graph_parent,
             _method(Committer, "_try", _messages_first)),
    Ablation("parent told after the child's end", "the message goes in a transaction of its own",
             scenarios.graph_parent, _all(_method(Committer, "_try", _messages_later),
                  _method(SqliteStore, "waits_for_ended", lambda self, *page: ([], 0)))),
    Ablation("effects before the commit", "bodies start when decided, not when committed", scenarios.chain,
             _method(Turn, "hand_over", _act_before_commit)),
    Ablation("answer before the commit", "the client hears of a run that is not there yet", scenarios.chain,
             _method(Turn, "hand_over", _answer_before_commit)),
    Ablation("message consumed on delivery", "outside the commit of what it leads to", scenarios.graph_parent,
             _method(Inbox, "deliver", _consumed_on_delivery)),
    Ablation("message consumed on delivery after a takeover", "the same where a run is taken over",
             scenarios.slow_parent, _method(Inbox, "deliver", _consumed_on_delivery),
             TWO_STEPS),
    Ablation("no scan for messages", "only a wake-up brings messages to runs that nobody holds", scenarios.graph_parent,
             _all(_method(SqliteStore, "new_messages", _no_scan(SqliteStore.new_messages)),
                  *(_sql(name, "m.status = 'new'", "m.status = 'never'")
                    for name in ("unowned_versions", "claimable")))),
    Ablation("timer fires early", "nobody looks at the clock", scenarios.code, _method(Alarms, "call_at", _fire_early),
             TWO_STEPS),
    Ablation("timer fires unchecked", "a timer that rings twice fires twice", scenarios.code,
             _all(lambda: mock.patch.object(decide, "_fire", _fire_unchecked),
                  _method(RunActor, "submit", _ring_twice(RunActor.submit))),
             TWO_STEPS),
    Ablation("timers only in memory", "no row is written for them", scenarios.code,
             _method(state_rows, "timer_rows", lambda state, entries: []), TWO_STEPS),
    Ablation("nobody looks for due timers", "an evicted run is not woken", scenarios.code,
             _method(Claims, "fire_due_timers", _nobody), TWO_STEPS),
    Ablation("nobody buries the dead", "a dead engine keeps its runs", scenarios.chain,
             _method(Claims, "_release_dead", _nobody)),
    Ablation("started counts as completed", "what was cut off is taken for done", scenarios.chain,
             _method(resuming, "_cut_off", _completed_when_started)),
    Ablation("cut-off bodies are forgotten", "a takeover leaves running nodes alone", scenarios.chain,
             _method(resuming, "_cut_off", _interrupted_forgotten)),
    Ablation("attempt not raised after a crash", "the second start is attempt 1 again", scenarios.chain,
             _method(resuming, "_cut_off", _same_attempt)),
    Ablation("completed nodes run again", "a takeover begins anew", scenarios.chain,
             _method(resuming, "resume_instance", _run_completed_again)),
    Ablation("compensations lost", "what there is to undo is not read after a takeover", scenarios.compensated,
             lambda: mock.patch.object(ownership_load, "rule_inputs", SimpleNamespace(what_to_undo=_undo_nothing))),
    Ablation("compensations of steps lost", "the same for the steps of durable code", scenarios.compensated_code,
             lambda: mock.patch.object(ownership_load, "rule_inputs", SimpleNamespace(what_to_undo=_undo_nothing))),
    Ablation("join by count", "the first of several inputs lets a node run", scenarios.ordered,
             _method(nodes, "_decidable", _any_input_will_do)),
    Ablation("death of a body's process unheard", "its attempt stays, and nothing runs it again", scenarios.chain,
             _all(all_isolated, lambda: mock.patch.object(resuming, "body_died", return_value=None))),
    Ablation("death of a body's process taken for a failure", "its node fails instead of being cut off",
             scenarios.chain, _all(all_isolated, _method(BodyPort, "body_died", _death_fails_the_node))),
    Ablation("key with the attempt in it", "a repeated body has another key", scenarios.places,
             _method(PlainContext, "idempotency_key", _key_with_attempt(PlainContext.idempotency_key))),
    Ablation("keys known to one task only", "a keyed step is looked for, and its key made, by the scope of its task",
             scenarios.overtaking, _all(_method(Replay, "call", _keyed_by_scope(Replay.call)),
                                        _method(Replay, "_find_keyed", _find_key_in_own_scope)), FETCHES),
    Ablation("memo before the step", "a step is recorded, then run", scenarios.checkpointed,
             _method(steps.StepRunner, "run", _memo_first), TWO_STEPS),
    Ablation("memory not read", "remembered calls are made again", scenarios.checkpointed,
             _method(Replay, "recall", lambda self, call: None), TWO_STEPS),
    Ablation("steps outlive their body", "a body's end does not wait for the steps that it left behind",
             scenarios.leaves_a_step, _all(_method(Activation, "conclude", lambda self, report: report()),
                  _method(Activation, "abandon", lambda self: None)), {"idempotent": ["xp_slow_step"]}),
    Ablation("steps run beside themselves", "the same where the body is tried again", scenarios.tries_beside_a_step,
             _all(_method(Activation, "conclude", lambda self, report: report()),
                  _method(Activation, "abandon", lambda self: None)), {"idempotent": ["xp_slow_step"]}),
    Ablation("lazy runs let everything out", "a child is started before it is committed", scenarios.lazy_parent,
             _method(Persistence, "may_hold", _hold_everything)),
]  # fmt: skip

SCHEDULES_MAX = 1_000


def caught(ablation: Ablation) -> Report:
    """What the explorer says of a broken engine."""
    with ablation.patch():
        return explore(ablation.workflow, stop_at_first=True, schedules_max=SCHEDULES_MAX, **ablation.options)


def table(ablations: Sequence[Ablation]) -> list[str]:
    """The rows for docs/reliability.md."""
    lines = ["| ablation | what is missing | caught by | schedules |", "|---|---|---|---|"]
    for ablation in ablations:
        report = caught(ablation)
        finding = report.findings[0]
        by = {Kind.INVARIANT: finding.subject, Kind.OUTLIVES: "outlived"}.get(finding.kind, "other outcome")
        lines.append(f"| {ablation.name} | {ablation.what} | {by} | {report.schedules} |")
    return lines


if __name__ == "__main__":
    from tests.explorer.wait_ablations import OF_WAITS

    print("\n".join(table([*ALL, *OF_WAITS])))
