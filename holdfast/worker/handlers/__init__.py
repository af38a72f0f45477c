"""Handlers that Holdfast brings: nodes that are no code of the user's. Importing this package registers them."""

from holdfast.worker.handlers import child, sleep

__all__ = ["child", "sleep"]
