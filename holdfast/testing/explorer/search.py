"""Search: which schedules are run, and what they have in common.

Owns: `explore`. First the workflow runs without a fault (twice, with other randomness and another time, to learn which
values depend on those). Then every boundary of that run gets every outcome: depth 1, exhaustive. Depth n does the same
again with every boundary that follows the last fault of a schedule of depth n - 1.
Invariants: where the future depends on nothing but the database, the outside world and the time, a schedule that
reaches a state which another one reached is not run to its end ("alike").
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.node_decorator import Node
from holdfast.engine.run_inputs import Inputs
from holdfast.model.errors import UsageError
from holdfast.model.limits import SECOND
from holdfast.model.policies import seconds
from holdfast.model.views import Wait
from holdfast.store.urls import is_postgres
from holdfast.testing.explorer import outcome, substitutes
from holdfast.testing.explorer.client import PEOPLE_TAKE, RUN_ID, Client, Outside
from holdfast.testing.explorer.effects import Effects
from holdfast.testing.explorer.oracle import Broken, Oracle, left_alone
from holdfast.testing.explorer.report import Finding, Kind, Report, describe_boundary, timeline_of
from holdfast.testing.explorer.tape import Tape, parse, shorten
from holdfast.testing.simulation import sandbox
from holdfast.testing.simulation.boundaries import Boundary, Ended, next_to_next
from holdfast.testing.simulation.faults import Outcome
from holdfast.testing.simulation.remembering import Remembering, RememberingStore
from holdfast.testing.simulation.virtual_loop import START, VirtualClock
from holdfast.testing.simulation.world import Newer, World

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

OTHER_TIME = START + 86_413 * SECOND
"""When the second run without a fault begins, to find values that depend on the time."""
Progress = Callable[[int, int, int], None]
"""Called with (schedules so far, schedules known to be ahead, findings)."""


def explore(
    workflow: Workflow[..., Any],
    /,
    *,
    effects: Sequence[Any] | None = None,
    idempotent: Iterable[str] = (),
    fakes: Mapping[Any, Any] | None = None,
    depth: int = 1,
    seed: int = 0,
    tape: str | None = None,
    answers: Mapping[str, Any] | Callable[[Wait], Any] | None = None,
    signals: Sequence[tuple[str, Any]] = (),
    resumes: bool | Mapping[str, Mapping[str, Any]] = True,
    people_take: float | str | timedelta = PEOPLE_TAKE,
    cancel_after: str | None = None,
    pause_after: str | None = None,
    schedules_max: int | None = None,
    stop_at_first: bool = False,
    inputs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    database: str | None = None,
    newer: Newer | None = None,
    **named_inputs: Any,
) -> Report:
    """Run a workflow under every crash and report what does not survive.

        def test_fulfil_survives_every_crash():
            report = explore(fulfil, order=order)
            assert report.safe, report.explain()

    The real engine, executor and store (SQLite, in memory) run under a virtual clock; at every boundary (a write to the
    store, an effect) the process dies before or after it, or gets an error, or hangs past its lease and comes back.
    Each
    time another engine takes over, the invariants of the database are checked after every write, and the outcome is
    compared with that of the run without a fault.

    `effects` names the callables whose calls count, as objects or as "module.name"; None: each body and each step
    counts; an empty list: none. `idempotent` names nodes, steps or callables whose repetition is harmless, beside those
    declared `@hf.node(idempotent=True)`. `fakes` replaces callables, {"module:name": fake}: bodies run on the event
    loop here and must not really wait. `depth` is how many faults a schedule may have, `seed` which of two engines goes
    first, `tape` runs one schedule again.

    From outside come `answers` to questions, by their text, or by a function of the wait (a LookupError means that
    there
    is no answer); `signals` as (name, payload), in this order; baskets are emptied unless `resumes=False`
    (`{"second_look": {"checked": True}}` sets variables then). All of it comes when `people_take` has passed since the
    question, or the start; 0 means before the run is evicted. `pause_after` pauses the run, and `cancel_after` cancels
    it,
    once that node has completed. What was acknowledged to a caller must have happened, once.

    `newer` lets a newer Holdfast write an event that this one does not know into the runs of every process that dies,
    and raise their format ("marked") or not ("unmarked"): no body of these runs may act, and nothing may be written.

    `database` is the address of a PostgreSQL server (postgresql://...): all of it happens there, in a schema that is
    created for it and dropped at its end. There only the lease shows that an engine is dead.

    Inputs are given by name. A workflow with an input that has the name of an option takes them as `inputs={...}`.
    """
    given = _inputs(workflow, inputs, named_inputs)
    take = seconds(people_take)
    if not 0 <= take < float("inf"):
        raise UsageError(f"people_take={people_take!r} is not a time that people take")
    outside = Outside(answers or {}, signals, resumes, take, cancel_after, pause_after)
    with contextlib.closing(_store(database)) as store:
        explorer = Explorer(workflow, given, effects, set(idempotent), dict(fakes or {}), outside, store, newer)
        return explorer.explore(depth, seed, tape, schedules_max, stop_at_first, progress)


def _store(database: str | None) -> Remembering:
    if database is None:
        return RememberingStore()
    if not is_postgres(database):
        raise UsageError(
            f"{database!r} is no PostgreSQL server: on SQLite everything is explored in memory, without an address"
        )
    # loaded only for a caller that asks for it
    from holdfast.testing.simulation.server import RememberingServer

    return RememberingServer(database)


def _inputs(workflow: Workflow[..., Any], inputs: Mapping[str, Any] | None, named: dict[str, Any]) -> dict[str, Any]:
    options = set(explore.__kwdefaults__ or ())
    if inputs is not None:
        if named:
            raise UsageError(f"inputs were given twice: as inputs={{...}} and as {', '.join(named)}")
        return dict(inputs)
    hidden = sorted(options & {p.name for p in workflow.registered.params})
    if hidden:
        raise UsageError(
            f"{workflow.name} has an input {hidden[0]!r}, which is also an option of explore: pass inputs={{...}}"
        )
    return named


class Schedule(msgspec.Struct):
    """One schedule that was run."""

    tape: Tape
    boundaries: list[Boundary]
    findings: list[Finding]
    alike: bool
    outcome: outcome.Outcome
    ended: Ended = {}


class Explorer:
    """Everything that the schedules of one exploration share."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        inputs: dict[str, Any],
        effects: Sequence[Any] | None,
        idempotent: set[str],
        fakes: dict[Any, Any],
        outside: Outside | None = None,
        store: Remembering | None = None,
        newer: Newer | None = None,
    ) -> None:
        Inputs(workflow.registered).encode(inputs)  # what does not fit is the caller's mistake, and told at once
        self._workflow = workflow
        self._newer = newer
        self._outside = outside or Outside()
        self._fakes = [(substitutes.find(what)[1], fake) for what, fake in fakes.items()]
        named = None if effects is None else dict(substitutes.find(effect) for effect in effects)
        nodes = {name for name, found in (named or {}).items() if isinstance(found, Node)}
        self._callables = {name: found for name, found in (named or {}).items() if name not in nodes}
        handlers = {substitutes.name_of((named or {})[name]) for name in nodes}
        self._store = store or RememberingStore()
        self._oracle = Oracle(self._store)
        self._effects = Effects(self._oracle, None if named is None else self._callables, handlers, idempotent)
        self._client = Client(self._store, workflow, inputs, self._outside)
        self._states: set[int] = set()
        self._normal: outcome.Outcome | None = None
        self._volatile: set[str] = set()
        self._reseed: Callable[[int], None] = lambda seed: None
        self._refused: list[str] = []
        self._collect: Callable[[], None] = lambda: None

    def explore(
        self,
        depth: int,
        seed: int,
        tape: str | None,
        schedules_max: int | None,
        stop_at_first: bool,
        progress: Progress | None,
    ) -> Report:
        began = time.perf_counter()
        report = Report(workflow=self._workflow.name, depth=depth, seed=seed)
        with self.surroundings():
            wanted = None if tape is None else parse(tape)
            first = self._undisturbed(Tape(seed=seed if wanted is None else wanted.seed))
            self._describe(report, first)
            if report.suitable and not (stop_at_first and report.findings):
                schedules = self._search(first, depth) if wanted is None else iter([self._replayed(wanted)])
                self._take(schedules, report, schedules_max, stop_at_first, progress)
            for finding in report.findings:
                shorten(finding, self.run)
        report.seconds = time.perf_counter() - began
        return report

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Install the sandbox, the fakes and the watched callables."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(sandbox.silence_logs())
            self._collect = stack.enter_context(sandbox.collect_in_portions())
            sleep = time.sleep
            for original, fake in self._fakes:
                stack.enter_context(substitutes.put(original, fake))
            if time.sleep is sleep:
                stack.enter_context(substitutes.put(sleep, sandbox.refuse_sleep))
            for name, function in self._callables.items():
                stack.enter_context(substitutes.put(function, self._effects.watch(name, function)))
            self._reseed = stack.enter_context(sandbox.fixed_randomness())
            self._refused = stack.enter_context(sandbox.refuse_real_waiting())
            yield

    # --- schedules -----------------------------------------------------------------------------------------------

    def schedules(self, depth: int, seed: int = 0) -> Iterator[Schedule]:
        """Every schedule of an exploration, the one without a fault first, inside `surroundings()`."""
        first = self._undisturbed(Tape(seed=seed))
        yield first
        yield from self._search(first, depth)

    def _undisturbed(self, tape: Tape) -> Schedule:
        other = self._run(tape, clock=VirtualClock(OTHER_TIME), chance_seed=1)
        self._effects.note_orchestrating()  # what is a boundary must be the same from here on
        schedule = self._run(tape)
        if self._client.unfit is not None:
            raise UsageError(self._client.unfit)
        self._effects.take_as_normal()
        self._normal = schedule.outcome
        self._volatile = outcome.volatile(schedule.outcome, other.outcome)
        return schedule

    def _describe(self, report: Report, schedule: Schedule) -> None:
        report.schedules = 1
        report.boundaries = len(schedule.boundaries)
        report.labels = dict(Counter(_kind_of(b.label) for b in schedule.boundaries))
        ended = schedule.outcome.get(f"run {RUN_ID}")
        report.outcome = "never began" if ended is None else outcome.ending(ended)
        unanswered = self._client.unanswered()
        if unanswered:
            report.outcome += f" ({'; '.join(unanswered)})"
        if ended is not None and outcome.is_mismatch(ended):
            schedule.findings.append(
                Finding(
                    kind=Kind.DIFFERS,
                    subject=f"run {RUN_ID}",
                    what=f"even without a fault the run {outcome.told(ended)}",
                    where="without any fault",
                    advice="a body that waits for long is left, and run again from its start, as after a crash: there "
                    "it made other calls than before. Do not let them depend on the clock, on chance or on globals",
                    tape=str(schedule.tape),
                )
            )
        for finding in self._effects.outlived.values():
            finding.where, finding.tape = "without any fault", str(schedule.tape)
            schedule.findings.append(finding)
        _merge(report, schedule)

    def _replayed(self, tape: Tape) -> Schedule:
        schedule = self.run(tape)
        beyond = [boundary for boundary, _ in tape.faults if boundary >= len(schedule.boundaries)]
        if beyond:
            there = len(schedule.boundaries)
            raise UsageError(f"tape {tape}: boundary {beyond[0]} was not reached; this run has {there}, from 0")
        return schedule

    def _search(self, first: Schedule, depth: int) -> Iterator[Schedule]:
        level = [first]
        for left in reversed(range(depth)):
            deeper: list[Schedule] = []
            for schedule in level:
                adjacent = next_to_next(schedule.boundaries, schedule.ended)
                for tape in _one_more_fault(schedule):
                    if self._is_repetition(schedule, tape, adjacent):
                        yield Schedule(tape, [], [], True, {})
                        continue
                    found = self.run(tape)
                    if left and not found.alike:
                        deeper.append(found)
                    yield found
            level = deeper

    @staticmethod
    def _is_repetition(schedule: Schedule, tape: Tape, adjacent: set[int]) -> bool:
        """True if an equivalent schedule is tried as well: a fault after a boundary may be the same as one before the
        next. Of the two the one that is nearer to an effect is tried, because that is easier to understand. Between a
        write and an effect the engine checks its lease, so that hanging after the one is not the same as hanging before
        the other."""
        number, chosen = tape.faults[-1]
        outcome, met = Outcome(chosen), schedule.boundaries
        if outcome.before is not None and number in adjacent and met[number].is_write:
            following = met[number + 1]
            return outcome.before in following.possible and (following.is_write or not outcome.hangs)
        if outcome.after is not None and number - 1 in adjacent and not met[number - 1].is_write:
            return outcome.after in met[number - 1].possible
        return False

    @staticmethod
    def _take(
        schedules: Iterator[Schedule],
        report: Report,
        schedules_max: int | None,
        stop_at_first: bool,
        progress: Progress | None,
    ) -> None:
        for schedule in schedules:
            report.schedules += 1
            report.alike += schedule.alike
            _merge(report, schedule)
            if progress is not None:
                progress(report.schedules, 0, len(report.findings))
            enough = schedules_max is not None and report.schedules >= schedules_max
            if enough or (stop_at_first and report.findings) or not report.suitable:
                report.complete = False
                return

    def run(self, tape: Tape) -> Schedule:
        """Run one schedule, and judge it."""
        return self._run(tape, watch_states=True)

    def _run(
        self, tape: Tape, *, clock: VirtualClock | None = None, chance_seed: int = 0, watch_states: bool = False
    ) -> Schedule:
        self._store.clear()
        self._oracle.begin()
        self._effects.begin()
        self._reseed(chance_seed)
        self._client.begin()
        faults = dict(tape.faults)
        world = World(
            self._store,
            tape=lambda number: faults.get(number, 0),
            seed=tape.seed,
            watcher=self._effects,
            observer=self._oracle,
            clock=clock,
            client=self._client,
            standby=True,
            newer=self._newer,
        )
        if watch_states and tape.faults and self._newer is None:
            last = tape.faults[-1][0]
            world.watch_states(lambda label: len(world.boundaries) > last and self._is_known(world, label))
        self._effects.world = world
        world.run()
        try:
            return self._judged(world, tape)
        finally:
            world.dispose()
            self._collect()

    def _is_known(self, world: World, label: str) -> bool:
        """True if another schedule has reached this state: everything that the remaining processes can see."""
        state = (
            label,
            self._oracle.position,
            self._store.surroundings(world.clock.now()),
            self._effects.digest(),
            self._client.digest(world.clock.now()),
            world.requests.state,
            tuple(p.name for p in world.processes if p.alive),
            len(world.processes),
        )
        key = hash(state)
        if key in self._states:
            return True
        self._states.add(key)
        return False

    # --- the verdict ---------------------------------------------------------------------------------------------

    def _judged(self, world: World, tape: Tape) -> Schedule:
        findings: list[Finding] = []
        ended: outcome.Outcome = {}
        if not world.alike and not world.rewritten:
            self._oracle.at_the_end(world, RUN_ID if self._client.served else None)
            self._oracle.broken += self._client.broken_promises()
            ended = outcome.read(self._store)
        for why in dict.fromkeys([*self._refused, *world.unsuitable_because]):
            findings.append(Finding(kind=Kind.UNSUITABLE, subject=why, what=why, advice=sandbox.WAY_OUT))
        self._refused.clear()
        if not findings:
            is_judged = self._normal is not None and not world.rewritten
            findings += self._effects.findings() if is_judged else ()
            for broken in dict.fromkeys(self._broken(world)):
                what = f"{broken.code} does not hold: {broken.what}"
                findings.append(Finding(kind=Kind.INVARIANT, subject=broken.code, what=what))
            if not world.alike and not world.rewritten and self._is_comparable(world):
                findings += self._compared(ended)
        faults = [b for b in world.boundaries if b.outcome is not Outcome.OK]
        for finding in findings:
            if finding.kind is Kind.UNSUITABLE:
                continue
            finding.tape = str(tape)
            finding.where = "; ".join(f"{describe_boundary(b)}: {b.outcome}" for b in faults) or "without any fault"
            finding.timeline = timeline_of(world.boundaries)
        return Schedule(tape, world.boundaries, findings, world.alike, ended, world.acts.ended)

    def _broken(self, world: World) -> Iterable[Broken]:
        if world.rewritten:  # neither the auditor nor an undisturbed run can tell what is right then
            return left_alone(world)
        return [*self._oracle.broken, *self._effects.broken]

    def _is_comparable(self, world: World) -> bool:
        """An effect that failed may change the outcome, and so may a cancel that came at another moment."""
        failed = any(b.outcome.fails and not b.is_write for b in world.boundaries)
        return self._normal is not None and not failed and self._outside.cancel_after is None

    def _compared(self, ended: outcome.Outcome) -> Iterator[Finding]:
        assert self._normal is not None
        if outcome.was_left_to_a_person(self._store):
            return
        for about, how in outcome.differences(ended, self._normal, self._volatile):
            if about.startswith("run ") or f"run {RUN_ID}" not in ended:
                yield Finding(kind=Kind.OUTCOME, subject=about, what=how)
                return
            yield Finding(kind=Kind.OUTCOME, subject=about, what=how)


def _one_more_fault(schedule: Schedule) -> Iterator[Tape]:
    last = schedule.tape.faults[-1][0] if schedule.tape.faults else -1
    for boundary in schedule.boundaries:
        if boundary.number > last:
            for possible in boundary.possible:
                if possible is not Outcome.OK:
                    yield schedule.tape.and_then(boundary.number, possible)


def _merge(report: Report, schedule: Schedule) -> None:
    """Report the same problem once, with the schedule that shows it best."""
    known = {(f.kind, f.subject): f for f in report.findings}
    for finding in schedule.findings:
        same = known.get((finding.kind, finding.subject))
        if same is None:
            report.findings = [*report.findings, finding]
        else:
            same.schedules += 1
            if parse(finding.tape).severity < parse(same.tape).severity:
                same.tape, same.where = finding.tape, finding.where
                same.what, same.timeline = finding.what, finding.timeline


def _kind_of(label: str) -> str:
    return label.split(" ", 1)[0] if label.startswith(("body ", "step ", "call ")) else label
