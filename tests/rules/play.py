"""Play: a run without an engine. Commands in, events out, and the few things an engine does in between.

It does what engine/actor.py does, with plain values: it starts what was scheduled, hands bodies their arguments,
provides parameters, results and what there is to undo, and keeps tables. After every turn it checks what must hold for
every run: folding the journal gives the same state, so do the tables; `seq` has no gap; the terminal event is the last;
a start follows the scheduling of the same attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.engine import rule_inputs
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import journal_format, references, validation
from holdfast.model.captures import capture
from holdfast.model.definition import Body, Definition, Milestone, NodeDef, Param, Phase, Settings
from holdfast.model.evolve import evolve
from holdfast.model.expressions import evaluate, follow
from holdfast.model.plans import compile_definition
from holdfast.model.policies import Retry
from holdfast.model.state import HeldSignal, NodeState, OpenScope, RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules import decide, nodes, scopes
from holdfast.rules.draft import Draft, Outcome, Refusal, ToRun
from holdfast.store.records import state_rows
from holdfast.store.row_types import NodeRow

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
TERMINAL = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
Instance = tuple[str, str]


# --- definitions in few words ------------------------------------------------------------------------------------


def ref(node: str, *keys: str | int) -> Any:
    expr: Any = ["node", node]
    for key in keys:
        expr = ["get", expr, key]
    return expr


def call(node: str, **options: Any) -> NodeDef:
    """A node; what is not an option of a node is an argument, `_after` and the like included."""
    fields = {name: options.pop(name) for name in list(options) if name in NodeDef.__struct_fields__}
    return NodeDef(id=node, uses=fields.pop("uses", node), args=options, **fields)


def mapped(node: str, over: Any, *body: NodeDef, result: Any = None, **options: Any) -> NodeDef:
    fields = {name: options.pop(name) for name in list(options) if name in NodeDef.__struct_fields__}
    result = ref(body[-1].id) if result is None else result
    return NodeDef(
        id=node, kind="map", over=over, item="item", body=Body(nodes=body, result=result), args=options, **fields
    )


def looped(node: str, start: Any, until: Any, *body: NodeDef, result: Any = None, **options: Any) -> NodeDef:
    fields = {name: options.pop(name) for name in list(options) if name in NodeDef.__struct_fields__}
    result = ref(body[-1].id) if result is None else result
    inside = Body(nodes=body, result=result)
    return NodeDef(id=node, kind="loop", start=start, until=until, item="item", body=inside, args=options, **fields)


def error(*kinds: str, retryable: bool | None = None, code: str = "error") -> ev.ErrorInfo:
    return ev.ErrorInfo(code, "it went wrong", kinds or ("ValueError", "Exception"), retryable=retryable)


class Play:
    """One run, driven by hand."""

    def __init__(
        self,
        *graph: NodeDef,
        result: Any = None,
        inputs: dict[str, Any] | None = None,
        phases: Iterable[Phase] = (),
        variables: dict[str, Any] | Iterable[str] = (),
        tickets: dict[str, str] | None = None,
        start: str = "",
        milestones: Iterable[Milestone] = (),
        slots: int | None = None,
        parent: dict[str, Any] | None = None,
        begin: bool = True,
        run_id: str = "run-1",
        overrides: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        inputs = inputs or {}
        self.definition = Definition(
            name="play",
            nodes=graph,
            result=result,
            start=start,
            milestones=tuple(milestones),
            params=tuple(Param(name=name) for name in inputs),
            phases=tuple(phases),
            variables=variables if isinstance(variables, dict) else dict.fromkeys(variables),
            tickets=tickets or {},
            settings=Settings(**settings),
        )
        assert validation.check(self.definition) == []
        self.plan = compile_definition(self.definition, 1)
        self.state = RunState.new(self.plan, 1, run_id, START)
        self.now = START
        self.slots = slots
        """How many bodies may run at once; None: any number."""
        self.entries: list[ev.Entry] = []
        self.turns: list[list[ev.Entry]] = []
        self.running: dict[Instance, dict[str, Any]] = {}
        """Bodies at work and what they were given."""
        self.log: list[str] = []
        """Instances in the order in which their bodies were started."""
        self.told_to_stop: list[Instance] = []
        self.answers: list[tuple[Instance, str, Any]] = []
        self.messages: list[ToRun] = []
        self.children: list[Any] = []
        self.outcomes: list[Outcome] = []
        self.most_open = 0
        self._values: dict[int, Any] = {}
        self._vars: dict[tuple[int, str], Any] = {}
        self._rows: dict[tuple[str, str, int], Any] = {}
        self._waits: dict[str, Any] = {}
        self._timers: dict[str, Any] = {}
        self._held: dict[str, HeldSignal] = {}
        self._sent = 0
        self._fold: bytes | None = None
        captured = {
            f"{name}:{key}": capture(inputs[name], keys, sized) for name, (key, keys, sized) in self.plan.input_captures
        }
        created = ev.RunCreated(
            "play",
            1,
            msgspec.Raw(msgspec.json.encode(inputs)),
            "",
            settings=overrides or {},
            captured=captured,
            parent=parent,
        )
        self._turn(lambda draft: draft.emit(created))
        if begin:
            self.tell(cmd.Begin())

    # --- what tests ask ------------------------------------------------------------------------------------------

    def status(self, node: str, path: str = ".") -> str:
        """The status of an instance, whether its scope is open or not."""
        ns = self.state.nodes.get((node, path))
        if ns is not None:
            return str(ns.status)
        row = self._rows.get((node, path, self.state.visit_of(node, path)))
        return "pending" if row is None else str(row.status)

    def statuses(self) -> dict[str, str]:
        return {node: self.status(node) for node in self.plan.root.nodes}

    def events(self, *kinds: type[Any], node: str | None = None) -> list[Any]:
        return [
            e.event
            for e in self.entries
            if (not kinds or isinstance(e.event, kinds)) and (node is None or e.node == node)
        ]

    def types(self, turn: int = -1) -> list[str]:
        """What happened in a turn: `NodeCompleted a`."""
        return [f"{type(e.event).__name__} {e.node or ''}".strip() for e in self.turns[turn]]

    @property
    def result(self) -> Any:
        last = self.entries[-1].event
        assert isinstance(last, ev.RunCompleted), f"the run is {self.state.status}: {last}"
        return msgspec.json.decode(last.result)

    @property
    def failure(self) -> ev.RunFailed:
        last = self.entries[-1].event
        assert isinstance(last, ev.RunFailed), f"the run is {self.state.status}: {last}"
        return last

    def rows(self) -> dict[tuple[str, str, int], Any]:
        return dict(self._rows)

    def waits(self, *kinds: str) -> list[str]:
        """The open waits, oldest first."""
        return [wait.wait_id for wait in self.state.waits.values() if not kinds or wait.kind in kinds]

    def variable(self, name: str) -> Any:
        return self._vars[self.state.fold.vars[name], name]

    # --- what bodies and people do -------------------------------------------------------------------------------

    def complete(
        self,
        node: str,
        output: Any = None,
        path: str = ".",
        attempt: int | None = None,
        goto: str | None = None,
        ticket: str | None = None,
        **vars: Any,
    ) -> None:
        ns = self.state.nodes.get((node, path))
        plan = ns.plan if ns is not None else self.plan.scope_of(path).nodes[node]
        captured = {name: capture(output, keys, sized) for name, keys, sized in plan.captures}
        raw, kept = self._variables(vars)
        data = msgspec.json.encode(output)
        attempt = attempt if attempt is not None else self._attempt(node, path)
        visit = self._visit(node, path)
        self.tell(cmd.CompleteNode(node, path, attempt, data, captured, raw, kept, goto, ticket, visit=visit))

    def fail(self, node: str, why: ev.ErrorInfo | None = None, path: str = ".", attempt: int | None = None) -> None:
        attempt = attempt if attempt is not None else self._attempt(node, path)
        self.tell(cmd.FailNode(node, path, attempt, why or error(), visit=self._visit(node, path)))

    def drop(self, node: str, path: str = ".") -> None:
        self.tell(cmd.DropNode(node, path, self._attempt(node, path), visit=self._visit(node, path)))

    def _attempt(self, node: str, path: str) -> int:
        ns = self.state.nodes.get((node, path))
        return 0 if ns is None else ns.attempt

    def _visit(self, node: str, path: str) -> int:
        ns = self.state.nodes.get((node, path))
        return 1 if ns is None else ns.visit

    def pend(
        self,
        node: str,
        basket: str = "desk",
        output: Any = None,
        path: str = ".",
        *,
        rerun: bool = False,
        error: ev.ErrorInfo | None = None,
        ticket: str | None = None,
        **vars: Any,
    ) -> str:
        """A body ends with `hf.pend`; the wait that its node lies in, or nothing."""
        ns = self.state.nodes[node, path]
        captured = {name: capture(output, keys, sized) for name, keys, sized in ns.plan.captures}
        raw, kept = self._variables(vars)
        data = msgspec.json.encode(output)
        self.tell(
            cmd.PendNode(
                node, path, ns.attempt, basket, data, captured, raw, kept, rerun, error, None, ticket, visit=ns.visit
            )
        )
        return self.waits("basket")[-1] if self.waits("basket") else ""

    def cancel(self, reason: str = "enough", message_id: str = "m1") -> None:
        payload = msgspec.json.encode({"reason": reason, "actor": "ann"})
        self.tell(cmd.Message(message_id, "cancel", payload))

    def send(self, kind: str, message_id: str | None = None, *, sent_at: int | None = None, **payload: Any) -> Outcome:
        """A message comes from outside, and is settled."""
        self._sent += 1
        message_id = message_id or f"sent-{self._sent}"
        named = self._waits.get(payload.get("wait_id") or payload.get("wait") or "")
        ended_by = None if named is None or named.status == "open" else (named.outcome, named.actor or "")
        sent_at = self.now if sent_at is None else sent_at
        self.tell(cmd.Message(message_id, kind, msgspec.json.encode(payload), sent_at=sent_at, ended_by=ended_by))
        return self.outcome(message_id)

    def outcome(self, message_id: str) -> Outcome:
        """What became of a message in the end."""
        return [outcome for outcome in self.outcomes if outcome.message_id == message_id][-1]

    def answer(self, wait_id: str, value: Any, actor: str = "ann", *, sent_at: int | None = None) -> Outcome:
        return self.send("answer", sent_at=sent_at, wait_id=wait_id, value=value, actor=actor)

    def signal(self, name: str, payload: Any = None, message_id: str | None = None) -> Outcome:
        return self.send("signal", message_id, name=name, payload=payload)

    def pause(self, reason: str = "", actor: str = "ann") -> Outcome:
        return self.send("pause", reason=reason, actor=actor)

    def resume(self, actor: str = "ann", **asked: Any) -> Outcome:
        return self.send("resume", actor=actor, **asked)

    def ask(self, node: str, question: str = "Go on?", path: str = ".", until: int | None = None, **about: Any) -> str:
        """A body asks a person."""
        return self.wait(node, "input", until, path, about={"question": question, **about}, call=self._new_call())

    def receive(self, node: str, name: str, path: str = ".", until: int | None = None, **about: Any) -> str:
        """A body waits for a signal."""
        return self.wait(node, "signal", until, path, about={"name": name, **about}, call=self._new_call())

    def _new_call(self) -> dict[str, Any]:
        opened = len(self.events(ev.WaitOpened))
        return {"position": opened, "step_key": f"k{opened}"}

    def _variables(self, vars: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        kept = {
            f"{name}:{key}": capture(value, keys, sized)
            for name, value in vars.items()
            for key, keys, sized in self.plan.var_captures.get(name, ())
        }
        return {name: msgspec.json.encode(value) for name, value in vars.items()}, kept

    def wait(self, node: str, kind: str = "timer", until: int | None = None, path: str = ".", **fields: Any) -> str:
        """A body opens a wait and does nothing else."""
        shape = {"scope": "", "position": 0, "kind": kind, "name": kind, "digest": "", "key": None, "step_key": "k0"}
        call = {**shape, **fields.pop("call", {})}
        attempt, visit = self._attempt(node, path), self._visit(node, path)
        answers: list[Any] = []
        self._turn(
            lambda d: answers.append(
                decide.apply(d, cmd.OpenWait(node, path, attempt, kind, call, until, visit=visit, **fields))
            )
        )
        return str(answers[0])

    def record(self, node: str, event: Any, *races: tuple[str, int], path: str = ".") -> Any:
        """A body remembers something, which ends these races; what it is told."""
        attempt, visit = self._attempt(node, path), self._visit(node, path)
        told: list[Any] = []
        self._turn(
            lambda d: told.append(decide.apply(d, cmd.RecordStep(node, path, attempt, event, races, visit=visit)))
        )
        return told[0]

    def suspend(self, node: str, path: str = ".") -> None:
        self.tell(cmd.SuspendNode(node, path, self._attempt(node, path), visit=self._visit(node, path)))

    def leave(self, node: str, path: str = ".") -> None:
        """A body comes to its next call on ctx while its run is paused, or just was."""
        self.tell(cmd.StopNode(node, path, self._attempt(node, path), for_pause=True, visit=self._visit(node, path)))

    def due(self) -> None:
        """Time passes until the next timer, or the next short delay, and it goes off."""
        delays = [
            ns.not_before
            for ns in self.state.nodes.values()
            if ns.status is NodeStatus.SCHEDULED and ns.not_before and ns.start_timer not in self.state.timers
        ]
        self.now = max(self.now, min([*self.state.timers.values(), *delays]))
        fired = [name for name, at in self.state.timers.items() if at <= self.now]
        for name in fired:
            if name in self.state.timers:
                self.tell(cmd.FireTimer(name))
        self.start_due()

    def start_due(self) -> None:
        """Start what is scheduled and has no place yet, as far as places are free."""
        for ns in list(self.state.nodes.values()):
            free = not self.state.fold.paused and (self.slots is None or len(self.running) < self.slots)
            due = ns.status is NodeStatus.SCHEDULED and ns.not_before <= self.now
            if due and free and ns.start_timer not in self.state.timers:
                self.tell(cmd.StartNode(ns.node, ns.path))

    def run(
        self, handlers: dict[str, Callable[..., Any]] | None = None, pick: Callable[[int], int] = lambda n: 0
    ) -> None:
        """Let every body do its work, one at a time, until the run ends or waits."""
        while self.running and self.state.status not in RUN_TERMINAL:
            keys = list(self.running)
            node, path = keys[pick(len(keys))]
            args = dict(self.running[node, path])
            uses = self.state.nodes[node, path].plan.definition.uses
            function = (handlers or {}).get(uses)
            self.complete(node, {"ran": node, **args} if function is None else function(**args), path)
            self.start_due()

    def crash(self, *, graceful: bool = False, first: Iterable[Any] = ()) -> None:
        """The engine is gone; another one takes the run over from the tables alone."""
        if graceful:
            for node, path in list(self.running):
                self.tell(cmd.StopNode(node, path, self._attempt(node, path), visit=self._visit(node, path)))
        self.running.clear()
        self.told_to_stop.clear()
        self.state = self._from_tables()
        for signal in self._held.values():
            self.state.hold_signal(signal)
        token = len(self.turns)
        before = list(first)
        if self.state.status is RunStatus.SUSPENDED and not before:
            return  # nothing to take over: whatever it waits for wakes it

        def take_over(draft: Draft) -> None:
            for command in before:
                decide.apply(draft, command)
            with contextlib.suppress(Refusal):  # a message ended the run
                decide.apply(draft, cmd.TakeOver(f"engine-{token}", token, None, graceful))

        self._turn(take_over)

    # --- one turn ------------------------------------------------------------------------------------------------

    def tell(self, command: Any) -> None:
        """Decide one command; a refusal is raised and changes nothing."""
        self._turn(lambda draft: decide.apply(draft, command))

    def refusal(self, command: Any) -> str:
        """The code with which a command is refused."""
        before = self._facts(self.state)
        try:
            self.tell(command)
        except Refusal as refused:
            assert self._facts(self.state) == before, "a refusal changes nothing"
            return refused.code
        raise AssertionError(f"{command} was not refused")

    def _turn(self, work: Callable[[Draft], Any]) -> None:
        draft = Draft(self.state, self.now)
        work(draft)
        self._complete_turn(draft)
        self._commit(draft)
        self._act(draft)

    def _complete_turn(self, draft: Draft) -> None:
        self._remember(draft.entries)
        for ns in draft.scheduled:
            free = self.slots is None or len(self.running) + len(draft.started) < self.slots
            free = free and not self.state.fold.paused
            if ns.status is NodeStatus.SCHEDULED and ns.not_before <= draft.now and free:
                nodes.start(draft, ns)

    def _commit(self, draft: Draft) -> None:
        if draft.entries:
            self.turns.append(draft.entries)
        self.entries += draft.entries
        for row in map(NodeRow._make, state_rows.changed_nodes(self.state)):
            self._rows[row.node, row.path, row.visit] = row
        if self.state.fold_changed or self._fold is None:
            self._fold = msgspec.json.encode(self.state.fold)
        self.state.fold_changed = False
        for wait in state_rows.wait_rows(self.state, draft.entries):
            self._waits[wait.wait_id] = self._merged(wait)
        for timer in state_rows.timer_rows(self.state, draft.entries):
            self._timers[timer.timer] = timer
        self._settle(draft.extra.outcomes)
        self.most_open = max(self.most_open, len(self.state.scopes))
        self._check()

    def _merged(self, row: Any) -> Any:
        """A wait that has its row keeps what never changes about it, as in the store."""
        known = self._waits.get(row.wait_id)
        if known is None:
            return row
        if row.status == "open":
            return known._replace(basket=row.basket, assignee=row.assignee)
        return known._replace(status=row.status, outcome=row.outcome, actor=row.actor)

    def _settle(self, outcomes: list[Outcome]) -> None:
        """The inbox: what is held is all that stays of a signal until somebody receives it."""
        self.outcomes += outcomes
        held = {signal.message_id: signal for kept in self.state.signals.values() for signal in kept}
        for outcome in outcomes:
            if outcome.status == "held":
                self._held[outcome.message_id] = held[outcome.message_id]
            else:
                self._held.pop(outcome.message_id, None)
        if self.state.status not in RUN_TERMINAL:
            assert self._held == held, "the inbox holds other signals"

    def _act(self, draft: Draft) -> None:
        for entry in draft.entries:  # another visit may begin in the turn in which the one before it ends
            ended = isinstance(entry.event, ev.NodeCompleted | ev.NodeFailed | ev.NodeCancelled)
            if ended or (isinstance(entry.event, ev.NodeSuspended) and entry.event.mode):
                self.running.pop((entry.node or "", entry.path or ""), None)
        for ns, args in draft.started:
            if ns.status is NodeStatus.RUNNING and ns.key not in self.running:
                self.running[ns.key] = {name: self.value(located) for name, located in args.items()}
                self.log.append(f"{ns.node}{'' if ns.path == '.' else '@' + ns.path}")
        for key in list(self.running):
            ns = self.state.nodes.get(key)
            if ns is None or ns.settled or ns.status is NodeStatus.SCHEDULED:
                del self.running[key]
        self.told_to_stop += [ns.key for ns in draft.extra.cancels if not ns.settled]
        self.answers += [(a.instance.key, a.outcome, msgspec.json.decode(a.value)) for a in draft.extra.answers]
        self.messages += draft.extra.messages
        self.children += draft.extra.children
        for scope in draft.extra.params_wanted:
            self._provide_params(scope)
        for owner in draft.extra.outputs_wanted:
            self._provide_output(owner)
        if draft.undo_wanted and self.state.undo is None:
            self._provide_undo()
        if draft.finish and self.state.status not in RUN_TERMINAL:
            located = references.locate(self.state, self.state.scopes["."], self.plan.root.result)
            self.tell(cmd.FinishRun(msgspec.json.encode(self.value(located))))

    def _provide_params(self, scope: OpenScope) -> None:
        found: dict[str, Any] = {}
        for param, (name, keys, sized) in scope.plan.param_captures:
            located = references.locate(self.state, scope, ["param", scope.plan.owner, param])
            found[f"{param}:{name}"] = capture(self.value(located), keys, sized)
        if self.state.scopes.get(scope.path) is scope:
            self.tell(cmd.ProvideParams(scope.path, found))

    def _provide_output(self, owner: NodeState) -> None:
        if scopes.awaits_output(owner):
            output = msgspec.json.encode(self._items(*owner.key))
            self.tell(cmd.ProvideOutput(*owner.instance, output))

    def _provide_undo(self) -> None:
        self.tell(rule_inputs.undo(self.state, list(self._rows.values()), self._journal))

    def _journal(self, *types: str) -> list[ev.Entry]:
        return [entry for entry in self.entries if type(entry.event).__name__ in types]

    # --- values --------------------------------------------------------------------------------------------------

    def _remember(self, entries: list[ev.Entry]) -> None:
        for entry in entries:
            match entry.event:
                case ev.RunCreated():
                    self._values[entry.seq] = msgspec.json.decode(entry.event.input)
                case ev.NodeCompleted():
                    self._values[entry.seq] = msgspec.json.decode(entry.event.output)
                    for name, value in entry.event.vars.items():
                        self._vars[entry.seq, name] = msgspec.json.decode(value)
                case ev.NodeSuspended() if entry.event.mode == "next":
                    self._values[entry.seq] = msgspec.json.decode(entry.event.output)
                    self._vars |= {(entry.seq, n): msgspec.json.decode(v) for n, v in entry.event.vars.items()}
                case ev.NodeSuspended() | ev.VariablesSet() | ev.NodeCheckpointed():
                    self._vars |= {(entry.seq, n): msgspec.json.decode(v) for n, v in entry.event.vars.items()}
                case ev.NodeFailed():
                    self._values[entry.seq] = {"$failed": entry.event.error.message}

    def value(self, located: Any) -> Any:
        """The value of a located expression."""

        def read(leaf: Any) -> Any:
            match leaf[0]:
                case "at":
                    return follow(self._values[leaf[1]], tuple(leaf[2:]))
                case "var_at":
                    return follow(self._vars[leaf[1], leaf[2]], tuple(leaf[3:]))
                case "items":
                    return follow(self._items(leaf[2], leaf[3]), tuple(leaf[4:]))
            raise AssertionError(f"not located: {leaf}")

        return evaluate(located, read)

    def _items(self, node: str, path: str) -> list[Any]:
        """The list that a map stands for, from the tables: its items, and scopes around it, may have closed."""
        view: Any = SimpleNamespace(nodes=_Everything(self), fold=self.state.fold)
        owner = view.nodes[node, path]
        if owner is not self.state.nodes.get((node, path)):
            owner.scope = self._scope_around(view, path)
        found = []
        for key in range(owner.counters.count or 0):
            scope = OpenScope(f"{path}{node}.{key}.", owner.plan.body, owner, key, set(), owner.scope)
            inside = [view.nodes.get((name, scope.path + plan.lane)) for name, plan in owner.plan.body.nodes.items()]
            failed = [ns for ns in inside if ns is not None and ns.status is NodeStatus.FAILED]
            located = ["at", failed[0].output_seq] if failed else references.locate(view, scope, scope.plan.result)
            found.append(self.value(located))
        return found

    def _scope_around(self, view: Any, path: str) -> OpenScope:
        scope, here = self.state.scopes["."], "."
        segments = path.strip(".").split(".") if path != "." else []
        for name, key in zip(segments[::2], segments[1::2], strict=True):
            plan = scope.plan.nodes.get(name)
            if plan is not None and plan.body is not None:
                owner = view.nodes[name, here]
                scope = OpenScope(f"{here}{name}.{key}.", plan.body, owner, int(key), set(), scope)
            here = f"{here}{name}.{key}."
        return scope

    # --- what must hold ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        assert [e.seq for e in self.entries] == list(range(1, len(self.entries) + 1))
        assert self.state.seq == len(self.entries)
        ends = [i for i, e in enumerate(self.entries) if isinstance(e.event, TERMINAL)]
        assert ends in ([], [len(self.entries) - 1]), "the terminal event is the last"
        if ends:
            assert not self.state.waits
            assert not self.state.timers
        self._check_starts()
        facts = self._facts(self.state)
        assert self._facts(self._from_journal()) == facts, "the journal folds to another state"
        if self.state.status not in RUN_TERMINAL:
            assert self._facts(self._from_tables()) == facts, "the tables tell another state"

    def _check_starts(self) -> None:
        scheduled: dict[tuple[str, str, int], int | None] = {}
        attempts: dict[tuple[str, str, int], int] = {}
        for entry in self.entries:
            key = (entry.node or "", entry.path or "", entry.visit)
            match entry.event:
                case ev.NodeScheduled(attempt=attempt):
                    assert attempt - attempts.get(key, 0) in (0, 1), "attempts are 1..n without gaps"
                    scheduled[key] = attempts[key] = attempt
                case ev.NodeStarted(attempt=attempt):
                    assert scheduled.get(key) == attempt, f"{key} started attempt {attempt} without being scheduled"
                    scheduled[key] = None
                case ev.ScopeOpened():
                    attempts.setdefault(key, 1)
                case ev.NodeCompleted() if not entry.event.virtual:
                    assert attempts[key] == entry.event.attempt

    def _from_journal(self) -> RunState:
        state = RunState.new(self.plan, 1, self.state.run_id, START)
        for entry in self.entries:
            name = type(entry.event).__name__
            stored = journal_format.decode(name, journal_format.encode(entry.event))
            evolve(state, msgspec.structs.replace(entry, event=stored))
        return state

    def _from_tables(self) -> RunState:
        row = state_rows.run_row(self.state, 1, None, "", None, 1)
        row = msgspec.structs.replace(row, fold=self._fold)
        opened = [r for r in self._rows.values() if r.is_open]
        waits = [w for w in self._waits.values() if w.status == "open"]
        timers = [t for t in self._timers.values() if t.status == "set"]
        return state_rows.state_from_rows(self.plan, row, opened, waits, timers)

    @staticmethod
    def _facts(state: RunState) -> dict[str, Any]:
        """Everything of a state that is stored."""
        return {
            "run": (state.status, state.seq, state.branch, state.recoveries, state.started_at, state.finished_at),
            "fold": msgspec.to_builtins(state.fold),
            "nodes": {key: state_rows.node_row(1, ns, 1) for key, ns in state.nodes.items()},
            "held": {key: ns.waits for key, ns in state.nodes.items() if ns.waits},
            "waits": msgspec.to_builtins(state.waits),
            "timers": dict(state.timers),
        }


class _Everything:
    """Every instance of a run, whether its scope is open or not."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def get(self, key: Instance) -> NodeState | None:
        ns = self._play.state.nodes.get(key)
        row = self._play.rows().get((*key, self._play.state.visit_of(*key)))
        return ns if ns is not None or row is None else state_rows.node_from_row(self._play.state, row)

    def __getitem__(self, key: Instance) -> NodeState:
        ns = self.get(key)
        assert ns is not None, f"{key} is unknown"
        return ns


RETRY_AT_ONCE = Retry(attempts=3, backoff=0)
