"""The public API in one place: loaded when the first name of `holdfast` is used, so that commands start quickly."""

from holdfast.authoring.builtin_nodes import ask, goto, pend, receive, sleep, ticket
from holdfast.authoring.control_flow import (
    any_of,
    contains,
    ends_with,
    failed,
    first,
    if_else,
    is_none,
    phase,
    route,
    routes,
    size,
    skipped,
    some,
    starts_with,
    text,
    var,
    when,
)
from holdfast.authoring.maps_and_loops import loop, map
from holdfast.authoring.node_decorator import Node, node
from holdfast.authoring.workflows import Workflow, workflow
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model.current import Current, current, set_bare_context
from holdfast.model.errors import (
    ChildFailed,
    DeadlinePassed,
    DefinitionError,
    DuplicateKey,
    Fail,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    MissingCode,
    NotYetApplied,
    OutcomeUnknown,
    Pended,
    Refused,
    RunCancelled,
    RunExists,
    RunFailed,
    RunSuspended,
    SecretUnavailable,
    StepMismatch,
    StoreError,
    Suspended,
    TicketRaised,
    TraceError,
    UnknownRun,
    UsageError,
)
from holdfast.model.events import Failed
from holdfast.model.policies import Retry
from holdfast.model.secret_names import secret
from holdfast.model.texts import Escalate
from holdfast.model.views import Wait
from holdfast.opening import open_engine as open
from holdfast.opening import run
from holdfast.worker.bare_context import context as _bare_context
from holdfast.worker.context import Context
from holdfast.worker.permissions import Permissions, SecretRule
from holdfast.worker.racing import Won
from holdfast.worker.sync_context import SyncContext
from holdfast.worker.targets import load

set_bare_context(_bare_context)

__all__ = [
    "ChildFailed",
    "Context",
    "Current",
    "DeadlinePassed",
    "DefinitionError",
    "DuplicateKey",
    "Engine",
    "Escalate",
    "Fail",
    "Failed",
    "HoldfastError",
    "InvalidInput",
    "LeaseLost",
    "MissingCode",
    "Node",
    "NotYetApplied",
    "OutcomeUnknown",
    "Pended",
    "Permissions",
    "Refused",
    "Retry",
    "Run",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunSuspended",
    "SecretRule",
    "SecretUnavailable",
    "StepMismatch",
    "StoreError",
    "Suspended",
    "SyncContext",
    "TicketRaised",
    "TraceError",
    "UnknownRun",
    "UsageError",
    "Wait",
    "Won",
    "Workflow",
    "any_of",
    "ask",
    "contains",
    "current",
    "ends_with",
    "failed",
    "first",
    "goto",
    "if_else",
    "is_none",
    "load",
    "loop",
    "map",
    "node",
    "open",
    "pend",
    "phase",
    "receive",
    "route",
    "routes",
    "run",
    "secret",
    "size",
    "skipped",
    "sleep",
    "some",
    "starts_with",
    "text",
    "ticket",
    "var",
    "when",
    "workflow",
]
