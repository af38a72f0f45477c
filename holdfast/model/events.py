"""Events: the immutable facts of a run's journal.

Owns: the event types, their data, and the bytes they are stored as.
Never: defines what an event does to a run (evolve.py) or when it is written (rules).

An `Entry` is one row of the journal: columns that every event has, and the event itself, whose fields are `data`. An
event is forever: new fields have defaults, types never change, names are never reused.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from holdfast.model.policies import Retry


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A failure as it is stored in the journal: without local variables, at most 16 KiB."""

    code: str
    message: str
    kinds: tuple[str, ...] = ()
    """Qualified names of the exception's class and bases, most specific first."""
    frames: tuple[str, ...] = ()
    """The user's own frames, `file:line in function: source line`, outermost first."""
    retryable: bool | None = None
    """What the body declared; None: nothing."""
    node: str | None = None
    path: str | None = None
    attempt: int | None = None
    run_id: str | None = None
    """The run that failed, in a parent's record of its child's failure."""
    args: tuple[Any, ...] | None = None
    """The arguments from which the exception is made again; None if they are not JSON."""
    attributes: dict[str, Any] = {}
    """The attributes of the exception that are JSON, up to a size limit."""

    @property
    def details(self) -> Any:
        """The `details` of `hf.Fail(details=...)`."""
        return self.attributes.get("details")

    @property
    def retry_after(self) -> float | None:
        """The `retry_after` of `hf.Fail(retry_after=...)`: seconds until the next attempt, at least."""
        found = self.attributes.get("retry_after") if self.retryable else None
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and found > 0 else None


class Failed(msgspec.Struct, frozen=True):
    """An item of a map with `errors="collect"` that failed: it stands in the list instead of the item's value."""

    error: ErrorInfo

    @property
    def message(self) -> str:
        return self.error.message


class _Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An event with an unknown field is refused (NewerFormat): ignoring the field would change the event's meaning."""


# --- runs ------------------------------------------------------------------------------------------------------


class RunCreated(_Event, frozen=True):
    workflow: str
    version: int
    input: msgspec.Raw
    """The inputs by name, as one JSON object."""
    input_hash: str
    settings: dict[str, Any] = {}
    code: Any = None
    fingerprints: dict[str, str] = {}
    code_hash: str = ""
    """One hash over the fingerprints."""
    captured: dict[str, Any] = {}
    parent: dict[str, Any] | None = None
    """{run_id, node, path, visit, call}: the call of the parent that a child reports to."""
    depth: int = 0
    actor: str = ""
    trace: str | None = None


class RunTakenOver(_Event, frozen=True):
    engine: str
    token: int
    previous: str | None = None
    graceful: bool = False
    isolated: bool = False
    """The bodies that were cut off ran in processes of their own: the death of the engine is not counted against the
    run."""


class RunSuspended(_Event, frozen=True):
    waits: tuple[str, ...] = ()


class RunResumed(_Event, frozen=True):
    by: str = ""


class RunCancelRequested(_Event, frozen=True):
    reason: str = ""
    actor: str = ""
    gives_up_undo: bool = False
    """Compensations that cannot run are recorded as failed, instead of the run being put on hold for them."""


class RunCancelled(_Event, frozen=True):
    reason: str = ""
    others: tuple[ErrorInfo, ...] = ()
    """As in RunFailed."""


class RunCompleted(_Event, frozen=True):
    result: msgspec.Raw
    """null if `located` is given."""
    located: Any = None
    """Of a result that is too large for one event: the expression that makes it from values which the journal holds."""


class RunFailed(_Event, frozen=True):
    error: ErrorInfo
    others: tuple[ErrorInfo, ...] = ()
    """Compensations that failed, and effects of unknown outcome that nothing could undo."""


class RunEdited(_Event, frozen=True):
    """A wait was changed by a person or by a timer (its assignee, its basket, its reminders): `before` and `after` name
    the wait and what differs."""

    actor: str
    before: Any
    after: Any


# --- branches --------------------------------------------------------------------------------------------------


