"""Handlers that Holdfast brings: nodes that are no code of the user's. Importing this package registers them."""

from holdfast.worker.handlers import ask, child, receive, sleep

__all__ = ["ask", "child", "receive", "sleep"]
