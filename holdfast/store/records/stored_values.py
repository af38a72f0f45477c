"""Stored values: located expressions become bytes.

Owns: the cache of outputs (by bytes), reading them by seq, and building a map's virtual output from its items.
Never: decides which event holds a value (model/references.py does).
Invariants: what a consumer gets is made from stored bytes, never from another body's object.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model import references
from holdfast.model.errors import CorruptJournal
from holdfast.model.expressions import evaluate, follow, nodes_of
from holdfast.model.limits import VALUE_CACHE_BYTES
from holdfast.model.naming import key_of, paths_inside, scope_path, segments
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.statuses import NodeStatus
from holdfast.store.contract import Store
from holdfast.store.records.journal import event_of
from holdfast.store.records.state_rows import node_from_row
from holdfast.store.row_types import NodeRow

PORTION = 500
"""Events read at once: few enough to stay small in memory, many enough not to be one read each."""

ENTRY_BYTES = 100
"""What a cached value costs beside its own bytes, roughly."""

LISTS_CUT = 16
"""Lists kept in slices; concurrent maps alternate, and slicing 100,000 items takes milliseconds."""

_encode = msgspec.json.Encoder().encode
_plain = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Values:
    """Outputs of all runs of an engine, the latest ones in memory."""

    def __init__(self, store: Store, limit_bytes: int = VALUE_CACHE_BYTES) -> None:
        self._store = store
        self._limit = limit_bytes
        self._size = 0
        self._lock = threading.Lock()
        self._cache: dict[int, dict[int, bytes]] = {}
        self._pinned: dict[int, dict[int, bytes]] = {}
        self._pinned_vars: dict[int, dict[tuple[int, str], bytes]] = {}
        self._slices: OrderedDict[tuple[int, int, tuple[Any, ...]], list[msgspec.Raw]] = OrderedDict()
        """Long lists in slices, for the few that maps are running over."""

    def put(self, run_no: int, seq: int, value: bytes) -> None:
        """Cache the value that an event holds."""
        with self._lock:  # large reads run beside the loop
            held = self._cache.get(run_no)
            if held is None:
                held = self._cache[run_no] = {}
            if seq not in held:
                self._size += len(value) + ENTRY_BYTES
            held[seq] = value
            while self._size > self._limit:
                self._make_room(run_no)

    def _make_room(self, keep: int) -> None:
        """Evict the oldest values: those of another run first, else the first ones of this run."""
        oldest = next(iter(self._cache))
        held = self._cache[oldest]
        if oldest != keep:
            del self._cache[oldest]
            self._size -= sum(len(value) + ENTRY_BYTES for value in held.values())
            return
        if len(self._cache) > 1:  # it is at work: it counts as the youngest now
            self._cache[oldest] = self._cache.pop(oldest)
            return
        for seq in list(held)[: max(1, len(held) // 4)]:
            self._size -= len(held.pop(seq)) + ENTRY_BYTES
        if not held:
            self._size = 0

    def pin(self, run_no: int, seq: int, value: bytes, variables: dict[str, bytes]) -> None:
        """Pin an output, and the variables set with it, that are not in the store yet (of a lazy run)."""
        self._pinned.setdefault(run_no, {})[seq] = value
        for name, data in variables.items():
            self._pinned_vars.setdefault(run_no, {})[seq, name] = data

    def unpin(self, run_no: int) -> None:
        """Unpin the values of a run: they are stored now, or never will be."""
        if self._pinned:
            self._pinned_vars.pop(run_no, None)
            for seq, value in self._pinned.pop(run_no, {}).items():
                self.put(run_no, seq, value)

    def forget(self, run_no: int) -> None:
        """Drop the values of a run that has ended, or whose commit was refused: another engine may write other events
        under the same numbers."""
        if self._pinned:
            self._pinned.pop(run_no, None)
            self._pinned_vars.pop(run_no, None)
        if self._slices:
            self._forget_slices(run_no)
        with self._lock:
            held = self._cache.pop(run_no, None)
            if held is not None:
                self._size -= sum(map(len, held.values())) + ENTRY_BYTES * len(held)

    def _forget_slices(self, run_no: int) -> None:
        for key in [key for key in self._slices if key[0] == run_no]:
            del self._slices[key]

    def in_memory(self, run_no: int, located: Any) -> bool:
        """True if loading would not read the store."""
        if not isinstance(located, list):
            return True
        match located[0]:
            case "at":
                return self._has(run_no, located[1])
            case "items" | "var_at":
                return False
            case "const":
                return True
        return all(self.in_memory(run_no, x) for x in located[1:])

    def _has(self, run_no: int, seq: int) -> bool:
        return seq in self._cache.get(run_no, ()) or seq in self._pinned.get(run_no, ())

    def load(self, state: RunState, located: Any) -> bytes:
        """The value of a located expression, as JSON bytes."""
        if isinstance(located, list) and located[0] == "at":
            if len(located) == 2:
                return self._at(state.run_no, located[1])
            return self._part(state.run_no, located[1], tuple(located[2:]))
        if isinstance(located, list) and located[0] == "items" and len(located) == 4:
            return self._all_items(state, located[2], located[3])
        return _encode(evaluate(located, lambda leaf: self._read(state, leaf)))

    def _read(self, state: RunState, leaf: list[Any]) -> Any:
        match leaf[0]:
            case "at":
                return _plain(self.load(state, leaf))
            case "var_at":
                return follow(_plain(self.variable(state, leaf[1], leaf[2])), tuple(leaf[3:]))
            case "items":
                if len(leaf) > 4 and isinstance(leaf[4], int) and leaf[4] >= 0:
                    return follow(_plain(self._one_item(state, leaf[2], leaf[3], leaf[4])), tuple(leaf[5:]))
                return follow(_plain(self._all_items(state, leaf[2], leaf[3])), tuple(leaf[4:]))
        raise AssertionError(f"not located: {leaf!r}")

    def _at(self, run_no: int, seq: int) -> bytes:
        held = self._cache.get(run_no)
        value = None if held is None else held.get(seq)
        if value is None and run_no in self._pinned:
            value = self._pinned[run_no].get(seq)
        return self._fetch(run_no, [seq])[seq] if value is None else value

    def _fetch(self, run_no: int, seqs: Sequence[int]) -> dict[int, bytes]:
        found = self._stored(run_no, seqs)
        for seq, value in found.items():
            self.put(run_no, seq, value)
        return found

    def _stored(self, run_no: int, seqs: Sequence[int]) -> dict[int, bytes]:
        """The values that these events hold. Raises CorruptJournal if one is missing, or not the one that was
        written."""
        rows = self._store.event_data(run_no, seqs)
        for seq in seqs:
            if seq not in rows:
                raise CorruptJournal(f"event {seq} of run number {run_no} is missing")
        return {seq: held_value(event_of(row)) for seq, row in rows.items()}

    def prefetch(self, wanted: Iterable[tuple[int, Any]]) -> None:
        """Read the values that located expressions, each of some run, depend on, in one read. Missing or damaged ones
        are reported by `load`."""
        places = {(run_no, seq) for run_no, located in wanted for seq in _places(located) if not self._has(run_no, seq)}
        if places:
            for (run_no, seq), row in self._store.event_data_of(sorted(places)).items():
                with contextlib.suppress(CorruptJournal):
                    self.put(run_no, seq, held_value(event_of(row)))

    def _part(self, run_no: int, seq: int, keys: tuple[str | int, ...]) -> bytes:
        """A part of a stored value. Items of a long list come from slices that are made once."""
        last = keys[-1]
        if isinstance(last, int) and last >= 0:
            slices = self._cut(run_no, seq, keys[:-1])
            return bytes(slices[last]) if last < len(slices) else b"null"
        value = self._at(run_no, seq)
        if len(keys) == 1 and isinstance(last, str) and value[:1] == b"{":
            return bytes(_fields(value).get(last, b"null"))
        return _encode(follow(_plain(value), keys))

    def _cut(self, run_no: int, seq: int, keys: tuple[str | int, ...]) -> list[msgspec.Raw]:
        wanted = (run_no, seq, keys)
        slices = self._slices.get(wanted)
        if slices is None:
            whole = self._part(run_no, seq, keys) if keys else self._at(run_no, seq)
            slices = self._slices[wanted] = _items(whole) if whole[:1] == b"[" else []
            if len(self._slices) > LISTS_CUT:
                self._slices.popitem(last=False)
        return slices

    def variable(self, state: RunState, seq: int, name: str) -> bytes:
        pinned = self._pinned_vars.get(state.run_no, {}).get((seq, name))
        if pinned is not None:
            return pinned
        held = self._store.event_data(state.run_no, [seq]).get(seq)
        event = None if held is None else event_of(held)
        found = getattr(event, "vars", {}).get(name)
        if found is None:
            raise CorruptJournal(f"event {seq} of run {state.run_id} should hold the variable {name}, and does not")
        return bytes(found)

    # --- the virtual output of a map -----------------------------------------------------------------------

    def items_of(self, state: RunState, owner: NodeState) -> bytes:
        """The list of a map's items, which have all ended, as JSON bytes."""
        assert owner.counters is not None
        assert owner.counters.count is not None
        return b"[" + b",".join(self._item_values(state, owner, range(owner.counters.count))) + b"]"

    def _all_items(self, state: RunState, node: str, path: str) -> bytes:
        return self.items_of(state, self._owner(state, node, path))

    def _one_item(self, state: RunState, node: str, path: str, index: int) -> bytes:
        owner = self._owner(state, node, path)
        assert owner.counters is not None
        assert owner.counters.count is not None
        if index >= owner.counters.count:
            return b"null"
        return self._item_values(state, owner, range(index, index + 1))[0]

    def _item_values(self, state: RunState, owner: NodeState, keys: range) -> list[bytes]:
        body = owner.plan.body
        assert body is not None
        inside = paths_inside(owner.node, owner.path)
        prefix = inside if len(keys) != 1 else scope_path(owner.node, owner.path, keys[0])
        names = list(body.nodes) if owner.plan.definition.errors == "collect" else nodes_of(body.result)
        rows = self._store.nodes_under(state.run_no, names, prefix, owner.visit)
        only = next(iter(body.nodes.values()))
        if len(body.nodes) == 1 and only.body is None and body.result == ["node", only.id]:
            return self._outputs(state.run_no, inside, keys, rows)
        by_path: dict[str, dict[tuple[str, str], NodeState]] = {}
        for row in rows:
            by_path.setdefault(row.path, {})[row.node, row.path] = node_from_row(state, row)
        lanes = {plan.definition.lane for plan in body.nodes.values()}
        located: list[Any] = []
        for key in keys:
            path = scope_path(owner.node, owner.path, key)
            scope = OpenScope(path, body, owner, key, set(), owner.scope)
            nodes: dict[tuple[str, str], NodeState] = {}
            for lane in lanes:
                nodes |= by_path.get(path + lane, {})
            located.append(self._item_located(state, scope, nodes))
        self._fetch_items(state.run_no, located)
        return [self.load(state, x) for x in located]

    def _outputs(self, run_no: int, scope: str, keys: range, rows: Sequence[NodeRow]) -> list[bytes]:
        """The items of the common map, whose body is one node: read in portions, and not kept."""
        seqs = [0] * len(keys)
        for row in rows:
            key = key_of(row.path, scope)
            if row.status in (NodeStatus.COMPLETED, NodeStatus.FAILED):
                seqs[key - keys.start] = row.output_seq
        values: list[bytes] = []
        for i in range(0, len(seqs), PORTION):
            portion = seqs[i : i + PORTION]
            found = self._stored(run_no, [seq for seq in portion if seq])
            values += [found[seq] if seq else b"null" for seq in portion]
        return values

    def _owner(self, state: RunState, node: str, path: str) -> NodeState:
        """A map, whether its enclosing item or round is still open or not."""
        ns = _Instances(self._store, state, {}).get((node, path))
        if ns is None:
            raise CorruptJournal(f"{node}@{path} of run {state.run_id} is missing")
        return ns

    def _item_located(self, state: RunState, scope: OpenScope, nodes: dict[tuple[str, str], NodeState]) -> Any:
        for ns in nodes.values():
            ns.scope = scope
            if ns.status is NodeStatus.FAILED:
                return ["at", ns.output_seq]  # the failure itself is the item's value
        view = _View(_Instances(self._store, state, nodes), state)
        return references.locate(view, scope, scope.plan.result)

    def _fetch_items(self, run_no: int, located: list[Any]) -> None:
        """Read many items at once, in portions: a map of 100,000 must not be 100,000 reads."""
        wanted = [
            x[1] for x in located if isinstance(x, list) and x[0] == "at" and x[1] not in self._cache.get(run_no, ())
        ]
        for i in range(0, len(wanted), PORTION):
            self._fetch(run_no, wanted[i : i + PORTION])


