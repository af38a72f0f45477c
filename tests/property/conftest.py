"""Property tests are the same every time, so that a failure is somebody's change; HOLDFAST_EXPLORE=1 looks further."""

from __future__ import annotations

import os

MORE = int(os.environ.get("HOLDFAST_EXPLORE") or 1)
"""HOLDFAST_EXPLORE=20: twenty times the examples, at random."""
