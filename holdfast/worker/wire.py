"""Wire: what an engine and the process of a suspect's body say to each other.

Owns: the messages, as JSON frames, what the first of them says, and how commands and errors are written in them. Values
travel as the bytes that are committed.
Never: acts on a message (isolated.py in the engine, isolated_child.py in the process).
"""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from holdfast.engine.ports import Attempt
from holdfast.model import commands as cmd
from holdfast.model import errors, handlers, journal_format
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.errors import HoldfastError
from holdfast.model.handlers import CodeLocation
from holdfast.worker.body_life import LeaveReason
from holdfast.worker.permissions import Permissions
from holdfast.worker.spawning import absolute_sys_path

# --- from the engine to the process -------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class RunBody(_Message, frozen=True, kw_only=True):
    """The first message: which body to run. Until it has ended, nothing else is run."""

    codes: tuple[CodeLocation, ...]
    """Where the handler and the workflow are defined."""
    sys_path: tuple[str, ...]
    handler: str
    workflow: Definition
    version: int
    definition: NodeDef
    captures: tuple[tuple[str, tuple[str | int, ...], str], ...]
    run_id: str
    run_no: int
    store_id: str
    key_epoch: int
    compensates: bool
    node: str
    path: str
    visit: int
    attempt: int
    failures: int
    memory_seq: int
    has_memory: bool
    args: dict[str, bytes]
    variables: dict[str, bytes]
    clock_offset: int
    """Microseconds that the engine's clock is ahead of this machine's."""
    grace_seconds: float
    log_level: int
    permissions: Permissions


class Answered(_Message, frozen=True):
    """A wait of the body has its answer."""

    wait_id: str
    outcome: str
    value: bytes


class Settled(_Message, frozen=True):
    """A command is durable, or was refused."""

    id: int
    refused: bool = False
    answer: Any = None


class Replied(_Message, frozen=True):
    """What a question led to."""

    id: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorText | None = None


class Cancel(_Message, frozen=True):
    grace_seconds: float


class Leave(_Message, frozen=True):
    reason: LeaveReason


ToProcess = RunBody | Answered | Settled | Replied | Cancel | Leave

# --- from the process to the engine -------------------------------------------------------------------------------


class Submitted(_Message, frozen=True):
    """A command of the body for its run; `id` where the body waits for the outcome."""

    command: Packed
    id: int | None = None
    parked: bool = False
    """Whether the body did nothing but wait when it said this..."""
    answers: int = 0
    """...having received this many answers."""


class Asked(_Message, frozen=True):
    """The body asks its run something."""

    id: int
    question: Memory | Flushed | MayBegin | OrderChild | OrderSignal | SecretWanted


class Memory(_Message, frozen=True):
    pass


class Flushed(_Message, frozen=True):
    pass


class MayBegin(_Message, frozen=True):
    """Answered when a step may begin."""


class OrderChild(_Message, frozen=True):
    workflow: str
    inputs: dict[str, bytes]
    run_id: str | None
    detached: bool


class OrderSignal(_Message, frozen=True):
    run_id: str
    name: str
    payload: bytes
    signal_id: str


class SecretWanted(_Message, frozen=True):
    """The body needs the value of a secret, which only the engine's process may know."""

    name: str


class PlaceWanted(_Message, frozen=True):
    """A step of the body waits for a place of its node; the reply says that it has one."""

    id: int
    handler: str
    concurrency: int
    priority: int
    inside: tuple[str, ...]


class PlaceReleased(_Message, frozen=True):
    """The place of this number is released, or no longer wanted."""

    id: int


class Follow(_Message, frozen=True):
    """The body waits for a run that does not know of it."""

    run_id: str


class Progress(_Message, frozen=True):
    done: float
    total: float | None
    text: str


class Logged(_Message, frozen=True):
    """A line that the body wrote with ctx.log."""

    level: int
    text: str
    extra: dict[str, Any]


class Ended(_Message, frozen=True):
    """The body has gone, with its last word; None: it was left."""

    command: Packed | None


class CannotRead(_Message, frozen=True):
    """What the body remembers cannot be read."""

    error: ErrorText


