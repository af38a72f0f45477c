"""Starting: how a run comes into being, by itself or as a child.

Owns: checking and encoding inputs, run numbers, RunCreated, the same run for the same id and input, and how many runs
of a workflow may be at work at once.
Never: schedules nodes (rules do, in the same commit).
On crash: a run is there with its first events, or it is not.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.actor import NewRun, RunActor
from holdfast.engine.futures import settle
from holdfast.engine.port import BodyPort
from holdfast.engine.slots import Place
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import handlers, values
from holdfast.model.captures import capture, check_size
from holdfast.model.definition import Settings
from holdfast.model.errors import HoldfastError, InvalidInput, LeaseLost, MissingCode, RunExists, UsageError
from holdfast.model.graph import Plan
from holdfast.model.handlers import Parameter, RegisteredWorkflow
from holdfast.model.ids import unique
from holdfast.model.limits import CHILD_DEPTH_MAX, NAME_LENGTH_MAX
from holdfast.model.state import RunState, code_hash
from holdfast.model.validation import check_settings
from holdfast.rules.draft import ChildToCreate
from holdfast.store.api import RunRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

RUN_NUMBERS = 1024
"""How many run numbers an engine reserves at once; unused ones are lost, which costs nothing."""


class Order(msgspec.Struct):
    """A run that is to be started: everything checked, nothing written."""

    plan: Plan
    input: bytes
    event: ev.RunCreated


class Pattern(msgspec.Struct):
    """What all runs of a workflow that is loaded here have in common: worked out for the first of them."""

    workflow: RegisteredWorkflow
    plan: Plan
    inputs: Inputs
    fingerprints: dict[str, str]
    code_hash: str


class Starting:
    """Makes new runs for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_no = 0
        self._last_no = 0
        self._reserving: asyncio.Event | None = None
        """Set when numbers are there, or could not be had: whoever waits looks again."""
        self._patterns: dict[int, Pattern] = {}
        """By the identity of the workflow, which the pattern keeps."""

    async def start(
        self, workflow: RegisteredWorkflow, inputs: dict[str, Any], run_id: str | None, settings: dict[str, Any]
    ) -> RunRow:
        """The row of a committed run, or of an equal one that exists already."""
        engine = self._engine
        engine.check()
        pattern = self._patterns.get(id(workflow)) or await self._pattern(workflow)
        order = self._order(pattern, inputs, settings)
        if run_id is not None:
            check_run_id(run_id)
            existing = await engine.read(engine.store.run, run_id)
            if existing is not None:
                return self._same(existing, order)
        run_no = await self.number() if self._next_no >= self._last_no else self._take_number()
        actor = self._actor(order, run_id or unique("run_"), run_no, None)
        try:
            await (self._write(actor) if actor.is_for_others else self._begin(actor))
        except LeaseLost:
            existing = await engine.read(engine.store.run, run_id) if run_id is not None else None
            if existing is None:
                raise
            return self._same(existing, order)  # somebody else started it at the same moment
        assert actor.row is not None
        return actor.row

    def _begin(self, actor: RunActor) -> asyncio.Future[Any]:
        """Drive a new run from here on; done when it is committed."""
        landed: asyncio.Future[Any] = self._engine.loop.create_future()
        begin = cmd.Begin()
        self._engine.adopt(actor)
        actor.tell(begin if self.admit(actor, begin) else cmd.Create(), functools.partial(settle, landed))
        return landed

    async def _write(self, actor: RunActor) -> None:
        """Commit a new run that somebody else is to drive."""
        landed = await self._engine.committer.land(actor.first_commit())
        if landed.refusal is not None:
            raise LeaseLost(f"run {actor.run_id} was not written: {landed.refusal} {landed.detail}")

    async def _pattern(self, workflow: RegisteredWorkflow) -> Pattern:
        """What the first run of a workflow needs to know; its version is made when it is new."""
        engine = self._engine
        plan = await engine.versions.of(workflow.definition, engine.committer, engine.clock.now())
        found = {name: h.fingerprint for name in plan.handlers if (h := handlers.find(name)) is not None}
        pattern = self._patterns[id(workflow)] = Pattern(workflow, plan, Inputs(workflow), found, code_hash(found))
        return pattern

    def _order(self, pattern: Pattern, inputs: dict[str, Any], settings: dict[str, Any]) -> Order:
        """Check everything about a run that can be checked before it exists."""
        plan = pattern.plan
        if settings:
            _check_settings(settings, plan)
        data, parts = pattern.inputs.encode(inputs)
        found: dict[str, Any] = {}
        if plan.input_captures:
            for name, (key, keys, wanted) in plan.input_captures:
                found[f"{name}:{key}"] = capture(msgspec.json.decode(parts[name]), keys, wanted)
            check_size(found, "the input")
        event = ev.RunCreated(
            workflow=plan.definition.name,
            version=plan.version,
            input=msgspec.Raw(data),
            input_hash=hashlib.blake2b(data, digest_size=16).hexdigest(),
            settings=settings,
            code=pattern.workflow.code,
            fingerprints=pattern.fingerprints,
            code_hash=pattern.code_hash,
            captured=found,
        )
        return Order(plan, data, event)

    def _actor(self, order: Order, run_id: str, run_no: int, parent: RunActor | None) -> RunActor:
        engine = self._engine
        state = RunState.new(order.plan, run_no, run_id, engine.clock.now())
        actor = RunActor(engine, order.plan, state, 1, None)
        actor.is_for_others = not engine.serves(_setting(order.event, order.plan, "queue"))
        if not actor.is_for_others and not engine.has_room_for(order.plan):  # whoever has it first, perhaps we
            actor.is_for_others = engine.recovery.is_behind = True
        engine.values.put(run_no, 1, order.input)
        if parent is None:
            actor.creating = NewRun(order.event, None, run_no)
        else:
            assert parent.row is not None
            actor.creating = NewRun(order.event, parent.run_no, parent.row.root_no)
        return actor

    @staticmethod
    def _same(existing: RunRow, order: Order) -> RunRow:
        name = order.plan.definition.name
        if existing.workflow == name and existing.input_hash == order.event.input_hash:
            return existing
        what = "another input" if existing.workflow == name else f"another workflow, {existing.workflow}"
        raise RunExists(f"run {existing.run_id} exists with {what}; nothing was changed. Choose another run id.")

    # --- run numbers ---------------------------------------------------------------------------------------

    async def number(self) -> int:
        """A run number that nobody has."""
        while self._next_no >= self._last_no:
            if self._reserving is None:
                await self._reserve()
            else:
                await self._reserving.wait()
        return self._take_number()

    def _take_number(self) -> int:
        self._next_no += 1
        return self._next_no - 1

    async def _reserve(self) -> None:
        engine = self._engine
        self._reserving = reserving = asyncio.Event()
        try:
            self._next_no = await engine.committer.call(engine.store.reserve_run_numbers, RUN_NUMBERS)
            self._last_no = self._next_no + RUN_NUMBERS
        finally:
            self._reserving = None
            reserving.set()

    # --- how many runs of a workflow are at work -------------------------------------------------------------

    def admit(self, actor: RunActor, command: Any, *, has_place: bool = False) -> bool:
        """Whether a run may go to work now; if not, it is told `command` when there is a place."""
        place = self.place_of(actor.plan)
        if not place:
            return True
        slots = self._engine.slots
        if not (has_place or slots.take(place)):
            actor.awaits_place = True
            slots.wait(place, self._priority(actor), lambda: self._admit_now(actor, command))
            return False
        actor.counted = True
        return True

    @staticmethod
    def _priority(actor: RunActor) -> int:
        if actor.creating is None:
            return actor.state.fold.settings.priority
        priority: int = _setting(actor.creating.event, actor.plan, "priority")
        return priority

    def _admit_now(self, actor: RunActor, command: Any) -> bool:
        """There is a place for a run that waited for one, if it still wants it."""
        if actor.gone or self._engine.stopping or not self._engine.slots.take(self.place_of(actor.plan)):
            return False
        actor.awaits_place = False
        actor.counted = True
        actor.tell(command)
        return True

    def run_left(self, actor: RunActor) -> None:
        """A run has ended or rests: the next one of its workflow may begin."""
        if actor.counted:
            actor.counted = False
            self._engine.slots.free(self.place_of(actor.plan))

    def has_line(self, plan: Plan) -> bool:
        """Whether runs of this workflow wait here for a place."""
        place = self.place_of(plan)
        return bool(place) and self._engine.slots.is_waited_for(place[0])

    def place_of(self, plan: Plan) -> Place:
        """What a run of this version needs in order to be at work; nothing when its workflow has no limit."""
        settings = plan.definition.settings
        if settings.concurrency is None:
            return ()
        return self._engine.slots.place_of_run(plan.definition.name, settings.concurrency)

    # --- children --------------------------------------------------------------------------------------------

    async def order_child(
        self, parent: BodyPort, name: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        """What a parent's commit needs in order to create a child, or to wait for one that is there."""
        if parent.state.fold.depth + 1 > CHILD_DEPTH_MAX:
            raise UsageError(f"children are nested deeper than {CHILD_DEPTH_MAX}; does {name} start itself?")
        workflow = handlers.find_workflow(name)
        if workflow is None:
            raise MissingCode(f"the child workflow {name} is not loaded here")
        committer = self._engine.committer  # a full disk is no fault of the body that asks
        pattern = self._patterns.get(id(workflow))
        if pattern is None:
            pattern = await committer.when_not_full(lambda: self._pattern(workflow))
        order = self._order(pattern, inputs, {})
        attach = False
        if run_id is not None:
            check_run_id(run_id)
            existing = await self._engine.read(self._engine.store.run, run_id)
            if existing is not None:
                self._same(existing, order)
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
        )

    def child(self, parent: RunActor, spec: ChildToCreate) -> RunActor:
        """The child itself, to be written inside its parent's commit."""
        child = spec.spec
        plan = self._engine.versions.numbered(child.workflow, child.version)
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
        return self._actor(Order(plan, child.input, event), spec.run_id, child.run_no, parent)


