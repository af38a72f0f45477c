"""Settings of an engine: the numbers that users may differ about, with their defaults."""

from __future__ import annotations

import os

import msgspec

from holdfast.model import limits
from holdfast.model.errors import UsageError

WHOLE_NUMBERS = frozenset({"threads", "processes", "max_recoveries", "concurrency"})
FLOORS = {"lease_seconds": limits.LEASE_SECONDS_MIN, "grace_seconds": 0.0, "drain_seconds": 0.0, "idle_seconds": 0.0}


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine behaves. Every field can be set by a variable `HOLDFAST_<NAME>`."""

    lease_seconds: float = limits.LEASE_SECONDS
    grace_seconds: float = limits.GRACE_SECONDS
    drain_seconds: float | None = None
    """How long bodies may continue when the engine stops; None: as long as after a cancel, `grace_seconds`."""
    idle_seconds: float = limits.IDLE_SECONDS
    sweep_seconds: float = limits.SWEEP_SECONDS
    poll_seconds: float = limits.POLL_SECONDS
    threads: int = limits.SYNC_THREADS
    processes: int = max(1, os.cpu_count() or 1)
    max_recoveries: int = limits.MAX_RECOVERIES
    concurrency: int | None = None
    """How many runs are at work here at once; None: as many as there are."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            floor = FLOORS.get(name, 0.001)
            if not value >= floor:
                raise UsageError(f"{name} must be at least {floor:g}, not {value!r}")

    @property
    def patience_seconds(self) -> float:
        """How long bodies may continue when the engine stops."""
        return self.grace_seconds if self.drain_seconds is None else self.drain_seconds


def from_environment(environ: dict[str, str], **overrides: float | None) -> EngineSettings:
    """Settings from `HOLDFAST_*` variables, then the overrides that are not None."""
    values: dict[str, float] = {}
    for name in EngineSettings.__struct_fields__:
        text = environ.get(f"HOLDFAST_{name.upper()}")
        if text is not None:
            try:
                values[name] = int(text) if name in WHOLE_NUMBERS else float(text)
            except ValueError:
                raise UsageError(f"HOLDFAST_{name.upper()} must be a number, not {text!r}") from None
    values.update({k: v for k, v in overrides.items() if v is not None})
    return msgspec.convert(values, EngineSettings)
