"""Common shapes: what several kinds of documents have, each declared once.

Owns: the shapes of the head of a document, of the options of a node, and of retry policies.
"""

from __future__ import annotations

from typing import Final

from holdfast.documents.shapes import (
    Choice,
    Duration,
    Flag,
    JsonSchema,
    ListOf,
    MapOf,
    Number,
    Record,
    Shape,
    Text,
    Whole,
)
from holdfast.model.limits import TITLE_LENGTH_MAX

ID: Final = Text("What the node is called; any text. Expressions name it by this.", length_max=TITLE_LENGTH_MAX)

RETRY: Final = Record(
    "retry",
    "How a node is tried again after a failure.",
    {
        "attempts": Whole("All tries, the first one included.", least=1),
        "backoff": Duration("The delay before the second try; default 1s."),
        "factor": Number("What each further delay is multiplied by; default 2.", least=1),
        "max_delay": Duration("The longest delay; default 60s."),
        "jitter": Number("The share of a delay that may be taken off at random; default 0.1.", least=0, most=1),
        "on": ListOf(Text(), "Names of exception classes: retry only these, as ConnectionError or shop.Declined."),
        "never": ListOf(Text(), "Names of exception classes that are never retried."),
    },
)

OPTIONS: Final[dict[str, Shape]] = {
    "retry": RETRY,
    "timeout": Duration("How long one attempt may run."),
    "heartbeat": Duration("How long an attempt may be silent before it counts as lost."),
    "delay": Duration("How long to wait, durably, once everything the node needs has completed."),
    "on_crash": Choice(["rerun", "fail", "ask"], "What becomes of an attempt that a crash interrupted."),
    "priority": Whole("The higher one starts first where slots are short."),
    "concurrency": Whole("At most this many bodies of its handler at once, over all engines.", least=1),
    "idempotent": Flag("Whether repeating the body is harmless."),
    "compensate": Text("The handler that undoes the node; its first parameter gets the output."),
}
"""The options of a node that runs a handler."""

SETTINGS: Final = Record(
    "settings",
    "How runs behave; each can also be set for one run.",
    {
        "persistence": Text("`aggressive`, `lazy` or `interval:10s`."),
        "on_failure": Text("`fail`, `continue`, `compensate` or `pend:BASKET`."),
        "on_code_change": Choice(["continue", "fail"], "What a run does when the code of a handler has changed."),
        "timeout": Duration("Fail a run after this time."),
        "priority": Whole("Runs with a higher one are started first."),
        "concurrency": Whole("At most this many runs at once, over all engines.", least=1),
        "queue": Text("Which engines drive the runs."),
        "max_recoveries": Whole("Recoveries in a row without progress before a run is put on hold.", least=1),
        "max_visits": Whole("How often one node may be entered on the same path.", least=1),
    },
)

NAME: Final = Text("What the workflow is called; runs are started by this.", example="fulfil")
DESCRIPTION: Final = Text("What the workflow is for; it does not count as a change.", empty=True)
INPUT: Final = MapOf(
    JsonSchema(),
    "Inputs by name, each with its JSON Schema; `default` makes one optional.",
    names="an input",
    identifiers=True,
)
VARIABLES: Final = MapOf(
    JsonSchema(), "Variables by name, each with its JSON Schema.", names="a variable", identifiers=True
)
