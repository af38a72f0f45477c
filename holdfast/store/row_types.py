"""Rows: what crosses the boundary between the engine and a store.

Owns: the fields of each row, and what a commit is made of.
Never: knows which operations there are (see contract.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec


class RunRow(msgspec.Struct, gc=False):
    """One row of `run_state`. `fold` is what the run's state needs beyond columns, as JSON bytes."""

    run_no: int
    run_id: str
    workflow: str
    version: int
    status: str
    branch: int
    last_seq: int
    head_hash: bytes
    token: int
    engine: str | None
    """The engine that holds the lease; None: the run has no owner."""
    fold: bytes | None
    input_hash: str
    parent_no: int | None
    root_no: int
    priority: int
    recoveries: int
    hold: str | None
    """Why the engine may not touch the run; outside the fold."""
    created_at: int
    started_at: int | None
    finished_at: int | None
    queue: str = "default"
    """Which engines may drive the run: those that serve this queue."""
    last_engine: str | None = None
    """The engine that drove the run before the current owner, or drove it last; None: no engine has released it yet."""
    format: int = 1
    """What a reader of the run must know (model/journal_format.py)."""


class NodeRow(NamedTuple):
    """One row of `run_node_state`; the key is (run_no, node, path, visit)."""

    run_no: int
    node: str
    path: str
    visit: int
    status: str
    attempt: int
    failures: int
    output_seq: int
    """The event that holds the output or the final error; 0: none."""
    memory_seq: int
    """The event after which the recorded calls of the body are read; 0: none yet."""
    not_before: int
    captured: bytes | None
    scope: bytes | None
    """Counters of a map or loop."""
    is_open: int
    """1 while the run needs the row in memory (its scope is open), else 0."""
    started_at: int | None
    finished_at: int | None


class EventRow(NamedTuple):
    """One row of `run_events`; (run_no, seq) is unique."""

    run_no: int
    seq: int
    branch: int
    type: str
    node: str | None
    path: str | None
    visit: int
    at: int
    token: int
    hash: bytes
    data: bytes


class LinkedRow(NamedTuple):
    """An event that is read for its data, with what its hash covers beside its own row."""

    run_no: int
    seq: int
    branch: int
    type: str
    node: str | None
    path: str | None
    visit: int
    at: int
    token: int
    hash: bytes
    data: bytes
    previous: bytes | None
    """The hash of the event before it, in this run or in the one that this run was forked from; None: there is no such
    event."""
    run_id: str | None
    """The id of the run that wrote it."""


class WaitRow(NamedTuple):
    """One row of `run_waits`; the key is (run_no, wait_id)."""

    run_no: int
    wait_id: str
    kind: str
    node: str | None
    path: str | None
    visit: int
    branch: int
    status: str
    """`open` or `closed`."""
    since: int
    until: int | None
    data: bytes
    basket: str | None = None
    assignee: str | None = None
    outcome: str | None = None
    """How it was closed; None while it is open."""
    actor: str | None = None
    """Who closed it, if a person did."""


OF_PEOPLE: Final = ("input", "basket", "pause", "hold")
"""Kinds of waits that a person ends."""


class AskedRow(NamedTuple):
    """Something that waits for a person, and where."""

    run_id: str
    workflow: str
    wait: WaitRow


class BasketRow(NamedTuple):
    """The contents of one basket."""

    basket: str
    questions: int
    pended: int
    """Nodes that ended there, and continue when an operator resumes them."""
    since: int
    """When the oldest arrived."""


class TimerRow(NamedTuple):
    """One row of `run_timers`; the key is (run_no, timer)."""

    run_no: int
    timer: str
    due_at: int
    branch: int
    status: str
    """`set`, `fired` or `cancelled`."""
    boot: str = ""
    """Not empty: the timer was set by a duration, in this boot of the machine, and is due when `elapsed` has passed."""
    elapsed: int = 0


class MessageRow(NamedTuple):
    """One row of `run_inbox_messages`; `message_id` is unique; `no` gives the order of arrival."""

    message_id: str
    run_no: int
    kind: str
    payload: bytes
    created_at: int
    status: str = "new"
    outcome: bytes | None = None
    no: int = 0


class MessageOutcome(NamedTuple):
    """What became of a message; written in the same commit as the events it led to."""

    message_id: str
    status: Literal["held", "consumed", "dead", "new"]
    """`new`: returned to the inbox, for the next owner of the run."""
    outcome: bytes | None


Sent = Literal["new", "duplicate", "conflict", "unknown_run", "finished"]
"""What became of a message that was sent: it is stored; it was stored before; its id stands for another message; there
is no such run; the run has ended."""


class RunChange(NamedTuple):
    """The new values of a run's row. `fold` None leaves it as it is."""

    last_seq: int
    head_hash: bytes
    status: str
    branch: int
    engine: str | None
    """The owner after this commit: this engine, or None to release the lease in the same transaction; then this engine
    becomes the `last_engine` of a run that has not finished."""
    recoveries: int
    started_at: int | None
    finished_at: int | None
    fold: bytes | None
    format: int = 1
    """What readers need from now on; the format of the run is raised to it, never lowered."""


class RunStep(msgspec.Struct, frozen=True, gc=False):
    """The new values of a run's row when only these have changed: most commits, and no index of the row is touched."""

    last_seq: int
    head_hash: bytes
    recoveries: int


