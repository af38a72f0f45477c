"""Versions of one workflow for the tests: each is declared anew, as a program of that release would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast as hf
from holdfast.authoring import rivals

Declared = hf.Workflow[..., Any]


@hf.node
async def vs_first(x: int) -> int:
    return x + 1


@hf.node
async def vs_second(x: int) -> int:
    return x * 10


@hf.node
async def vs_third(x: int) -> int:
    return -x


def declare(function: Callable[..., Any], **options: Any) -> Declared:
    """A workflow under a name that an earlier release may have had with other content."""
    rivals._claimed.pop(options.get("name", function.__name__), None)
    return hf.workflow(**options)(function)


def line(*nodes: Any, **options: Any) -> Declared:
    """A version of the workflow `vs_line`: these nodes, one after the other."""

    def vs_line(x: int) -> Any:
        for node in nodes:
            x = node(x)
        return x

    return declare(vs_line, name="vs_line", **options)
