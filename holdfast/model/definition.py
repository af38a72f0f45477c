"""Definition: a workflow as data.

Owns: what a workflow consists of, its JSON form, and the content hash that is its version.
Never: executes anything, holds a callable, knows Python annotations (types are JSON Schema here).

Names: a node's id is unique within its body. The nodes of a map's or loop's body live in `Body.nodes`; inside a body a
reference means the same body first, then the enclosing ones.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Literal

import msgspec

from holdfast.model.errors import DefinitionError
from holdfast.model.expressions import Expr
from holdfast.model.limits import LOOP_VISITS_MAX, MAP_LIMIT_DEFAULT, NODE_VISITS_MAX
from holdfast.model.policies import Retry
from holdfast.model.values import DuplicateKey, unique_keys

DEFAULT_QUEUE: Final = "default"
END: Final = "end"
"""What the last unit of a journey names as its next one; no unit is called so."""


class NodeDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One unit of work.

    `call` runs the handler `uses`; `map` runs `body` once per item of `over`; `loop` repeats `body`.
    `args` are the handler's arguments by parameter name ("*" holds a `list` expression for *args). In a map or loop
    they are the extra keyword arguments, the same for every item or round, readable inside as ["param", id, name].
    """

    id: str
    title: str = ""
    """The id that the author of a document wrote, where it is no legal name; `id` is derived from it."""
    kind: Literal["call", "map", "loop"] = "call"
    uses: str = ""
    args: dict[str, Expr] = {}
    when: Expr | None = None
    """False: the node is skipped. A null constant is the same as no condition."""
    after: tuple[str, ...] = ()
    """Nodes that must be settled first, without data."""
    phase: str | None = None
    lane: str = ""
    """The branch of a parallel route that the node belongs to, `route_1.eu.`: a part of its path."""
    route: str | None = None
    """The handler's or route's label for people, when a node belongs to a branch of a route: `kind=article`."""

    delay: float | None = None
    """Seconds between the completion of everything it needs and its start."""
    retry: Retry | None = None
    timeout: float | None = None
    """Seconds one attempt may run."""
    heartbeat: float | None = None
    """Seconds that may pass without ctx.heartbeat()."""
    on_crash: Literal["rerun", "fail", "ask"] = "rerun"
    compensate: str | None = None
    """The handler that undoes this node; its first parameter gets the output."""
    compensate_inputs: tuple[str, ...] = ()
    """Parameters of that handler that get the arguments of the same names."""
    compensate_retry: Retry | None = None
    compensate_timeout: float | None = None
    compensate_heartbeat: float | None = None
    compensate_on_crash: Literal["rerun", "fail", "ask"] = "rerun"
    compensate_concurrency: int | None = None
    compensate_accepts_none: bool = False
    compensate_idempotent: bool = False
    concurrency: int | None = None
    """At most this many bodies of this handler at once, per engine."""
    priority: int = 0
    idempotent: bool = False
    """The author declares that repeating the body is harmless."""
    secrets: dict[str, str] = {}
    """Where secrets stand in the arguments (a JSON pointer whose first key is the parameter) to their names. In `args`
    null stands there."""
    returns: Any = None
    """JSON Schema of the output, if the handler declares its type."""

    unit: Literal["", "step", "route", "parallel", "join"] = ""
    """Of a journey (`Definition.start`): how the execution path continues behind this node. `step`: with `next`.
    `route`: with the branch that its output names. `parallel`: on one path for each name in its output, until all of
    them have arrived at `join`; without `branches` each begins with `next`. A `join` runs nothing."""
    next: str = ""
    """The unit that follows on the same path, or `end`."""
    branches: dict[str, str] = {}
    """Name of a branch to its first unit."""
    join: str = ""
    """Where the branches of a `parallel` unit meet."""

    body: Body | None = None
    over: Expr | None = None
    item: str = ""
    """Map: the body's parameter that gets the item. Loop: the one that gets the value."""
    limit: int = MAP_LIMIT_DEFAULT
    errors: Literal["fail", "collect"] = "fail"
    start: Expr | None = None
    until: Expr | None = None
    """Evaluated inside the body's scope after each round."""
    max_visits: int = LOOP_VISITS_MAX
    at_limit: Literal["fail", "take"] = "fail"


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a map does with each item, or a loop in each round: nodes of its own and a result."""

    nodes: tuple[NodeDef, ...]
    result: Expr = None


class Param(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of a workflow."""

    name: str
    required: bool = True
    default: Any = None
    schema: Any = None


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named group of nodes; it orders only where `after` asks."""

    name: str
    after: str | None = None


class Further(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What follows a milestone that was reached: it is reached again every `after` seconds, `repeat` times."""

    after: float
    repeat: int = 1
    """-1: until the milestone is cleared."""
    offset: float = 0
    """Seconds before the first of these intervals begins."""


