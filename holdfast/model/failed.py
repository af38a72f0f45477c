"""Failed: what stands in a map's list for an item that failed."""

from __future__ import annotations

import msgspec

from holdfast.model.events import ErrorInfo


class Failed(msgspec.Struct, frozen=True):
    """An item of a map with `errors="collect"` that failed: what stands in the list instead of its value."""

    error: ErrorInfo

    @property
    def message(self) -> str:
        return self.error.message
