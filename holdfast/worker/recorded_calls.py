"""Recorded calls: a call on ctx as it was made, the record of one, and the records of one scope.

Owns: `Call`, `Recorded`, `Scope`, when a record agrees with a call, and the text of a mismatch.
Never: chooses which record answers a call (replay.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.errors import StepMismatch
from holdfast.worker.call_scopes import shown


class Call(msgspec.Struct):
    """A recorded call, as it was made."""

    scope: str
    position: int
    kind: str
    name: str
    digest: str
    key: str | None
    step_key: str
    """What its idempotency key is derived from."""
    place: int
    """What the scopes inside of it are named by: its position, or a number that follows from its key."""

    def as_dict(self) -> dict[str, Any]:
        fields = msgspec.structs.asdict(self)
        del fields["place"]
        return fields


def inner_scope(call: Call) -> str:
    """The scope of what a step's function calls, and of the tasks that it creates."""
    return f"{call.scope}s{call.place}/"


class Recorded(msgspec.Struct):
    """The record of a call."""

    position: int
    kind: str
    name: str
    digest: str
    key: str | None
    output: bytes | None = None
    """The result, when it has one."""
    error: ev.ErrorInfo | None = None
    failures: int = 0
    retry_at: int | None = None
    """When a step that has failed is tried again; 0: now, its timer has fired. While `wait_id` is open that decides."""
    started: bool = False
    """The start of its latest try was committed (a node whose on_crash forbids to repeat it), and not how it ended."""
    wait_id: str | None = None
    outcome: str | None = None
    """How the wait was closed."""
    answered: int = 0
    """Which word of the memory its latest one was: those that were answered earlier have smaller numbers."""
    used: bool = False
    yields: bool = False
    """Its body has changed since, and a person has accepted that: it answers calls that agree, and hinders no other."""

    @property
    def is_over(self) -> bool:
        """Whether the call has ended, well or not."""
        return self.output is not None or (self.error is not None and self.retry_at is None)

    @property
    def is_blank(self) -> bool:
        """Whether the call keeps its place and nothing else: its wait was given up."""
        return self.wait_id is None and self.output is None and self.error is None and not self.started

    @property
    def hinders(self) -> bool:
        """Whether another call in its place is a mismatch."""
        return not (self.is_blank or self.yields)


class RaceEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a race: which call won. What the winner returned or raised is in the winner's own record."""

    index: int
    raised: bool = False


class Scope:
    """The calls that were made in one scope, and its records."""

    __slots__ = ("by_key", "by_position", "counts", "made", "made_by_key", "next_position", "unused")

    def __init__(self) -> None:
        self.next_position = 0
        self.by_position: dict[int, Recorded] = {}
        self.by_key: dict[str, list[Recorded]] = {}
        self.unused: dict[tuple[str, str, str], list[Recorded]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.made: dict[int, tuple[str, str, str]] = {}
        """What this execution has called at a position: the record there is kept for it. Only if there are some."""
        self.made_by_key: dict[str, dict[int, tuple[str, str, str]]] = {}
        """What this execution has called under a key, by position, and no record has answered yet. Only where there are
        records of the key."""

    def next_use(self, key: str) -> int:
        """How often a key was used here before this call."""
        used = self.counts.get((key, ""), 0)
        self.counts[key, ""] = used + 1
        return used

    def keeps(self, key: str, recorded: Recorded, call: Call) -> bool:
        """Whether a record is kept for another call under the same key: of equal ones the one at its place."""
        made, shape = self.made_by_key.get(key, {}), (recorded.kind, recorded.name, recorded.digest)
        if agree(call, recorded):
            return recorded.position != call.position and made.get(recorded.position) == shape
        return shape in made.values()


def agree(call: Call, recorded: Recorded) -> bool:
    return (call.kind, call.name, call.digest) == (recorded.kind, recorded.name, recorded.digest)


def mismatch(call: Call, recorded: Recorded) -> StepMismatch:
    def show(c: Call | Recorded) -> str:
        return f"{c.kind} {c.name!r} (arguments {c.digest or 'not encodable'}{f', key {c.key!r}' if c.key else ''})"

    differs = [
        word
        for word, a, b in (
            ("the kind of call", call.kind, recorded.kind),
            ("the function", call.name, recorded.name),
            ("the arguments", call.digest, recorded.digest),
        )
        if a != b
    ]
    return StepMismatch(
        f"at position {call.position} of {shown(call.scope)} the code now calls {show(call)}, but what is "
        f"remembered there is {show(recorded)}: {' and '.join(differs)} differ(s). Options: deploy the old code again "
        "and resume the run; let the new code ask ctx.patched('...') before it does something else; accept the change "
        "(resume --accept-change); fork the run. Calls that differ without a change of the code need a key "
        "(ctx.keyed('...').step(...)), or ctx.now(), ctx.random(), ctx.uuid() instead of the clock and chance."
    )


def forget(scope: Scope, recorded: Recorded) -> None:
    if scope.by_position.get(recorded.position) is not recorded:
        return  # another call has been recorded at its place since
    del scope.by_position[recorded.position]
    scope.unused[recorded.kind, recorded.name, recorded.digest].remove(recorded)
    if recorded.key is not None:
        scope.by_key[recorded.key].remove(recorded)


def forget_failed(scope: Scope) -> None:
    for recorded in [recorded for recorded in scope.by_position.values() if _has_failed(recorded)]:
        forget(scope, recorded)


def _has_failed(recorded: Recorded) -> bool:
    if recorded.kind == "race" and recorded.output is not None:
        return msgspec.json.decode(recorded.output, type=RaceEnd).raised
    return (recorded.error is not None and recorded.output is None) or recorded.outcome in (
        "failed",
        "cancelled",
        "deadline",
    )
