"""Report: verdicts on measured figures, and the table.

Owns: what a figure is, how it is compared with its floor and aim, and how it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.cli import output
from holdfast.cli.commands.bench import closing_lines
from holdfast.cli.measuring import Figures

COLOURS = {"ok": "green", "below aim": "yellow", "below floor": "red"}
Verdict = Literal["ok", "below aim", "below floor", ""]


@dataclass(frozen=True)
class Figure:
    """One number of a suite. It gets a verdict if it has a floor, which it must reach, and an aim, which it should."""

    suite: str
    key: str
    what: str
    form: str
    floor: float | None = None
    aim: float | None = None
    more_is_better: bool = False
    instead: tuple[str, float] | None = None
    """Another figure of the suite; if it is at least this large, the aim is reached as well."""
    served: bool | None = None
    """True: measured on a server only. False: on a file only."""


def verdict(figure: Figure, figures: Figures) -> Verdict:
    """Compare a measured figure with its floor and aim; empty if it has none."""
    value = figures.get(figure.key)
    if value is None or figure.floor is None or figure.aim is None:
        return ""
    sign = -1 if figure.more_is_better else 1
    reached = sign * value <= sign * figure.aim
    if figure.instead is not None:
        other, enough = figure.instead
        reached = reached or figures.get(other, 0) >= enough
    if reached:
        return "ok"
    return "below aim" if sign * value <= sign * figure.floor else "below floor"


def judge(results: dict[str, Figures], figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """List every figure that has a floor, with its verdict."""
    return [
        {
            "suite": figure.suite,
            "figure": figure.key,
            "value": results[figure.suite][figure.key],
            "floor": figure.floor,
            "aim": figure.aim,
            "verdict": found,
        }
        for figure in figures
        if figure.suite in results and (found := verdict(figure, results[figure.suite]))
    ]


def lines(report: dict[str, Any], figures: Sequence[Figure], *, judged: bool) -> list[str]:
    """The report as text: every figure, with floor, aim and verdict where it has them."""
    headers = ["", "", "measured", "floor", "aim", "verdict"]
    rows = [_row(figure, report[figure.suite], judged) for figure in figures if figure.suite in report]
    before = ""
    for row in rows:  # the suite's name once
        row[0], before = ("" if row[0] == before else row[0]), row[0]
    found = [_painted(line, row[-1]) for line, row in zip(output.table(headers, rows), [headers, *rows], strict=True)]
    return [*found, *closing_lines(report, quick=not judged)]


def _row(figure: Figure, figures: Figures, judged: bool) -> list[str]:
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
