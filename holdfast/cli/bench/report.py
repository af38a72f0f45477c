"""Report: figures as JSON and as a table."""

from __future__ import annotations

from typing import Any

from holdfast.cli import output
from holdfast.cli.bench.reference import DRIFT_MAX
from holdfast.cli.bench.targets import Figure, figures_of, verdict

DISK = ("W1", "W2", "W3", "W4", "W5", "W6", "W8", "engines")
"""Suites in which the disk counts."""
COLOURS = {"ok": "green", "below aim": "yellow", "below floor": "red"}


def rounded(value: Any) -> Any:
    """Four significant digits and more are noise; JSON should be readable."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}")
    return value


def lines(report: dict[str, Any], *, judged: bool) -> list[str]:
    """The report for a person: every figure, then floor, aim and verdict where something was asked of it."""
    headers = ["", "", "measured", "floor", "aim", "verdict"]
    machine = report["machine"]
    figures = figures_of(served=machine["server"] is not None)
    rows = [_row(figure, report[figure.suite], judged) for figure in figures if figure.suite in report]
    before = ""
    for row in rows:  # the suite's name once
        row[0], before = ("" if row[0] == before else row[0]), row[0]
    found = [_painted(line, row[-1]) for line, row in zip(output.table(headers, rows), [headers, *rows], strict=True)]
    found.append("")
    found.append(f"raw commits/s (ref): {report['reference']['commits_per_s']:,.0f}, "
                 f"from {report['reference']['lowest']:,.0f} to {report['reference']['highest']:,.0f}")  # fmt: skip
    load = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    database = machine["server"] or f"SQLite {machine['sqlite']}"
    found.append(
        f"holdfast {machine['holdfast']}, Python {machine['python']}, {output.line(database)}, {machine['cpus']} x "
        f"{output.line(machine['cpu'])}, {machine['filesystem'] or 'unknown file system'}{load}"
    )
    moved = [name for name in DISK if report.get(name, {}).get("drift", 0) > DRIFT_MAX]
    if moved:
        found.append(f"the disk did not hold still during {', '.join(moved)}: measure again when it is calm")
    if not judged:
        found.append("tiny sizes: these figures only show that everything works")
    return found


def _row(figure: Figure, figures: dict[str, Any], judged: bool) -> list[str]:
    def shown(value: float | None) -> str:
        return "" if value is None else figure.form.format(value)

    aim = shown(figure.aim)
    if figure.instead is not None:
        aim += f" or {figure.instead[1]:,.0f}/s"
    asked = judged and figure.floor is not None
    return [
        figure.suite,
        figure.what,
        shown(figures.get(figure.key)),
        shown(figure.floor) if asked else "",
        aim if asked else "",
        verdict(figure, figures) if judged else "",
    ]


def _painted(line: str, word: str) -> str:
    if word not in COLOURS or not line.endswith(word):
        return line
    return line.removesuffix(word) + output.paint(word, COLOURS[word])
