"""Document workflows: a workflow that was read from a document, with the face of one that Python code defines."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from holdfast.authoring.functions import Signature
from holdfast.authoring.workflows import Workflow
from holdfast.model.errors import UsageError
from holdfast.model.handlers import RegisteredWorkflow


class DocumentWorkflow(Workflow[..., Any]):
    """What `hf.load` returns: `engine.start`, `hf.run`, `ctx.child` and graphs take it as they take any workflow."""

    def __init__(self, registered: RegisteredWorkflow) -> None:  # it has no function: nothing of the base is called
        definition = registered.definition
        self.name = self.handler_name = definition.name
        self.settings = definition.settings
        self.variables = {}
        self.tickets = definition.tickets
        self.retry = None
        self.is_code = False
        self._registered = registered
        self._rival = None

        def document() -> NoReturn:
            raise UsageError(f"{definition.name} is a document; it has no function to call")

        document.__name__ = document.__qualname__ = definition.name
        document.__doc__ = definition.doc
        self.fn = document
        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = Signature(
            takes_ctx=False,
            params=registered.params,
            defaults={},
            returns=Any,
            python=inspect.Signature(
                [
                    inspect.Parameter(p.name, keyword, default=inspect.Parameter.empty if p.required else None)
                    for p in sorted(registered.params, key=lambda p: not p.required)
                ]
            ),
        )

    @property
    def source_files(self) -> list[str]:
        """The files of the Python handlers that it needs."""
        return [code.file for code in self.registered.code.needed if code.file]
