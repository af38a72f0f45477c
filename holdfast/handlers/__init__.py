"""Handlers: the bodies of built-in nodes, which documents name and which `hf.ask`, `hf.sleep` and calls of workflows in
a graph become.

Importing this package registers all of them (model/handlers.py), each with the JSON Schema of its config, which is
derived from its annotations. A package that only some handlers need is imported when the first of their bodies runs.
Names under `holdfast.` are reserved for them; `model.handlers.ALIASES` maps the names in documents to these.
"""

from holdfast.handlers import calling, chat_completions, http_requests, passing, programs, waiting
from holdfast.handlers.registering import NAMES

__all__ = ["NAMES", "calling", "chat_completions", "http_requests", "passing", "programs", "waiting"]