class BranchOpened(_Event, frozen=True):
    """The first event of a branch. The branch inherits its parent's lineage up to the cut-off, without the events of
    the instances that it drops (with everything downstream of them) and without the ends of those that it reopens."""

    branch: int
    parent: int
    cutoff_seq: int
    key_epoch: int
    reason: str
    """`fork`, `jump`, `retry` or `recovery`."""
    dropped: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    version: int = 0
    """The version it runs under; 0: that of its parent."""
    actor: str = ""
    enters: str = ""
    """The top-level node that it begins with, whatever that node's condition is."""


class ForkRequested(_Event, frozen=True):
    """The last event of a branch, like the next two: an operator asked the run to continue from elsewhere."""

    target: str
    new_branch: int | None = None
    edits: Any = None
    actor: str = ""


class JumpRequested(_Event, frozen=True):
    target: str
    new_branch: int | None = None
    edits: Any = None
    actor: str = ""


class RetryRequested(_Event, frozen=True):
    target: str
    new_branch: int | None = None
    edits: Any = None
    actor: str = ""


class RunRecovered(_Event, frozen=True):
    """The rows and the journal of a run did not agree; it continues from its last stable event."""

    case: str
    previous_branch: int
    new_branch: int
    cutoff_seq: int
    what: str = ""


class InputEdited(_Event, frozen=True):
    input: msgspec.Raw
    captured: dict[str, Any] = {}
    actor: str = ""


class OutputEdited(_Event, frozen=True):
    output: msgspec.Raw
    captured: dict[str, Any] = {}
    actor: str = ""


class AnswerEdited(_Event, frozen=True):
    """A person gives the answer to a question of an earlier branch. If that question is open on this branch, it is
    closed with the answer; else it is answered when the same call of the same instance asks it again."""

    wait_id: str
    value: msgspec.Raw
    actor: str = ""
    call: dict[str, Any] = {}
    """The remembered call that asked."""


class VariablesSet(_Event, frozen=True):
    vars: dict[str, msgspec.Raw]
    captured_vars: dict[str, Any] = {}
    actor: str = ""


# --- tickets ---------------------------------------------------------------------------------------------------


class TicketRaised(_Event, frozen=True):
    """A body ended with `hf.goto` or `hf.ticket`. The first one counts until its target is entered; one that is raised
    meanwhile is recorded and changes nothing."""

    target: str
    ticket: str | None = None
    by: str = ""
    """The node that raised it, if that is not the node of this event."""


class TargetEntered(_Event, frozen=True):
    """Everything has stopped, and the run continues at the target of a ticket. The instances of the target and of
    everything downstream of it are closed; when these nodes are reached they are entered again, as the next visit."""

    target: str


class PathsOpened(_Event, frozen=True):
    """A parallel unit of a journey has answered: an execution path begins for each of these names."""

    names: tuple[str, ...]


class PathEnded(_Event, frozen=True):
    """An execution path of a journey has arrived at its join, or the path of the run itself at the end."""

    path: str


class BasketEntered(_Event, frozen=True):
    """A path is in a basket from now on, as far as milestones are concerned."""

    basket: str


class BasketLeft(_Event, frozen=True):
    """A path has left a basket and made progress, or was moved: the milestones of the basket are cleared."""

    basket: str


class MilestoneReached(_Event, frozen=True):
    """The time of a milestone has come, and its action was requested."""

    milestone: str
    action: str
    basket: str = ""
    count: int = 1
    """How often it was reached."""
    data: Any = None


class StepUndo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What undoes a step of a body."""

    node: str
    """The step's node: its compensation is an instance of `node~undo`."""
    place: str
    """Derived from the step's key, so that a step that runs again is undone under the same idempotency key."""
    uses: str
    """The handler."""
    retry: Retry | None = None
    accepts_none: bool = False
    idempotent: bool = False
    timeout: float | None = None
    heartbeat: float | None = None
    on_crash: Literal["rerun", "fail", "ask"] = "rerun"
    concurrency: int | None = None
    inputs: dict[str, msgspec.Raw] = {}
    """Arguments of the step that the compensation takes."""


