"""The table of invariants names every code that the doctor reports."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_code_of_the_doctor_is_explained() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    told = set(re.findall(r"^\| (I\d+) \|", page, re.MULTILINE))
    sources = (ROOT / "holdfast/inspect/doctor").glob("*.py")
    used = {code for source in sources for code in re.findall(r'"(I\d+)"', source.read_text("utf-8"))}
    assert len(used) > 25
    assert used <= told, used - told
