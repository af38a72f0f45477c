"""Compensating: what undoes a step of durable code.

Owns: which compensation a node has as a step, and what the journal must know to run it when the run does not end well:
its handler and policy, its place, and the arguments of the step that it takes.
Never: decides that something is undone (rules/undoing.py).
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal

import msgspec

from holdfast.authoring import functions
from holdfast.authoring.node_decorator import Node
from holdfast.model import events as ev
from holdfast.model.errors import DefinitionError, HoldfastError, InvalidInput
from holdfast.model.handlers import inputs_taken
from holdfast.model.naming import derived
from holdfast.model.policies import Retry
from holdfast.model.typecheck import compensation_mismatch
from holdfast.model.values import encode
from holdfast.worker.memory import Call

_NO_NAME = re.compile(r"[.@#~\x00-\x1f]")


def _as_stored(retry: Retry | None) -> Retry | None:
    """A policy as the journal gives it back: 0.0 where its author wrote 0."""
    return None if retry is None else msgspec.json.decode(msgspec.json.encode(retry), type=Retry)


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """How steps of one node are undone."""

    node: str
    uses: str
    retry: Retry | None
    accepts_none: bool
    idempotent: bool
    timeout: float | None
    heartbeat: float | None
    on_crash: Literal["rerun", "fail", "ask"]
    concurrency: int | None
    taken: tuple[str, ...]
    """Parameters of the step that the compensation takes as well."""
    signature: inspect.Signature
    annotations: dict[str, Any]

    @classmethod
    def of(cls, node: Node[..., Any]) -> Compensation | None:
        """The compensation of a node, if it has one. DefinitionError: it could never be called."""
        undo = node.options.compensate
        if undo is None:
            return None
        if mismatch := compensation_mismatch(undo.handler, node.handler):
            raise DefinitionError(f"{node.name}: its compensation {undo.name} cannot be called: {mismatch}")
        return cls(
            node=_NO_NAME.sub("_", node.base_id),
            uses=undo.name,
            retry=_as_stored(undo.options.retry),
            accepts_none=functions.accepts_none(undo.signature),
            idempotent=undo.options.idempotent,
            timeout=undo.options.timeout,
            heartbeat=undo.options.heartbeat,
            on_crash=undo.options.on_crash,
            concurrency=undo.options.concurrency,
            taken=inputs_taken(undo.signature.params, node.signature.params),
            signature=node.signature.python,
            annotations={p.name: p.annotation for p in node.signature.params},
        )

    def of_call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ev.StepUndo:
        """What undoes one step, known from its start on."""
        return ev.StepUndo(
            node=self.node,
            place=derived("", call.step_key, size=8),
            uses=self.uses,
            retry=self.retry,
            accepts_none=self.accepts_none,
            idempotent=self.idempotent,
            timeout=self.timeout,
            heartbeat=self.heartbeat,
            on_crash=self.on_crash,
            concurrency=self.concurrency,
            inputs=self._inputs(call, args, kwargs) if self.taken else {},
        )

    def _inputs(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, msgspec.Raw]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise InvalidInput(f"step {call.name}: {e}") from None
        bound.apply_defaults()
        try:
            return {
                name: msgspec.Raw(encode(bound.arguments[name], self.annotations[name], what=name))
                for name in self.taken
            }
        except HoldfastError as e:
            why = f"its compensation takes an argument that cannot be kept: {e.message}"
            raise InvalidInput(f"step {call.name}: {why}") from None
