"""A group on PostgreSQL: the commits of many runs as one statement.

Owns: which statements a group becomes, finding the commits that are refused, and finding out whether a commit whose
answer was lost has happened.
Never: retries after a lost connection (see postgres_access.py), or reads a payload.
Invariants: a statement with a fence happens only if every run of it passes. Runs are locked in the order of their
numbers. Rows of one commit are written together or not at all.
On crash: the transaction was committed or it was not; `in_doubt` finds out which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import asyncpg
from msgspec.structs import astuple

from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.postgres.postgres_connections import in_transaction
from holdfast.store.postgres.postgres_schema import Part, Statements
from holdfast.store.row_types import Commit, CommitResult, EventRow, NodeRow, RunChange, RunStep, TimerRow, WaitRow

RUNS_MAX: Final = 500
"""Runs of one statement: larger ones are no quicker, and hold their locks longer."""

DAMAGED: Final = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError, asyncpg.PostgresIOError)
"""A block of a table or an index cannot be read; commits that do not need it can be written."""

BAD_COMMIT: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
    *DAMAGED,
    OverflowError,
    TypeError,
    ValueError,
)
"""Errors that the rows of one commit, or the blocks that it needs, can cause. Everything else is the server's, the
network's or the process's."""

FENCED: Final = asyncpg.DivisionByZeroError
"""What a statement with a fence raises if a run has another token, last seq or head hash than its owner expects."""

_DURABLE = CommitResult(None)
_STAYS = (None,) * 8
"""Columns of a run that only advances, in a group in which others change more."""
_run_no = attrgetter("run_no")
_first = itemgetter(0)
_Row = TypeVar("_Row", bound=tuple[Any, ...])


class GroupWriter:
    """Writes groups over one connection. `wrote` is called with the number of each transaction."""

    def __init__(self, connection: Raw, sql: Statements, wrote: Callable[[int], None], *, in_doubt: bool) -> None:
        self._connection = connection
        self._sql = sql
        self._wrote = wrote
        self._in_doubt = in_doubt
        """Some of these commits may have happened before: then their fence no longer matches."""

    async def write(self, group: Sequence[Commit]) -> list[CommitResult]:
        """Write the whole group at once; if that fails, without the commits that are refused."""
        if not group:
            return []
        if len({commit.run_no for commit in group}) < len(group):
            return await self._write_halves(group)
        try:
            await self._send(_Rows(group))
        except FENCED:
            return await self._write_others(group)
        except BAD_COMMIT as error:
            if len(group) > 1:
                return await self._write_halves(group)
            return [await self._failed(group[0], error)]
        return [_DURABLE] * len(group)

    async def _write_halves(self, group: Sequence[Commit]) -> list[CommitResult]:
        """Find the bad commit by bisection."""
        middle = len(group) // 2
        return [*await self.write(group[:middle]), *await self.write(group[middle:])]

    async def _write_others(self, group: Sequence[Commit]) -> list[CommitResult]:
        """Refuse the commits whose fence does not match, or that begin something under a retired version, and write the
        others."""
        refused = await self._fenced(group) or await self._retired(group)
        if not refused:  # the conflicting transaction was rolled back
            return await self.write(group)
        passing = [commit for commit in group if commit.run_no not in refused]
        done = refused | dict(zip(map(_run_no, passing), await self.write(passing), strict=True))
        done |= await self._done_before([commit for commit in group if commit.run_no in refused])
        return [done[commit.run_no] for commit in group]

    async def _fenced(self, group: Sequence[Commit]) -> dict[int, CommitResult]:
        """The results of commits whose run is not where they expect it."""
        found = await self._connection.fetch(self._sql["fences"], [commit.run_no for commit in group])
        known = {run_no: tuple(place) for run_no, *place in found}
        return {
            commit.run_no: CommitResult(
                "fenced", f"run {commit.run_no} is not at token {commit.token}, {commit.expected_seq=}"
            )
            for commit in group
            if commit.change is not None and not _passes(commit, known.get(commit.run_no))
        }

    async def _retired(self, group: Sequence[Commit]) -> dict[int, CommitResult]:
        """The results of commits that begin a run or a branch under a retired version."""
        begun = {commit.run_no: _begun(commit) for commit in group}
        versions = sorted({version for some in begun.values() for version in some})
        columns = zip(*versions, strict=True) if versions else ((), ())
        retired = set(map(tuple, await self._connection.fetch(self._sql["retired_versions"], *columns)))
        return {
            run_no: CommitResult("retired", f"version {version} of workflow {workflow} is retired")
            for run_no, some in begun.items()
            for workflow, version in retired.intersection(some)
        }

    async def _failed(self, commit: Commit, error: Exception) -> CommitResult:
        """Why one commit alone was not written. Rows that cannot even be sent are found before the fence is checked."""
        if before := await self._done_before([commit]):
            return before[commit.run_no]
        if refused := await self._fenced([commit]):
            return refused[commit.run_no]
        if isinstance(error, DAMAGED):
            return CommitResult("damaged", f"{type(error).__name__}: {error}")
        if isinstance(error, asyncpg.UniqueViolationError):
            created = [new.create for new in (commit, *commit.children) if new.create is not None]
            taken = await self._connection.fetch(self._sql["taken_run_ids"], [new.run_id for new in created])
            if taken:
                return CommitResult("run_exists", f"the run id {taken[0][0]} is taken")
            taken = await self._connection.fetch(self._sql["taken_run_nos"], [new.run_no for new in created])
            if taken:
                return CommitResult("number_taken", f"the run number {taken[0][0]} is taken")
        return CommitResult("failed", f"{type(error).__name__}: {error}")

    async def _done_before(self, commits: Sequence[Commit]) -> dict[int, CommitResult]:
        """Results of commits that had happened although the answer was lost. A run that another engine has taken over
        since is no longer theirs."""
        own = await self._own(commits)
        if not own:
            return {}
        tokens = {run_no: token for run_no, token, *_ in await self._connection.fetch(self._sql["fences"], sorted(own))}
        return {
            commit.run_no: _DURABLE
            if tokens.get(commit.run_no) == commit.token
            else CommitResult("replaced", f"run {commit.run_no} was written, and is no longer at token {commit.token}")
            for commit in commits
            if commit.run_no in own
        }

    async def _own(self, commits: Sequence[Commit]) -> set[int]:
        """Commits that had happened although the answer was lost: the journal has their first event, exactly as they
        made it. The refused statement has waited for the locks of their rows, so that the transaction that wrote them
        has ended."""
        if not self._in_doubt:
            return set()
        events = [EventRow._make(commit.events[0]) for commit in commits if commit.events]  # they may be plain tuples
        places = [(event.run_no, event.seq, event.token, event.hash) for event in events]
        found = await self._connection.fetch(self._sql["own_events"], *zip(*places, strict=True)) if places else []
        silent = [commit.create for commit in commits if not commit.events and commit.create is not None]
        rows = [(row.run_no, row.run_id) for row in silent]
        found += await self._connection.fetch(self._sql["own_runs"], *zip(*rows, strict=True)) if rows else []
        return {run_no for (run_no,) in found}

    async def _send(self, rows: _Rows) -> None:
        """Send one statement, and so one transaction and one round trip, unless a later part has to see what it did."""
        first = self._sql.group(rows.first)
        if not rows.follow:
            await self._put(*first)
            return
        later = [self._sql.group([part]) for part in rows.later]
        lock, close, drop = (self._sql[name] for name in ("lock_runs", "close_inbox", "drop_undeliverable"))
        async with in_transaction(self._connection, lock, first[0], close, *(text for text, _ in later), drop):
            if rows.messages:
                targets = {message[1] for message in rows.messages}
                await self._connection.fetch(lock, sorted(targets.union(rows.run_nos)))
            await self._put(*first)
            if rows.ended:
                await self._connection.fetch(close, rows.ended)
            for text, arguments in later:
                await self._put(text, arguments)
            if rows.messages:
                await self._connection.fetch(drop, [message[0] for message in rows.messages])

    async def _put(self, text: str, arguments: list[Any]) -> None:
        (record,) = await self._connection.fetch(text, *arguments)
        self._wrote(record[0])


class _Rows:
    """The rows of a group, by the part of the statement that writes them."""

    def __init__(self, group: Sequence[Commit]) -> None:
        self.run_nos = [commit.run_no for commit in group]
        self.ended: list[int] = []
        self.messages: list[tuple[Any, ...]] = []
        self._steps: list[tuple[Any, ...]] = []
        self._moves: list[tuple[Any, ...]] = []
        self._creates: list[tuple[Any, ...]] = []
        self._nodes: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []
        self._waits: list[WaitRow] = []
        self._timers: list[TimerRow] = []
        self._outcomes: list[tuple[Any, ...]] = []
        self._branches: list[tuple[Any, ...]] = []
        self._gone: list[tuple[Any, ...]] = []
        self._begun: set[tuple[str, int]] = set()
        for commit in group:
            self._take(commit)
        waits, timers = _layers(self._waits, 2), _layers(self._timers, 2)
        outcomes = _layers(self._outcomes, 1)
        settled_last = bool(self.ended)  # what a run has settled itself is not for close_inbox
        self.first: list[Part] = [
            *self._fence(),
            *_part("lock_versions", sorted(self._begun)),
            *_part("create_runs", self._creates),
            *_part("put_nodes", self._nodes),
            *_part("append_events", self._events),
            *_part("put_waits", waits[0]),
            *_part("put_timers", timers[0]),
            *_part("settle_messages", [] if settled_last else outcomes[0]),
            *_part("put_branches", self._branches),
        ]
        self.later: list[Part] = [
            *_part("drop_nodes", self._gone),
            *(("put_waits", layer) for layer in waits[1:]),
            *(("put_timers", layer) for layer in timers[1:]),
            *(("settle_messages", layer) for layer in outcomes[0 if settled_last else 1 :] if layer),
            *_part("add_messages", self.messages),
        ]
        self.follow = bool(self.ended or self.later)
        """True if one statement is not enough."""

    def _fence(self) -> list[Part]:
        if not self._moves:
            return _part("fence_steps", sorted(self._steps, key=_first))
        return [("fence_moves", sorted(self._moves + [step + _STAYS for step in self._steps], key=_first))]

    def _take(self, commit: Commit) -> None:
        change = commit.change
        if type(change) is RunStep:
            fence = (commit.run_no, commit.token, commit.expected_seq, commit.expected_hash)
            self._steps.append((*fence, change.last_seq, change.head_hash, change.recoveries))
        elif isinstance(change, RunChange):
            self._moves.append(_move(commit, change))
        self._nodes += commit.nodes
        self._events += commit.events
        if (
            change is None
            or commit.waits
            or commit.timers
            or commit.outcomes
            or commit.messages
            or commit.children
            or commit.ends
            or commit.opens
            or commit.gone
        ):
            self._take_rare(commit)

    def _take_rare(self, commit: Commit) -> None:
        """Collect what most steps do not have."""
        if (commit.create is None) == (commit.change is None):
            raise ValueError(f"a commit of run {commit.run_no} needs either `create` or `change`")
        if commit.create is not None:
            self._creates.append(astuple(commit.create))
            self._begun.add((commit.create.workflow, commit.create.version))
        if commit.begins is not None:
            self._begun.add(commit.begins)
        self._waits += commit.waits
        self._timers += commit.timers
        self._outcomes += commit.outcomes
        self.messages += [message[:7] for message in commit.messages]
        if commit.ends:
            self.ended.append(commit.run_no)
        if commit.opens is not None:
            self._branches.append(commit.opens)
        if commit.gone:
            self._gone += [(commit.run_no, *instance) for instance in commit.gone]
        for child in commit.children:
            self._take(child)


def _begun(commit: Commit) -> list[tuple[str, int]]:
    """The versions under which runs and branches of a commit begin."""
    own = [] if commit.create is None else [(commit.create.workflow, commit.create.version)]
    own += [] if commit.begins is None else [commit.begins]
    return own + [version for child in commit.children for version in _begun(child)]


def state_of_run(
    sql: Statements, nodes: Sequence[NodeRow], waits: Sequence[WaitRow], timers: Sequence[TimerRow]
) -> list[tuple[str, list[Any]]]:
    """The statement that writes state rows alone, for a run whose rows are rebuilt; none if it has no rows."""
    rows: tuple[tuple[str, Sequence[Any]], ...] = (("put_nodes", nodes), ("put_waits", waits), ("put_timers", timers))
    parts = [part for name, some in rows for part in _part(name, list(some))]
    return [sql.group(parts)] if parts else []


def _move(commit: Commit, change: RunChange) -> tuple[Any, ...]:
    return (
        commit.run_no,
        commit.token,
        commit.expected_seq,
        commit.expected_hash,
        change.last_seq,
        change.head_hash,
        change.recoveries,
        change.status,
        change.branch,
        change.engine,
        change.started_at,
        change.finished_at,
        change.fold,
        commit.version or None,
        change.format,
    )


def _passes(commit: Commit, place: tuple[Any, ...] | None) -> bool:
    """True if a run with this token, last seq and head hash is where the commit expects it."""
    if place is None or commit.expected_hash is None:
        return place is not None and place[:2] == (commit.token, commit.expected_seq)
    return place == (commit.token, commit.expected_seq, commit.expected_hash)


def _part(name: str, rows: list[Any]) -> list[Part]:
    return [(name, rows)] if rows else []


def _layers(rows: list[_Row], key_size: int) -> list[list[_Row]]:
    """Split rows so that no two rows of a layer have the same key, in their order: a statement of PostgreSQL can change
    a row only once. Nearly always there is one layer."""
    layers: list[list[_Row]] = [[]]
    times: dict[tuple[Any, ...], int] = {}
    for row in rows:
        layer = times.get(row[:key_size], 0)
        times[row[:key_size]] = layer + 1
        if layer == len(layers):
            layers.append([])
        layers[layer].append(row)
    return layers


def portions(group: Sequence[Commit]) -> Iterable[Sequence[Commit]]:
    """Split a group into pieces of one statement each."""
    return (group[start : start + RUNS_MAX] for start in range(0, len(group), RUNS_MAX))
