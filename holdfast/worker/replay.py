"""Replay: the recorded calls of one body, and which of them answers which call.

Owns: positions, scopes, digests, and which record answers which call (or that none may).
Never: reads the store; it is built from events.
Rule: a call takes its position when it is made. It is answered by the author's key; else by the record at its position
if kind, name and digest agree; else by an unused record that agrees. A record at its position and nothing that agrees
is a StepMismatch. Never a wrong value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model import journal_format, values
from holdfast.model.errors import NotSerialisable
from holdfast.model.naming import derived
from holdfast.worker.call_scopes import BodyPart, race_branch_scope, race_branches_around, scope_here
from holdfast.worker.recorded_calls import Call, Recorded, Scope, agree, forget, forget_failed, mismatch


class Replay:
    """Every recorded call of a body, by scope. Empty for a body that runs for the first time."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._by_wait: dict[str, tuple[Scope, Recorded]] = {}
        self._lost: set[str] = set()
        """The scopes of calls that have lost a recorded race."""
        self.body = BodyPart()
        self._scopes_of_key: dict[str, dict[str, None]] = {}
        """The scopes with records of a key, in the order of the journal."""
        self._words = 0
        self.checkpoint: bytes | None = None
        self.checkpoints = 0
        self.calls = 0
        """Calls that this execution of the body has made since its last checkpoint, recorded ones among them."""
        self.has_warned = False
        self.patches: dict[str, bool] = {}
        """What `ctx.patched` has said, by name."""

    @property
    def part(self) -> BodyPart:
        """The part of the body that is calling."""
        here = scope_here()
        if here is None or here.part.over or here.part.body is not self.body:
            return self.body
        return here.part

    @classmethod
    def read(cls, rows: Iterable[tuple[str, bytes]]) -> Replay:
        """The recorded calls in an instance's events (type and data), since its last checkpoint."""
        replay = cls()
        for type_name, data in rows:
            replay._learn(journal_format.decode(type_name, data))
        return replay

    def _learn(self, e: Any) -> None:
        self._words += 1
        match e:
            case ev.NodeCheckpointed():
                self._scopes, self._by_wait, self._scopes_of_key = {}, {}, {}
                self.checkpoint, self.checkpoints, self.patches = bytes(e.value), e.number, dict(e.patches)
            case ev.StepCompleted(kind="patched"):
                self.patches[e.name] = bytes(e.output) == b"true"
            case ev.StepCompleted():
                recorded = self._recorded(e.scope, e)
                if recorded.output is not None:  # an equal call had used the record at this position
                    recorded = self._another(e.scope, e)
                recorded.output, recorded.answered = bytes(e.output), self._words
            case ev.StepFailed():
                recorded = self._recorded(e.scope, e)
                recorded.error, recorded.failures, recorded.retry_at = e.error, e.attempt, e.retry_at
                recorded.started, recorded.answered = False, self._words
            case ev.StepStarted() if not e.repeats:
                self._recorded(e.scope, e).started = True
            case ev.WaitOpened() if e.call:
                recorded = self._recorded(e.call["scope"], msgspec.convert(e.call, _CallShape))
                recorded.wait_id = e.wait_id
                if e.kind != ev.STEP_RETRY:
                    recorded.outcome = recorded.output = None
                self._by_wait[e.wait_id] = self._scope(e.call["scope"]), recorded
            case ev.WaitClosed():
                scope, closed = self._by_wait.get(e.wait_id, (None, None))
                if closed is not None and closed.retry_at is not None:
                    closed.wait_id = None
                    if e.outcome not in ev.UNANSWERED:
                        closed.retry_at = 0
                elif scope is not None and closed is not None and e.outcome == "superseded":
                    del self._by_wait[e.wait_id]  # who asked is gone, and may ask something else
                    forget(scope, closed)
                elif closed is not None and e.outcome == "cancelled" and bytes(e.value) == b"null":
                    del self._by_wait[e.wait_id]  # the body stopped waiting: the call is made anew, at its place
                    closed.wait_id = None
                elif closed is not None:  # also by a child that was cancelled, which says so with an error
                    closed.outcome, closed.output, closed.answered = e.outcome, bytes(e.value), self._words
            case ev.CodeChanged(accepted=True):
                self.accept_change()
            case ev.NodeFailed():  # the body failed after these: its next attempt tries them again
                for scope in self._scopes.values():
                    forget_failed(scope)

    def _recorded(self, scope_name: str, e: Any) -> Recorded:
        scope = self._scope(scope_name)
        recorded = scope.by_position.get(e.position)
        if recorded is None or (recorded.kind, recorded.name, recorded.digest) != (e.kind, e.name, e.digest):
            recorded = Recorded(e.position, e.kind, e.name, e.digest, e.key)
            scope.by_position[e.position] = recorded
            scope.unused.setdefault((e.kind, e.name, e.digest), []).append(recorded)
            if e.key is not None:
                scope.by_key.setdefault(e.key, []).append(recorded)
                self._scopes_of_key.setdefault(e.key, {})[scope_name] = None
        return recorded

    def _another(self, scope_name: str, e: Any) -> Recorded:
        """A second record of equal calls at one position; it answers the one that is awaited later."""
        recorded = Recorded(e.position, e.kind, e.name, e.digest, e.key)
        self._scope(scope_name).unused[e.kind, e.name, e.digest].append(recorded)
        return recorded

    def _scope(self, name: str) -> Scope:
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = Scope()
        return scope

    def _all_recorded(self) -> Iterator[Recorded]:
        """All records that no call has used, and that a call can still use."""
        for name, scope in self._scopes.items():
            for equal in () if self._is_lost(name) else scope.unused.values():
                yield from equal

    def accept_change(self) -> None:
        """The body may make other calls than the recorded ones: the records so far answer calls that agree."""
        for recorded in self._all_recorded():
            recorded.yields = True

    def unread(self) -> list[Recorded]:
        """The records that no call of this execution has used yet."""
        return [recorded for recorded in self._all_recorded() if not recorded.is_blank]

    def _is_lost(self, scope_name: str) -> bool:
        """Whether a scope belongs to a call that has lost a race."""
        return bool(self._lost) and not self._lost.isdisjoint(race_branches_around(scope_name))

    def close(self, value: bytes) -> None:
        """Make a checkpoint: what came before it is no longer read."""
        self._scopes, self._by_wait, self._scopes_of_key = {}, {}, {}
        self.body.keys, self.calls = {}, 0
        self.checkpoint = value
        self.checkpoints += 1

    def has_any(self, scope_name: str) -> bool:
        """Whether a call was made or is recorded in this scope, or inside of it."""
        return any(name.startswith(scope_name) for name in self._scopes)

    def begin_again(self, scope_name: str, fresh: Replay) -> None:
        """What made calls in this scope is tried again: it finds what is remembered of them by now, except what has
        failed, which is tried again as well."""
        for name in [name for name in self._scopes if name.startswith(scope_name)]:
            del self._scopes[name]
        for name, scope in fresh._scopes.items():
            if name.startswith(scope_name):
                forget_failed(scope)
                self._scopes[name] = scope
                for key in scope.by_key:
                    self._scopes_of_key.setdefault(key, {})[name] = None

    def forget_losers(self, race: str, calls: Sequence[Call | None], winner: int) -> None:
        """A race is decided, by its record: no call uses the records of the calls
        that have lost. `calls`: those of them that are single calls on ctx."""
        for place, call in enumerate(calls):
            if place == winner:
                continue
            self._lost.add(race_branch_scope(race, place))
            recorded = None if call is None else self._scope(call.scope).by_position.get(call.position)
            if call is not None and recorded is not None and not recorded.used and agree(call, recorded):
                forget(self._scope(call.scope), recorded)

    def full_name(self, scope_name: str) -> str:
        """A scope, as events name it: older checkpoints had others of the same name."""
        prefix = f"c{self.checkpoints}/" if self.checkpoints else ""
        return scope_name if scope_name.startswith(prefix) else prefix + scope_name

    def call(self, scope_name: str, kind: str, name: str, args: Any, key: str | None) -> Call:
        """A call takes its position, now."""
        scope_name = self.full_name(scope_name)
        scope = self._scope(scope_name)
        position = scope.next_position
        scope.next_position += 1
        return self._made(scope, scope_name, position, kind, name, args, key)

    def placed(self, call: Call, *, ends: bool = True) -> dict[str, Any]:
        """A call as its wait records it: with the races that it is part of. `ends`: it ends with the wait."""
        races, decides = self.part.races_of(call)
        if not races:
            return call.as_dict()
        return {**call.as_dict(), "races": [list(race) for race in races], "decides": decides if ends else 0}

    def ends_with(self, call: Call) -> tuple[tuple[str, int], ...]:
        """The races that end when a call does, innermost first."""
        races, decides = self.part.races_of(call)
        return races[:decides]

    def item(self, parent: Call, index: int, kind: str, name: str, args: Any) -> Call:
        """An item of a map: its place is its index."""
        scope_name = f"{parent.scope}m{parent.place}"
        return self._made(self._scope(scope_name), scope_name, index, kind, name, args, None)

    def _made(
        self, scope: Scope, scope_name: str, position: int, kind: str, name: str, args: Any, key: str | None
    ) -> Call:
        if key is not None:
            self.part.use_key(key, scope_name, f"{kind} {name!r}")
        self.calls += 1
        try:
            digest = hashlib.blake2b(values.canonical(args), digest_size=8).hexdigest()
            nth = scope.counts.get((name, digest), 0)
            scope.counts[name, digest] = nth + 1
            facts: tuple[Any, ...] = (scope_name, kind, name, digest, nth)
        except NotSerialisable:
            digest = ""
            facts = (scope_name, kind, name, position)
        place = position
        if key is not None:
            place = _place_of_key(key, scope.next_use(key))
            # a key may name one call after another, and again after a checkpoint: these are different effects
            if key in scope.by_key:
                scope.made_by_key.setdefault(key, {})[position] = (kind, name, digest)
            nth = scope.counts.get((key, f"key {name} {digest}"), 0)
            scope.counts[key, f"key {name} {digest}"] = nth + 1
            facts = ("key", key, name, digest, *((self.checkpoints, nth) if self.checkpoints or nth else ()))
        elif scope.by_position:
            scope.made[position] = (kind, name, digest)
        return Call(scope_name, position, kind, name, digest, key, "\x1f".join(map(str, facts)), place)

    def recall(self, call: Call) -> Recorded | None:
        """The record that answers a call; None: it is new. Raises StepMismatch when the code has changed under it."""
        if call.key is not None:
            scope_name, recorded = self._find_keyed(call, call.key)
            own = self._scope(call.scope)
            if recorded is None:
                for other in own.by_key.get(call.key, ()):
                    if other.hinders and not other.used and not own.keeps(call.key, other, call):
                        raise mismatch(call, other)
            else:
                own.made_by_key.get(call.key, {}).pop(call.position, None)
                if scope_name != call.scope:  # what is still to be recorded of it belongs to that record
                    call.scope, call.position = scope_name, recorded.position
            return self._use(self._scope(scope_name), recorded)
        scope = self._scopes.get(call.scope)
        if scope is None:
            return None
        recorded = self._find(scope, call)
        if recorded is not None:
            return self._use(scope, recorded)
        at_position = scope.by_position.get(call.position)
        if at_position is not None and at_position.hinders and not agree(call, at_position):
            raise mismatch(call, at_position)
        return None

    def _find_keyed(self, call: Call, key: str) -> tuple[str, Recorded | None]:
        """The record of a key in the call's own scope, else an unused one of the whole body that agrees: which scope a
        task has may depend on time, what a key names does not. Several records of a key answer in their order. No call
        is answered by what another call of a race has made: that one may have lost."""
        own = self._scope(call.scope)
        unused = [recorded for recorded in own.by_key.get(key, ()) if not recorded.used]
        for recorded in unused:
            if agree(call, recorded) and not own.keeps(key, recorded, call):
                return call.scope, recorded
        for recorded in unused:
            if (recorded.kind, recorded.name) == (call.kind, call.name) and not own.keeps(key, recorded, call):
                return call.scope, recorded
        for scope_name in self._scopes_of_key.get(key, ()):
            if scope_name == call.scope or race_branches_around(scope_name) != race_branches_around(call.scope):
                continue
            for recorded in self._scope(scope_name).by_key.get(key, ()):
                if not recorded.used and agree(call, recorded):
                    return scope_name, recorded
        return call.scope, None

    @staticmethod
    def _find(scope: Scope, call: Call) -> Recorded | None:
        """The record at its position, else an unused one that agrees and is not kept for the call at that position."""
        at_position = scope.by_position.get(call.position)
        if at_position is not None and not at_position.used and agree(call, at_position):
            return at_position
        shape = (call.kind, call.name, call.digest)
        for recorded in scope.unused.get(shape, ()):
            if recorded.key is None and (
                recorded is not scope.by_position.get(recorded.position) or scope.made.get(recorded.position) != shape
            ):
                return recorded
        return None

    def answered(self, call: Call) -> int:
        """Which word of the memory has ended a call, from 1; 0: none has. Asks without answering it."""
        recorded = self._peek(call)
        return recorded.answered if recorded is not None and recorded.is_over else 0

    def is_new(self, call: Call) -> bool:
        """Whether nothing is recorded of a call yet. Does not use the record."""
        recorded = self._peek(call)
        return recorded is None or recorded.is_blank

    def _peek(self, call: Call) -> Recorded | None:
        if call.key is not None:
            return self._find_keyed(call, call.key)[1]
        scope = self._scopes.get(call.scope)
        return None if scope is None else self._find(scope, call)

    def _use(self, scope: Scope, recorded: Recorded | None) -> Recorded | None:
        if recorded is None:
            return None
        if not recorded.used:
            recorded.used = True
            scope.unused[recorded.kind, recorded.name, recorded.digest].remove(recorded)
        part = self.part
        part.last_answer = max(part.last_answer, recorded.answered)
        return recorded


class _CallShape(msgspec.Struct):
    """The part of a wait's call that a record is made of."""

    position: int
    kind: str
    name: str
    digest: str
    key: str | None = None


def _place_of_key(key: str, use: int) -> int:
    """The place of a call that goes by a key: the same wherever the code makes it, and another for each use."""
    return int.from_bytes(hashlib.blake2b(f"{use}\x1f{key}".encode(), digest_size=6).digest())


def idempotency_key(store_id: str, *facts: object) -> str:
    """Stable across attempts, engines and branches that inherit it; what the receiver of an effect may go by.

    `facts` tell one instance, or one step in it, from every other of the store (`Activation.key_facts`). The store is
    part of the key: a run of the same id in another database is another run, and its effects are others."""
    return derived("key_", store_id, *facts, size=15)
