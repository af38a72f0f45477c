"""The store's contract: what the engine asks of a database, and what it may rely on.

Owns: the protocol, the meaning of each verb. The rows that cross the border are in row_types.py.
Never: knows what a retry, a join or a workflow rule is.

Transaction contract
- `commit` is the one write path for runs. It takes the commits of different runs as one group and lands them in ONE
  database transaction, durable when it returns. Each commit names its run, the token it holds and the last `seq` it
  knows (the fence); one whose fence does not match is refused alone, whatever else is wrong with it, and the others
  land. A group that fails for another reason than the disk or the connection is tried again one commit at a time, and
  only the bad one fails. Either way the database is afterwards as if the commits had been made one after the other, in
  the order of the group; but a message to a run that the same group opens again may have come too late for it.
- Rows of one commit land together or not at all.
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
    VersionRow,
    WaitRow,
)


class Store(Protocol):
    """What a driver offers. Verbs that write are called through one writer; verbs that read may run beside it.

    Synchronous by design on SQLite; the engine calls the writing ones from its writer thread (or, embedded with one
    live run, from the loop). Instants are passed in, in microseconds.
    """

    url: str

    @property
    def file(self) -> Path | None:
        """The file of the database, absolute; None: it is a server's, or in memory."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether engines on other machines use it, too: then its clock is everybody's (`now`), and any thread may call
        any verb. Else this machine's clock is, and the verbs that write are the writer's."""
        ...

    def open(self) -> None: ...
    def close(self) -> None: ...

    # writing --------------------------------------------------------------------------------------------------
    def commit(self, group: Sequence[Commit]) -> list[CommitResult]: ...
    def commit_if_free(self, group: Sequence[Commit]) -> list[CommitResult] | None:
        """The same for whoever cannot wait: None, and nothing was written, while others write or the store has to
        tidy up first. `commit` waits for that, or does it."""
        ...

    def reserve_run_numbers(self, count: int) -> int:
        """The first of `count` fresh run numbers, never given out before."""
        ...

    def register_version(self, workflow: str, content_hash: str, definition: bytes, now: int) -> int:
        """The number of this definition under its name; the next one when its hash is new."""
        ...

    def register_engine(self, row: EngineRow) -> None: ...
    def set_offer(self, engine: str, can_run: bytes) -> bool:
        """Say anew what an engine can run. False: it is not on the list (any more), and nothing was changed."""
        ...

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        """False: the row is gone, that is, somebody declared us dead. Of a shared store it is tried at once and only
        once, whatever else is asked of the store; StoreError: it may have happened or not."""
        ...

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        """Takes an engine off the list (it stopped, or it is dead) and frees its runs: their `engine` becomes None,
        their `last_engine` names it, and their token grows, so that whatever the old owner still sends is refused. Its
        places in shared pools are free, too. The number of runs freed.

        With `expires_at`, the expiry that it was judged by, nothing changes when it has another one by now: it lives,
        and the answer is None."""
        ...

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        """How many of the wanted places of a pool the engine gets now, beside those that it has: never more than
        `limit` minus what all engines hold; none when it is not on the list. They belong to its lease and go with
        it."""
        ...

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        """Gives back places of a pool; more than the engine holds are all of them."""
        ...

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        """Take the lease of those of these runs that are not on hold, unowned and of a format that this version reads
        (as are all runs that `claimable`, `due_timers` and the like find), and either unfinished or asked for something
        (a `new` message): the token grows by one, and `last_engine` stays. The rows that were won, after the change, in
        the order in which they were asked for."""
        ...

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        """Give back leases of an engine, each (run_no, token), without a commit, in one transaction; how many of them
        it still held. The engine becomes the run's `last_engine`, unless the lease was `unused`: it drove nothing.

        The engine is part of the fence, and the head hash, which commits compare, is not. A database that fell back to
        an earlier state can have another run under the same number and token: it belongs to another engine, which must
        not lose it. But it can also have this very run with fewer events than its owner knows: if the owner could not
        give that one back, the run would be owned and not driven for as long as the owner lives."""
        ...

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        """Put a run aside, or take it back, while this engine (None: no engine) has its lease with this token. False:
        another engine has it by now, and nothing was changed."""
        ...

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        """Give a run that this engine (None: no engine) has with this token a higher one, and release its lease. For a
        run whose row fell behind its journal: no event may be written with a lower token than the one before it. False:
        another engine has it by now, and nothing was changed."""
        ...

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        """Store messages from outside, in one transaction; they arrive in this order. Same id, run, kind and payload as
        an earlier one, of this sequence too: duplicate. Same id and anything else: conflict. A run that has ended takes
        only those that open a branch; for others: finished. Of a message that is not `new` nothing is stored."""
        ...

    # reading --------------------------------------------------------------------------------------------------
    def store_id(self) -> str:
        """The id that the database was given when it was made. Copies and backups keep it: they hold the same runs."""
        ...

    def standing(self) -> Standing:
        """What the store is among its copies, and whether engines may work on it."""
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
        """The rows that belong to these runs' memory: by run, and of one in the order in which they first came."""
        ...

    def nodes(self, run_no: int) -> list[NodeRow]:
        """All rows of a run, closed scopes too, in the order in which they first came."""
        ...

    def nodes_under(self, run_no: int, node_ids: Sequence[str], path_prefix: str, visit: int) -> list[NodeRow]:
        """Rows of these nodes on one visit whose path starts with `path_prefix`, whether open or not; in that order."""
        ...

    def open_waits(self, run_nos: Sequence[int]) -> list[WaitRow]:
        """By run, and of one in the order in which they were opened."""
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
        """Timers due of runs that could be claimed (unfinished, no owner, no hold) and are of these workflows (with
        `root_nos`: and belong to these runs; with `queues`: and are in one of these), oldest first; of those behind
        `after`, the last one of a page. With `elapsed`, which a shared store has no use for: those that were set by a
        duration in this boot are judged by it."""
        ...

    def waits_for_ended(self, after_no: int = 0, limit: int = 2_000) -> tuple[list[tuple[int, str]], int]:
        """(run_no, child's run_id) of runs without an owner that wait for a child that has ended, among about `limit`
        waits for children, of runs with a number above `after_no`; and the number behind which to go on, or 0. By run,
        and of one in the order in which the waits were opened."""
        ...

    def next_timer(self) -> int | None:
        """When the next timer of a run that could be claimed is due, by the wall clock as it was when it was set."""
        ...

    def events(
        self, run_no: int, after: int = 0, limit: int | None = None, *, types: Sequence[str] | None = None
    ) -> list[EventRow]:
        """In order of `seq`, over all branches; of a run that goes on from another one, with what it shares."""
        ...

    def events_of(self, pages: Sequence[tuple[int, int]], without: Sequence[str]) -> dict[int, list[LinkedRow]]:
        """The events of many runs in one read, linked: by run number, of each pair (run_no, after) those that are of
        none of these types. A run is named once."""
        ...

    def branches(self, run_no: int) -> list[BranchRow]:
        """In the order in which they were opened."""
        ...

    def event_data(self, run_no: int, seqs: Sequence[int]) -> dict[int, LinkedRow]:
        """Some events of a run by their seq, linked; those that it shares with the run it was forked from, too."""
        ...

    def event_data_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkedRow]:
        """The same for events (run_no, seq) of many runs in one read; what a run shares with another is left out."""
        ...

    def new_messages(self, run_nos: Sequence[int] | None = None) -> list[MessageRow]:
        """`new` messages in order of arrival; with None, of all runs that have no owner."""
        ...

    def held_messages(self, run_nos: Sequence[int]) -> list[MessageRow]:
        """Messages that these runs have taken note of and not used yet, in order of arrival."""
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
        """What people are asked by unfinished runs, by (since, wait_id): open waits of these kinds (of `OF_PEOPLE`), of
        one basket, of one assignee. `after` is the (since, wait_id) of the last one of the page before."""
        ...

    def wait(self, wait_id: str) -> list[AskedRow]:
        """The waits for people, open or closed, that have this id; else those whose id begins with it, at most 10. By
        id, and in the order in which they were opened."""
        ...

    def baskets(self) -> list[BasketRow]:
        """Every basket in which something lies, by name."""
        ...

    def unowned_versions(self) -> list[tuple[str, int]]:
        """(workflow, version) of runs that want to be advanced and that nobody holds, each once, in order. Costs the
        same beside any number of runs that wait or have ended, and with any number of runs of each version."""
        ...

    def claimable(
        self,
        versions: Sequence[tuple[str, int]],
        *,
        queues: Sequence[str] | None = None,
        root_nos: Sequence[int] | None = None,
        limit: int = 1_000,
    ) -> list[tuple[int, str, int]]:
        """(run_no, workflow, version) of runs of these versions that want to be advanced and that nobody holds:
        created, running and recovering ones without owner and hold, and any other ones without owner and hold that have
        a `new` message. (Suspended ones whose timer is due come from `due_timers`.) With `queues`: in one of these;
        with `root_nos`: of these runs and their descendants. Of each version at most `limit`; highest priority first,
        then oldest. Costs what it gives, whatever else there is."""
        ...

    def differing_heads(self, run_nos: Sequence[int], types: Sequence[str]) -> list[int]:
        """Those of these runs whose rows do not know the last event of their journal, or know one that is not there, or
        whose last event is of none of these types; by number."""
        ...

    def unfinished_count(self) -> int: ...
    def engines(self) -> list[EngineRow]:
        """Who is on the list, by `started_at` and name."""
        ...

    def loads(self) -> dict[str, int]:
        """How many runs each engine owns; who owns none is left out."""
        ...

    def unknown_owners(self) -> list[str]:
        """Engines that hold runs and are not on the list, so that nobody would notice their end; by name."""
        ...

    def version(self, workflow: str, version: int) -> VersionRow | None: ...
    def latest_version(self, workflow: str) -> VersionRow | None: ...
    def now(self) -> int:
        """The time by the clock that all engines of the store share, in microseconds since 1970. Like `renew_engine`,
        it waits for nobody."""
        ...

    def listen(self, wake: Callable[[], None]) -> None:
        """From now on, and until it is closed, call `wake`, in any thread, soon after somebody has written something
        that wants an owner: sent a message, created a run that nobody owns, given back a lease. Only a hint: it may
        come for nothing, and may not come at all."""
        ...

    def changed(self) -> bool | None:
        """Whether somebody else has written since this was last asked (cheap; called 20 times a second). None: the
        database cannot be reached now, and whoever asks it for anything else waits until it can."""
        ...

    def counts(self) -> dict[str, int]:
        """Runs per status."""
        ...

    # checking (the doctor's) ----------------------------------------------------------------------------------
    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        """What there is about a run, read in one transaction: its events after `after`, at most `limit`, and, when
        these are its last ones, all of its rows."""
        ...

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        """How many runs have a number above `after_no`, at most `limit`, and the highest number of these."""
        ...

    def run_numbers(self, first_no: int, last_no: int) -> list[int]: ...
    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        """The runs with these numbers to which something applies, or rows that belong to no run with such a number; by
        run, and of one by place (node, path) and what was found. Checks that have to do with age mean what happened
        before the instant `before`."""
        ...

    def health(self, *, thorough: bool) -> Health:
        """`thorough` reads the whole file."""
        ...

    def versions(self) -> list[VersionRow]:
        """Every definition there is."""
        ...

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        """Write a run's rows anew, in one transaction; False, and nothing is changed, when somebody owns the run or
        its token is another one by now. The token grows."""
        ...

    def remove_orphans(self, check: Check, run_no: int) -> int:
        """Delete what `suspects` found under an `orphan_` check, if it is still an orphan. Events are never deleted."""
        ...

    def close_inbox(self, run_no: int) -> int:
        """Refuse what a finished run was sent and will never read; how many messages."""
        ...