# --- nodes -----------------------------------------------------------------------------------------------------


class PhaseStarted(_Event, frozen=True):
    phase: str


class PhaseCompleted(_Event, frozen=True):
    phase: str


class ScopeOpened(_Event, frozen=True):
    count: int | None = None
    """Items of a map; None for a loop."""


class ScopeClosed(_Event, frozen=True):
    """A map or loop has ended. Without a node it is the run's own scope: it is `failing` though no node failed, or
    everything in it has stopped and it is `compensating`."""

    outcome: str = "completed"
    error: ErrorInfo | None = None


class NodeScheduled(_Event, frozen=True):
    attempt: int
    not_before: int | None = None
    undo: StepUndo | None = None
    """Of the compensation of a step, when it is scheduled first: what it runs."""
    died: str = ""
    """How the process of the previous attempt died, if that had a process of its own."""


class NodeStarted(_Event, frozen=True):
    attempt: int
    inputs: tuple[tuple[str, int, str], ...] = ()
    """(parameter, seq of the event that holds the value, pointer into it); never values."""
    undo_args: dict[str, Any] = {}
    """The arguments that the node's compensation takes as well, located."""


class NodeCheckpointed(_Event, frozen=True):
    value: msgspec.Raw
    positions: dict[str, int] = {}
    number: int = 1
    vars: dict[str, msgspec.Raw] = {}
    captured_vars: dict[str, Any] = {}
    patches: dict[str, bool] = {}
    """The answers of `ctx.patched`, by name."""


class NodeSuspended(_Event, frozen=True):
    waits: tuple[str, ...] = ()
    basket: str | None = None
    mode: str = ""
    """Of a body that ended with `hf.pend`, or failed into a basket: `next` (it has completed, with this output), `same`
    or `error` (it runs again). Of the engine's own: `hold`, `stop`."""
    output: msgspec.Raw = msgspec.Raw(b"null")
    captured: dict[str, Any] = {}
    vars: dict[str, msgspec.Raw] = {}
    captured_vars: dict[str, Any] = {}
    forgets: bool = False
    """What the body remembered is not replayed when it runs again."""


class NodeResumed(_Event, frozen=True):
    by: str = ""


class NodeCompleted(_Event, frozen=True):
    attempt: int
    output: msgspec.Raw = msgspec.Raw(b"null")
    captured: dict[str, Any] = {}
    vars: dict[str, msgspec.Raw] = {}
    captured_vars: dict[str, Any] = {}
    virtual: bool = False
    """The output of a map or loop: made of its items' outputs, not stored a second time. (A map whose items read what
    may change afterwards stores its output: plans.py, `stores_output`.)"""
    pended_at: int | None = None
    """The event that holds the output: the body ended there, and its node pended until now."""


class NodeFailed(_Event, frozen=True):
    attempt: int
    error: ErrorInfo
    retryable: bool = False
    """Another attempt follows."""
    retry_at: int | None = None
    closes: bool = False
    """The run ends because of it."""
    counts: bool = True
    """The run cannot end well because of it (False: an item of a map that collects its errors)."""


class NodeSkipped(_Event, frozen=True):
    reason: str
    cause: str | None = None


class NodeCancelled(_Event, frozen=True):
    reason: str = ""
    outcome: str | None = None
    cause: str | None = None


# --- inside bodies ---------------------------------------------------------------------------------------------


class StepCompleted(_Event, frozen=True):
    scope: str
    position: int
    kind: str
    name: str
    digest: str
    output: msgspec.Raw
    key: str | None = None
    attempt: int = 1
    undo: str = ""
    """The place of its compensation, if it has one; StepStarted has the rest."""


class StepFailed(_Event, frozen=True):
    scope: str
    position: int
    kind: str
    name: str
    digest: str
    error: ErrorInfo
    key: str | None = None
    attempt: int = 1
    retry_at: int | None = None


