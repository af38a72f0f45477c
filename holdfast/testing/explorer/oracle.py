"""Oracle: whether the database keeps its promises, after every write and at the end.

Owns: checking every write against the invariants. The journal, its fold and the rows are the doctor's part
(inspect/doctor/audit.py); this module checks what only an observer of every write can see: which engine wrote, with
which token, and that nothing that was acknowledged is lost.
Invariants: the same database gives the same verdict. What was judged once is not judged again: schedules share long
beginnings, and most of what they write was written before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.engine.changes import CODE_CHANGED
from holdfast.engine.messages import held_signals
from holdfast.inspect.doctor.audit import Audit
from holdfast.inspect.wait_views import waits_of
from holdfast.model import definition as definitions
from holdfast.model.errors import NewerFormat
from holdfast.model.journal_format import is_newer
from holdfast.model.plans import Plan, compile_definition
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.store.contract import Store
from holdfast.store.row_types import Commit, EventRow, Evidence, MessageRow, NodeRow, RunRow
from holdfast.testing.simulation.database import Image
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.remembering import Remembering
from holdfast.testing.simulation.world import World

_TOKEN, _ENGINE = (RunRow.__struct_fields__.index(name) for name in ("token", "engine"))


class Broken(NamedTuple):
    """An invariant that does not hold."""

    code: str
    what: str


class _Judged:
    """A journal as far as it was read, and the rows that were compared with it."""

    __slots__ = ("audit", "broken", "longer", "rows")

    def __init__(self, audit: Audit, broken: tuple[Broken, ...] = ()) -> None:
        self.audit = audit
        self.broken = broken
        self.longer: dict[tuple[Any, ...], _Judged] = {}
        self.rows: dict[tuple[Any, ...], tuple[int, tuple[Broken, ...]]] = {}
        """Rows that were seen beside it: their number, and what is wrong with them."""


class _Seen(NamedTuple):
    """The verdict on a run after certain writes, independent of the engine that made them."""

    judged: _Judged | None
    """None: there is no such run."""
    broken: tuple[Broken, ...]
    rows: int = 0
    token: int = 0
    engine: str | None = None


class Oracle:
    """Checks the database of a world after every write. `begin` starts another schedule; what was learnt stays."""

    def __init__(self, store: Remembering) -> None:
        self._store = store
        self._beginnings: dict[tuple[Any, ...], _Judged] = {}
        self._plans: dict[str, Plan] = {}
        self.begin()

    def begin(self) -> None:
        self.broken: list[Broken] = []
        self._runs: dict[int, _Judged] = {}
        self._rows: dict[int, int] = {}
        """The rows of each run as they were last seen, by their number."""
        self._owners: dict[tuple[int, int], str] = {}
        self._held: dict[int, str] = {}
        """The owner of each run after the last write."""
        self._tokens: dict[int, int] = {}
        self._expires_at: dict[str, int] = {}
        self._late_at: dict[str, int] = {}
        """When an engine renewed a lease that had expired."""

    # --- after every write ---------------------------------------------------------------------------------------

    def wrote(self, process: Process, verb: str, about: Any, result: Any) -> None:
        match verb:
            case "commit":
                for commit, landed in zip(about, result, strict=True):
                    if landed.refusal is None:
                        self._landed(process, commit)
            case "claim":
                self._claimed(result)
            case "remove_engine" if result is not None:
                self._removed(process, about)
            case "release":
                for run_no, _ in about:
                    self._run(run_no)
            case "set_hold" | "raise_token":
                self._run(about[0])
            case "send":
                for message in about:
                    self._sent(message)
            case "register_engine":
                self._expires_at[about.engine] = about.expires_at
            case "renew_engine":
                self._renewed(process, *about)

    @property
    def position(self) -> tuple[Any, ...]:
        """The position of every run: the same journal and the same rows give the same."""
        return tuple((run_no, id(judged), self._rows[run_no]) for run_no, judged in self._runs.items())

    def has_started(self, run_no: int, node: str, path: str, attempt: int) -> bool:
        """Whether the start of an attempt is in the journal."""
        judged = self._runs.get(run_no)
        ns = None if judged is None else judged.audit.state.nodes.get((node, path))
        if ns is None:  # its scope has ended, and with it this attempt
            return judged is not None and any(key[:2] == (node, path) for key in judged.audit.instances)
        unborn = (NodeStatus.PENDING, NodeStatus.SCHEDULED)
        return ns.attempt > attempt or (ns.attempt == attempt and ns.status not in unborn)

    def has_ended(self, run_no: int, token: int, instance: tuple[str, str, int], attempt: int) -> bool:
        """Whether the end of an attempt is in the journal, and the run has had no other owner since."""
        judged = self._runs.get(run_no)
        if judged is None or self._tokens.get(run_no) != token:
            return False
        node, path, visit = instance
        ns = judged.audit.state.nodes.get((node, path))
        if ns is None or ns.visit != visit:
            return ns is None or ns.visit > visit
        return ns.attempt > attempt or ns.settled

    def _landed(self, process: Process, commit: Commit) -> None:
        holder = self._held.get(commit.run_no)
        token = self._run(commit.run_no)
        if token != commit.token:
            what = f"a commit with token {commit.token} was taken although the run's token was {token}"
            self.broken.append(Broken("I18", what))
        elif commit.create is None and holder != process.engine.lease.engine:
            what = f"{process.engine.lease.engine} wrote to a run that {holder or 'no engine'} owned"
            self.broken.append(Broken("I18", what))
        for child in commit.children:
            self._landed(process, child)
        for message in commit.messages:
            self._sent(message)

    def _claimed(self, rows: list[RunRow]) -> None:
        for row in rows:
            holder = self._held.get(row.run_no)
            if holder is not None:
                self.broken.append(Broken("I17", f"{row.engine} claimed a run that {holder} held"))
            self._run(row.run_no)

    def _renewed(self, process: Process, engine: str, expires_at: int) -> None:
        now = process.world.clock.now()
        if self._expires_at.get(engine, 0) < now:
            self._late_at[engine] = now
        self._expires_at[engine] = expires_at

    def _removed(self, process: Process, engine: str) -> None:
        """An engine may only be declared dead by another one if its process has ended or its lease has expired. (One
        that came back at this very moment may be: nothing is lost by it.)"""
        own, now = process.engine.lease, process.world.clock.now()
        late = self._expires_at.get(engine, 0) < now or self._late_at.get(engine) == now
        if not late and engine != own.engine and engine not in own.past and not process.world.is_gone(engine):
            self.broken.append(Broken("I17", f"{process.name} declared {engine} dead, which is alive and not late"))
        for run_no in [run_no for run_no, holder in self._held.items() if holder == engine]:
            self._run(run_no)

    def _sent(self, message: MessageRow) -> None:
        self._run(message.run_no)
        if message.kind == "child_ended":
            child = self._store.run(msgspec.json.decode(message.payload)["child"])
            if child is None or child.status not in RUN_TERMINAL:
                self.broken.append(Broken("I38", "a parent was told of the end of a child that has not ended"))

    def _note_owner(self, run_no: int, token: int, engine: str | None) -> None:
        if engine is None:
            self._held.pop(run_no, None)
            return
        self._held[run_no] = engine
        known = self._owners.setdefault((run_no, token), engine)
        if known != engine:
            self.broken.append(Broken("I17", f"{known} and {engine} both held token {token} of one run"))

    def _run(self, run_no: int) -> int | None:
        """Judge a run as it is now; return its token."""
        notes = self._store.notes
        seen: _Seen | None = notes.get(run_no)
        if seen is None:
            seen = notes[run_no] = self._look(run_no)
        self.broken += seen.broken
        if seen.judged is None:
            return None
        self._runs[run_no], self._rows[run_no], self._tokens[run_no] = seen.judged, seen.rows, seen.token
        self._note_owner(run_no, seen.token, seen.engine)
        return seen.token

    def _look(self, run_no: int) -> _Seen:
        known = self._runs.get(run_no)
        image = self._store.image(run_no, 0 if known is None else known.audit.seq)
        if not image[0]:
            orphans = image[1] and known is None
            return _Seen(None, (Broken("I44", "events were written for a run that has no row"),) if orphans else ())
        if known is None:
            known = self._beginning(image)
        if image[1]:
            known = self._fed(known, image[1])
        rows = (image[0], image[2])
        verdict = known.rows.get(rows)
        if verdict is None:
            verdict = known.rows[rows] = (len(known.rows), self._compared(known.audit, image))
        number, broken = verdict
        row = image[0][0]
        return _Seen(known, (*known.broken, *broken), number, row[_TOKEN], row[_ENGINE])

    def _beginning(self, image: Image) -> _Judged:
        row = RunRow(*image[0][0][:-1])
        version = self._store.version(row.workflow, row.version)
        assert version is not None
        key = (row.run_no, row.run_id, version.hash, row.version)
        known = self._beginnings.get(key)
        if known is None:
            plan = self._plans.get(version.hash)
            if plan is None:
                plan = self._plans[version.hash] = compile_definition(
                    definitions.decode(version.definition), row.version
                )
            known = self._beginnings[key] = _Judged(Audit(plan, row.run_no, row.run_id))
        return known

    @staticmethod
    def _fed(known: _Judged, events: tuple[Any, ...]) -> _Judged:
        longer = known.longer.get(events)
        if longer is None:
            audit = known.audit.copy()
            found = audit.feed(EventRow._make(event) for event in events)
            longer = known.longer[events] = _Judged(audit, tuple(Broken(v.code, v.what) for v in found))
        return longer

    def _compared(self, audit: Audit, image: Image) -> tuple[Broken, ...]:
        (row,), _, others = image
        if row[-1]:  # there are rows of other kinds
            evidence = self._store.evidence(audit.run_no, audit.seq)
        else:
            evidence = Evidence(RunRow(*row[:-1]), [], [], True, [NodeRow._make(node) for node in others])
        return tuple(Broken(v.code, v.what) for v in audit.compare(evidence))

    # --- at the end ----------------------------------------------------------------------------------------------

    def at_the_end(self, world: World, acknowledged: str | None) -> None:
        """Check, when nothing happens any more, that no work is left."""
        if world.livelock:
            self.broken.append(Broken("I51", "the engines went round in circles and never came to rest"))
        for process in world.processes:
            if process.alive and process.store.is_closed and process.engine.fatal is None:
                what = f"the engine of {process.name} continues although its store is closed for good"
                self.broken.append(Broken("I51", what))
        store, now = self._store, world.clock.now()
        rows = store.runs(limit=1_000_000)
        if acknowledged is not None and all(row.run_id != acknowledged for row in rows):
            self.broken.append(Broken("I26", "the run was acknowledged to its client and is not there any more"))
        engines = {row.engine for row in store.engines()}
        for row in rows:
            self.broken += self._left_over(row, engines, now)

    def _left_over(self, row: Any, engines: set[str], now: int) -> Iterator[Broken]:
        store, run = self._store, f"run {row.run_id}"
        if row.engine is not None and row.engine not in engines:
            yield Broken("I19", f"{run} belongs to {row.engine}, an engine that is not registered")
        if row.status in RUN_TERMINAL:
            return
        if row.hold is not None:
            if not row.hold.startswith(CODE_CHANGED):  # the body makes other calls each time: its outcome says so
                yield Broken("I51", f"{run} was put on hold: {row.hold}")
            return
        if store.new_messages([row.run_no]):
            yield Broken("I24", f"{run} has a message that was not delivered")
        if row.status != RunStatus.SUSPENDED:
            yield Broken("I51", f"{run} is {row.status}, and no engine drives it")
            return
        if row.engine is not None:
            yield Broken("I20", f"{run} rests, and {row.engine} still holds its lease")
        for timer in store.set_timers([row.run_no]):
            if timer.due_at <= now:
                yield Broken("I23", f"{run} waits for timer {timer.timer}, which has long been due")
        if any(run_no == row.run_no for run_no, _ in store.waits_for_ended()[0]):
            yield Broken("I23", f"{run} waits for a child that has ended")
        kept = {
            signal.name for signals in held_signals(store.held_messages([row.run_no])).values() for signal in signals
        }
        for wait in waits_of(cast(Store, store), row):
            if wait.kind == "signal" and wait.name in kept:
                yield Broken("I23", f"{run} waits for the signal {wait.name!r}, which is kept for it")


def left_alone(world: World) -> Iterator[Broken]:
    """What was done to runs that a newer Holdfast had written to: none of their bodies may act, and nothing may be
    appended. One whose format says so is not even claimed; another one may be put on hold by the engine that finds the
    event."""
    for run_no, was in world.rewritten.items():
        row, run = world.shared.run_by_no(run_no), f"run {was.run_id}, to which a newer Holdfast had written,"
        assert row is not None
        acted = [boundary for boundary in world.boundaries[world.rewritten_at :] if not boundary.is_write]
        if acted:
            yield Broken("I46", f"{run} was gone on with: {acted[0].label}")
        if (row.last_seq, row.status) != (was.last_seq, was.status):
            yield Broken("I46", f"{run} was written to again")
        elif is_newer(row.format) and row.token != was.token:
            yield Broken("I46", f"{run} was claimed")
        elif row.token != was.token and not (row.hold or "").startswith(NewerFormat.code):
            yield Broken("I46", f"{run} was claimed and not put on hold")
