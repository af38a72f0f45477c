"""Why: where a run stands, as one paragraph.

Owns: what a run waits for, since when, what will wake it, and if nothing will, why.
Never: changes anything; looks into the memory of an engine: what it tells is in the store, so it is the same from
another process, and with no engine running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from holdfast.inspect import run_views
from holdfast.inspect.wait_views import RECOVERING, Reasons, hold_of, only_outside_moves, shown_status
from holdfast.model import capabilities
from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model.capabilities import EngineCapabilities
from holdfast.model.definition import Definition, NodeDef, handlers_of
from holdfast.model.errors import CorruptJournal, DefinitionError, NewerFormat
from holdfast.model.limits import SUSPECT_RECOVERIES, WHY_NAMED_MAX
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.views import WAIT_ENDS, Wait, command_line, humanize_duration, wait_ended_by
from holdfast.store.contract import Store
from holdfast.store.liveness import Locks, life_of
from holdfast.store.records.run_records import creation_of, terminal_event
from holdfast.store.row_types import EngineRow, NodeRow, RunRow, TimerRow, WaitRow

HOLDS = {
    "crash_loop": "it probably crashes its process; find out why before you resume it",
    "newer_format": "upgrade this Holdfast, then resume the run",
    "missing_code": "load the function that it names where an engine runs, then resume it",
    "internal_error": "this is a bug of Holdfast; its journal is intact",
    "outcome_unknown": "find out whether its effect happened: resuming runs it again",
}
"""What to do about a hold, by the code of its reason; of those that need commands, see `_advice`."""


Say = Callable[..., str]
"""Words a command, given its verb and arguments."""


class Why(msgspec.Struct):
    """Where a run stands."""

    run_id: str
    status: str
    why: str
    """One paragraph."""
    moves: bool
    """It has ended, or it will continue by itself."""

    def as_json(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "status": self.status, "why": self.why, "moves": self.moves}


def why(store: Store, row: RunRow, now: int, say: Say = command_line) -> Why:
    """Where a run stands, as of `now`. `say` words the commands that move it: verb and arguments to text."""
    return _Telling(store, row, now, say).tell()


class _Telling:
    def __init__(self, store: Store, row: RunRow, now: int, say: Say) -> None:
        self._say = say
        self._store = store
        self._row = row
        self._now = now
        self._run = f"run {row.run_id}"
        locks = Locks.of(store)
        self._lives = {e.engine: (e, life_of(e, now, locks)) for e in store.engines()}
        try:
            version = store.version(row.workflow, row.version)
            self._definition = None if version is None else definitions.decode(version.definition)
        except DefinitionError:
            self._definition = None

    def tell(self) -> Why:
        row = self._row
        if row.status in RUN_TERMINAL:
            return self._answer(self._ended(), moves=True)
        hold = hold_of(row)
        if hold is not None:
            return self._answer(self._held(hold), moves=False)
        driven, drives = self._driver()
        waits = only_outside_moves(self._store, row, self._now)
        sentences = [
            self._waiting(),
            self._decisions(waits, driven if drives else "") if waits else driven,
            self._kept(),
        ]
        ends_by_itself = waits is None or all(wait.until is not None and wait.kind != "pause" for wait in waits)
        return self._answer(" ".join(s for s in sentences if s), moves=drives and ends_by_itself)

    def _answer(self, text: str, *, moves: bool) -> Why:
        return Why(self._row.run_id, shown_status(self._store, self._row), text, moves)

    # --- what it is about ------------------------------------------------------------------------------------

    def _ended(self) -> str:
        row = self._row
        took = ""
        if row.finished_at is not None:
            ago, lasted = self._now - row.finished_at, row.finished_at - row.created_at
            took = f" {humanize_duration(ago)} ago, after {humanize_duration(lasted)}"
        try:
            terminal = terminal_event(self._store, row)
        except CorruptJournal as damage:
            return f"{self._run} is shown as {row.status}; {damage.message}. {self._command('doctor')} shows more."
        match terminal:
            case ev.RunFailed(error=error):
                where = "" if error.node is None else f" in {instance_text(error.node, error.path or '.')}"
                return (
                    f"{self._run} failed{where}{took}: {error.message}. It will not continue by itself{self._ways()}."
                )
            case ev.RunCancelled(reason=reason):
                why = reason or "no reason was given"
                return f"{self._run} was cancelled{took}: {why}. It will not continue by itself{self._ways()}."
        return f"{self._run} completed{took}. There is nothing left to do."

    def _ways(self) -> str:
        ways = [f"to {what}: {self._say(*verb)}" for what, verb in run_views.ways_on(self._store, self._row)]
        return "".join(f"; {way}" for way in ways)

    def _command(self, verb: str, *options: str) -> str:
        return self._say(verb, self._row.run_id, *options)

    def _advice(self, code: str) -> str:
        """What to do about a hold, by the code of its reason."""
        match code:
            case "code_changed":
                return (
                    "deploy the old code again and resume it, or accept the new code: "
                    f"{self._command('resume', '--accept-change')} (with --dry-run it shows what would be reused), or "
                    f"{self._command('fork')} before the change"
                )
            case "corrupt":
                return (
                    f"{self._command('doctor', '--deep')} shows what is damaged, {self._command('recover')} repairs "
                    f"rows, {self._say('db', 'restore')} restores a backup"
                )
        return HOLDS.get(code, "")

    def _held(self, hold: str) -> str:
        code, _, why = hold.partition(": ")
        advice = self._advice(code)
        advice = f" ({advice})" if advice else ""
        if code in ("corrupt", NewerFormat.code):
            again = f"{self._command('resume')} resumes it once it can be read"
            return (
                f"{self._run} is on hold and no engine touches it: {why}{advice}. Nothing is appended to it; {again}."
            )
        ends = f", {self._command('cancel')} ends it"
        if self._closing():  # a compensation whose code is loaded, and changed, is not given up by a cancel
            ends = f"{ends} (compensations that cannot run are recorded as failed)" if code != "code_changed" else ""
        return (
            f"{self._run} is on hold and no engine touches it: {why or hold}{advice}. Only a person can move it: "
            f"{self._command('resume')} resumes it{ends}."
        )

    def _waiting(self) -> str:
        row = self._row
        waits = self._store.open_waits([row.run_no])
        timers = self._store.set_timers([row.run_no])
        nodes = self._store.open_nodes([row.run_no])
        if row.status == RunStatus.CREATED:
            return self._created()
        if shown_status(self._store, row) == RECOVERING:
            return f"{self._run} is recovering: its new owner has claimed it and has not committed the takeover yet."
        if self._closing():
            return f"{self._run} is {self._closing()}: what still runs is being stopped or undone."
        if row.status == RunStatus.SUSPENDED:
            return self._suspended(waits, timers, nodes)
        return self._running(waits, timers, nodes)

    def _created(self) -> str:
        settings = None if self._definition is None else self._definition.settings
        age = humanize_duration(self._now - self._row.created_at)
        if settings is not None and settings.concurrency is not None:
            limit = f"at most {settings.concurrency} run(s) of {self._row.workflow} run at once"
            return f"{self._run} was created {age} ago and waits for its turn: {limit}."
        return f"{self._run} was created {age} ago and has not begun."

    def _closing(self) -> str:
        return str(self._fold().get("closing", ""))

    def _ticket(self) -> list[str]:
        ticket = self._fold().get("ticket")
        return [] if ticket is None else [f"it goes to {ticket['target']} when what runs has ended"]

    def _fold(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = msgspec.json.decode(self._row.fold or b"{}")
        except ValueError:
            return {}  # the doctor reports it
        return found

    def _suspended(self, waits: list[WaitRow], timers: list[TimerRow], nodes: list[NodeRow]) -> str:
        waiting = Reasons(self._store, self._row, timers, self._now, self._say)
        reasons = [waiting.of(wait) for wait in _pause_first(waits)] + waiting.delays(nodes)
        if not reasons:
            return f"{self._run} is suspended and nothing can wake it; {self._command('doctor')} repairs it."
        return f"{self._run} waits: {self._list(reasons)}."

    def _running(self, waits: list[WaitRow], timers: list[TimerRow], nodes: list[NodeRow]) -> str:
        reasons = [self._body(node) for node in nodes if node.status == NodeStatus.RUNNING and node.scope is None]
        waiting = Reasons(self._store, self._row, timers, self._now, self._say)
        reasons += [waiting.of(wait) for wait in _pause_first(waits)]
        reasons += waiting.delays(nodes)
        reasons += self._ticket()
        if not reasons:
            reasons = [self._place(node) for node in nodes if node.status == NodeStatus.SCHEDULED]
        if not reasons:
            return f"{self._run} is {self._row.status}, between two steps."
        return f"{self._run} is {self._row.status}: {self._list(reasons)}."

    @staticmethod
    def _list(reasons: Sequence[str]) -> str:
        more = f"; and {len(reasons) - WHY_NAMED_MAX} more" if len(reasons) > WHY_NAMED_MAX else ""
        return "; ".join(reasons[:WHY_NAMED_MAX]) + more

    def _body(self, node: NodeRow) -> str:
        age = "" if node.started_at is None else f" for {humanize_duration(self._now - node.started_at)}"
        tries = f" (attempt {node.attempt})" if node.attempt > 1 else ""
        return f"{_name(node)} has been running{age}{tries}"

    def _place(self, node: NodeRow) -> str:
        definition = _find(self._definition, node)
        limit = None if definition is None else definition.concurrency
        said = f", of which {limit} may run at once" if limit is not None else ""
        return f"{_name(node)} waits for a free place{said}"

    # --- who will move it ------------------------------------------------------------------------------------

    def _decisions(self, waits: Sequence[Wait], driven: str) -> str:
        """The commands that end its waits, and which engine drives it then."""
        if any(wait.kind == "pause" for wait in waits):
            waits = [wait for wait in waits if wait.kind == "pause"]
        alone = len(waits) == 1
        ways = [f"{self._say(*wait_ended_by(wait, alone=alone))} {WAIT_ENDS[wait.kind]}" for wait in waits]
        text = f"To move it: {self._list(list(dict.fromkeys(ways)))}."
        if driven or not {wait.kind for wait in waits} & {"input", "signal"}:  # resuming it drives it as well
            return f"{text} {driven}".rstrip()
        if other_code := self._other_code():
            return f"{text} What you say is kept, but {other_code}."
        return f"{text} No engine runs its code: what you say is kept, and {self._resume()}."

    def _kept(self) -> str:
        """Signals that arrived before a call that receives them."""
        held = self._store.held_messages([self._row.run_no])
        names = Counter(msgspec.json.decode(m.payload).get("name", "?") for m in held if m.kind == "signal")
        if not names:
            return ""
        listed = ", ".join(name if number == 1 else f"{name} ×{number}" for name, number in names.items())
        what = "1 signal is" if names.total() == 1 else f"{names.total()} signals are"
        return f"{what} kept that no call has received yet: {listed}."

    def _driver(self) -> tuple[str, bool]:
        """Which engine will drive it, and whether one will."""
        row, able, other_code = self._row, self._able(), self._other_code()
        if row.engine is not None:
            owner, life = self._lives.get(row.engine, (None, "dead"))
            if owner is not None and life != "dead":
                late = " (it is late with its lease)" if life == "late" else ""
                drives = f"Engine {row.engine} (process {owner.pid} on {owner.host}) drives it{late}."
                lost = capabilities.decode(owner.can_run).lost_threads
                return (f"{drives} {_lost_threads('It', lost)}." if lost else drives), True
            who = row.engine if owner is None else f"{row.engine} (process {owner.pid} on {owner.host})"
            if other_code:
                return f"Engine {who}, which drove it, is dead, and {other_code}.", False
            takes = f"the next engine takes it over, and {self._resume()}"
            return f"Engine {who}, which drove it, is dead: {takes}.", bool(able)
        if able:
            names = ", ".join(f"{e.engine} (process {e.pid})" for e in able[:WHY_NAMED_MAX])
            woken = "wakes it when the time comes" if row.status == RunStatus.SUSPENDED else "will take it"
            if row.status != RunStatus.SUSPENDED and row.recoveries + 1 >= SUSPECT_RECOVERIES:
                deaths = f"{row.recoveries + 1} engines in a row died while it made no progress"
                return f"{deaths}; engine {names} will take it and run its bodies in a process of their own.", True
            return f"It has no owner now; engine {names} {woken}.", True
        if other_code:
            return f"It has no owner now, and {other_code}.", False
        return f"{self._undriven()}: {self._resume()}{self._without_undo()}.", False

    def _without_undo(self) -> str:
        """How a run ends whose compensations no engine can run."""
        if self._closing() != "compensating":
            return ""
        return (
            f" and runs its compensations. If its code is gone, {self._command('cancel', '--give-up-undo')} "
            "ends it without them, and records its compensations as failed"
        )

    def _resume(self) -> str:
        return f"{self._command('resume')} resumes it"

    def _undriven(self) -> str:
        """Why no engine can run it."""
        row = self._row
        if not self._offers():
            return "No engine is running, so nothing will wake it"
        serving = [offer for _, offer in self._offers() if offer.serves(row.queue)]
        if not serving:
            return f"No engine that runs serves the queue {row.queue!r}"
        starved = [(engine, offer) for engine, offer in self._fitting() if offer.lacks_threads(self._needed())]
        if starved:
            engine, offer = starved[0]
            return _lost_threads(f"Engine {engine.engine} (process {engine.pid})", offer.lost_threads)
        lacks = min((offer.missing(self._needed()) for offer in serving), key=len)
        code = f" ({self._list(lacks)})" if lacks else ""
        return f"The engines that run have not loaded the code of workflow {row.workflow}{code}"

    def _other_code(self) -> str:
        """That the code of every engine which could take it is not the one that it must continue with; empty where this
        does not keep it."""
        fitting = [(e, offer) for e, offer in self._fitting() if not offer.lacks_threads(self._needed())]
        if self._able() or not fitting:
            return ""
        changed = self._list(min((offer.changed(self._began_with) for _, offer in fitting), key=len))
        return (
            f"every engine that could take it has other code than it began with ({changed}): as its on_code_change is "
            f"'fail', it would be put on hold. Start an engine that has the old code, or accept the new one: "
            f"{self._resume()}"
        )

    def _able(self) -> list[EngineRow]:
        """Live engines that would drive it. The one that drove it last may have other code: the change was accepted
        there."""
        was, last = self._began_with, self._row.last_engine
        fitting = [(e, offer) for e, offer in self._fitting() if not offer.lacks_threads(self._needed())]
        return [e for e, offer in fitting if e.engine == last or not offer.changed(was)]

    def _fitting(self) -> list[tuple[EngineRow, EngineCapabilities]]:
        """Live engines that serve the run's queue and have all of its code, in whichever state."""
        needed, queue = self._needed(), self._row.queue
        return [(e, offer) for e, offer in self._offers() if offer.serves(queue) and not offer.missing(needed)]

    @cached_property
    def _began_with(self) -> Mapping[str, str]:
        """The state of the code that the run must continue with; nothing where any will do."""
        if self._definition is None or self._definition.settings.on_code_change != "fail":
            return {}
        try:
            return creation_of(self._store, self._row).fingerprints
        except CorruptJournal:
            return {}  # the doctor reports it

    def _offers(self) -> list[tuple[EngineRow, EngineCapabilities]]:
        """What live engines say that they can run; one that drives only its own runs offers nothing."""
        alive = [engine for engine, life in self._lives.values() if life != "dead"]
        return [(engine, offer) for engine in alive if (offer := capabilities.decode(engine.can_run)).handlers]

    def _needed(self) -> list[str]:
        """The code that the run needs; a name that no engine has where its definition cannot be read."""
        return ["?"] if self._definition is None else sorted(handlers_of(self._definition.nodes))


def _lost_threads(who: str, lost: int) -> str:
    return (
        f"{who} has lost {lost} threads to bodies that did not stop, and starts no sync bodies until some of them end "
        "or it is restarted"
    )


def _name(node: NodeRow) -> str:
    return instance_text(node.node, node.path, node.visit)


def _pause_first(waits: Sequence[WaitRow]) -> list[WaitRow]:
    """While a run is paused, that is what it waits for first of all."""
    return sorted(waits, key=lambda wait: wait.kind != "pause")


def _find(definition: Definition | None, node: NodeRow) -> NodeDef | None:
    """A node of a definition, wherever in it."""
    stack = [] if definition is None else list(definition.nodes)
    while stack:
        found = stack.pop()
        if found.id == node.node:
            return found
        if found.body is not None:
            stack += found.body.nodes
    return None
