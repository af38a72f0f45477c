"""Journal format: an event as bytes, the hash chain, and which versions of Holdfast can read a run.

Owns: `encode`, `decode` and `link`; `FORMAT`, the highest format that this version reads, and `RAISES`, what raises the
format of a run besides the operators in its definition (`definition_format`).
Rule: a run has the lowest format whose readers know everything in it (`run_state.format`; 1 is what the first release
knows). A release that adds an event type, a field of an event or of the fold, or gives one another meaning, adds 1 to
`FORMAT` (once) and an entry to `RAISES` that says which events need it. Writing such an event raises the run's format
in the same commit; it is never lowered. An operator of expressions that is new has an entry in
`expressions.NEEDS_FORMAT`: runs of a definition that uses it have that format from their first commit. So engines of
the release before can still drive a run that uses nothing new.
An engine claims only runs whose format it reads (the condition is in the statement that claims), and refuses an event
type or a field that it does not know, whatever the format is (`decode`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from holdfast.model.definition import Body, Definition
from holdfast.model.errors import CorruptJournal, NewerFormat
from holdfast.model.events import TYPES
from holdfast.model.expressions import LEAVES, NEEDS_FORMAT, OPERATORS, walk

FORMAT: Final = 2
"""The highest format that this version reads and writes. 2: expressions with `if`, `starts_with` and `ends_with`."""

RAISES: Final[dict[type[Any], Callable[[Any], int]]] = {}
"""Event type to the format that one such event needs: `{NodeCompleted: lambda e: 2 if e.new_field else 1}`. Whatever is
not here needs format 1."""


def format_of(events: Iterable[Any]) -> int:
    """The format that readers of these events need."""
    return max((RAISES[type(event)](event) for event in events if type(event) in RAISES), default=1)


def definition_format(definition: Definition) -> int:
    """The format that readers of a definition need. Raises NewerFormat if an operator in it is not known here."""
    needed, bodies = 1, [Body(nodes=definition.nodes, result=definition.result)]
    while bodies:
        body = bodies.pop()
        bodies += [node.body for node in body.nodes if node.body is not None]
        found = [body.result]
        for node in body.nodes:
            found += (*node.args.values(), node.when, node.over, node.start, node.until)
        for expr in found:
            if not isinstance(expr, list) or expr[0] in LEAVES:
                continue
            for e in walk(expr):
                if isinstance(e, list) and e[0] not in OPERATORS:
                    what = f"the workflow {definition.name!r} uses the operator {e[0]!r}, which is not known here"
                    raise NewerFormat(f"{what}: a newer Holdfast wrote it; upgrade this one")
                if isinstance(e, list) and e[0] in NEEDS_FORMAT:
                    needed = max(needed, NEEDS_FORMAT[e[0]])
    return needed


def is_newer(run_format: int) -> bool:
    """Whether a run of this format cannot be read by this version."""
    return run_format > FORMAT


def newer(run_format: int) -> str:
    """Why such a run is not driven, and what to do."""
    return f"written by a newer Holdfast (format {run_format}, this one reads {FORMAT}); upgrade this one"


# --- bytes and hashes --------------------------------------------------------------------------------------------

_decoders = {name: msgspec.json.Decoder(t).decode for name, t in TYPES.items()}
new_hash = hashlib.blake2b(digest_size=16).copy  # quicker than making a hash, by a fifth of a link


encode = msgspec.json.Encoder().encode
"""An event's data as bytes."""


def decode(type_name: str, data: bytes) -> Any:
    """An event from its row. Raises CorruptJournal when the row is damaged, NewerFormat when its type or one of its
    fields is not known here."""
    decoder = _decoders.get(type_name)
    if decoder is None:
        raise NewerFormat(
            f"the event type {type_name!r} is not known here: a newer Holdfast wrote it; upgrade this one"
        )
    try:
        return decoder(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as e:
        if "unknown field" in str(e):
            what = f"a {type_name} event has a field that is not known here ({e})"
            raise NewerFormat(f"{what}: a newer Holdfast wrote it; upgrade this one") from None
        raise CorruptJournal(f"a {type_name} event cannot be read: {e}") from None


@functools.lru_cache(maxsize=64)
def moment(visit: int, at: int, token: int) -> str:
    """The part of a link that all events of a commit share, and those of other runs in the same group; cached."""
    return f"{visit}|{at}|{token}|"


def link(
    previous: bytes,
    run_id: str,
    seq: int,
    branch: int,
    type_name: str,
    node: str | None,
    path: str | None,
    visit: int,
    at: int,
    token: int,
    data: bytes,
) -> bytes:
    """The hash of an event: over the one before it and everything in its row."""
    head = f"{run_id}|{seq}|{branch}|{type_name}|{node}|{path}|{moment(visit, at, token)}"
    hashed = new_hash()
    hashed.update(previous + head.encode() + data)
    return hashed.digest()
