"""Testing: what users and drivers test with. Nothing of Holdfast imports it."""

from holdfast.testing.bare import context

__all__ = ["context"]
