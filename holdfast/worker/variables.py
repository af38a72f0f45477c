"""Variables: the run's typed values, as one body sees and sets them.

Owns: reading (as of the activation, plus the body's own writes) and checked writing.
Rule: what a body sets is committed with its completion or checkpoint, never at a suspension.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from holdfast.model import handlers
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.values import decoder, encode

if TYPE_CHECKING:
    from holdfast.worker.activation import Activation


class Variables(MutableMapping[str, Any]):
    """`ctx.vars`: only declared names, only values of the declared type."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        workflow = handlers.find_workflow(activation.attempt.plan.definition.name)
        self._types: dict[str, Any] = {} if workflow is None else workflow.variables

    def _declared(self, name: str) -> Any:
        if name not in self._activation.attempt.plan.definition.variables:
            known = ", ".join(sorted(self._activation.attempt.plan.definition.variables)) or "none"
            raise UsageError(
                f"variable {name!r} is not declared; declared: {known}. Add it to @hf.workflow(variables=...)"
            )
        return self._types.get(name, Any)

    def __getitem__(self, name: str) -> Any:
        annotation = self._declared(name)
        data = self._activation.vars.get(name)
        if data is None:
            data = self._activation.port.variable(name)
        if data is None:
            raise KeyError(name)
        return decoder(annotation)(data)

    def __setitem__(self, name: str, value: Any) -> None:
        annotation = self._declared(name)
        self._activation.check()
        try:
            data = encode(value, annotation, what=f"variable {name}")
            decoder(annotation)(data)
        except HoldfastError as e:
            raise type(e)(f"variable {name}: {e.message}") from None
        self._activation.vars[name] = data

    def __delitem__(self, name: str) -> None:
        raise UsageError("variables are added and changed, never deleted; set it to None")

    def __iter__(self) -> Iterator[str]:
        for name in self._activation.attempt.plan.definition.variables:
            if name in self._activation.vars or self._activation.port.variable(name) is not None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)
