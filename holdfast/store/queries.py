"""Queries: every operation that only reads, the same on every database.

Owns: which statement answers which question, turning its rows into those of the contract, and the doctor's checks.
Never: writes, or knows a database: how lists are bound is the driver's. Outside the doctor's evidence it holds no read
transaction longer than one statement.
Invariants: sees only what was committed. What one operation returns was true at one moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, TypeVar

from holdfast.model.journal_format import FORMAT
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.timers import Elapsed, due
from holdfast.store.row_types import (
    AskedRow,
    BasketRow,
    BranchRow,
    Check,
    EngineRow,
    EventRow,
    Evidence,
    LinkedRow,
    MessageRow,
    NodeRow,
    RunRow,
    Standing,
    Suspect,
    TimerRow,
    WaitRow,
)
from holdfast.store.version_queries import VersionQueries

_LAST = "\U0010ffff"
"""Sorts after everything that begins with a prefix."""
NUMBER_MAX = 2**63 - 1
"""Larger than every run number; as a limit, it limits nothing."""
_BEFORE_ALL = (-(2**63), "")
_FIRST_TIMER = (-(2**62), 0, "")

_DATED = frozenset({"wait_for_ended_child", "left_alone", "overdue"})
"""Checks that depend on how long ago something happened."""

_T = TypeVar("_T")

Ask = Callable[[str, tuple[Any, ...]], list[Any]]
"""Returns all rows of the statement with this name."""


def _asked_row(row: tuple[Any, ...]) -> AskedRow:
    return AskedRow(row[0], row[1], WaitRow._make(row[2:]))


class Queries(VersionQueries):
    """The reading half of a driver."""

    @abstractmethod
    def _elapsed(self, elapsed: Elapsed | None) -> tuple[Any, ...]:
        """Bind the time that has passed in this boot, where a statement uses it."""

    @abstractmethod
    def _many(self, values: Sequence[int] | Sequence[str] | None) -> Any:
        """Bind a list as one value, or None, which limits nothing."""

    @abstractmethod
    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        """Bind pairs."""

    def store_id(self) -> str:
        found: str = self._rows("store_id")[0][0]
        return found

    def standing(self) -> Standing:
        return Standing._make(self._rows("standing")[0])

    def run(self, run_id: str) -> RunRow | None:
        rows = self._rows("run_by_id", (run_id,))
        return RunRow(*rows[0]) if rows else None

    def run_by_no(self, run_no: int) -> RunRow | None:
        rows = self._rows("run_by_no", (run_no,))
        return RunRow(*rows[0]) if rows else None

    def workflows_of(self, run_nos: Sequence[int]) -> list[tuple[int, int, str, int, str, str]]:
        return self._rows("workflows_of", (self._many(run_nos),))

    def runs(
        self,
        *,
        status: Sequence[str] | None = None,
        workflow: str | None = None,
        limit: int = 100,
        before_no: int | None = None,
        root_no: int | None = None,
    ) -> list[RunRow]:
        before = NUMBER_MAX if before_no is None else before_no
        statuses = self._many(status)
        if root_no is not None:
            rows = self._rows("runs_of_root", (before, limit, root_no, statuses, workflow))
        elif workflow is not None:
            rows = self._rows("runs_of_workflow", (before, limit, workflow, statuses))
        elif status is None:
            rows = self._rows("runs", (before, limit))
        else:
            rows = []
            for one in sorted(set(status)):
                for part in ("runs_finished",) if one in RUN_TERMINAL else ("runs_unowned", "runs_owned"):
                    rows += self._rows(part, (before, limit, one))
            rows = sorted(rows, reverse=True)[:limit]
        return list(starmap(RunRow, rows))

    def resolve_run_id(self, prefix: str) -> list[str]:
        return [run_id for (run_id,) in self._rows("resolve_run_id", (prefix, prefix + _LAST))]

    def open_nodes(self, run_nos: Sequence[int]) -> list[NodeRow]:
        return list(map(NodeRow._make, self._rows("open_nodes", (self._many(run_nos),))))

    def nodes(self, run_no: int) -> list[NodeRow]:
        return list(map(NodeRow._make, self._rows("nodes", (run_no,))))

    def nodes_under(self, run_no: int, node_ids: Sequence[str], path_prefix: str, visit: int) -> list[NodeRow]:
        bindings = (run_no, self._many(node_ids), path_prefix, path_prefix + _LAST, visit)
        return list(map(NodeRow._make, self._rows("nodes_under", bindings)))

    def open_waits(self, run_nos: Sequence[int]) -> list[WaitRow]:
        return list(map(WaitRow._make, self._rows("open_waits", (self._many(run_nos),))))

    def set_timers(self, run_nos: Sequence[int]) -> list[TimerRow]:
        return list(map(TimerRow._make, self._rows("set_timers", (self._many(run_nos),))))

    def due_timers(
        self,
        now: int,
        limit: int,
        workflows: Sequence[str],
        root_nos: Sequence[int] | None = None,
        *,
        queues: Sequence[str] | None = None,
        after: TimerRow | None = None,
        elapsed: Elapsed | None = None,
    ) -> list[TimerRow]:
        place = _FIRST_TIMER
        if after is not None:
            lasting = Elapsed(after.boot, after.elapsed)
            place = (due(after.due_at, lasting, now, elapsed), after.run_no, after.timer)
        bindings = (now, limit, self._many(workflows), self._many(root_nos), *place, self._many(queues), FORMAT)
        rows = self._rows("due_timers", (*bindings, *self._elapsed(elapsed)))
        return list(map(TimerRow._make, rows))

    def waits_for_ended(self, after_no: int = 0, limit: int = 2_000) -> tuple[list[tuple[int, str]], int]:
        ((last_no, count),) = self._rows("page_of_waits_for_children", (after_no, limit))
        found = self._rows("waits_for_ended", (after_no, last_no)) if count else []
        return [(run_no, child) for run_no, child in found], last_no if count == limit else 0

    def next_timer(self) -> int | None:
        rows = self._rows("next_timer", (FORMAT,))
        return rows[0][0] if rows else None

    def events(
        self, run_no: int, after: int = 0, limit: int | None = None, *, types: Sequence[str] | None = None
    ) -> list[EventRow]:
        page = (run_no, after, NUMBER_MAX if limit is None else limit)
        if types is None:
            rows = self._rows("events", page)
        else:
            rows = self._rows("events_of_types", (*page, self._many(types)))
        own = list(map(EventRow._make, rows))
        origin = self._origin(run_no) if not own or own[0].seq > after + 1 else None
        if origin is None or origin[1] <= after:
            return own
        shared = [row for row in self.events(origin[0], after, limit, types=types) if row.seq <= origin[1]]
        return [*shared, *own][:limit]

    def events_of(self, pages: Sequence[tuple[int, int]], without: Sequence[str]) -> dict[int, list[LinkedRow]]:
        found: dict[int, list[LinkedRow]] = {run_no: [] for run_no, _ in pages}
        assert len(found) == len(pages)
        for row in self._rows("events_of_runs", (*self._pairs(pages), self._many(without))):
            found[row[0]].append(LinkedRow._make(row))
        forked = {run_no for (run_no,) in self._rows("with_origin", (self._many(list(found)),))}
        for run_no, after in pages:
            if run_no in forked:  # there are few of them
                seqs = [row.seq for row in self.events(run_no, after) if row.type not in without]
                linked = self.event_data(run_no, seqs)
                found[run_no] = [linked[seq] for seq in seqs]
        return found

    def event_data(self, run_no: int, seqs: Sequence[int]) -> dict[int, LinkedRow]:
        found = {row[1]: self._linked(row) for row in self._rows("event_data", (run_no, self._many(seqs)))}
        if len(found) < len(seqs):
            origin = self._origin(run_no)
            missing = [] if origin is None else [seq for seq in seqs if seq not in found and seq <= origin[1]]
            if origin is not None and missing:
                found |= self.event_data(origin[0], missing)
        return found

    def event_data_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkedRow]:
        return {(row[0], row[1]): self._linked(row) for row in self._rows("event_data_of", self._pairs(places))}

    def _linked(self, row: Sequence[Any]) -> LinkedRow:
        """Add the hash of the event before; for the first event of a forked run it is in the origin's journal."""
        linked = LinkedRow._make(row)
        if linked.previous is None and linked.seq > 1:
            origin = self._origin(linked.run_no)
            if origin is not None and origin[1] >= linked.seq - 1:
                before = self.event_data(origin[0], [linked.seq - 1]).get(linked.seq - 1)
                linked = linked._replace(previous=None if before is None else before.hash)
        return linked

    def branches(self, run_no: int) -> list[BranchRow]:
        return list(map(BranchRow._make, self._rows("branches", (run_no,))))

    def _origin(self, run_no: int) -> tuple[int, int] | None:
        """The run whose journal is the beginning of this one's, and up to which event."""
        rows = self._rows("origin", (run_no,))
        return rows[0] if rows else None

    def new_messages(self, run_nos: Sequence[int] | None = None) -> list[MessageRow]:
        if run_nos is None:
            rows = self._rows("new_messages_unowned")
        else:
            rows = self._rows("new_messages_of", (self._many(run_nos),))
        return list(map(MessageRow._make, rows))

    def held_messages(self, run_nos: Sequence[int]) -> list[MessageRow]:
        return list(map(MessageRow._make, self._rows("held_messages", (self._many(run_nos),))))

    def message(self, message_id: str) -> MessageRow | None:
        rows = self._rows("message", (message_id,))
        return MessageRow._make(rows[0]) if rows else None

    def asked(
        self,
        *,
        kinds: Sequence[str] = ("input", "basket"),
        basket: str | None = None,
        assignee: str | None = None,
        limit: int = 100,
        after: tuple[int, str] | None = None,
    ) -> list[AskedRow]:
        page = (self._many(kinds), *(after or _BEFORE_ALL), limit)
        if basket is not None:
            rows = self._rows("asked_in_basket", (*page, basket, assignee))
        elif assignee is not None:
            rows = self._rows("asked_of_assignee", (*page, assignee))
        else:
            rows = self._rows("asked", page)
        return list(map(_asked_row, rows))

    def wait(self, wait_id: str) -> list[AskedRow]:
        found = [_asked_row(row) for row in self._rows("waits_by_id", (wait_id, wait_id + _LAST))]
        return [row for row in found if row.wait.wait_id == wait_id] or found

    def baskets(self) -> list[BasketRow]:
        return list(map(BasketRow._make, self._rows("baskets")))

    def unowned_versions(self) -> list[tuple[str, int]]:
        return self._rows("unowned_versions", (FORMAT,))

    def claimable(
        self,
        versions: Sequence[tuple[str, int]],
        *,
        queues: Sequence[str] | None = None,
        root_nos: Sequence[int] | None = None,
        limit: int = 1_000,
    ) -> list[tuple[int, str, int]]:
        wanted = (*self._pairs(versions), self._many(queues))
        if root_nos is None:
            return self._rows("claimable", (*wanted, limit, FORMAT))
        return self._rows("claimable_of_roots", (*wanted, self._many(root_nos), limit, FORMAT))

    def differing_heads(self, run_nos: Sequence[int], types: Sequence[str]) -> list[int]:
        bindings = (self._many(run_nos), self._many(types))
        return [run_no for (run_no,) in self._rows("differing_heads", bindings)]

    def unfinished_count(self) -> int:
        count: int = self._rows("unfinished_count")[0][0]
        return count

    def engines(self) -> list[EngineRow]:
        return list(map(EngineRow._make, self._rows("engines")))

    def loads(self) -> dict[str, int]:
        return dict(self._rows("loads"))

    def unknown_owners(self) -> list[str]:
        return [engine for (engine,) in self._rows("unknown_owners")]

    def counts(self) -> dict[str, int]:
        return dict(self._rows("counts"))

    # checking (the doctor's) ----------------------------------------------------------------------------------

    @abstractmethod
    def _at_one_moment(self, work: Callable[[Ask], _T]) -> _T:
        """Call `work`, perhaps twice; all of its statements see the same moment."""

    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        return self._at_one_moment(lambda ask: _evidence(ask, run_no, after, limit))

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        count, last_no = self._rows("run_page", (after_no, limit))[0]
        return count, last_no if count else after_no

    def run_numbers(self, first_no: int, last_no: int) -> list[int]:
        return [run_no for (run_no,) in self._rows("run_numbers", (first_no, last_no))]

    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        bindings: tuple[int, ...] = (first_no, last_no)
        if check in _DATED:
            bindings = (*bindings, before)
        elif check == "format":
            bindings = (*bindings, FORMAT)
        found = list(map(Suspect._make, self._rows(f"suspect_{check}", bindings)))
        return sorted(found, key=lambda one: (one.run_no, one.node or "", one.path or "", one.found))


def _evidence(ask: Ask, run_no: int, after: int, limit: int | None) -> Evidence:
    rows = ask("run_by_no", (run_no,))
    run = RunRow(*rows[0]) if rows else None
    events = list(map(EventRow._make, ask("events", (run_no, after, NUMBER_MAX if limit is None else limit))))
    branches = list(map(BranchRow._make, ask("branches", (run_no,))))
    if limit is not None and len(events) == limit:
        return Evidence(run, events, branches, False)
    return Evidence(
        run,
        events,
        branches,
        True,
        list(map(NodeRow._make, ask("nodes", (run_no,)))),
        list(map(WaitRow._make, ask("waits_of_run", (run_no,)))),
        list(map(TimerRow._make, ask("timers_of_run", (run_no,)))),
        list(map(MessageRow._make, ask("messages_of_run", (run_no,)))),
    )
