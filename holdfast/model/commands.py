"""Commands: requests to a run's owner. Rules turn each into events, or refuse it (rules/decide.py).

Those of a body name its attempt and visit: a late report of an attempt that is over is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.events import ErrorInfo, StepCompleted, StepFailed, StepStarted, StepUndo
from holdfast.model.naming import Instance


class _Command(msgspec.Struct, frozen=True, gc=False):
    pass


class _OfAttempt(_Command, frozen=True):
    node: str
    path: str
    attempt: int


class OfBody(_OfAttempt, frozen=True, kw_only=True):
    """A report of a body, or of its executor."""

    visit: int = 1


class Create(_Command, frozen=True):
    """Record the run; it begins when there is a slot for it."""


class Begin(_Command, frozen=True):
    """Schedule what waits for nothing."""


class StartNode(_Command, frozen=True):
    """A slot for the body is free."""

    node: str
    path: str


class CompleteNode(OfBody, frozen=True):
    output: bytes
    captured: dict[str, Any] = {}
    vars: dict[str, bytes] = {}
    captured_vars: dict[str, Any] = {}
    target: str | None = None
    """The body ended with `hf.goto`: the run continues there."""
    ticket: str | None = None
    """The body ended with `hf.ticket`."""


class PendNode(OfBody, frozen=True):
    """The body ended with `hf.pend`: its node waits in a basket until it is resumed."""

    basket: str
    output: bytes = b"null"
    captured: dict[str, Any] = {}
    vars: dict[str, bytes] = {}
    captured_vars: dict[str, Any] = {}
    rerun: bool = False
    """It runs again when it is resumed; else it has completed, with this output."""
    error: ErrorInfo | None = None
    """Why it could not do its work; it runs again when it is resumed."""
    target: str | None = None
    ticket: str | None = None
    """Where the run continues when it is resumed."""


class FailNode(OfBody, frozen=True):
    error: ErrorInfo


class DropNode(OfBody, frozen=True):
    """The body was cancelled and has ended, or was given up."""


class BodyDied(OfBody, frozen=True):
    """The process that ran this body, and nothing else, died; the engine lives."""

    how: str


class StopNode(OfBody, frozen=True):
    """The body was evicted, because the engine stops in an orderly way, the run is paused, or the body's code does not
    fit what it remembers: it runs again later, with the same attempt."""

    for_pause: bool = False
    changed: str = ""
    """How the body's code differs from what is remembered; the run is put on hold."""


class RecordStep(OfBody, frozen=True):
    event: StepCompleted | StepFailed | StepStarted
    races: tuple[tuple[str, int], ...] = ()
    """The races that end with it, innermost first: (race, which of its calls). Of the end of a race the first one is
    that race; where another call has won it meanwhile, nothing is recorded and the answer is that call."""


class Checkpoint(OfBody, frozen=True):
    value: bytes
    number: int
    vars: dict[str, bytes] = {}
    captured_vars: dict[str, Any] = {}
    patches: dict[str, bool] = {}


class NewChild(msgspec.Struct, frozen=True, gc=False):
    """The run that a wait of kind `child` waits for."""

    run_no: int
    workflow: str
    version: int
    input: bytes
    input_hash: str
    captured: dict[str, Any]
    settings: dict[str, Any]
    code: Any
    fingerprints: dict[str, str]
    run_id: str | None = None
    detached: bool = False
    attach: bool = False
    """The run exists already, with the same workflow and input: wait for it, create nothing."""
    given: bytes = b"{}"
    """The inputs without defaults: a run that exists is compared under the schema of its own version."""


class SendSignal(OfBody, frozen=True):
    """A body sends a signal to another run; the call is recorded."""

    event: StepCompleted
    to: str
    message_id: str
    name: str
    payload: bytes


class OpenWait(OfBody, frozen=True):
    """A body made a call that waits."""

    kind: str
    call: dict[str, Any]
    until: int | None = None
    child: NewChild | None = None
    about: Any = None
    lasts: int | None = None
    """Microseconds, where `until` was given as a duration."""


class SuspendNode(OfBody, frozen=True):
    """Every task of the body waits."""


class CloseWait(_Command, frozen=True):
    """The body gave up a wait (the call was cancelled inside the body)."""

    wait_id: str
    outcome: str


class FireTimer(_Command, frozen=True):
    timer: str


class ProvideParams(_Command, frozen=True):
    """Captured values of a scope's parameters, which its conditions read."""

    scope_path: str
    values: dict[str, Any]


class ProvideOutput(_Command, frozen=True):
    """The output of a map whose items have all ended, where it is stored."""

    node: str
    path: str
    visit: int
    output: bytes


class Undoable(msgspec.Struct, frozen=True, gc=False):
    """An instance that is left to compensate; provided by the engine."""

    node: str
    path: str
    visit: int
    output_seq: int
    """The event that holds its output; 0: its outcome is unknown, and the compensation gets None."""
    args: dict[str, Any] = {}
    """Inputs that its compensation takes, located, by parameter."""
    step: StepUndo | None = None
    """What undoes it, where it is a step; its path is that of its compensation."""

    @property
    def instance(self) -> Instance:
        return self.node, self.path, self.visit


class ProvideUndo(_Command, frozen=True):
    """What there is to compensate, last completed first, and what was compensated already."""

    instances: tuple[Undoable, ...]
    undone: tuple[Instance, ...] = ()
    unknown_args: dict[Instance, dict[str, Any]] = {}
    """Inputs that the compensations of instances of unknown outcome take, located."""
    steps: tuple[Undoable, ...] = ()
    """Steps of unknown outcome whose compensations accept None."""
    in_doubt: tuple[Instance, ...] = ()
    """Those whose compensations do not."""
    more: bool = False
    """There is more to compensate than this: ask again when it is done."""
    lacking: frozenset[str] = frozenset()
    """The handlers of compensations that no engine has loaded."""


class FinishRun(_Command, frozen=True):
    """Every node has settled; this is the result."""

    result: bytes
    located: Any = None
    """What makes the result, where it is too large to be stored a second time."""


class FailRun(_Command, frozen=True):
    """The run cannot continue, for a reason that is not a node's."""

    error: ErrorInfo


class TakeOver(_Command, frozen=True):
    """A new owner begins; what was cut off is scheduled again."""

    engine: str
    token: int
    previous: str | None
    graceful: bool
    changed_code: tuple[tuple[str, str, str], ...] = ()
    """(handler, was, now)"""
    isolated: bool = False
    """Its bodies ran in processes of their own: the death of the engine is not counted against the run."""


class Message(_Command, frozen=True):
    """A row of the inbox: an answer, a signal, a request, a child's report; also one that the engine refuses."""

    message_id: str
    kind: str
    payload: bytes
    refusal: tuple[str, str] | None = None
    """(code, why)"""
    sent_at: int = 0
    ended_by: tuple[str, str] | None = None
    """(outcome, actor) of the wait that it names, where that was closed before this turn."""


Command = (
    Create
    | Begin
    | StartNode
    | CompleteNode
    | PendNode
    | FailNode
    | DropNode
    | BodyDied
    | StopNode
    | RecordStep
    | Checkpoint
    | SendSignal
    | OpenWait
    | SuspendNode
    | CloseWait
    | FireTimer
    | ProvideParams
    | ProvideOutput
    | ProvideUndo
    | FinishRun
    | FailRun
    | TakeOver
    | Message
)
