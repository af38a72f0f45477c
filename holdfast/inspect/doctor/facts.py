"""Facts: what an audit knows of a run's journal, as far as it has been fed.

Owns: the state of the fold, what it does not hold and rules need (starts, steps, baskets, messages), the violations.
Never: reads a journal (audit.py), judges an event (legality.py) or rows (comparing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.model import events as ev
from holdfast.model.lineage import ROOT_BRANCH, Branch
from holdfast.model.plans import Plan
from holdfast.model.state import RunState
from holdfast.model.violations import Repair, Violation, violation
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.state_rows import node_row
from holdfast.store.row_types import EventRow, NodeRow

Instance = tuple[str, str, int]
"""(node, path, visit)"""
Pended = tuple[str, int]
"""(mode, seq of the event that says so)"""


class AuditFacts:
    """What is known of one run."""

    def __init__(
        self,
        plan: Plan,
        run_no: int,
        run_id: str,
        *,
        plan_of: Callable[[int], Plan] | None = None,
        recall: Callable[[int], Iterable[EventRow]] | None = None,
        early_micros: int = 0,
    ) -> None:
        """`plan_of` gives the plan of another version, for branches that change it. `recall(seq)` gives the events
        before `seq` again, which a new branch needs; without it the audit keeps what it was fed. `early_micros` is how
        much too early a timer may seem to have fired: a wall clock can be set back."""
        self.run_no = run_no
        self.run_id = run_id
        self.early_micros = early_micros
        self._plan_of = plan_of or (lambda version: plan)
        self._recall = recall
        self._kept: list[EventRow] = []
        self.replaying = False
        """These events were judged where they were written; a branch inherits them."""
        self.shared_until = 0
        """Up to here the journal is that of the run which this one was forked from."""
        self.violations: list[Violation] = []
        self.trusted = True
        """The journal is complete, linked and readable as far as it was fed."""
        self.sound = True
        """It could be folded as far as it was fed."""
        self.seq, self.hash, self.token = 0, b"", 0
        self.branches: dict[int, Branch] = {}
        """Every branch, once there is more than one."""
        self.opened: dict[int, Branch] = {}
        """Those that this run opened itself."""
        self._begin(plan)
        self.register = WaitAndTimerHistory()
        self.settled: dict[str, str] = {}
        """Message id to the event that settled it, on any branch."""

    def _begin(self, plan: Plan) -> None:
        """What belongs to one branch."""
        self.state = RunState.new(plan, self.run_no, self.run_id, 0)
        self.branch = ROOT_BRANCH
        self.ended: str | None = None
        """The terminal event."""
        self.taken_over_at = 0
        self.undone: int | None = None
        """The completion that was undone last."""
        self.instances: dict[Instance, NodeRow | None] = {}
        """Every instance in the order of its first event; its last row once its scope has closed."""
        self.started: dict[Instance, int] = {}
        """When the running attempt began, by seq."""
        self.steps: dict[Instance, set[tuple[str, int, str]]] = {}
        """Calls that a body has remembered."""
        self.undoable: dict[tuple[str, int], int] = {}
        """Where the compensation of a completed step lies (path, visit), and the event that completed it."""
        self.pended: dict[Instance, Pended] = {}
        """Instances whose body has ended, and that lie in a basket or have just been taken out of it."""
        self.messages: dict[str, str] = {}
        """Message id to the event that settled it on this line."""

    def report(self, code: str, what: str, event: EventRow | ev.Entry, means: Repair = Repair.BY_HAND) -> None:
        """Note a violation of `event`."""
        if not self.replaying:
            self.violations.append(self.violation(code, what, event.node, event.path, event.seq, means))

    def violation(
        self,
        code: str,
        what: str,
        node: str | None = None,
        path: str | None = None,
        seq: int | None = None,
        means: Repair = Repair.BY_HAND,
    ) -> Violation:
        """Something that is wrong with this run."""
        return violation(code, what, run_id=self.run_id, run_no=self.run_no, node=node, path=path, seq=seq, means=means)

    def note_closed(self) -> None:
        """Remember the last rows of instances that the state has forgotten."""
        changed, self.state.changed = self.state.changed, []
        for ns in changed:
            ns.changed = False
            if ns.closed:
                self.instances[ns.node, ns.path, ns.visit] = NodeRow._make(node_row(self.run_no, ns, 0))
