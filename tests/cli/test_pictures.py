"""What is drawn: pure functions, and the live view on a real pseudo terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli import configuration, inputs, output
from holdfast.cli.commands import graphs
from holdfast.cli.narration import BURST, Narrator
from holdfast.cli.picture import Line, Picture, bar, fit
from holdfast.cli.progress import REDRAW_SECONDS, Crowd, render, show
from holdfast.model.definition import Body, Definition, NodeDef, Param
from holdfast.model.errors import UsageError
from holdfast.store.row_types import EventRow, NodeRow, RunRow, WaitRow
from tests.cli.conftest import COMMAND, ENVIRONMENT, Project

SECOND = 1_000_000


def definition(*nodes: NodeDef) -> Definition:
    return Definition(name="flow", nodes=nodes)


def run_row(**changes: object) -> RunRow:
    made = RunRow(
        run_no=1, run_id="r", workflow="flow", version=1, status="running", branch=1, last_seq=1, head_hash=b"",
        token=1, engine="e", fold=None, input_hash="", parent_no=None, root_no=1, priority=0, recoveries=0, hold=None,
        created_at=0, started_at=0, finished_at=None,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def node_row(
    node: str, status: str, path: str = ".", *, attempt: int = 1, scope: object = None, end: int | None = None
) -> NodeRow:
    data = None if scope is None else msgspec.json.encode(scope)
    return NodeRow(1, node, path, 1, status, attempt, 0, 0, 0, 0, None, data, 1, 0, end)


def event(kind: str, node: str | None, data: object, path: str = ".", seq: int = 1) -> EventRow:
    return EventRow(
        1, seq, 1, kind, node, None if node is None else path, 1, seq * SECOND, 1, b"", msgspec.json.encode(data)
    )


ENRICH = NodeDef(
    id="enrich", kind="map", over=["input", "xs"], item="x", body=Body(nodes=(NodeDef(id="enrich", uses="m.enrich"),))
)


def test_a_map_is_one_line_with_its_failures_and_retries() -> None:
    picture = Picture(definition(NodeDef(id="load", uses="m.load"), ENRICH))
    failures = [event("NodeFailed", "enrich", {"retryable": n == 0}, f".enrich.{n}.") for n in range(3)]
    picture.see(failures)
    rows = [
        node_row("load", "completed", end=SECOND),
        node_row("enrich", "running", scope={"count": 50, "opened": 40, "done": [[0], [34]]}),
        *(node_row("enrich", "running", f".enrich.{n}.") for n in range(34, 40)),
    ]
    head, load, enrich = picture.lines(run_row(), rows, (), {}, 41 * SECOND)
    assert head == Line(0, "flow", "running", "run r", "1/2", 1, 2, 41.0)
    assert load == Line(1, "load", "completed", seconds=1.0)
    assert enrich == Line(1, "enrich ×50", "running", "", "34/50 ✗2 ↻1", 34, 50, 41.0)


def test_many_calls_of_one_handler_are_one_line_and_few_are_not() -> None:
    wide = Picture(definition(*(NodeDef(id=f"f_{n}", uses="m.fetch") for n in range(6))))
    rows = [node_row("f_0", "completed", end=SECOND), node_row("f_1", "running")]
    assert wide.lines(run_row(), rows, (), {}, 2 * SECOND)[1:] == [Line(1, "fetch ×6", "running", "", "1/6", 1, 6, 2.0)]
    narrow = Picture(definition(*(NodeDef(id=f"f_{n}", uses="m.fetch") for n in range(3))))
    assert [line.label for line in narrow.lines(run_row(), [], (), {}, 0)] == ["flow", "f_0", "f_1", "f_2"]


def test_attempts_what_a_body_says_and_its_steps_are_shown() -> None:
    picture = Picture(definition(NodeDef(id="research", uses="m.research")))
    picture.see(
        [event("StepCompleted", "research", {"name": "fetch"})] * 3
        + [event("StepFailed", "research", {"name": "write"})]
    )
    rows = [node_row("research", "running", attempt=2)]
    said = {("research", "."): (3.0, 4.0, "page 3")}
    _, node, fetch, write = picture.lines(run_row(), rows, (), said, SECOND)
    assert node == Line(1, "research", "running", "attempt 2 page 3", "", 3.0, 4.0, 1.0)
    assert fetch == Line(2, "fetch ×3", "completed")
    assert write == Line(2, "write", "failed", numbers="↻1")


def wait_row(kind: str, node: str | None, about: object = None, path: str = ".", **more: Any) -> WaitRow:
    data = msgspec.json.encode({"about": about, "child": more.pop("child", None)})
    until = more.pop("until", None)
    return WaitRow(1, f"w_{kind}", kind, node, None if node is None else path, 1, 1, "open", 0, until, data, **more)


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (wait_row("input", "a", {"question": "Ship?"}, assignee="ada", basket="finance"), "asks ada in finance: Ship?"),
        (wait_row("input", "a", {"question": "Ship?"}), "asks: Ship?"),
        (wait_row("signal", "a", {"name": "packed"}), "waits for signal packed"),
        (wait_row("basket", "a", {"mode": "next"}, basket="later"), "is in basket later"),
        (wait_row("basket", "a", {"error": {"message": "down"}}, basket="errors"), "is in basket errors: down"),
        (wait_row("timer", "a", until=9 * SECOND), "sleeps for 7.0s more"),
        (wait_row("child", "a", child="c"), "waits for run c"),
        (wait_row("hold", "a", {"why": "it died"}), "on hold: it died"),
    ],
)
def test_a_node_that_waits_says_what_for(wait: WaitRow, told: str) -> None:
    picture = Picture(definition(NodeDef(id="a", uses="m.a")))
    _, node = picture.lines(run_row(), [node_row("a", "suspended")], [wait], {}, 2 * SECOND)
    assert node.detail == told


def test_a_paused_run_says_so_in_its_headline() -> None:
    picture = Picture(definition(NodeDef(id="a", uses="m.a")))
    paused = wait_row("pause", None, {"actor": "ada", "reason": "lunch"})
    assert picture.lines(run_row(), [], [paused], {}, 0)[0].detail == "run r  paused by ada: lunch"


def test_items_of_a_map_that_wait_are_told_in_its_line() -> None:
    picture = Picture(definition(ENRICH))
    waits = [wait_row("basket", "enrich", {}, f".enrich.{n}.", basket="later") for n in range(3)]
    rows = [node_row("enrich", "running", scope={"count": 3, "opened": 3})]
    _, line = picture.lines(run_row(), rows, waits, {}, 0)
    assert line.detail == "is in basket later and 2 more"


def test_plain_lines_tell_questions_reminders_answers_and_baskets() -> None:
    narrator = Narrator(Picture(definition(NodeDef(id="a", uses="m.a"), ENRICH)), run_row())
    asked = {"wait_id": "w_1", "kind": "input", "until": 61 * SECOND, "about": {"question": "Ship?", "assignee": "ada"}}
    broken = {"wait_id": "w_2", "kind": "basket", "about": {"basket": "errors", "error": {"message": "down"}}}
    told = narrator.lines(
        [
            event("WaitOpened", "a", asked),
            event("RunEdited", "a", {"actor": "reminder", "before": {}, "after": {"wait_id": "w_1", "reminders": 2}}),
            event(
                "RunEdited", "a", {"actor": "escalation", "before": {}, "after": {"wait_id": "w_1", "assignee": "bo"}}
            ),
            event("WaitClosed", "a", {"wait_id": "w_1", "outcome": "answered", "value": 1, "actor": "bo"}),
            event("WaitClosed", "a", {"wait_id": "w_1", "outcome": "answered", "value": 1, "actor": "deadline"}),
            event("WaitOpened", "enrich", broken, ".enrich.1."),
            event("WaitClosed", "enrich", {"wait_id": "w_2", "outcome": "resumed", "actor": "ada"}, ".enrich.1."),
            event("WaitOpened", "enrich", {"wait_id": "w_3", "kind": "timer", "until": 2 * SECOND}, ".enrich.1."),
            event(
                "WaitOpened", None, {"wait_id": "w_4", "kind": "pause", "about": {"actor": "ada", "reason": "lunch"}}
            ),
        ]
    )
    assert [line.strip().partition("  ")[2] for line in told] == [
        "a asks ada: Ship? (w_1, 1:00 left)",
        "a is reminded of its question (2 reminders)",
        "a is reassigned to bo (escalation)",
        "a was answered by bo",
        "a was answered with its default",
        "enrich@.enrich.1. is in basket errors: down (w_2)",
        "enrich@.enrich.1. was resumed by ada",
        "paused by ada: lunch",
    ]


def test_more_lines_than_there_is_room_for_keep_what_matters() -> None:
    lines = [Line(0, "flow", "running"), *(Line(1, f"n{i}", "completed") for i in range(50)), Line(1, "bad", "failed")]
    shown = fit(lines, 10)
    assert len(shown) <= 10
    assert shown[0].label == "flow"
    assert "bad" in [line.label for line in shown]
    assert shown[-1].label == "… 44 completed"


def test_many_runs_are_counted() -> None:
    rows = {i: run_row(run_no=i, run_id=f"r{i}", status="failed" if i < 30 else "running") for i in range(100)}

    class Store:
        def runs(self, **_: object) -> list[RunRow]:
            return [row for row in rows.values() if row.status == "running"]

        def run_by_no(self, number: int) -> RunRow:
            return rows[number]

    crowd = Crowd(Store(), list(rows))  # type: ignore[arg-type]  # the two reads it needs
    assert len(crowd.refresh()) == 30
    assert crowd.refresh() == []
    lines = crowd.lines(5.0, 10)
    assert lines[0] == Line(0, "runs ×100", "running", "", "30/100 ✗30", 30, 100, 5.0)
    assert lines[-1].label == "… 62 more"


def test_plain_lines_tell_each_change_and_count_a_burst() -> None:
    picture = Picture(definition(NodeDef(id="charge", uses="m.charge"), ENRICH))
    narrator = Narrator(picture, run_row())
    failure = {"attempt": 1, "error": {"message": "a\x1bb"}, "retryable": True, "retry_at": 5 * SECOND}
    told = narrator.lines(
        [
            event("NodeStarted", "charge", {"attempt": 1}, seq=1),
            event("NodeFailed", "charge", failure, seq=2),
            event("NodeStarted", "enrich", {"attempt": 1}, ".enrich.0.", seq=3),
        ]
    )
    assert told == ["   1.0s  charge started", "   2.0s  charge failed, attempt 1: a\\x1bb; again in 3.0s"]
    burst = narrator.lines([event("NodeStarted", f"n{i}", {"attempt": 1}) for i in range(BURST + 1)])
    assert burst == [f"   1.0s  … {BURST + 1} nodes started"]


def test_bars_and_durations() -> None:
    assert bar(0, 10, 4) == ("", "────")
    assert bar(5, 10, 4) == ("━━", "──")
    assert bar(7, 10, 4) == ("━━╸", "─")
    assert bar(20, 10, 4) == ("━━━━", "")
    assert [output.duration(s) for s in (0.25, 41, 61, 3661, 90061)] == ["0.2s", "41s", "1:01", "1:01:01", "1d 1:01:01"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jx", "\\x1b[2Jx"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x9b1m", "\\x9b1m"),
        ("\u202eabc", "\\u202eabc"),
        ("é×✓", "é×✓"),
    ],
)
def test_stored_data_cannot_speak_to_the_terminal(text: str, shown: str) -> None:
    assert output.line(text) == shown
    printed = output.json_text({"x": text})
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert msgspec.json.decode(printed) == {"x": text}


def test_wide_characters_are_counted_and_cut() -> None:
    assert output.width_of("日本") == 4
    assert output.cut("日本語です", 5) == "日本…"
    assert output.cut("short", 10) == "short"


def test_conditions_are_written_as_people_write_them() -> None:
    amount = ["get", ["input", "order"], "amount"]
    assert graphs.text_of(["and", ["gt", amount, 10], ["or", ["var", "v"], ["not", ["node", "a"]]]]) == (
        "order.amount > 10 and (v or not a)"
    )
    assert graphs.text_of(["contains", ["get", ["node", "a"], 0], "x"]) == "'x' in a[0]"


def test_mermaid_labels_cannot_break_out() -> None:
    nodes = (NodeDef(id='a"] --> x', uses="m.a"), NodeDef(id="b", uses="m.b", after=('a"] --> x',)))
    drawn = graphs.mermaid(definition(*nodes))
    assert drawn.splitlines()[1:] == ['  n1["a#34;#93; --#62; x"]', '  n2["b"]', '  n1 -. "after" .-> n2']


def test_set_values_keep_the_text_where_text_is_wanted() -> None:
    given = ["a=007", "b=7", "c=7", "d.e=true", "f=null"]
    values = inputs.read(None, given)
    schemas = {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "d": {"$ref": "#/$defs/D", "$defs": {"D": {"type": "object", "properties": {"e": {"type": "string"}}}}},
        "f": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    inputs.keep_text(values, given, [Param(name=name, schema=schema) for name, schema in schemas.items()])
    assert values == {"a": "007", "b": 7, "c": "7", "d": {"e": "true"}, "f": None}


def test_a_project_file_that_is_wrong_says_where(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[holdfast\n")
    with pytest.raises(UsageError, match=r"holdfast\.toml cannot be read"):
        configuration.project(tmp_path)
    (tmp_path / "holdfast.toml").write_text('[holdfast]\nlease_seconds = "long"\n')
    with pytest.raises(UsageError, match="lease_seconds must be a number"):
        configuration.project(tmp_path)


def test_lines_are_rendered_in_columns() -> None:
    from rich.console import Console

    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(
            render([Line(0, "flow", "running"), Line(1, "enrich ×50", "running", "", "34/50 ✗2", 34, 50, 41.0)])
        )
    _, enrich = capture.get().splitlines()
    assert re.fullmatch(r"  ● enrich ×50  34/50 ✗2  ━+╸?─+  41s\s*", enrich)


async def test_a_view_stops_when_it_is_told_to_at_the_moment_something_moves() -> None:
    class Nothing:
        def update(self) -> None: ...
        def close(self) -> None: ...

    moved = asyncio.Event()
    showing = asyncio.create_task(show(Nothing(), moved))
    await asyncio.sleep(REDRAW_SECONDS + 0.05)
    moved.set()
    showing.cancel()
    await asyncio.wait([showing], timeout=30)
    assert showing.cancelled()


def on_terminal(project: Project, *args: str, wanted: str | None = None, **env: str) -> tuple[str, int]:
    """Run a command on a pseudo terminal, and open the gate when it has drawn what is wanted; everything it drew, and
    its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project.directory)
        os.execve(COMMAND[0], [*COMMAND, *args], ENVIRONMENT | {"TERM": "xterm-256color"} | env)  # noqa: S606 - our own
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    drawn = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        drawn += data
        if wanted is not None and re.search(wanted, plain(drawn.decode(errors="replace"))):
            project.open_gate()
    os.close(terminal)
    return drawn.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def plain(drawn: str) -> str:
    """Without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


WATCHED = """