class _View:
    """A run's state overlaid with some closed instances, for `references.locate`."""

    def __init__(self, nodes: _Instances, state: RunState) -> None:
        self.nodes = nodes
        self.fold = state.fold


class _Instances:
    """Instances by (node, path): those given, those of the state, and from their rows those of closed scopes."""

    def __init__(self, store: Store, state: RunState, at_hand: dict[tuple[str, str], NodeState]) -> None:
        self._store = store
        self._state = state
        self._at_hand = at_hand

    def get(self, key: tuple[str, str]) -> NodeState | None:
        ns = self._at_hand.get(key) or self._state.nodes.get(key)
        node, path = key
        if ns is not None or path in self._state.scopes:  # in an open scope what is not there is pending
            return ns
        for row in self._store.nodes_under(self._state.run_no, [node], path, self._state.visit_of(node, path)):
            if row.path == path:
                ns = self._at_hand[key] = node_from_row(self._state, row)
                ns.scope = self._scope_around(path)
        return ns

    def _scope_around(self, path: str) -> OpenScope:
        scope, here = self._state.scopes["."], "."
        for name, key, inner in segments(path):
            plan = scope.plan.nodes.get(name)
            if plan is not None and plan.body is not None:
                owner = self.get((name, here))
                scope = self._state.scopes.get(inner) or OpenScope(inner, plan.body, owner, int(key), set(), scope)
            here = inner
        return scope


def _places(located: Any) -> Iterator[int]:
    """The events that a located expression reads by their seq."""
    if not isinstance(located, list) or not located or located[0] in ("const", "items", "var_at"):
        return
    if located[0] == "at":
        yield located[1]
        return
    for part in located[1:]:
        yield from _places(part)


def held_value(event: Any) -> bytes:
    """The value that an event holds for its readers."""
    match event:
        case ev.NodeCompleted() | ev.NodeSuspended() | ev.OutputEdited():
            return bytes(event.output)
        case ev.RunCreated() | ev.InputEdited():
            return bytes(event.input)
        case ev.NodeFailed():
            return failed_value(event.error)
        case ev.StepCompleted():
            return bytes(event.output)
        case ev.StepStarted(undo=ev.StepUndo(inputs=inputs)):
            return _encode(inputs)
    raise CorruptJournal(f"a {type(event).__name__} event holds no value")


def failed_value(error: ev.ErrorInfo) -> bytes:
    """The form of a failed item in the list of a map that collects errors."""
    return _encode({"$failed": error})
