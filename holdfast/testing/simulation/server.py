"""Server: the database of a world, on a PostgreSQL server.

Owns: a schema that is created for one exploration and dropped at its end, deleting all rows in it, and reading all rows
of a run as they are stored.
Never: touches another schema: whatever else is in the database stays as it is.
On crash: the schema remains, under a name that says what it was (`..._explored_...`); drop it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import Connection
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.queries import NUMBER_MAX
from holdfast.store.row_types import Commit, CommitResult
from holdfast.testing.simulation.database import RARE, TABLES, Contents, Image, WorldDatabase
from holdfast.testing.simulation.remembering import Remembering
from holdfast.testing.simulation.sandbox import allow_real_waiting

_T = TypeVar("_T")
_NUMBERED = ("run_node_state", "run_inbox_messages", "run_waits")
"""Tables whose rows are numbered by the server, in `no`."""
_RARE_ROWS = (
    "SELECT wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome, actor "
    "FROM run_waits WHERE run_no = $1 ORDER BY no",
    "SELECT timer, due_at, branch, status, boot, elapsed FROM run_timers WHERE run_no = $1 ORDER BY timer",
    "SELECT message_id, kind, payload, status, outcome FROM run_inbox_messages WHERE run_no = $1 ORDER BY no",
    "SELECT branch, parent, cutoff_seq, key_epoch, reason, origin_no FROM run_branches WHERE run_no = $1 "
    "ORDER BY branch",
)
"""Without the numbers that the server gave them: only their order counts."""
# ruff: noqa: S608 - SQL is put together of names of ours
_IS_RARE = "SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in RARE)
_CONTENTS = " UNION ALL ".join(
    (
        *(f"SELECT '{table}', t::text FROM {table} AS t" for table in TABLES),
        "SELECT 'next_run_no', next_run_no::text FROM store_meta",
    )
)
_EMPTY = "; ".join((*(f"DELETE FROM {table}" for table in TABLES), "UPDATE store_meta SET next_run_no = 1"))
_TRUNCATE = f"TRUNCATE {', '.join(TABLES)}"
_RESTORE = {
    **{
        table: f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (t::{table}).* FROM unnest($1::text[]) AS t"
        for table in TABLES
    },
    "next_run_no": "UPDATE store_meta SET next_run_no = ($1::text[])[1]::bigint",
}
_NUMBER_ON = "; ".join(
    f"SELECT setval(pg_get_serial_sequence('{table}', 'no'), coalesce(max(no), 0) + 1, false) FROM {table}"
    for table in _NUMBERED
)
FILLS_PER_TRUNCATE = 200
"""Deleting is quicker than truncating, and leaves dead rows that only a truncate removes."""


class ServerStore(PostgresStore, WorldDatabase):
    """The real driver in a schema of its own. Contents are rows as text, by their table."""

    child_of_wait = "json_text(w.data, 'child')"

    def __init__(self, url: str) -> None:
        super().__init__(_beside(url))
        self._fills = 0
        self.open()
        self.now()  # the connection of the lease is there from now on, too

    def close(self) -> None:
        """Close for good: the schema is dropped."""
        self._execute(f'DROP SCHEMA "{self._address.schema}" CASCADE')
        super().close()

    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        return self._fetch(sql, *bindings)

    def contents(self) -> Contents:
        found: dict[str, list[Any]] = {}
        for table, row in self._fetch(_CONTENTS):
            found.setdefault(table, []).append(row)
        return found

    def fill(self, contents: Contents) -> None:
        self._fills += 1
        if self._fills % FILLS_PER_TRUNCATE == 0:
            self._execute(_TRUNCATE)
        self._execute(_EMPTY)
        for table, rows in contents.items():
            self._fetch(_RESTORE[table], rows)
        self._execute(_NUMBER_ON)

    def image(self, run_no: int, after: int) -> Image:
        run = [(*row, *self._fetch(_IS_RARE)[0]) for row in self._fetch(self._sql["run_by_no"], run_no)]
        events = self._fetch(self._sql["events"], run_no, after, NUMBER_MAX)
        rows = self._fetch(self._sql["nodes"], run_no)
        if run and run[0][-1]:
            for sql in _RARE_ROWS:
                rows += self._fetch(sql, run_no)
        return tuple(run), tuple(events), tuple(rows)

    def commit_in_doubt(self, group: Sequence[Commit]) -> list[CommitResult]:
        """Write a group as the driver does when the connection was lost before the answer."""
        return self._do(lambda raw, _: self._group_writer(raw, True).write(group))

    def _fetch(self, sql: str, *bindings: Any) -> list[Any]:
        return list(map(tuple, self._do(lambda raw, again: raw.fetch(sql, *bindings), writes=False)))

    def _execute(self, statements: str) -> None:
        self._do(lambda raw, again: raw.execute(statements), writes=False)

    # --- what a simulation needs of the driver ---------------------------------------------------------------------

    def _over(self, work: Callable[[Connection, bool], _T], *, writes: bool) -> _T:
        """The server is not part of the simulation, and really waited for."""
        with allow_real_waiting():
            return super()._over(work, writes=writes)

    def _at_once(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        with allow_real_waiting():
            return super()._at_once(name, bindings)

    def _many(self, values: Sequence[int] | Sequence[str] | None) -> Any:
        """A tuple can be a key, as a list cannot."""
        return None if values is None else tuple(values)

    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        return tuple(first for first, _ in values), tuple(second for _, second in values)


class RememberingServer(Remembering, ServerStore):
    """The same, executing only what is not known yet."""


def _beside(url: str) -> str:
    """The same server with a new schema, in which names are looked up first."""
    parts = urlsplit(url)
    schema = f"{address(url).schema[:40]}_explored_{secrets.token_hex(4)}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"schema": schema, "search_path": schema}
    return urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