@hf.node
async def grind(ctx: hf.Context, numbers: list[int]) -> int:
    block = 0
    while not os.path.exists("go"):
        block = block % 9 + 1
        ctx.progress(block, 10, f"block {block}")
        await asyncio.sleep(0.06)
    return sum(numbers)


@hf.workflow
def watched():
    return grind(hf.map(enrich, list(range(40)), limit=4))
"""


def test_the_live_view_draws_a_moving_tree_on_a_terminal(project: Project) -> None:
    with (project.directory / "flows.py").open("a") as flows:
        flows.write(WATCHED)
    at_work = r"● grind\s+━*╸?─+\s+\d+\.\ds\s+block \d"
    drawn, code = on_terminal(project, "run", "flows.py:watched", "--run-id", "w", wanted=at_work)
    assert code == 0
    shown = plain(drawn)
    frames = re.findall(r"enrich ×40\s+(\d+)/40", shown)
    assert len(set(frames)) >= 2
    assert frames[-1] == "40"
    assert re.search(at_work, shown)
    assert re.search(r"✓ watched\s+2/2\s+━{20}", shown)
    assert shown.rstrip().endswith("1560")
    assert "\x1b[36m" in drawn


def test_no_color_is_respected(project: Project) -> None:
    drawn, code = on_terminal(project, "run", "flows.py:wide", NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[3[0-9]m", drawn)
