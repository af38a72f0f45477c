"""Passing: the bodies of `input`, `output` and `transform`, which return what their arguments were evaluated to.

Expressions and templates in their config are compiled into the definition, and are evaluated before a body begins.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.handlers.registering import builtin


@builtin("holdfast.input")
def input_value(value: Annotated[Any, Meta(description="Default: the run's input.")] = None) -> Any:
    """The entry of a graph; the output is the run's input."""
    return value


@builtin("holdfast.output")
def output_value(value: Annotated[Any, Meta(description="What the graph gives back.")] = None) -> Any:
    """An exit of a graph; the output is its value."""
    return value


@builtin("holdfast.transform")
def transform(value: Annotated[Any, Meta(description="An expression, or values with expressions in them.")]) -> Any:
    """Compute a value; the output is that value."""
    return value
