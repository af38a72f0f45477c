"""The contract of a store as plain Python: what a driver must answer, without a database.

Owns: a store in memory that is meant to be obviously right, for comparing drivers with it. A group is its commits one
after the other; a commit is tried on a copy of everything; a reader sees the last copy that was published.
Never: is quick, keeps anything, or serves an engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from holdfast.model.rollouts import points_to
from holdfast.store.row_types import (
    Check,
    Commit,
    CommitResult,
    EngineRow,
    Health,
    MessageRow,
    Rebuilt,
    RunRow,
    Sent,
)
from holdfast.store.version_contract import AliasMove, Moved, Retirement, VersionRow
from tests.store.oracle import commits
from tests.store.oracle.reads import OracleReads
from tests.store.oracle.tables import (
    ENDED,
    LIVE,
    Tables,
    drop,
    is_free,
)

_T = TypeVar("_T")


class OracleStore(OracleReads):
    """A store in memory; see the module."""

    url = "oracle:"
    is_shared = False

    def __init__(self) -> None:
        self.tables = Tables()
        self._lock = threading.Lock()

    def open(self) -> None: ...
    def close(self) -> None: ...

    # writing --------------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Tables], _T]) -> _T:
        with self._lock:
            tables = self.tables.copy()
            result = work(tables)
            self.tables = tables
            return result

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        with self._lock:
            tables, landed = self.tables, []
            for commit in group:
                tried = tables.copy()
                landed.append(commits.land(tried, commit, before=tables))
                if landed[-1].refusal is None:
                    tables = tried
            self.tables = tables
            return landed

    def reserve_run_numbers(self, count: int) -> int:
        def reserve(tables: Tables) -> int:
            first = max([tables.next_run_no, *(run_no + 1 for run_no in tables.runs)])
            tables.next_run_no = first + count
            return first

        return self._write(reserve)

    def register_version(
        self, workflow: str, content_hash: str, definition: bytes, now: int, code: bytes = b"", deploy: bool = False
    ) -> int:
        def register(tables: Tables) -> int:
            known = [row for row in tables.versions.values() if row.workflow == workflow]
            for row in known:
                if row.hash == content_hash:
                    if deploy:
                        tables.versions[workflow, row.version] = row._replace(code=code, retired_at=None)
                    return row.version
            number = len(known) + 1
            tables.versions[workflow, number] = VersionRow(workflow, number, content_hash, definition, now, code)
            return number

        return self._write(register)

    def retire_version(self, workflow: str, version: int, now: int) -> Retirement:
        def retire(tables: Tables) -> Retirement:
            row = tables.versions.get((workflow, version))
            if row is None:
                return Retirement("unknown_version")
            if row.retired_at is not None:
                return Retirement(None)
            if version in self.unfinished_by_version(workflow):
                return Retirement("unfinished", self.unfinished_by_version(workflow)[version])
            pointing = [move.alias for move in self.aliases(workflow) if version in points_to(move.target)]
            if pointing:
                return Retirement("aliased", 0, pointing)
            tables.versions[workflow, version] = row._replace(retired_at=now)
            return Retirement(None)

        return self._write(retire)

    def move_alias(self, move: AliasMove, versions: Sequence[int]) -> Moved:
        def write(tables: Tables) -> Moved:
            targets = [tables.versions.get((move.workflow, version)) for version in versions]
            if None in targets:
                return "unknown_version"
            if any(row is not None and row.retired_at is not None for row in targets):
                return "retired"
            last = self.alias(move.workflow, move.alias)
            if last is not None and last.no >= move.no:
                return "moved" if last == move else "raced"
            tables.alias_moves[move[:3]] = move
            return "moved"

        return self._write(write)

    def register_engine(self, row: EngineRow) -> None:
        self._write(lambda tables: tables.engines.update({row.engine: row}))

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        def renew(tables: Tables) -> bool:
            if engine in tables.engines:
                renewed = tables.engines[engine]._replace(expires_at=expires_at, awake_until=awake_until)
                tables.engines[engine] = renewed
            return engine in tables.engines

        return self._write(renew)

    def set_offer(self, engine: str, can_run: bytes) -> bool:
        def say(tables: Tables) -> bool:
            if engine in tables.engines:
                tables.engines[engine] = tables.engines[engine]._replace(can_run=can_run)
            return engine in tables.engines

        return self._write(say)

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        def remove(tables: Tables) -> int | None:
            if engine in tables.engines and expires_at not in (None, tables.engines[engine].expires_at):
                return None
            tables.engines.pop(engine, None)
            tables.slots = {key: held for key, held in tables.slots.items() if key[1] != engine}
            owned = [run for run in tables.runs.values() if run.engine == engine]
            for run in owned:
                tables.runs[run.run_no] = replace(run, engine=None, last_engine=engine, token=run.token + 1)
            return len(owned)

        return self._write(remove)

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        def take(tables: Tables) -> int:
            held = sum(count for (where, _), count in tables.slots.items() if where == pool)
            taken = max(0, min(wanted, limit - held)) if engine in tables.engines else 0
            tables.slots[pool, engine] = tables.slots.get((pool, engine), 0) + taken
            return taken

        return self._write(take)

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        def give(tables: Tables) -> None:
            tables.slots[pool, engine] = max(0, tables.slots.get((pool, engine), 0) - count)

        self._write(give)

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        def claim(tables: Tables) -> list[RunRow]:
            won = []
            for run in (tables.runs[no] for no in dict.fromkeys(run_nos) if no in tables.runs):
                if is_free(run) and (run.status in LIVE or tables.has_mail(run.run_no)):
                    won.append(replace(run, engine=engine, token=run.token + 1))
            tables.runs.update({run.run_no: run for run in won})
            return won

        return self._write(claim)

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        def release(tables: Tables) -> int:
            held = 0
            for run_no, token in leases:
                run = tables.runs.get(run_no)
                if run is not None and (run.token, run.engine) == (token, engine):
                    last_engine = run.last_engine if unused else run.engine
                    tables.runs[run_no] = replace(run, engine=None, last_engine=last_engine)
                    held += 1
            return held

        return self._write(release)

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        def put(tables: Tables) -> bool:
            run = tables.runs.get(run_no)
            if run is None or (run.token, run.engine) != (token, engine):
                return False
            tables.runs[run_no] = replace(run, hold=hold)
            return True

        return self._write(put)

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        def put(tables: Tables) -> bool:
            run = tables.runs.get(run_no)
            if run is None or (run.token, run.engine) != (token, engine) or raised <= token:
                return False
            tables.runs[run_no] = replace(run, token=raised, engine=None)
            return True

        return self._write(put)

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        return self._write(lambda tables: [commits.send(tables, message) for message in messages])

    # time and others ------------------------------------------------------------------------------------------

    def now(self) -> int:
        return time.time_ns() // 1_000

    def changed(self) -> bool | None:
        return False

    def listen(self, wake: Callable[[], None]) -> None: ...

    # checking -------------------------------------------------------------------------------------------------

    def health(self, *, thorough: bool) -> Health:
        return Health([], True, 1, 1)

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        def rebuild(tables: Tables) -> bool:
            run = tables.runs.get(rebuilt.run_no)
            if run is None or run.token != rebuilt.token or run.engine is not None:
                return False
            columns = {name: value for name, value in rebuilt._asdict().items() if name in RunRow.__struct_fields__}
            is_damaged = run.hold is not None and run.hold.startswith("corrupt")
            columns |= {"token": run.token + 1, "hold": None if is_damaged else run.hold}
            tables.runs[run.run_no] = replace(run, **columns)
            for table in (tables.nodes, tables.waits, tables.timers):
                drop(table, run.run_no)
            tables.nodes.update({node[:4]: node for node in rebuilt.nodes})
            tables.waits.update({wait[:2]: wait for wait in rebuilt.waits})
            tables.timers.update({timer[:2]: timer for timer in rebuilt.timers})
            return True

        return self._write(rebuild)

    def remove_orphans(self, check: Check, run_no: int) -> int:
        def remove(tables: Tables) -> int:
            if run_no in tables.runs:
                return 0
            return drop(getattr(tables, check.removeprefix("orphan_")), run_no)

        return self._write(remove)

    def close_inbox(self, run_no: int) -> int:
        def close(tables: Tables) -> int:
            run = tables.runs.get(run_no)
            return commits.close_inbox(tables, run_no) if run is not None and run.status in ENDED else 0

        return self._write(close)
