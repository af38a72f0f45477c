"""Random histories of a store: what many engines, people and a doctor could ask of it, right and wrong.

A history is made beside an oracle, which tells the author what is there by now. Names and numbers come from small
sets, so that they meet; what is wrong is rare, so that most things happen.
Left out is what the contract does not allow: two commits of one run in a group, one key twice among a commit's nodes,
outcomes of messages that are not the run's own, statuses that are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

from hypothesis import strategies as st

from holdfast.store.row_types import (
    OF_PEOPLE,
    BranchRow,
    Check,
    Commit,
    EngineRow,
    EventRow,
    MessageOutcome,
    MessageRow,
    NodeRow,
    Rebuilt,
    RunChange,
    RunRow,
    RunStep,
    TimerRow,
    WaitRow,
)
from tests.store.oracle.store import OracleStore

WORKFLOWS = ["order", "bill", "Bill"]
QUEUES = ["default", "slow", "Slow"]
ENGINES = ["one", "two", "three"]
ALIVE = ["running", "created", "suspended", "recovering"]
ENDED = ["completed", "failed", "cancelled"]
NODES = ["a", "b", "ä"]
PATHS = ["", ".", ".m.0.", ".m.1.", ".m.10."]
BASKETS = [None, "tax", "Tax", "law"]
PEOPLE = [None, "ann", "bob"]
WAITS = ["w_1", "w_2", "w_21", "W_1"]
TIMERS = ["run_timeout", *WAITS]
KINDS = ["signal", "cancel", "child_ended", "retry", "fork"]
EVENTS = ["NodeStarted", "NodeCompleted", "RunSuspended"]
HOLDS = [None, "corrupt: x", "Corrupt: x", "crash_loop: x"]
POOLS = ["gpu", "mail"]
GHOSTS = [9_001, 9_002]
"""Numbers that no run ever has."""
CHECKS: tuple[Check, ...] = get_args(Check)
ALL_RUNS = (-(2**63), 2**63 - 1)

T = TypeVar("T")


class Call(NamedTuple):
    """One verb, and what it is given."""

    verb: str
    args: tuple[Any, ...]
    named: dict[str, Any]

    def of(self, store: Any) -> Any:
        """What a store answers."""
        return getattr(store, self.verb)(*self.args, **self.named)

    def __repr__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.named.items()]
        return f"{self.verb}({', '.join([*map(repr, self.args), *named])})"


class History(list[Call]):
    def __repr__(self) -> str:
        return f"<a history of {len(self)} calls>"


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Writes, now and then some questions, and all questions at the end."""
    author = Author(draw)
    author.begin()
    for _ in range(draw(st.integers(10, 40))):
        author.write()
        if author.is_rare(8):
            author.ask_some()
    author.ask_everything()
    return author.history


