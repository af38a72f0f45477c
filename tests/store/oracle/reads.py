"""The reading half of the oracle: every verb that only asks.

Never: writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

from holdfast.model.timers import Elapsed, due
from holdfast.store.row_types import (
    OF_PEOPLE,
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
from holdfast.store.version_contract import AliasMove, VersionRow
from tests.store.oracle import checks
from tests.store.oracle.tables import (
    ENDED,
    LIVE,
    Tables,
    by_due,
    by_run,
    child_of,
    is_free,
    of_runs,
)

_FOUND_MAX: Final = 10
"""How many a beginning of an id finds."""

_T = TypeVar("_T")


class OracleReads:
    """What can be asked of the tables."""

    tables: Tables

    def store_id(self) -> str:
        return self.tables.store_id

    def standing(self) -> Standing:
        return Standing(1, "")

    def run(self, run_id: str) -> RunRow | None:
        return self.tables.with_id(run_id)

    def run_by_no(self, run_no: int) -> RunRow | None:
        return self.tables.runs.get(run_no)

    def workflows_of(self, run_nos: Sequence[int]) -> list[tuple[int, int, str, int, str, str]]:
        found = [self.tables.runs[no] for no in sorted(set(run_nos)) if no in self.tables.runs]
        return [(run.run_no, run.root_no, run.workflow, run.version, run.queue, run.status) for run in found]

    def runs(
        self,
        *,
        status: Sequence[str] | None = None,
        workflow: str | None = None,
        limit: int = 100,
        before_no: int | None = None,
        root_no: int | None = None,
    ) -> list[RunRow]:
        found = [
            run
            for run_no, run in sorted(self.tables.runs.items(), reverse=True)
            if (status is None or run.status in status)
            and (workflow is None or run.workflow == workflow)
            and (before_no is None or run_no < before_no)
            and (root_no is None or run_no == root_no or (run.root_no == root_no and run.parent_no is not None))
        ]
        return found[:limit]

    def resolve_run_id(self, prefix: str) -> list[str]:
        return sorted(r.run_id for r in self.tables.runs.values() if r.run_id.startswith(prefix))[:_FOUND_MAX]

    def open_nodes(self, run_nos: Sequence[int]) -> list[NodeRow]:
        return [node for node in of_runs(self.tables.nodes.values(), run_nos) if node.is_open]

    def nodes(self, run_no: int) -> list[NodeRow]:
        return of_runs(self.tables.nodes.values(), [run_no])

    def nodes_under(self, run_no: int, node_ids: Sequence[str], path_prefix: str, visit: int) -> list[NodeRow]:
        return [
            node
            for node in self.nodes(run_no)
            if node.node in node_ids and node.path.startswith(path_prefix) and node.visit == visit
        ]

    def open_waits(self, run_nos: Sequence[int]) -> list[WaitRow]:
        return [wait for wait in of_runs(self.tables.waits.values(), run_nos) if wait.status == "open"]

    def set_timers(self, run_nos: Sequence[int]) -> list[TimerRow]:
        return by_due(t for t in of_runs(self.tables.timers.values(), run_nos) if t.status == "set")

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
        def place(timer: TimerRow) -> tuple[int, int, str]:
            lasting = Elapsed(timer.boot, timer.elapsed) if timer.boot else None
            return due(timer.due_at, lasting, now, elapsed), timer.run_no, timer.timer

        runs = self.tables.runs
        found = [
            timer
            for timer in sorted(self._timers_of_claimable(), key=place)
            if place(timer)[0] <= now
            and runs[timer.run_no].workflow in workflows
            and (root_nos is None or runs[timer.run_no].root_no in root_nos)
            and (queues is None or runs[timer.run_no].queue in queues)
            and (after is None or place(timer) > place(after))
        ]
        return found[:limit]

    def next_timer(self) -> int | None:
        return min((timer.due_at for timer in self._timers_of_claimable()), default=None)

    def _timers_of_claimable(self) -> list[TimerRow]:
        free = [run.run_no for run in self.tables.runs.values() if run.status in LIVE and is_free(run)]
        return self.set_timers(free)

    def waits_for_ended(self, after_no: int = 0, limit: int = 2_000) -> tuple[list[tuple[int, str]], int]:
        tables = self.tables
        waits = [w for w in by_run(tables.waits.values()) if w.status == "open" and w.kind == "child"]
        waits = [wait for wait in waits if wait.run_no > after_no]
        is_page = len(waits) >= limit
        last_no = waits[limit - 1].run_no if is_page else max((wait.run_no for wait in waits), default=0)
        found = []
        for wait in waits:
            parent, child = tables.runs.get(wait.run_no), tables.with_id(child_of(wait.data))
            if wait.run_no <= last_no and parent is not None and parent.engine is None:
                found += [(wait.run_no, child.run_id)] if child is not None and child.status in ENDED else []
        return found, last_no if is_page else 0

    def events(
        self, run_no: int, after: int = 0, limit: int | None = None, *, types: Sequence[str] | None = None
    ) -> list[EventRow]:
        journal = self.tables.journal(run_no)
        return [e for e in journal if e.seq > after and (types is None or e.type in types)][:limit]

    def events_of(self, pages: Sequence[tuple[int, int]], without: Sequence[str]) -> dict[int, list[LinkedRow]]:
        return {
            run_no: [self._linked(e) for e in self.events(run_no, after) if e.type not in without]
            for run_no, after in pages
        }

    def branches(self, run_no: int) -> list[BranchRow]:
        return sorted(of_runs(self.tables.branches.values(), [run_no]), key=lambda branch: branch.branch)

    def event_data(self, run_no: int, seqs: Sequence[int]) -> dict[int, LinkedRow]:
        return {e.seq: self._linked(e) for e in self.tables.journal(run_no) if e.seq in seqs}

    def event_data_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkedRow]:
        events = self.tables.events
        return {place: self._linked(events[place]) for place in places if place in events}

    def _linked(self, event: EventRow) -> LinkedRow:
        run = self.tables.runs.get(event.run_no)
        before = [e.hash for e in self.tables.journal(event.run_no) if e.seq == event.seq - 1]
        return LinkedRow(*event, before[-1] if before else None, None if run is None else run.run_id)

    def new_messages(self, run_nos: Sequence[int] | None = None) -> list[MessageRow]:
        tables = self.tables
        if run_nos is None:
            run_nos = [run.run_no for run in tables.runs.values() if run.engine is None]
        return self._messages("new", run_nos)

    def held_messages(self, run_nos: Sequence[int]) -> list[MessageRow]:
        return self._messages("held", run_nos)

    def _messages(self, status: str, run_nos: Sequence[int]) -> list[MessageRow]:
        return [m for m in self.tables.messages.values() if m.status == status and m.run_no in run_nos]

    def message(self, message_id: str) -> MessageRow | None:
        return self.tables.messages.get(message_id)

    def asked(
        self,
        *,
        kinds: Sequence[str] = ("input", "basket"),
        basket: str | None = None,
        assignee: str | None = None,
        limit: int = 100,
        after: tuple[int, str] | None = None,
    ) -> list[AskedRow]:
        found = [
            row
            for row in self._of_people()
            if row.wait.status == "open"
            and row.wait.kind in kinds
            and self.tables.runs[row.wait.run_no].status in LIVE
            and (basket is None or row.wait.basket == basket)
            and (assignee is None or row.wait.assignee == assignee)
            and (after is None or (row.wait.since, row.wait.wait_id) > after)
        ]
        return sorted(found, key=lambda row: (row.wait.since, row.wait.wait_id, row.wait.run_no))[:limit]

    def wait(self, wait_id: str) -> list[AskedRow]:
        found = [row for row in self._of_people() if row.wait.wait_id.startswith(wait_id)]
        exact = [row for row in found if row.wait.wait_id == wait_id]
        return (exact or sorted(found, key=lambda row: row.wait.wait_id))[:_FOUND_MAX]

    def _of_people(self) -> list[AskedRow]:
        """In the order in which they were opened."""
        tables = self.tables
        waits = [w for w in tables.waits.values() if w.kind in OF_PEOPLE and w.run_no in tables.runs]
        return [AskedRow(tables.runs[w.run_no].run_id, tables.runs[w.run_no].workflow, w) for w in waits]

    def baskets(self) -> list[BasketRow]:
        lie = [wait for wait in self.tables.waits.values() if wait.status == "open" and wait.basket is not None]
        found = []
        for basket in sorted({wait.basket for wait in lie if wait.basket is not None}):
            here = [wait for wait in lie if wait.basket == basket]
            questions = sum(wait.kind == "input" for wait in here)
            found.append(BasketRow(basket, questions, len(here) - questions, min(wait.since for wait in here)))
        return found

    def unowned_versions(self) -> list[tuple[str, int]]:
        return sorted(
            {(run.workflow, run.version) for run in self.tables.runs.values() if self.tables.wants_owner(run)}
        )

    def claimable(
        self,
        versions: Sequence[tuple[str, int]],
        *,
        queues: Sequence[str] | None = None,
        root_nos: Sequence[int] | None = None,
        limit: int = 1_000,
    ) -> list[tuple[int, str, int]]:
        free = [
            run
            for run in self.tables.runs.values()
            if self.tables.wants_owner(run)
            and (run.workflow, run.version) in versions
            and (queues is None or run.queue in queues)
            and (root_nos is None or run.root_no in root_nos)
        ]
        free.sort(key=lambda run: (-run.priority, run.run_no))
        seen: Counter[tuple[str, int]] = Counter()
        first = []
        for run in free:
            seen[run.workflow, run.version] += 1
            if seen[run.workflow, run.version] <= limit:
                first.append((run.run_no, run.workflow, run.version))
        return first

    def differing_heads(self, run_nos: Sequence[int], types: Sequence[str]) -> list[int]:
        heads = {suspect.run_no for suspect in self.suspects("head", min(run_nos, default=0), max(run_nos, default=0))}
        runs = [self.tables.runs[run_no] for run_no in run_nos if run_no in self.tables.runs]
        last = {run.run_no: self.tables.events.get((run.run_no, run.last_seq)) for run in runs}
        heads |= {run_no for run_no, event in last.items() if event is not None and event.type not in types}
        return sorted(heads.intersection(run_nos))

    def unfinished_count(self) -> int:
        return sum(run.status in LIVE for run in self.tables.runs.values())

    def engines(self) -> list[EngineRow]:
        return sorted(self.tables.engines.values(), key=lambda row: (row.started_at, row.engine))

    def loads(self) -> dict[str, int]:
        return dict(Counter(run.engine for run in self.tables.runs.values() if run.engine is not None))

    def unknown_owners(self) -> list[str]:
        owners = {run.engine for run in self.tables.runs.values() if run.engine is not None}
        return sorted(owners - set(self.tables.engines))

    def version(self, workflow: str, version: int) -> VersionRow | None:
        return self.tables.versions.get((workflow, version))

    def latest_version(self, workflow: str) -> VersionRow | None:
        return next((row for row in reversed(self.versions()) if row.workflow == workflow), None)

    def counts(self) -> dict[str, int]:
        return dict(Counter(run.status for run in self.tables.runs.values() if run.status in LIVE + ENDED))

    # checking -------------------------------------------------------------------------------------------------

    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        tables = self.tables
        events = [event for event in tables.own_events(run_no) if event.seq > after][:limit]
        run, branches = tables.runs.get(run_no), self.branches(run_no)
        if limit is not None and len(events) == limit:
            return Evidence(run, events, branches, False)
        timers = sorted(of_runs(tables.timers.values(), [run_no]), key=lambda timer: timer.timer)
        return Evidence(
            run,
            events,
            branches,
            True,
            self.nodes(run_no),
            of_runs(tables.waits.values(), [run_no]),
            timers,
            [message for message in tables.messages.values() if message.run_no == run_no],
        )

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        page = [run_no for run_no in sorted(self.tables.runs) if run_no > after_no][:limit]
        return len(page), max(page, default=after_no)

    def run_numbers(self, first_no: int, last_no: int) -> list[int]:
        return [run_no for run_no in sorted(self.tables.runs) if first_no <= run_no <= last_no]

    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        found = checks.suspects(self.tables, check, before)
        return [suspect for suspect in found if first_no <= suspect.run_no <= last_no]

    def versions(self, workflow: str | None = None) -> list[VersionRow]:
        found = [row for row in self.tables.versions.values() if workflow in (None, row.workflow)]
        return sorted(found, key=lambda row: (row.workflow, row.version))

    def version_numbers(self) -> list[tuple[str, int]]:
        return [(row.workflow, row.version) for row in self.versions()]

    def latest_active(self, workflow: str) -> int | None:
        return max((row.version for row in self.versions(workflow) if row.retired_at is None), default=None)

    def unfinished_by_version(self, workflow: str) -> dict[int, int]:
        live = [run.version for run in self.tables.runs.values() if run.workflow == workflow and run.status in LIVE]
        return {version: live.count(version) for version in sorted(set(live))}

    def alias_moves(self, workflow: str, alias: str) -> list[AliasMove]:
        return [move for key, move in sorted(self.tables.alias_moves.items()) if key[:2] == (workflow, alias)]

    def alias(self, workflow: str, alias: str) -> AliasMove | None:
        return next(reversed(self.alias_moves(workflow, alias)), None)

    def aliases(self, workflow: str | None = None) -> list[AliasMove]:
        names = sorted({key[:2] for key in self.tables.alias_moves if workflow in (None, key[0])})
        return [self.alias_moves(*name)[-1] for name in names]