class Inputs:
    """The inputs of a workflow: which there are, and how each is written and checked."""

    def __init__(self, workflow: RegisteredWorkflow) -> None:
        self._workflow = workflow
        self._fields = {p.name: self._field(p) for p in workflow.params}

    def _field(self, param: Parameter) -> tuple[str, bytes, Any, Callable[[bytes], Any]]:
        """What an input is called in errors, how its field begins, its annotation, and what reads it."""
        what = f"input {param.name}"
        try:
            return what, msgspec.json.encode(param.name) + b":", param.annotation, values.decoder(param.annotation)
        except HoldfastError as e:
            raise self._misfit(what, e) from None

    def encode(self, inputs: dict[str, Any]) -> tuple[bytes, dict[str, bytes]]:
        """The inputs as one JSON object, each checked against its annotation; also each by itself."""
        if inputs.keys() != self._fields.keys():
            inputs = self._completed(inputs)
        parts: dict[str, bytes] = {}
        fields: list[bytes] = []
        for name, (what, begin, annotation, read) in self._fields.items():
            try:
                data = values.encode(inputs.get(name), annotation, what=what)
                read(data)
            except HoldfastError as e:
                raise self._misfit(what, e) from None
            parts[name] = data
            fields.append(begin + data)
        return b"{" + b",".join(fields) + b"}", parts

    def _misfit(self, what: str, e: HoldfastError) -> HoldfastError:
        where = "" if what in e.message else f"{what}: "
        return type(e)(f"workflow {self._workflow.definition.name}, {where}{e.message}")

    def _completed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs with their defaults, if none is unknown or missing."""
        workflow = self._workflow
        unknown = [name for name in inputs if name not in self._fields]
        missing = [p.name for p in workflow.params if p.required and p.name not in inputs]
        if unknown or missing:
            wrong = [f"missing {', '.join(missing)}"] * bool(missing)
            wrong += [f"unknown {', '.join(unknown)}"] * bool(unknown)
            takes = ", ".join(self._fields) or "no inputs"
            raise InvalidInput(f"workflow {workflow.definition.name}: {'; '.join(wrong)}. It takes {takes}.")
        return {p.name: p.default for p in workflow.definition.params if not p.required} | inputs


def check_run_id(run_id: str) -> None:
    """Run ids stand in tables, file names and URLs: printable, and not too long."""
    if not run_id or len(run_id) > NAME_LENGTH_MAX or not run_id.isprintable() or run_id != run_id.strip():
        raise UsageError(f"{run_id!r} is not a run id: use 1 to {NAME_LENGTH_MAX} printable characters")


def _setting(created: ev.RunCreated, plan: Plan, name: str) -> Any:
    """A setting of a run that is not there yet."""
    return created.settings.get(name, getattr(plan.definition.settings, name))


def _check_settings(settings: dict[str, Any], plan: Plan) -> None:
    try:
        chosen = msgspec.convert({**msgspec.to_builtins(plan.definition.settings), **settings}, Settings)
    except msgspec.ValidationError as e:
        raise UsageError(f"these settings do not fit a run: {e}") from None
    problems = check_settings(chosen)
    if problems:
        raise UsageError("; ".join(p.message for p in problems))