class BranchRow(NamedTuple):
    """One row of `run_branches`; the key is (run_no, branch). The first branch of a run has none, unless the run was
    forked from another one: then `origin_no` is that run, whose journal up to `cutoff_seq` is the beginning of this
    one's."""

    run_no: int
    branch: int
    parent: int
    cutoff_seq: int
    key_epoch: int
    reason: str
    origin_no: int | None
    created_at: int


class Commit(msgspec.Struct, gc=False):
    """What one run writes. Either `create` (a new run) or `change` with its fence."""

    run_no: int
    token: int
    expected_seq: int
    change: RunChange | RunStep | None = None
    create: RunRow | None = None
    nodes: Sequence[NodeRow] = ()
    """At most one row per key."""
    events: Sequence[EventRow] = ()
    waits: Sequence[WaitRow] = ()
    timers: Sequence[TimerRow] = ()
    outcomes: Sequence[MessageOutcome] = ()
    messages: Sequence[MessageRow] = ()
    """To other runs, in the order in which they arrive (insert only, `no` is ignored). A message_id that exists already
    is left as it is. A message that an ended run will never read is dead at once, as by `ends`."""
    children: Sequence[Commit] = ()
    """New runs that this commit creates, each with its first rows. A run_id that is taken refuses the whole commit."""
    ends: bool = False
    """The run has its terminal event: messages that it has not consumed are dead."""
    opens: BranchRow | None = None
    """The branch that is current from now on."""
    gone: Sequence[tuple[str, str, int]] = ()
    """(node, path, visit): rows that the run no longer has, on a new branch or by its journal."""
    version: int = 0
    """The version that the run is pinned to from now on; 0: unchanged."""
    begins: tuple[str, int] | None = None
    """(workflow, version) that a new branch of the run begins under. Like that of a new run it must not be retired."""
    expected_hash: bytes | None = None
    """The hash of the last event, as its owner knows it; None: any hash at `expected_seq`. A database that fell back to
    an earlier state gives run numbers out again, and a new run can have the token and the last seq of the old one."""


class CommitResult(NamedTuple):
    """How one commit of a group ended. `refusal` None: it is durable."""

    refusal: Literal["fenced", "run_exists", "number_taken", "failed", "damaged", "replaced", "retired"] | None
    """`number_taken`: another run has the number of a new one. Numbers are given out once, so the database has fallen
    back to an earlier state since. `damaged`: a part of the database that the commit needs cannot be read. `replaced`:
    the commit was written, but its answer was lost and the run has another token by now: the next owner does what
    follows from it. `retired`: a run, or a branch, would begin under a version that is retired."""
    detail: str = ""


class EngineRow(NamedTuple):
    """One row of `engines`: an engine that is or was alive. A boot is a new engine id."""

    engine: str
    host: str
    pid: int
    lock_file: str
    started_at: int
    expires_at: int
    """When its lease expires by the clock that all engines of the store share."""
    can_run: bytes
    boot: str = ""
    """The boot of the kernel on which it runs, of an engine that has a lock file there."""
    lock_inode: int = 0
    """The inode of its lock file: `lock_file` is a base name, which another file could have."""
    awake_until: int = 0
    """When its lease expires in the time by which the engine counts it: monotonic time, on that boot."""


class Evidence(NamedTuple):
    """What a store holds about one run, as of one moment: events from a point on, and every row."""

    run: RunRow | None
    events: list[EventRow]
    """The run's own; events that it shares with the run it was forked from are that run's."""
    branches: list[BranchRow]
    complete: bool
    """These are the last events. Only then the rows below are read."""
    nodes: Sequence[NodeRow] = ()
    waits: Sequence[WaitRow] = ()
    timers: Sequence[TimerRow] = ()
    messages: Sequence[MessageRow] = ()


Check = Literal[
    "head", "gap", "token", "ending", "terminal", "status", "owned_end", "wait_of_end", "timer_of_end",
    "message_of_end", "node_of_end", "node_of_suspended", "stuck", "wait_without_timer", "wait_without_child",
    "wait_for_ended_child", "child_of_ended", "left_alone", "overdue", "lease", "version", "format", "parent", "branch",
    "orphan_events", "orphan_nodes", "orphan_waits", "orphan_timers", "orphan_branches", "orphan_messages",
]  # fmt: skip
"""Questions about many runs at once; each is answered by one statement, and so as of one moment."""


class Suspect(NamedTuple):
    """One answer to such a question: what was found, and what was expected."""

    run_no: int
    run_id: str | None
    node: str | None
    path: str | None
    seq: int | None
    found: Any
    wanted: Any


class Standing(NamedTuple):
    """Which of several copies of a store this is."""

    epoch: int
    """1 in a store that was never restored. A restored or copied one has a higher number than any before: the time, in
    microseconds, so that two restores of one backup differ."""
    closed: str
    """Why engines do not work on it: `backup` (it is one) or `restored` (it is not activated yet); empty: they do."""


class Health(NamedTuple):
    """The state of the database itself."""

    damage: Sequence[str]
    """Damage that the database reports about its own file; empty: none."""
    durable: bool
    """True if what a commit returned for is on the disk."""
    schema: int
    schema_wanted: int


class Rebuilt(NamedTuple):
    """The rows of a run as its journal implies them. Columns of the lease, and what a run never changes, stay."""

    run_no: int
    token: int
    """The token that the run had when its journal was read."""
    version: int
    last_seq: int
    head_hash: bytes
    status: str
    branch: int
    recoveries: int
    started_at: int | None
    finished_at: int | None
    fold: bytes
    nodes: Sequence[NodeRow]
    waits: Sequence[WaitRow]
    timers: Sequence[TimerRow]