class Milestone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time by which a run, or its stay in a basket, should have come to an end; what happens when it has not."""

    name: str
    set_on: Literal["start", "reopen", "entry", "exit"] = "start"
    """The run starts or is reopened; a path enters or leaves `basket`."""
    basket: str = ""
    clears: Literal["end", "exit"] = "end"
    """What clears it: the end of the run, or that the path leaves the basket (of one that is set on its entry)."""
    after: float | None = None
    """Seconds from then on."""
    at: str | None = None
    """An instant, in place of `after`: `2027-01-01T00:00:00Z`."""
    from_next_day: bool = False
    """The seconds count from the next midnight in `zone`."""
    zone: str = "UTC"
    action: Literal["notify", "resume", "retry", "cancel", "move", "signal"] = "notify"
    to: str = ""
    """Of `move`: the basket. Of `signal`: the name of the signal."""
    data: Any = None
    """For people and hooks; the payload of a signal."""
    further: tuple[Further, ...] = ()


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How runs of a workflow behave; each can also be set for one run."""

    persistence: str = "aggressive"
    """`aggressive`, `lazy`, or `interval:10s`."""
    on_failure: str = "fail"
    """`fail`, `continue`, `compensate` or `pend:<basket>`."""
    on_code_change: Literal["continue", "fail"] = "continue"
    timeout: float | None = None
    """Seconds of wall time since the run's start."""
    priority: int = 0
    concurrency: int | None = None
    """At most this many runs of the workflow are driven at once, over all engines of a store."""
    queue: str = DEFAULT_QUEUE
    """Which engines drive its runs: those that serve this queue."""
    max_recoveries: int | None = None
    max_visits: int = NODE_VISITS_MAX
    """How often one node may be entered on the same path, the first time included."""


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow. One that exists as a `Definition` from `load` or from tracing is valid (validation.py)."""

    name: str
    kind: Literal["graph", "code"] = "graph"
    params: tuple[Param, ...] = ()
    nodes: tuple[NodeDef, ...]
    result: Expr = None
    start: str = ""
    """The first unit of a journey: a definition whose nodes are entered one after the other along execution paths, also
    again, and not when their data is complete. Empty: a graph."""
    phases: tuple[Phase, ...] = ()
    variables: dict[str, Any] = {}
    """Name to JSON Schema of its type."""
    tickets: dict[str, str] = {}
    """Name of a ticket to the node that it leads to."""
    milestones: tuple[Milestone, ...] = ()
    settings: Settings = Settings()
    doc: str = ""

    def encode(self) -> bytes:
        """The canonical JSON form."""
        return _ENCODER.encode(self)

    def content_hash(self) -> str:
        """The hash by which two definitions are the same version; the description does not count."""
        bare = msgspec.structs.replace(self, doc="") if self.doc else self
        return hashlib.blake2b(bare.encode(), digest_size=16).hexdigest()


def decode(data: bytes | str) -> Definition:
    """Read a definition from its JSON form; errors name the field. Does not validate the graph (validation.check)."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as e:
        raise DefinitionError(f"this is not a workflow definition: {e}") from None


def read(data: bytes | str) -> Definition:
    """Read a definition from a file that a person wrote: a duplicate key is refused."""
    try:
        json.loads(data, object_pairs_hook=unique_keys)
    except DuplicateKey as e:
        raise DefinitionError(f"this is not a workflow definition: {e}") from None
    except (ValueError, RecursionError):
        pass  # decoding names the field
    return decode(data)


def handlers_of(nodes: tuple[NodeDef, ...]) -> set[str]:
    """Names of all code that these nodes use, wherever in them."""
    found: set[str] = set()
    for node in nodes:
        if node.uses:
            found.add(node.uses)
        if node.compensate:
            found.add(node.compensate)
        if node.body is not None:
            found |= handlers_of(node.body.nodes)
    return found


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Definition)