class CannotRun(_Message, frozen=True):
    """The code of the body could not be imported in the process."""

    why: str


class Idle(_Message, frozen=True):
    """Nothing of the body is left in the process, which can run another one."""


FromProcess = (
    Submitted | Asked | PlaceWanted | PlaceReleased | Follow | Progress | Logged | Ended | CannotRead | CannotRun | Idle
)

# --- commands and errors ------------------------------------------------------------------------------------------


class Packed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command of a body."""

    kind: str
    data: msgspec.Raw
    event: str = ""
    """The type of the event in it, where that can be one of several."""


class _RecordStep(msgspec.Struct):
    node: str
    path: str
    attempt: int
    event: msgspec.Raw
    races: tuple[tuple[str, int], ...] = ()
    visit: int = 1


def pack(command: Any) -> Packed:
    event = type(command.event).__name__ if isinstance(command, cmd.RecordStep) else ""
    return Packed(type(command).__name__, msgspec.Raw(msgspec.json.encode(command)), event)


def unpack(packed: Packed) -> Any:
    if packed.event:
        step = msgspec.json.decode(packed.data, type=_RecordStep)
        event: Any = journal_format.decode(packed.event, bytes(step.event))
        return cmd.RecordStep(step.node, step.path, step.attempt, event, step.races, visit=step.visit)
    command = msgspec.json.decode(packed.data, type=getattr(cmd, packed.kind))
    if isinstance(command, cmd.OpenWait) and command.child is not None:
        return msgspec.structs.replace(command, child=_with_code(command.child))
    return command


def unpack_child(data: bytes) -> cmd.NewChild:
    return _with_code(msgspec.json.decode(data, type=cmd.NewChild))


def _with_code(child: cmd.NewChild) -> cmd.NewChild:
    return msgspec.structs.replace(child, code=msgspec.convert(child.code, CodeLocation))


class ErrorText(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of ours, by its class."""

    kind: str
    message: str
    reason: str = ""

    @classmethod
    def of(cls, error: HoldfastError) -> ErrorText:
        return cls(type(error).__name__, error.message, str(getattr(error, "reason", "")))

    def raised(self) -> HoldfastError:
        kind: type[HoldfastError] = getattr(errors, self.kind, HoldfastError)
        error = kind(self.message)
        if self.reason:
            error.reason = self.reason  # type: ignore[attr-defined]  # of those classes that have one
        return error


encode = msgspec.json.encode
to_process = msgspec.json.Decoder(ToProcess).decode
from_process = msgspec.json.Decoder(FromProcess).decode


# --- the first message to a process ---------------------------------------------------------------------------------


async def order_of(attempt: Attempt, grace_seconds: float, permissions: Permissions) -> bytes:
    """Everything that a process needs in order to run a body, as the first message to it."""
    port, handler, plan = attempt.port, attempt.handler, attempt.plan
    args = {name: await port.load_slowly(located) for name, located in attempt.args.items()}
    workflow = handlers.find_workflow(plan.definition.name)
    others = () if workflow is None else tuple(code for code in workflow.code.needed if code != handler.code)
    codes = (handler.code, *others)
    variables = {name: port.variable(name) for name in plan.definition.variables}
    return encode(
        RunBody(
            codes=codes,
            sys_path=absolute_sys_path(),
            handler=handler.name,
            workflow=plan.definition,
            version=plan.version,
            definition=attempt.definition,
            captures=attempt.captures,
            run_id=port.run_id,
            run_no=port.run_no,
            store_id=port.store_id,
            key_epoch=port.key_epoch,
            compensates=port.compensates,
            node=attempt.node,
            path=attempt.path,
            visit=attempt.visit,
            attempt=attempt.attempt,
            failures=attempt.failures,
            memory_seq=attempt.memory_seq,
            has_memory=attempt.has_memory,
            args=args,
            variables={name: data for name, data in variables.items() if data is not None},
            clock_offset=port.now() - time.time_ns() // 1000,
            grace_seconds=grace_seconds,
            log_level=logging.getLogger("holdfast.node").getEffectiveLevel(),
            permissions=permissions,
        )
    )
