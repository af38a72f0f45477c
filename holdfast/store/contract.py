"""The store's contract: what the engine asks of a database, and what it may rely on.

Owns: the protocol and the meaning of each operation. The rows that cross the boundary are in row_types.py.
Never: knows what a retry, a join or a workflow rule is.

Transaction contract
- `commit` is the one write path for runs. It takes the commits of different runs as one group and writes them in ONE
  database transaction, durable when it returns. Each commit names its run, the token it holds and the last `seq` it
  knows (the fence); one whose fence does not match is refused alone, whatever else is wrong with it, and the others are
  written. A group that fails for another reason than the disk or the connection is retried one commit at a time, and
  only the bad one fails. Either way the database is afterwards as if the commits had been made one after the other, in
  the order of the group; but a message to a run that the same group opens again may have come too late for it.
- Rows of one commit are written together or not at all.
- Readers see only what was committed, and never block the writer.
- A commit whose outcome is unknown raises OutcomeUnknown, and the store refuses everything from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.model.timers import Elapsed
from holdfast.store.row_types import (
    AskedRow,
    BasketRow,
    BranchRow,
    Check,
    Commit,
    CommitResult,
    EngineRow,
    EventRow,
    Evidence,
    Health,
    LinkedRow,
    MessageRow,
    NodeRow,
    Rebuilt,
    RunRow,
    Sent,
    Standing,
    Suspect,
    TimerRow,
    WaitRow,
)
from holdfast.store.version_contract import VersionStore


class Store(VersionStore, Protocol):
    """What a driver offers. Operations that write are called through one writer; those that read may run beside it.

    Synchronous by design on SQLite; the engine calls the writing operations from its writer thread (or, embedded with
    one
    live run, from the loop). Instants are passed in, in microseconds.
    """

    url: str

    @property
    def file(self) -> Path | None:
        """The absolute path of the database file; None for a server or a database in memory."""
        ...

    @property
    def is_shared(self) -> bool:
        """True if engines on other machines use the store as well: then its clock (`now`) is the clock of all engines,
        and any thread may call any operation. Otherwise this machine's clock counts, and only the writer calls what
        writes."""
        ...

    def open(self) -> None: ...
    def close(self) -> None: ...

    # writing --------------------------------------------------------------------------------------------------
    def commit(self, group: Sequence[Commit]) -> list[CommitResult]: ...
    def reserve_run_numbers(self, count: int) -> int:
        """Reserve `count` run numbers that were never given out before; the first of them."""
        ...

    def register_engine(self, row: EngineRow) -> None: ...
    def set_offer(self, engine: str, can_run: bytes) -> bool:
        """Replace the list of what an engine can run. False: the engine is not registered, and nothing was changed."""
        ...

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        """Extend the lease of an engine. False: its row is gone, that is, another engine declared it dead. On a shared
        store it is tried at once and only once, whatever else is asked of the store; StoreError: it may have happened
        or not."""
        ...

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        """Remove an engine (it stopped, or it is dead) and free its runs: their `engine` becomes None, their
        `last_engine` names it, and their token grows, so that anything the old owner still sends is refused. Its slots
        of shared pools are freed as well. Returns the number of runs freed.

        With `expires_at`, the expiry by which the engine was judged, nothing changes if the row has another expiry by
        now: the engine is alive, and the result is None."""
        ...

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        """Grant the engine slots of a pool, in addition to those that it has: at most `wanted`, never more than `limit`
        minus what all engines hold, none if the engine is not registered. They belong to its lease and end with it."""
        ...

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        """Return slots of a pool; if the engine holds fewer, all of them."""
        ...

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        """Claim those of these runs that have no owner, no hold and a format that this version reads (as have all runs
        that `claimable`, `due_timers` and the like return), and that are unfinished or have a `new` message: the token
        grows by one, and `last_engine` stays. Returns the rows that were claimed, after the change, in the order of
        `run_nos`."""
        ...

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        """Release leases of an engine, each (run_no, token), without a commit, in one transaction; returns how many of
        them it still held. The engine becomes the run's `last_engine`, unless the lease was `unused`: it drove nothing.

        The engine is part of the fence, and the head hash, which commits compare, is not. A database that fell back to
        an earlier state can have another run under the same number and token: it belongs to another engine, which must
        not lose it. But it can also have this very run with fewer events than its owner knows: if the owner could not
        release that one, the run would be owned and not driven for as long as the owner lives."""
        ...

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        """Put a run on hold, or end its hold, while this engine (None: no engine) has its lease with this token. False:
        another engine has it by now, and nothing was changed."""
        ...

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        """Give a run that this engine (None: no engine) has with this token a higher one, and release its lease. For a
        run whose row fell behind its journal: no event may be written with a lower token than the one before it. False:
        another engine has it by now, and nothing was changed."""
        ...

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        """Store messages from outside, in one transaction; they arrive in this order. Same id, run, kind and payload as
        an earlier one, also within this sequence: duplicate. Same id and anything else: conflict. A run that has ended
        accepts only requests for a branch; for others: finished. A message that is not `new` is not stored."""
        ...

    # reading --------------------------------------------------------------------------------------------------
    def store_id(self) -> str:
        """The id that the database was given when it was created. Copies and backups keep it: they hold the same
        runs."""
        ...

    def standing(self) -> Standing:
        """Which copy of the store this is, and whether engines may work on it."""
        ...

    def run(self, run_id: str) -> RunRow | None: ...
    def run_by_no(self, run_no: int) -> RunRow | None: ...
    def workflows_of(self, run_nos: Sequence[int]) -> list[tuple[int, int, str, int, str, str]]:
        """(run_no, root_no, workflow, version, queue, status) of those of these runs that exist, by number."""
        ...

    def runs(
        self,
        *,
        status: Sequence[str] | None = None,
        workflow: str | None = None,
        limit: int = 100,
        before_no: int | None = None,
        root_no: int | None = None,
    ) -> list[RunRow]:
        """Newest first."""
        ...

    def resolve_run_id(self, prefix: str) -> list[str]:
        """Run ids that begin with `prefix`, at most 10, sorted."""
        ...

    def open_nodes(self, run_nos: Sequence[int]) -> list[NodeRow]:
        """The rows that a run needs in memory: by run, and within a run in the order in which they were first
        written."""
        ...

    def nodes(self, run_no: int) -> list[NodeRow]:
        """All rows of a run, closed scopes included, in the order in which they were first written."""
        ...

    def nodes_under(self, run_no: int, node_ids: Sequence[str], path_prefix: str, visit: int) -> list[NodeRow]:
        """Rows of these nodes on one visit whose path starts with `path_prefix`, whether open or not; in that order."""
        ...

    def open_waits(self, run_nos: Sequence[int]) -> list[WaitRow]:
        """By run, and within a run in the order in which they were opened."""
        ...

    def set_timers(self, run_nos: Sequence[int]) -> list[TimerRow]:
        """By `due_at`, run and name."""
        ...

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
        """Due timers of runs that could be claimed (unfinished, no owner, no hold) and that belong to these workflows
        (with `root_nos`: and to these runs; with `queues`: and are in one of these), oldest first, behind `after`, the
        last timer of the page before. With `elapsed`, which a shared store ignores: timers that were set by a duration
        in this boot are judged by it."""
        ...

    def waits_for_ended(self, after_no: int = 0, limit: int = 2_000) -> tuple[list[tuple[int, str]], int]:
        """(run_no, child's run_id) of runs without an owner that wait for a child that has ended, among about `limit`
        waits for children, of runs with a number above `after_no`; and the number from which to continue, or 0. By run,
        and within a run in the order in which the waits were opened."""
        ...

    def next_timer(self) -> int | None:
        """When the next timer of a run that could be claimed is due, by the wall clock as it was when it was set."""
        ...

    def events(
        self, run_no: int, after: int = 0, limit: int | None = None, *, types: Sequence[str] | None = None
    ) -> list[EventRow]:
        """In order of `seq`, over all branches; for a forked run, with the events that it shares with its origin."""
        ...

    def events_of(self, pages: Sequence[tuple[int, int]], without: Sequence[str]) -> dict[int, list[LinkedRow]]:
        """The events of many runs in one read, linked: by run number, for each pair (run_no, after), without those of
        these types. Each run is named once."""
        ...

    def branches(self, run_no: int) -> list[BranchRow]:
        """In the order in which they were opened."""
        ...

    def event_data(self, run_no: int, seqs: Sequence[int]) -> dict[int, LinkedRow]:
        """Some events of a run by their seq, linked; also those that it shares with the run it was forked from."""
        ...

    def event_data_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkedRow]:
        """The same for events (run_no, seq) of many runs in one read; without the events that a run shares with its
        origin."""
        ...

    def new_messages(self, run_nos: Sequence[int] | None = None) -> list[MessageRow]:
        """`new` messages in order of arrival; with None, of all runs that have no owner."""
        ...

    def held_messages(self, run_nos: Sequence[int]) -> list[MessageRow]:
        """Messages that these runs have accepted and not consumed yet, in order of arrival."""
        ...

    def message(self, message_id: str) -> MessageRow | None: ...
    def asked(
        self,
        *,
        kinds: Sequence[str] = ("input", "basket"),
        basket: str | None = None,
        assignee: str | None = None,
        limit: int = 100,
        after: tuple[int, str] | None = None,
    ) -> list[AskedRow]:
        """What unfinished runs ask people, by (since, wait_id): open waits of these kinds (of `OF_PEOPLE`), of one
        basket, of one assignee. `after` is the (since, wait_id) of the last one of the page before."""
        ...

    def wait(self, wait_id: str) -> list[AskedRow]:
        """The waits for people, open or closed, that have this id; else those whose id begins with it, at most 10. By
        id, and in the order in which they were opened."""
        ...

    def baskets(self) -> list[BasketRow]:
        """Every basket that is not empty, by name."""
        ...

    def unowned_versions(self) -> list[tuple[str, int]]:
        """(workflow, version) of runs that can be advanced and have no owner, each once, in order. The cost does not
        depend on how many runs wait or have ended, nor on how many runs a version has."""
        ...

    def claimable(
        self,
        versions: Sequence[tuple[str, int]],
        *,
        queues: Sequence[str] | None = None,
        root_nos: Sequence[int] | None = None,
        limit: int = 1_000,
    ) -> list[tuple[int, str, int]]:
        """(run_no, workflow, version) of runs of these versions that can be advanced and have no owner: created,
        running and recovering ones without a hold, and any other ones without a hold that have a `new` message.
        (Suspended ones whose timer is due come from `due_timers`.) With `queues`: in one of these; with `root_nos`: of
        these runs and their descendants. At most `limit` of each version; highest priority first, then oldest. The cost
        depends on what is returned, not on what else there is."""
        ...

    def differing_heads(self, run_nos: Sequence[int], types: Sequence[str]) -> list[int]:
        """Those of these runs whose rows do not have the last event of their journal, or have one that is missing
        there, or whose last event is of none of these types; by number."""
        ...

    def unfinished_count(self) -> int: ...
    def engines(self) -> list[EngineRow]:
        """The registered engines, by `started_at` and name."""
        ...

    def loads(self) -> dict[str, int]:
        """How many runs each engine owns; without engines that own none."""
        ...

    def unknown_owners(self) -> list[str]:
        """Engines that own runs and are not registered, so that no engine would notice their death; by name."""
        ...

    def now(self) -> int:
        """The time by the clock that all engines of the store share, in microseconds since 1970. Like `renew_engine`,
        it does not wait for other work."""
        ...

    def listen(self, wake: Callable[[], None]) -> None:
        """Until the store is closed, call `wake`, in any thread, soon after another process has written something that
        needs an owner: a message, a new run without an owner, a released lease. Only a hint: it may come for nothing,
        and may not come at all."""
        ...

    def changed(self) -> bool | None:
        """True if another process has written since the last call (cheap; called 20 times a second). None: the database
        cannot be reached now, and other operations would wait until it can."""
        ...

    def counts(self) -> dict[str, int]:
        """Runs per status."""
        ...

    # checking (the doctor's) ----------------------------------------------------------------------------------
    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        """Everything about a run, read in one transaction: its events after `after`, at most `limit`, and, if these are
        its last ones, all of its rows."""
        ...

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        """How many runs have a number above `after_no`, at most `limit`, and the highest number of these."""
        ...

    def run_numbers(self, first_no: int, last_no: int) -> list[int]: ...
    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        """The runs with these numbers that fail a check, or rows that belong to no run with such a number; by run, and
        within a run by place (node, path) and finding. Checks that have to do with age mean what happened before the
        instant `before`."""
        ...

    def health(self, *, thorough: bool) -> Health:
        """`thorough` reads the whole file."""
        ...

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        """Replace a run's rows, in one transaction. False, and nothing is changed, if an engine owns the run or its
        token is another one by now. The token grows."""
        ...

    def remove_orphans(self, check: Check, run_no: int) -> int:
        """Delete what `suspects` found under an `orphan_` check, if it is still an orphan. Events are never deleted."""
        ...

    def close_inbox(self, run_no: int) -> int:
        """Mark the messages that a finished run will never read as dead; returns how many."""
        ...
