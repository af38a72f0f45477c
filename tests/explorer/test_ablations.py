"""Every broken engine is caught, and docs/reliability.md says by what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explorer.ablations import ALL as OF_THE_KERNEL
from tests.explorer.ablations import SCHEDULES_MAX, Ablation, caught, table
from tests.explorer.wait_ablations import OF_WAITS

ALL = [*OF_THE_KERNEL, *OF_WAITS]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


@pytest.mark.parametrize("ablation", ALL, ids=lambda ablation: ablation.name)
def test_the_explorer_catches(ablation: Ablation) -> None:
    report = caught(ablation)
    assert not report.safe, f"{ablation.what}: nothing was noticed in {report.schedules} schedules"
    assert report.suitable, report.explain()
    assert report.schedules <= SCHEDULES_MAX


def test_the_documentation_lists_every_ablation() -> None:
    text = DOCS.read_text("utf-8")
    missing = [ablation.name for ablation in ALL if f"| {ablation.name} |" not in text]
    assert not missing, "run `python -m tests.explorer.ablations` and put its table into docs/reliability.md"
    assert len(ALL) >= 20


def test_the_table_names_what_caught_each_of_them() -> None:
    (line,) = table(ALL[:1])[2:]
    assert line.startswith(f"| {ALL[0].name} | {ALL[0].what} | I46 |")