class Author:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.oracle = OracleStore()
        self.history = History()
        self._writes: list[Callable[[], None]] = [
            *[self._commit] * 12,
            *[self._create] * 3,
            *[self._send] * 4,
            *[self._claim] * 3,
            self._release,
            self._hold,
            lambda: self._version(),
            *[self._engine] * 3,
            *[self._slots] * 3,
            *[self._rebuild] * 2,
            self._repair,
        ]

    # choosing -------------------------------------------------------------------------------------------------

    def pick(self, options: Sequence[T]) -> T:
        """One of these, the first where it does not matter."""
        return self._draw(st.sampled_from(options))

    def number(self, first: int, last: int) -> int:
        return self._draw(st.integers(first, last))

    def is_rare(self, one_in: int) -> bool:
        return self.number(1, one_in) == one_in

    def some(self, options: Sequence[T], most: int = 3, least: int = 0) -> list[T]:
        """Some of these, each once, in any order."""
        if not options:
            return []
        size = self.number(min(least, len(options)), min(most, len(options)))
        return self._draw(st.lists(st.sampled_from(options), min_size=size, max_size=size, unique=True))

    def off(self, value: int, one_in: int = 12) -> int:
        """A number that is right, or nearly."""
        return value + self.pick([1, -1, 2]) if self.is_rare(one_in) else value

    def any_run(self) -> int:
        """The number of a run, newest first, or of none."""
        numbers = sorted(self.oracle.tables.runs, reverse=True)
        return self.pick([*numbers, GHOSTS[0]])

    def some_runs(self, most: int = 6) -> list[int]:
        return self.some([*self.oracle.tables.runs, GHOSTS[0]], most)

    def call(self, verb: str, *args: Any, **named: Any) -> Any:
        self.history.append(Call(verb, args, named))
        return self.history[-1].of(self.oracle)

    # writing --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Most of what engines do before anything else."""
        for engine in self.some(ENGINES):
            self._register(engine)
        for workflow in self.some(WORKFLOWS):
            self._version(workflow)

    def write(self) -> None:
        if not self.oracle.tables.runs:
            self._create()
        else:
            self.pick(self._writes)()

    def _create(self) -> None:
        numbers = self._fresh(self.number(1, 3))
        if self.is_rare(10):  # as a database has them that was put together from others
            numbers[-1] += 30
        self.call("commit", [self._creation(no) for no in numbers])

    def _commit(self) -> None:
        """A group of steps, and now and then of new runs among them."""
        numbers = self.some(sorted(self.oracle.tables.runs, reverse=True), 4, least=1)
        group = [self._step(self.oracle.tables.runs[no]) for no in numbers]
        if self.is_rare(4):
            group.insert(self.number(0, len(group)), self._creation(self._fresh(1)[0]))
        for writer in [one for commit in group for one in (commit, *commit.children)]:
            writer.messages = [message for message in writer.messages if self._is_certain(message, group)]
        if self.is_rare(12):
            group.append(Commit(GHOSTS[0], 1, 1, change=RunStep(2, b"?", 0), events=[self._event(GHOSTS[0], 2, 1, 1)]))
        self.call("commit", group)

    def _is_certain(self, message: MessageRow, group: list[Commit]) -> bool:
        """Not to a run that the same group opens again, or ends as nobody should: whether it is in time is open."""
        run = self.oracle.tables.runs.get(message.run_no)
        own = next((commit for commit in group if commit.run_no == message.run_no), None)
        if run is None or own is None or not isinstance(own.change, RunChange):
            return True
        return run.status not in ENDED and (own.change.status in ENDED) == own.ends

    def _fresh(self, count: int) -> list[int]:
        first: int = self.call("reserve_run_numbers", count)
        return list(range(first, first + count))

    def _creation(self, no: int, parent: RunRow | None = None) -> Commit:
        runs = self.oracle.tables.runs
        run_id = self.pick(["run_", "run%", "RUN_", "rün_"]) + str(no)
        if runs and self.is_rare(8):
            run_id = self.pick(list(runs.values())).run_id
        origin = self.pick(list(runs.values())) if runs and parent is None and self.is_rare(5) else None
        cut = self.number(0, origin.last_seq) if origin is not None else 0
        has_ended = self.is_rare(8)
        status = self.pick(ENDED if has_ended else ALIVE)
        events = [self._event(no, cut + 1, 1, 1, f"Run{status.capitalize()}" if has_ended else "RunCreated")]
        fold = b"{}" if parent is None else b'{"parent":{"run_id":"%s"},"x":"\\u0000"}' % parent.run_id.encode()
        row = RunRow(
            run_no=no if not runs or not self.is_rare(30) else self.pick(list(runs)),
            run_id=run_id,
            workflow=self.pick(WORKFLOWS),
            version=self.number(1, 2),
            status=status,
            branch=1 if origin is None else 2,
            last_seq=self.off(cut + 1, 30),
            head_hash=events[0].hash,
            token=1,
            engine=None if has_ended else self._owner(),
            fold=self.pick([fold, None]),
            input_hash="in",
            parent_no=None if parent is None else parent.run_no,
            root_no=GHOSTS[0] if self.is_rare(30) else no if parent is None else parent.root_no,
            priority=self.pick([5, -5]) if self.is_rare(4) else 0,
            recoveries=self.number(0, 2),
            hold=self.pick(HOLDS) if self.is_rare(8) else None,
            created_at=self.number(1, 50),
            started_at=self.pick([None, 11]),
            finished_at=self.number(1, 50) if has_ended else None,
            queue=self.pick(QUEUES),
            format=2 if self.is_rare(10) else 1,
        )
        opens = None if origin is None else BranchRow(no, 2, 1, cut, 2, "fork", origin.run_no, 60)
        commit = Commit(row.run_no, 1, 0, create=row, events=events, opens=opens)
        if self.is_rare(3):
            self._add_rows(commit, no)
        return commit

    def _step(self, run: RunRow) -> Commit:
        """What an owner could write, or somebody who thinks that he is the owner."""
        no, token, expected = run.run_no, self.off(run.token), self.off(run.last_seq, 20)
        ends = self.is_rare(3 if self.oracle.tables.has_mail(no) else 10)
        status = self.pick(ENDED) if ends else self.pick(ALIVE)
        opens = self._branch(run) if self.is_rare(12) else None
        branch = run.branch if opens is None else opens.branch
        last = f"Run{status.capitalize()}" if ends else None
        seqs = [expected + 1 + place + self.is_rare(30) for place in range(self.number(0, 3))]
        events = [self._event(no, seq, branch, token, last if seq == seqs[-1] else None) for seq in seqs]
        head = events[-1] if events else None
        moved = (expected if head is None else head.seq, run.head_hash if head is None else head.hash)
        change: RunChange | RunStep = RunChange(
            *moved,
            status=status,
            branch=branch,
            engine=self.pick([run.engine, self._owner()])
            if not ends
            else self.pick(ENGINES)
            if self.is_rare(4)
            else None,
            recoveries=self.number(0, 2),
            started_at=self.pick([run.started_at, 12]),
            finished_at=self.number(1, 50) if ends else None,
            fold=self.pick([None, b"{}", b'{"x":1}']),
            format=self.number(1, 3) if self.is_rare(20) else 1,
        )
        if not ends and opens is None and self.is_rare(3):
            change = RunStep(*moved, self.number(0, 2))
        commit = Commit(no, token, expected, change=change, events=events, opens=opens)
        commit.expected_hash = self.pick([None, run.head_hash]) if not self.is_rare(12) else b"of another run"
        commit.ends = ends and not self.is_rare(3)
        if opens is not None:
            rows = [key for key in self.oracle.tables.nodes if key[0] == no]
            commit.gone = [key[1:] for key in self.some(rows)] + ([("none", "", 1)] if self.is_rare(4) else [])
            commit.version = self.pick([0, 1, 2])
        if not self.is_rare(3):
            self._add_rows(commit, no)
        if self.is_rare(6):
            commit.children = [self._creation(child, run) for child in self._fresh(self.number(1, 2))]
        if self.is_rare(25):
            self._spoil(commit)
        return commit

    def _owner(self) -> str | None:
        return self.pick(ENGINES) if self.is_rare(2) else None

    def _branch(self, run: RunRow) -> BranchRow:
        branch = self.off(run.branch + 1, 6)
        run_no = GHOSTS[1] if self.is_rare(8) else run.run_no
        return BranchRow(run_no, branch, run.branch, self.number(0, run.last_seq), 2, "retry", None, 60)

    def _add_rows(self, commit: Commit, no: int) -> None:
        """Rows of every kind; of another run, or of none, once in a while."""
        place = GHOSTS[1] if self.is_rare(30) else no
        commit.nodes = [self._node(place, *key) for key in self.some([(n, p) for n in NODES for p in PATHS], 4)]
        commit.waits = [self._wait(place, self.pick(WAITS)) for _ in range(self.number(0, 3))]
        commit.timers = [self._timer(place, self.pick(TIMERS)) for _ in range(self.number(0, 3))]
        own = [message.message_id for message in self.oracle.tables.messages.values() if message.run_no == no]
        settled = [self.pick(own) for _ in range(self.number(0, 2))] if own else []
        commit.outcomes = [self._outcome(message_id) for message_id in settled]
        if self.is_rare(2):
            commit.messages = [self._message() for _ in range(self.number(1, 3))]
        if place == GHOSTS[1]:
            commit.events = [*commit.events, self._event(place, self.number(1, 3), 1, 1)]

    def _spoil(self, commit: Commit) -> None:
        """Rows that no database takes."""
        event = self._event(commit.run_no, commit.expected_seq + 40, 1, 1)
        bad: Any = self.pick([{"type": None}, {"at": 2**70}, {"seq": commit.expected_seq}])
        commit.events = [*commit.events, event._replace(**bad)]
        commit.children = ()

    def _event(self, no: int, seq: int, branch: int, token: int, kind: str | None = None) -> EventRow:
        data = b'{"n":%d}' % self.number(0, 9)
        kind = kind or self.pick(EVENTS)
        at, token, mark = self.number(1, 50), self.off(token, 30), self.pick([b"", b"\x00", b"\xff"])
        return EventRow(
            no, seq, branch, kind, self.pick(NODES), self.pick(PATHS), 1, at, token, b"h%d" % seq + mark, data
        )

    def _node(self, no: int, node: str, path: str) -> NodeRow:
        return NodeRow(
            run_no=no,
            node=node,
            path=path,
            visit=self.number(1, 2),
            status=self.pick(["running", "scheduled", "suspended", "completed", "failed"]),
            attempt=self.number(1, 3),
            failures=self.number(0, 2),
            output_seq=self.number(0, 5),
            memory_seq=self.number(0, 5),
            not_before=self.number(0, 50),
            captured=self.pick([None, b"{}", b"\x00\xff"]),
            scope=self.pick([None, b"{}"]),
            is_open=self.pick([1, 1, 0]),
            started_at=self.pick([None, 12]),
            finished_at=self.pick([None, 13]),
        )

    def _wait(self, no: int, wait_id: str) -> WaitRow:
        kind = self.pick(["input", "child", "basket", "child", "timer", "signal", "pause", "hold"])
        runs = [run.run_id for run in self.oracle.tables.runs.values()]
        ended = [run.run_id for run in self.oracle.tables.runs.values() if run.status in ENDED]
        child = self.pick([*ended, *runs, "nobody"]).encode()
        closed = self.is_rare(3)
        return WaitRow(
            run_no=no,
            wait_id=wait_id,
            kind=kind,
            node=self.pick([None, *NODES]),
            path=self.pick([None, *PATHS]),
            visit=1,
            branch=1,
            status="closed" if closed else "open",
            since=1_000 * self.number(1, 4) + no % 1_000,  # two runs ask nothing under one id at one instant
            until=self.pick([None, 30]),
            data=b'{"child":"%s","x":"\\u0000"}' % child if kind == "child" else b"{}",
            basket=self.pick(BASKETS),
            assignee=self.pick(PEOPLE),
            outcome="answered" if closed else None,
            actor=self.pick(PEOPLE) if closed else None,
        )

    def _timer(self, no: int, timer: str) -> TimerRow:
        return TimerRow(
            no, timer, self.number(1, 9), self.number(1, 2), self.pick(["set", "set", "fired", "cancelled"])
        )

    def _outcome(self, message_id: str) -> MessageOutcome:
        status = self.pick(["consumed", "held", "dead", "new"])
        return MessageOutcome(message_id, status, None if status in ("held", "new") else b'{"outcome":"x"}')

    def _message(self) -> MessageRow:
        kind, no = self.pick(KINDS), self.any_run()
        runs = [run.run_id for run in self.oracle.tables.runs.values()]
        payload = (
            b'{"child":"%s"}' % self.pick(["nobody", *runs]).encode()
            if kind == "child_ended"
            else self.pick([b"1", b"2"])
        )
        return MessageRow(f"m{self.number(1, 40)}", no, kind, payload, self.number(1, 50))

    def _send(self) -> None:
        messages = [self._message() for _ in range(self.number(1, 4))]
        known = list(self.oracle.tables.messages.values())
        if known and self.is_rare(3):
            other: Any = self.pick([{}, {"kind": "pause"}, {"payload": b"3"}, {"run_no": self.any_run()}])
            messages.append(self.pick(known)._replace(status="new", outcome=None, created_at=99, **other))
        self.call("send", messages)

    def _claim(self) -> None:
        self.call("claim", self.pick(ENGINES), self.some_runs())

    def _release(self) -> None:
        runs = self.oracle.tables.runs
        tokens = {no: runs[no].token if no in runs else 1 for no in self.some_runs()}
        leases = [(no, self.off(token, 6)) for no, token in tokens.items()]
        owners = [run.engine for no in tokens if (run := runs.get(no)) is not None and run.engine is not None]
        engine = self.pick(owners) if owners and not self.is_rare(6) else self.pick(ENGINES)
        self.call("release", engine, leases + leases[:1], unused=self.is_rare(3))

    def _hold(self) -> None:
        no = self.any_run()
        run = self.oracle.tables.runs.get(no)
        token, engine = (1, None) if run is None else (run.token, run.engine)
        if self.is_rare(6):
            engine = self.pick(ENGINES)
        self.call("set_hold", no, self.off(token, 6), engine, self.pick(HOLDS))
        if self.is_rare(6):
            self.call("raise_token", no, self.off(token, 6), engine, token + self.number(0, 3))

    def _version(self, workflow: str | None = None) -> None:
        name = self.pick(["h1", "h2", "H1"])
        self.call("register_version", workflow or self.pick(WORKFLOWS), name, name.encode(), self.number(1, 50))

    def _register(self, engine: str) -> None:
        row = EngineRow(engine, "host", 1, "lock", self.number(1, 3), self.number(1, 50), b"{}")
        self.call("register_engine", row)

    def _engine(self) -> None:
        engine, known = self.pick(ENGINES), self.oracle.tables.engines
        match self.pick(["register", "renew", "offer", "remove", "judge"]):
            case "register":
                self._register(engine)
            case "renew":
                self.call("renew_engine", engine, self.number(1, 50))
            case "offer":
                self.call("set_offer", engine, self.pick([b"{}", b'{"lost_threads":17}']))
            case "remove":
                self.call("remove_engine", engine)
                if self.is_rare(3):
                    self._register(engine)
            case _:
                expires_at = known[engine].expires_at if engine in known else 1
                self.call("remove_engine", engine, self.off(expires_at, 2))

    def _slots(self) -> None:
        engine, pool = self.pick(ENGINES), self.pick(POOLS)
        if self.is_rare(3):
            self.call("give_slots", engine, pool, self.number(0, 4))
        else:
            self.call("take_slots", engine, pool, self.number(0, 4), self.number(0, 6))

    def _rebuild(self) -> None:
        unowned = [run.run_no for run in self.oracle.tables.runs.values() if run.engine is None]
        no = self.pick([*unowned, self.any_run()])
        run = self.oracle.tables.runs.get(no)
        token = 1 if run is None else run.token
        keys = self.some([(n, p) for n in NODES for p in PATHS], 4)
        self.call(
            "rebuild",
            Rebuilt(
                run_no=no,
                token=self.off(token, 8),
                version=self.number(1, 2),
                last_seq=self.number(1, 5),
                head_hash=b"rebuilt",
                status=self.pick([*ALIVE, *ENDED]),
                branch=self.number(1, 2),
                recoveries=self.number(0, 2),
                started_at=self.pick([None, 11]),
                finished_at=self.pick([None, 12]),
                fold=b"{}",
                nodes=[self._node(no, *key) for key in keys],
                waits=[self._wait(no, wait_id) for wait_id in self.some(WAITS)],
                timers=[self._timer(no, timer) for timer in self.some(TIMERS)],
            ),
        )

    def _repair(self) -> None:
        if self.is_rare(2):
            ended = [run.run_no for run in self.oracle.tables.runs.values() if run.status in ENDED]
            self.call("close_inbox", self.pick([*ended, self.any_run()]))
        else:
            checks = [check for check in CHECKS if check.startswith("orphan_") and check != "orphan_events"]
            self.call("remove_orphans", self.pick(checks), self.pick([GHOSTS[1], GHOSTS[0], self.any_run()]))

    # asking ---------------------------------------------------------------------------------------------------

    def ask_some(self) -> None:
        for ask in self.some(
            [self._ask_runs, self._ask_rows, self._ask_journal, self._ask_people, self._ask_claims], 5
        ):
            ask()
        for check in self.some(CHECKS, 3):
            self.call("suspects", check, *ALL_RUNS, self.number(0, 50))

    def ask_everything(self) -> None:
        for ask in (self._ask_runs, self._ask_rows, self._ask_journal, self._ask_people, self._ask_claims):
            ask()
        before = self.number(0, 50)
        for check in CHECKS:
            self.call("suspects", check, *ALL_RUNS, before)
        self.call("suspects", self.pick(CHECKS), self.any_run(), self.any_run(), before)
        for no in [*self.oracle.tables.runs, *GHOSTS]:
            self.call("evidence", no)
        for no in {branch.run_no for branch in self.oracle.tables.branches.values()}:
            self.call("events", no)
            self.call("event_data", no, list(range(1, 8)))
        for pool in POOLS:  # that which tells how many places are taken
            self.call("take_slots", ENGINES[0], pool, 99, 99)

    def _ask_runs(self) -> None:
        page = {"limit": self.pick([100, 1, 2, 3]), "before_no": self.pick([None, self.any_run()])}
        status = self.pick([None, ["running"], ["suspended", "completed"], [*ALIVE, *ENDED], []])
        self.call("runs", status=status, **page)
        self.call("runs", status=status, workflow=self.pick(WORKFLOWS), **page)
        self.call("runs", status=status, root_no=self.any_run(), workflow=self.pick([None, *WORKFLOWS]), **page)
        self.call("run_by_no", self.any_run())
        self.call("run", self.pick(["nobody", *(run.run_id for run in self.oracle.tables.runs.values())]))
        self.call("resolve_run_id", self.pick(["run", "run_", "run%", "R", "rü", "run_1", ""]))
        self.call("workflows_of", self.some_runs())
        self.call("counts")
        self.call("unfinished_count")
        self.call("run_page", self.pick([0, self.any_run()]), self.number(1, 4))
        self.call("run_numbers", *sorted([self.any_run(), self.any_run()]))
        self.call("versions")
        self.call("version", self.pick(WORKFLOWS), self.number(1, 3))
        self.call("latest_version", self.pick(WORKFLOWS))

    def _ask_rows(self) -> None:
        self.call("open_nodes", self.some_runs())
        self.call("nodes", self.any_run())
        self.call("nodes_under", self.any_run(), self.some(NODES), self.pick(["", ".m.", ".m.1", ".m.1."]), 1)
        self.call("open_waits", self.some_runs())
        self.call("set_timers", self.some_runs())
        self.call("waits_for_ended", self.pick([0, self.any_run()]), self.number(1, 4))
        self.call("new_messages")
        self.call("new_messages", self.some_runs())
        self.call("held_messages", self.some_runs())
        self.call("message", self.pick(["none", *self.oracle.tables.messages]))

    def _ask_journal(self) -> None:
        no, types = self.any_run(), self.some([*EVENTS, "RunCreated"])
        limit = self.pick([None, 1, 2, 4])
        self.call("events", no, self.number(0, 5), limit)
        self.call("events", no, self.number(0, 5), limit, types=types)
        self.call("events_of", [(one, self.number(0, 4)) for one in self.some_runs()], types)
        self.call("event_data", no, self.some(range(1, 8), 5))
        self.call("event_data_of", [(one, self.number(1, 5)) for one in self.some_runs()])
        self.call("branches", no)
        self.call("differing_heads", self.some_runs(), types)
        self.call("evidence", no, self.number(0, 3), limit)

    def _ask_people(self) -> None:
        kinds = self.pick([("input", "basket"), OF_PEOPLE, ["pause"], []])
        limit, after = self.pick([100, 1, 2]), (1_000 * self.number(0, 4) + self.number(0, 3), self.pick(["", *WAITS]))
        who = {"basket": self.pick(BASKETS), "assignee": self.pick(PEOPLE)}
        self.call("asked", kinds=kinds, limit=limit)
        self.call("asked", kinds=kinds, limit=limit, after=self.pick([after, None]), **who)
        self.call("wait", self.pick(["w", "w_2", "w_21", "W_1", "w_%"]))
        self.call("baskets")

    def _ask_claims(self) -> None:
        runs = self.oracle.tables.runs
        every = [(workflow, version) for workflow in WORKFLOWS for version in (1, 2)]
        versions = self.some(every) if self.is_rare(3) else every
        roots = [runs[no].root_no for no in self.some_runs(10) if no in runs]
        queues = self.pick([QUEUES[:1], QUEUES[1:], []]) if self.is_rare(3) else None
        self.call("unowned_versions")
        limit = self.pick([1_000, 1, 2])
        self.call("claimable", versions, queues=queues, limit=limit)
        self.call("claimable", versions, queues=queues, root_nos=roots, limit=limit)
        self.call("next_timer")
        workflows, now = self.some(WORKFLOWS) if self.is_rare(3) else WORKFLOWS, self.number(3, 10)
        some = self.pick([None, None, roots])
        page = self.call("due_timers", now, limit, workflows, some, queues=queues)
        if page:
            self.call("due_timers", now, limit, workflows, some, queues=queues, after=page[-1])
        self.call("engines")
        self.call("loads")
        self.call("unknown_owners")
