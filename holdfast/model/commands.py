"""Commands: requests to a run's owner. Rules turn them into events, or refuse.

Those about an instance name its attempt: a late word from an attempt that is over is not heard.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.events import ErrorInfo, StepCompleted, StepFailed, StepStarted


class _Command(msgspec.Struct, frozen=True, gc=False):
    pass


class Create(_Command, frozen=True):
    """Write the run down; it begins when there is a place for it."""


class Begin(_Command, frozen=True):
    """Start what waits for nothing."""


class StartNode(_Command, frozen=True):
    """A place for the body is free."""

    node: str
    path: str


class CompleteNode(_Command, frozen=True):
    node: str
    path: str
    attempt: int
    output: bytes
    captured: dict[str, Any] = {}
    vars: dict[str, bytes] = {}
    captured_vars: dict[str, Any] = {}


class FailNode(_Command, frozen=True):
    node: str
    path: str
    attempt: int
    error: ErrorInfo


class DropNode(_Command, frozen=True):
    """The body was cancelled and has gone, or was given up."""

    node: str
    path: str
    attempt: int


class StopNode(_Command, frozen=True):
    """The engine stops in an orderly way and the body was left: it goes on later, with the same attempt."""

    node: str
    path: str
    attempt: int


class RecordStep(_Command, frozen=True):
    node: str
    path: str
    attempt: int
    event: StepCompleted | StepFailed | StepStarted


class Checkpoint(_Command, frozen=True):
    node: str
    path: str
    attempt: int
    value: bytes
    number: int
    vars: dict[str, bytes] = {}
    captured_vars: dict[str, Any] = {}


class NewChild(_Command, frozen=True):
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


class OpenWait(_Command, frozen=True):
    """A body made a call that waits."""

    node: str
    path: str
    attempt: int
    kind: str
    call: dict[str, Any]
    until: int | None = None
    child: NewChild | None = None
    about: Any = None


class SuspendNode(_Command, frozen=True):
    """Everything in the body waits."""

    node: str
    path: str
    attempt: int


class CloseWait(_Command, frozen=True):
    """The body gave a wait up (it was cancelled inside the body)."""

    wait_id: str
    outcome: str


class FireTimer(_Command, frozen=True):
    timer: str


class ProvideParams(_Command, frozen=True):
    """Captured values of a scope's parameters, which its conditions read."""

    scope_path: str
    values: dict[str, Any]


class ProvideUndo(_Command, frozen=True):
    """What there is to compensate: (node, path, visit, output_seq), last completed first."""

    instances: tuple[tuple[str, str, int, int], ...]


class FinishRun(_Command, frozen=True):
    """Every node has settled; this is the result."""

    result: bytes


class FailRun(_Command, frozen=True):
    """The run cannot go on, and no node is to blame."""

    error: ErrorInfo


class TakeOver(_Command, frozen=True):
    """A new owner begins: what was cut off is scheduled again."""

    engine: str
    token: int
    previous: str | None
    graceful: bool
    changed_code: tuple[tuple[str, str, str], ...] = ()
    """(handler, was, now)"""


class Message(_Command, frozen=True):
    """A row of the inbox: cancel, resume, child_ended."""

    message_id: str
    kind: str
    payload: bytes