class StepStarted(_Event, frozen=True):
    """Written only for steps of nodes whose `on_crash` is not rerun, and of nodes with a compensation in a workflow
    that compensates: their start is committed first."""

    scope: str
    position: int
    kind: str
    name: str
    digest: str
    key: str | None = None
    attempt: int = 1
    undo: StepUndo | None = None
    """What undoes it, if the run does not end well."""
    repeats: bool = False
    """After a crash it is tried again: the start has no effect on the replay."""


# --- waits, messages, children ---------------------------------------------------------------------------------


class WaitOpened(_Event, frozen=True):
    wait_id: str
    kind: str
    call: dict[str, Any] = {}
    """The remembered call that waits: scope, position, kind, name, digest, key. In a race also `races`, the races
    around it, innermost first, each with the number of its call that this one belongs to; the answer to it decides the
    first `decides` of them."""
    until: int | None = None
    about: Any = None


class WaitClosed(_Event, frozen=True):
    wait_id: str
    outcome: str
    value: msgspec.Raw = msgspec.Raw(b"null")
    actor: str = ""


STEP_RETRY: Final = "retry"
"""The kind of a wait in which a step that has failed waits for its next try. Its call is the step's call."""
UNANSWERED: Final = frozenset({"superseded", "cancelled"})
"""Outcomes of a wait that ended without an answer."""


class TimerSet(_Event, frozen=True):
    timer: str
    due_at: int
    """By the wall clock, as it was when the timer was set."""
    boot: str = ""
    """Not empty: it was set by a duration, in this boot of the machine, that ends at `elapsed` (timers.py)."""
    elapsed: int = 0


class TimerFired(_Event, frozen=True):
    timer: str
    elapsed: int = 0
    """The elapsed time by which it was due, in the boot in which it was set; 0: it was due by the wall clock."""


class TimerCancelled(_Event, frozen=True):
    timer: str


class MessageConsumed(_Event, frozen=True):
    message_id: str
    kind: str


class MessageRefused(_Event, frozen=True):
    message_id: str
    kind: str
    code: str = ""
    why: str = ""


class ChildStarted(_Event, frozen=True):
    child: str
    workflow: str
    version: int
    wait_id: str
    detached: bool = False


class ChildEnded(_Event, frozen=True):
    child: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None


class CodeChanged(_Event, frozen=True):
    handler: str
    was: str
    now: str
    accepted: bool = False
    """Of an instance: a person accepts that its body makes other calls than it remembers. From here on, remembered
    calls answer the calls that match them, and other calls are allowed."""


Event = (
    RunCreated
    | RunTakenOver
    | RunSuspended
    | RunResumed
    | RunCancelRequested
    | RunCancelled
    | RunCompleted
    | RunFailed
    | RunEdited
    | BranchOpened
    | ForkRequested
    | JumpRequested
    | RetryRequested
    | RunRecovered
    | InputEdited
    | OutputEdited
    | AnswerEdited
    | VariablesSet
    | TicketRaised
    | TargetEntered
    | PathsOpened
    | PathEnded
    | BasketEntered
    | BasketLeft
    | MilestoneReached
    | PhaseStarted
    | PhaseCompleted
    | ScopeOpened
    | ScopeClosed
    | NodeScheduled
    | NodeStarted
    | NodeCheckpointed
    | NodeSuspended
    | NodeResumed
    | NodeCompleted
    | NodeFailed
    | NodeSkipped
    | NodeCancelled
    | StepCompleted
    | StepFailed
    | StepStarted
    | WaitOpened
    | WaitClosed
    | TimerSet
    | TimerFired
    | TimerCancelled
    | MessageConsumed
    | MessageRefused
    | ChildStarted
    | ChildEnded
    | CodeChanged
)

TYPES: Final[dict[str, type[Any]]] = {t.__name__: t for t in Event.__args__}
"""Every event type by the name it has in the `type` column."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One row of the journal, before it is bytes. Run-level events have no node."""

    seq: int
    at: int
    """Microseconds since 1970, UTC."""
    event: Any
    node: str | None = None
    path: str | None = None
    visit: int = 1
    branch: int = 1
