"""Property tests are the same every time, so that a failure is somebody's change; HOLDFAST_EXPLORE=1 looks further."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True, "database": None}
settings.register_profile("steady", derandomize=True, **_COMMON)
settings.register_profile("explore", derandomize=False, **_COMMON)
settings.load_profile("explore" if os.environ.get("HOLDFAST_EXPLORE") else "steady")

MORE = int(os.environ.get("HOLDFAST_EXPLORE") or 1)
"""HOLDFAST_EXPLORE=20: twenty times the examples, at random."""
