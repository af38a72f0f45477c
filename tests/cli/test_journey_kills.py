"""A journey with nested parallel routes and a way back, killed with SIGKILL again and again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

from tests.cli.conftest import Project

KILLS = 6

HANDLERS = """
import time

import holdfast as hf


@hf.node(name="work", idempotent=True)
def work(ctx: hf.SyncContext) -> None:
    time.sleep(0.02)


@hf.node(name="count", idempotent=True)
def count(ctx: hf.SyncContext) -> str:
    rounds = ctx.vars["rounds"] + 1
    ctx.vars["rounds"] = rounds
    return "again" if rounds < 3 else "done"
"""

FLOW = """\
kind: journey
name: nested
variables: {rounds: {type: integer, default: 0}}
units:
  - {id: start, handler: work, next: outer}
  - {id: outer, type: p_route, choose: '["left", "right"]', branches: {left: inner, right: r1}, join: out}
  - {id: inner, type: p_route_dynamic, choose: '["1", "2", "3"]', next: each, join: in}
  - {id: each, handler: work, next: in}
  - {id: in, type: p_join, next: l1}
  - {id: l1, handler: work, next: out}
  - {id: r1, handler: work, next: r2}
  - {id: r2, handler: work, next: out}
  - {id: out, type: p_join, next: turn}
  - {id: turn, type: s_route, handler: count, branches: {again: outer, done: end}}
"""
ONCE_A_ROUND = Counter({"outer": 1, "inner": 1, "each": 3, "l1": 1, "r1": 1, "r2": 1, "turn": 1})


def test_each_unit_completes_once_a_round_however_often_the_engine_is_killed(project: Project) -> None:
    (project.directory / "flow.yaml").write_text(FLOW)
    (project.directory / "handlers.py").write_text(HANDLERS)
    chance = random.Random(11)
    assert project.cli("start", "flow.yaml", "--code", "handlers.py", "--run-id", "j").returncode == 0
    for _ in range(KILLS):
        engine = project.start("resume", "j", "--code", "handlers.py")
        time.sleep(0.4 + chance.random())  # anywhere between the imports and the end
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()
    finished = project.cli("resume", "j", "--code", "handlers.py", "--quiet")
    shown = project.json("show", "j")
    assert (shown["status"], shown["result"]) == ("completed", {"rounds": 3}), finished.stderr
    done = Counter((e["node"], e["path"], e["visit"]) for e in project.events("j", "NodeCompleted"))
    assert set(done.values()) == {1}, "an instance completes once"
    units = Counter(node for node, _, _ in done)
    again = Counter(e["node"] for e in project.events("j", "NodeCancelled"))
    assert again.keys() <= {"outer", "end"}, "only what a route chose is cancelled, when the route is evaluated again"
    expected = Counter({unit: 3 * times for unit, times in ONCE_A_ROUND.items()}) + Counter({"start": 1})
    units["turn"] -= again.total()  # those routes answered twice
    assert units == expected
    doctor = project.cli("doctor", "--deep")
    assert doctor.returncode == 0, doctor.stdout
