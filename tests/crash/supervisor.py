"""Supervisor: starts real engines in real processes, kills them with SIGKILL, and checks what they left.

`Arena` is one database with one file of outside effects. `crash` runs flows.py until it dies (at a place of
HOLDFAST_DIE_AT, or when it has printed a marker and is killed from outside); `finish` runs it to the end. After every
death the journal is proven (kit.check_file), and what it says is completed must never act again.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from tests.appended import lines_in
from tests.crash.nursery import PATIENCE_SECONDS, Life, Nursery
from tests.engine.kit import check_file

EXITED = 9
"""The exit code of a body that ends its process without a signal (flows.py)."""
REFUSED = 3
"""The exit code of a process that got an error of ours (flows.py)."""


class Arena:
    """One database, the effects of its bodies, and the processes that drive it."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.db = folder / "runs.db"
        self.effects_file = folder / "effects"
        self.kills = 0
        self._nursery = nursery
        self._completed: dict[str, int] = {}
        """What the journal said was completed at a death, and how often it had acted by then."""

    @property
    def address(self) -> str:
        """Where its processes find the database."""
        return f"sqlite:///{self.db}"

    def sibling(self, name: str) -> Arena:
        """Another arena, in a folder of its own."""
        return Arena(self.folder / name, self._nursery)

    # --- processes ---------------------------------------------------------------------------------------------

    def start(self, *runs: str, **environment: str) -> Life:
        """An engine that starts these runs (`workflow:run_id`) and finishes everything."""
        return self._nursery.start(self.address, str(self.effects_file), *runs, **environment)

    def crash(self, *runs: str, die_at: str | None = None, stay: str | None = None, **environment: str) -> bool:
        """Run until it dies at a place, or kill it when it has said `stay`; False when it ended before."""
        if die_at is not None:
            environment["HOLDFAST_DIE_AT"] = die_at
        if stay is not None:
            environment["CRASH_STAY"] = stay
        life = self.start(*runs, **environment)
        if stay is not None:
            life.read_until(stay)
        return self.kill(life) if stay is not None else self.died(life)

    def kill(self, life: Life) -> bool:
        """Kill it now, and look at what it left."""
        life.kill()
        return self.died(life)

    def died(self, life: Life, *, look: bool = True) -> bool:
        """Wait for its end, and look at what it left; whether it was killed."""
        output = life.wait()
        self.gone(life)
        assert life.returncode in (0, EXITED, -signal.SIGKILL), f"exit code {life.returncode}: {output}"
        if look:
            self.look()
        if life.returncode == 0:
            return False
        self.kills += 1
        return True

    def stand_still(self, life: Life) -> None:
        """Stop it (SIGSTOP), though not in the middle of a transaction: that would keep everybody else out for ever."""
        while True:
            life.send_signal(signal.SIGSTOP)
            self.wait_for(life.is_stopped)
            if self.lets_others_write():
                return
            life.send_signal(signal.SIGCONT)

    def lets_others_write(self) -> bool:
        """Whether nobody is in the middle of a transaction."""
        connection = apsw.Connection(str(self.db), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            connection.close()
        return True

    def gone(self, life: Life) -> None:
        """It has ended: what others of this database must know or wait for, before they can go on."""

    def finish(self, *runs: str, **environment: str) -> None:
        """Run to the end, and look at everything."""
        self.finished(self.start(*runs, **environment))

    def finished(self, life: Life, *, came_back: bool = False) -> None:
        """Wait for an end that must be orderly, and look at everything."""
        output = life.wait()
        assert life.returncode == 0, f"exit code {life.returncode}: {output}"
        assert output.split("\n")[-2] == "done", output
        self.look(came_back=came_back)

    def refused(self, life: Life) -> str:
        """Wait for an end with an error of ours, and look at what it left; the error."""
        output = life.wait()
        assert life.returncode == REFUSED, f"exit code {life.returncode}: {output}"
        self.look()
        return output.split("\n")[-2]

    # --- what they left ----------------------------------------------------------------------------------------

    def look(self, *, came_back: bool = False) -> None:
        """Prove the journals. Nothing that was completed at an earlier death may have acted since, but in an engine
        that stood still meanwhile, and there under the key that the receiver knows already."""
        if not self.exists():
            return
        self.prove()
        acted = Counter(effect["name"] for effect in self.effects())
        for name, times in self._completed.items():
            assert acted[name] == times or came_back, f"{name} was completed, and acted again"
        for name in self.completed():
            self._completed[name] = acted[name]
        self._check_effects()

    def exists(self) -> bool:
        """Whether anybody has made the database yet."""
        return self.db.exists()

    def prove(self) -> None:
        """Prove every journal."""
        check_file(self.db)

    def _check_effects(self) -> None:
        keys: dict[str, set[str]] = {}
        for effect in self.effects():
            keys.setdefault(effect["name"], set()).add(effect["key"])
        for name, found in keys.items():
            assert len(found) == 1, f"{name} acted under more than one idempotency key"
        assert len({key for found in keys.values() for key in found}) == len(keys), "two effects share a key"

    def effects(self) -> list[dict[str, Any]]:
        if not self.effects_file.exists():
            return []
        return list(lines_in(self.effects_file.read_bytes()))

    def acted(self, run_id: str) -> list[str]:
        """What acted, in order, without the run's name."""
        prefix = f"{run_id}/"
        return [e["name"].removeprefix(prefix) for e in self.effects() if e["name"].startswith(prefix)]

    def attempts_of(self, run_id: str, what: str) -> list[int]:
        """The attempts in which something acted."""
        return [e["attempt"] for e in self.effects() if e["name"] == f"{run_id}/{what}"]

    def events(self, run_id: str) -> list[tuple[str, str | None, str | None, dict[str, Any]]]:
        """(type, node, path, data) of a run's journal."""
        rows = self.query(
            "SELECT e.type, e.node, e.path, e.data FROM run_events AS e JOIN run_state USING (run_no) "
            "WHERE run_id = ? ORDER BY seq",
            run_id,
        )
        return [(kind, node, path, json.loads(data)) for kind, node, path, data in rows]

    def types(self, run_id: str) -> list[str]:
        return [event[0] for event in self.events(run_id)]

    def result(self, run_id: str) -> Any:
        kind, _, _, data = self.events(run_id)[-1]
        assert kind == "RunCompleted", self.types(run_id)
        return data["result"]

    def status(self, run_id: str) -> str:
        ((status,),) = self.query("SELECT status FROM run_state WHERE run_id = ?", run_id)
        return str(status)

    def completed(self) -> set[str]:
        """The names that completed bodies and steps of all runs returned."""
        rows = self.query("SELECT data FROM run_events WHERE type IN ('NodeCompleted', 'StepCompleted')")
        outputs = [json.loads(data).get("output") for (data,) in rows]
        return {output for output in outputs if isinstance(output, str) and "/" in output}

    def started_attempts(self, run_id: str) -> dict[tuple[str | None, str | None], list[int]]:
        """The attempts of every instance that were started, in order."""
        found: dict[tuple[str | None, str | None], list[int]] = {}
        for kind, node, path, data in self.events(run_id):
            if kind == "NodeStarted":
                found.setdefault((node, path), []).append(data["attempt"])
        return found

    def query(self, sql: str, *values: Any) -> list[Any]:
        connection = apsw.Connection(str(self.db), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(10_000)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def write(self, sql: str, *values: Any) -> None:
        """Change the database behind everybody's back."""
        connection = apsw.Connection(str(self.db), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(10_000)
        try:
            connection.execute(sql, values)
        finally:
            connection.close()

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is true of the database or of the effects."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.exists() and (found := condition()):
                return found
            time.sleep(0.01)
        raise AssertionError("never happened")
