"""Starting: how a run comes into being, by itself or as a child.

Owns: run numbers, RunCreated, the same run for the same id and input, and the children that a commit creates.
Never: schedules nodes (rules do, in the same commit).
On crash: a run is there with its first events, or it is not.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.engine.deployments import Named
from holdfast.engine.event_loop import Batch
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.custody import Custody, NumberTaken
from holdfast.engine.ports import settle
from holdfast.engine.run.actor import NewRun, RunActor
from holdfast.engine.run_inputs import Order, Pattern, check_run_id, order_of, setting
from holdfast.engine.runtime import Runtime
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import handlers, values
from holdfast.model.canonical import InputForm
from holdfast.model.errors import (
    HoldfastError,
    LeaseLost,
    MissingCode,
    RunExists,
    StoreDamaged,
    UnknownVersion,
    UsageError,
    VersionRetired,
)
from holdfast.model.handlers import RegisteredWorkflow
from holdfast.model.limits import CHILD_DEPTH_MAX
from holdfast.model.lineage import ROOT_BRANCH
from holdfast.model.naming import unique
from holdfast.model.state import RunState, code_hash
from holdfast.rules.draft import ChildToCreate
from holdfast.store.records.run_records import creation_of
from holdfast.store.records.version_records import version_code
from holdfast.store.row_types import Commit, CommitResult, RunRow

log = logging.getLogger("holdfast.engine")
RUN_NUMBERS = 1024
"""How many run numbers an engine reserves at once; unused ones are lost, which costs nothing."""


class Starting:
    """Makes new runs for one engine."""

    first_commit: Callable[[RunActor], Commit]
    """The commit of a new run that no engine drives yet (run/turn.py)."""

    def __init__(self, runtime: Runtime, custody: Custody, inbox: Inbox) -> None:
        self._runtime = runtime
        self._custody = custody
        self._inbox = inbox
        self._next_no = 0
        self._last_no = 0
        self._patterns: dict[int, Pattern] = {}
        """By the identity of the workflow, which the pattern keeps."""
        self._stored_patterns: dict[tuple[str, int], Pattern] = {}
        self._retired: dict[str, set[int]] = {}
        """Versions of children that were found to be retired; each is looked up again before a child is refused."""
        self._preparing: Batch[RegisteredWorkflow, Pattern] = Batch(self._prepare, runtime.spawn)
        self._numbering: Batch[None, int] = Batch(self._give_numbers, runtime.spawn)

    async def start(
        self, workflow: RegisteredWorkflow, inputs: dict[str, Any], run_id: str | None, settings: dict[str, Any]
    ) -> RunRow:
        """The row of a committed run, or of an equal one that exists already."""
        runtime = self._runtime
        if runtime.stopping or runtime.fatal is not None:
            runtime.check()
        pattern = self._patterns.get(id(workflow)) or await self._preparing.put(workflow)
        order = order_of(pattern, inputs, settings)
        if run_id is not None:
            check_run_id(run_id)
            existing = await runtime.read(runtime.store.run, run_id)
            if existing is not None:
                return await runtime.read(self._same, existing, order)
        return await self._create(order, run_id, run_id or unique("run_"))

    async def _version_of(self, named: Named, run_id: str) -> int:
        """The version that a start by name gets. Code that is loaded here, under a name of which the store has no
        version at all, is registered, as a start with its object does; nothing that is retired becomes active."""
        runtime = self._runtime
        try:
            return await runtime.read(named.choose, runtime.store, run_id)
        except UnknownVersion:
            loaded = handlers.find_workflow(named.workflow) if named.at is None else None
            if loaded is None or await runtime.read(runtime.store.latest_version, named.workflow) is not None:
                raise
        return (await runtime.versions.of(loaded, runtime.committer, runtime.clock.now())).version

    async def start_named(
        self, named: Named, inputs: dict[str, Any], run_id: str | None, settings: dict[str, Any]
    ) -> RunRow:
        """The same by name: the version is chosen when the run is created. One that is retired between the choice and
        the commit refuses the commit, however long an engine took in between, and the choice is made again."""
        runtime = self._runtime
        runtime.check()
        new_id = run_id or unique("run_")
        if run_id is not None:
            check_run_id(run_id)
            existing = await runtime.read(runtime.store.run, run_id)
            if existing is not None:
                given = values.canonical(inputs, what="the input")
                return await runtime.read(self._same_run, existing, named.workflow, given)
        refused: set[int] = set()
        while True:
            version = await self._version_of(named, new_id)
            pattern = await runtime.read(self._pattern_of, named.workflow, version)
            try:
                return await self._create(order_of(pattern, inputs, settings), run_id, new_id)
            except VersionRetired:
                if version in refused:
                    raise
                refused.add(version)

    def _pattern_of(self, workflow: str, version: int) -> Pattern:
        """The pattern of a version of the store, whatever is loaded here."""
        pattern = self._stored_patterns.get((workflow, version))
        if pattern is None:
            row = self._runtime.store.version(workflow, version)
            assert row is not None, "a version that was chosen exists"
            plan = self._runtime.versions.numbered(workflow, version)
            recorded = version_code(row).fingerprints
            pattern = Pattern.of(self._runtime.versions.stored(row), plan, recorded)
            self._stored_patterns[workflow, version] = pattern
        return pattern

    async def _create(self, order: Order, run_id: str | None, new_id: str) -> RunRow:
        """Commit a new run; `run_id` is the id that the caller has chosen, which another run may get meanwhile."""
        runtime = self._runtime
        while True:
            actor = self._actor(order, new_id, await self.number(), None)
            try:
                assert actor.creating is not None
                await (self._write(actor) if actor.creating.create_unowned else self._begin(actor))
            except NumberTaken:
                continue
            except (LeaseLost, VersionRetired):
                existing = await runtime.read(runtime.store.run, run_id) if run_id is not None else None
                if existing is None:
                    raise
                return await runtime.read(self._same, existing, order)  # another caller started it at the same moment
            assert actor.row is not None
            return actor.row

    def _begin(self, actor: RunActor) -> asyncio.Future[Any]:
        """Drive a new run from here on; done when it is committed."""
        landed: asyncio.Future[Any] = self._runtime.loop.create_future()
        begin = cmd.Begin()
        self._custody.adopt(actor)
        actor.submit(begin if self._custody.admit(actor, begin) else cmd.Create(), functools.partial(settle, landed))
        return landed

    async def _write(self, actor: RunActor) -> None:
        """Commit a new run that another engine is to drive."""
        landed = await self._runtime.committer.commit_one(self.first_commit(actor))
        if landed.refusal == "number_taken":
            self.forget_numbers([actor.run_no])
            raise NumberTaken(landed.detail)
        if landed.refusal == "retired":
            raise VersionRetired(landed.detail)
        if landed.refusal == "damaged":
            raise StoreDamaged(f"run {actor.run_id} was not written: {landed.detail}")
        if landed.refusal is not None:
            raise LeaseLost(f"run {actor.run_id} was not written: {landed.refusal} {landed.detail}")

    async def _prepare(self, workflows: Sequence[RegisteredWorkflow]) -> list[Pattern | Exception]:
        """The patterns of workflows, each computed once; the version of a definition is registered when it is new."""
        runtime = self._runtime
        found: list[Pattern | Exception] = []
        for workflow in workflows:
            pattern = self._patterns.get(id(workflow))
            if pattern is None:
                try:
                    plan = await runtime.versions.of(workflow, runtime.committer, runtime.clock.now())
                    pattern = self._patterns[id(workflow)] = Pattern.of(workflow, plan)
                except HoldfastError as e:
                    found.append(e)
                    continue
            found.append(pattern)
        return found

    def _actor(self, order: Order, run_id: str, run_no: int, parent: RunActor | None) -> RunActor:
        runtime = self._runtime
        state = RunState.new(order.plan, run_no, run_id, runtime.clock.now())
        actor = RunActor(self._custody, order.plan, state, 1, None)
        queues = runtime.queues
        is_served = queues is None or setting(order.event, order.plan, "queue") in queues
        create_unowned = not (runtime.drives and is_served and runtime.versions.is_loaded(order.plan))
        if not create_unowned and not self._custody.has_room_for(order.plan):  # an engine that has room claims it
            create_unowned = self._custody.has_unclaimed_runs = True
        runtime.values.put(run_no, 1, order.input)
        if parent is None:
            actor.creating = NewRun(order.event, None, run_no, create_unowned)
        else:
            assert parent.row is not None
            actor.creating = NewRun(order.event, parent.run_no, parent.row.root_no, create_unowned)
        return actor

    def _same(self, existing: RunRow, order: Order) -> RunRow:
        known = (order.plan.version, order.event.input_hash)
        return self._same_run(existing, order.plan.definition.name, order.given, known)

    def _same_run(self, existing: RunRow, workflow: str, given: bytes, known: tuple[int, str] | None = None) -> RunRow:
        if self.is_same(existing, workflow, given, known):
            return existing
        what = "another input" if existing.workflow == workflow else f"another workflow, {existing.workflow}"
        raise RunExists(f"run {existing.run_id} exists with {what}; nothing was changed. Choose another run id.")

    def is_same(self, existing: RunRow, workflow: str, given: bytes, known: tuple[int, str] | None = None) -> bool:
        """Whether a run that exists has this workflow and this input, by the schema of the version that it began with
        (a branch may follow another one). `known`: a version and the hash of the input by its schema."""
        if existing.workflow != workflow:
            return False
        version = existing.version
        if existing.branch != ROOT_BRANCH:
            version = creation_of(self._runtime.store, existing).version
        if known is not None and known[0] == version:
            return existing.input_hash == known[1]
        form = InputForm(self._runtime.versions.numbered(workflow, version).definition.params)
        return existing.input_hash == form.hash(given)

    # --- run numbers ---------------------------------------------------------------------------------------

    async def number(self) -> int:
        """A run number that no other run has, unless the database has fallen back to an earlier state: then the commit
        that uses it is refused, and another one is asked for."""
        number = self._next_number()
        return await self._numbering.put(None) if number is None else number

    def _next_number(self) -> int | None:
        """The next of the reserved numbers; None: there is none left."""
        while self._next_no < self._last_no:
            self._next_no += 1
            if self._next_no - 1 not in self._custody.actors:
                return self._next_no - 1
            self.forget_numbers([self._next_no - 1])
        return None

    async def _give_numbers(self, askers: Sequence[None]) -> list[int]:
        """A number for each asker; more are reserved when they run out."""
        given: list[int] = []
        while len(given) < len(askers):
            number = self._next_number()
            if number is None:
                self._next_no = await self._runtime.committer.call(self._runtime.store.reserve_run_numbers, RUN_NUMBERS)
                self._last_no = self._next_no + RUN_NUMBERS
            else:
                given.append(number)
        return given

    def forget_numbers(self, taken: Sequence[int]) -> None:
        """Other runs have some of these numbers. If they were reserved last, the rest of that reservation is discarded:
        a database that falls back under living engines (a replica that lags is promoted) gives them out again."""
        if any(self._last_no - RUN_NUMBERS <= number < self._last_no for number in taken):
            log.error(
                "run numbers that this engine had reserved are taken: the database was restored to an earlier state. "
                "New numbers are reserved"
            )
            self._last_no = self._next_no = 0

    # --- children --------------------------------------------------------------------------------------------

    async def order_child(
        self, depth: int, name: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        """What a parent's commit needs in order to create a child, or to wait for one that is there."""
        if depth > CHILD_DEPTH_MAX:
            raise UsageError(f"children are nested deeper than {CHILD_DEPTH_MAX}; does {name} start itself?")
        workflow = handlers.find_workflow(name)
        if workflow is None:
            raise MissingCode(f"the child workflow {name} is not loaded here")
        committer = self._runtime.committer  # a full disk is no fault of the body that asks
        pattern = self._patterns.get(id(workflow))
        if pattern is None:
            pattern = await committer.when_not_full(lambda: self._preparing.put(workflow))
        if pattern.plan.version in self._retired.get(name, ()):
            await self._refuse_retired(name, pattern.plan.version)
        order = order_of(pattern, inputs, {})
        attach = False
        if run_id is not None:
            check_run_id(run_id)
            existing = await self._runtime.read(self._runtime.store.run, run_id)
            if existing is not None:
                await self._runtime.read(self._same, existing, order)
                attach = True
        return cmd.NewChild(
            run_no=await committer.when_not_full(self.number),
            workflow=name,
            version=order.plan.version,
            input=order.input,
            input_hash=order.event.input_hash,
            captured=order.event.captured,
            settings={},
            code=order.event.code,
            fingerprints=order.event.fingerprints,
            run_id=run_id,
            detached=detached,
            attach=attach,
            given=order.given,
        )

    def note_refusal(self, outcome: CommitResult, actors: Sequence[RunActor]) -> None:
        """A commit of these runs was refused. If one of the children that it creates has a retired version, the bodies
        that asked for them ask again, and then `order_child` refuses it."""
        if outcome.refusal == "number_taken":
            self.forget_numbers([actor.run_no for actor in actors])
        elif outcome.refusal == "retired":
            for actor in actors:
                self._retired.setdefault(actor.plan.definition.name, set()).add(actor.plan.version)

    async def _refuse_retired(self, workflow: str, version: int) -> None:
        row = await self._runtime.read(self._runtime.store.version, workflow, version)
        if row is not None and row.retired_at is not None:
            raise VersionRetired(f"version {version} of the child workflow {workflow} is retired: nothing of it starts")
        self._retired[workflow].discard(version)

    def children(self, parent: RunActor, specs: Sequence[ChildToCreate]) -> list[RunActor]:
        """The children that a commit of their parent creates; those that exist already are only followed."""
        return [self._child(parent, spec) for spec in specs if not self._exists(parent, spec)]

    def _exists(self, parent: RunActor, spec: ChildToCreate) -> bool:
        """Whether a child exists already. A branch that inherits its idempotency keys creates the same children again,
        and so does a run whose journal has lost its end: it waits for them. A run of its first owner has none."""
        is_first_life = parent.token == 1 and not parent.state.fold.ancestors
        existing = None if is_first_life else self._runtime.store.run(spec.run_id)
        if existing is None:
            return False
        child = spec.spec
        if not self.is_same(existing, child.workflow, child.given, (child.version, child.input_hash)):
            raise RunExists(f"child {spec.run_id} of run {parent.run_id} exists with another input")
        if not child.detached:
            self._runtime.spawn(self._follow_when_committed(parent, spec.run_id))
        return True

    async def _follow_when_committed(self, parent: RunActor, run_id: str) -> None:
        await parent.flushed()
        if not parent.is_detached:
            await self._inbox.report_end(run_id, parent.run_no)

    def _child(self, parent: RunActor, spec: ChildToCreate) -> RunActor:
        child = spec.spec
        plan = self._runtime.versions.numbered(child.workflow, child.version)
        event = ev.RunCreated(
            workflow=child.workflow,
            version=child.version,
            input=msgspec.Raw(child.input),
            input_hash=child.input_hash,
            settings=child.settings,
            code=child.code,
            fingerprints=child.fingerprints,
            code_hash=code_hash(child.fingerprints),
            captured=child.captured,
            parent=spec.parent,
            depth=spec.depth,
        )
        return self._actor(Order(plan, child.input, child.given, event), spec.run_id, child.run_no, parent)
