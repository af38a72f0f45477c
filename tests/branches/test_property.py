"""Random graphs, random requests to go on from elsewhere, a crash at a random commit: no branch ever touches another.

After every request and every crash: the journal proves itself and folds to the rows (the doctor's audit); every line of
history that was left reads byte for byte as it did; what a branch took over as completed did not run on it; and a run
that was not led past anything comes to the result that the graph must have.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.engine_settings import EngineSettings
from holdfast.engine.versions import Versions
from holdfast.inspect.inspector import Inspector
from holdfast.model.definition import Definition, Settings
from holdfast.model.errors import StoreError
from holdfast.model.lineage import recorded_status
from holdfast.model.naming import instance_text
from holdfast.store.records.journal import History
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.worker.executor import LocalExecutor
from tests.budget import examples
from tests.engine.kit import check_file, until
from tests.property import graphs
from tests.property.graphs import Expected, definitions
from tests.property.test_crashes import INPUTS, MortalStore
from tests.property.test_rules import errors_around

RUN = "run-1"


class Request(msgspec.Struct, frozen=True):
    """Something to ask of the run, in numbers: what they mean depends on how far it has come."""

    kind: str
    pick: int
    live: bool
    """Asked while the run goes on, else when it has ended."""
    heals: bool
    """What was broken works from now on."""


REQUESTS = st.builds(
    Request,
    st.sampled_from(["retry", "retry one", "fork seq", "fork start", "fork node", "fork old", "jump", "jump ahead"]),
    st.integers(0, 1000),
    st.sampled_from([False, False, True]),
    st.booleans(),
)


class Tale:
    """One run through several lives of its engine."""

    def __init__(self, path: Path, definition: Definition, seed: Any, requests: list[Request]) -> None:
        self.path = path
        self.definition = definition
        self.seed = seed
        self.requests = requests
        self.done = 0
        self.passed_over = False
        self.left: dict[int, list[Any]] = {}
        """The lines of history that nothing may change any more."""

    def live(self, store: SqliteStore) -> None:
        asyncio.run(self._live(store))
        self.check()

    async def _live(self, store: SqliteStore) -> None:
        options = EngineSettings(grace_seconds=0.0, sweep_seconds=60.0)
        engine = Engine(store, LocalExecutor(threads=2), Inspector, settings=options)
        await engine.open()
        work = asyncio.create_task(self._go_on(engine))
        try:
            while not work.done() and engine.fatal is None:
                await asyncio.wait([work], timeout=0.001)
            if engine.fatal is not None:
                work.cancel()
            with contextlib.suppress(StoreError, asyncio.CancelledError):
                await work
        finally:
            if isinstance(store, MortalStore) and store.dead and engine.lease._lock is not None:
                engine.lease._lock.forget()  # the process has died: its lock is free, its file and its row are there
            await engine.close()

    async def _go_on(self, engine: Engine) -> None:
        await engine.claims.sweep()
        workflow: Any = SimpleNamespace(registered=graphs.registered(self.definition))
        run = await engine.start(workflow, run_id=RUN, seed=self.seed)
        numbers = [row.run_no for row in engine.store.runs()]
        await until(lambda: not engine.store.new_messages(numbers), "what was asked before the crash is answered")
        while self.done < len(self.requests):
            request = self.requests[self.done]
            if not request.live:
                await self._end(run)
            if request.heals:
                graphs.broken.clear()
            await self._ask(engine, run, request)
            self.done += 1
        await self._end(run)

    @staticmethod
    async def _end(run: hf.Run[Any]) -> None:
        with contextlib.suppress(hf.RunFailed):
            await run.result(timeout=60)

    async def _ask(self, engine: Engine, run: hf.Run[Any], request: Request) -> None:
        row = engine.store.run(RUN)
        assert row is not None
        history = History(engine.store, engine.runtime.versions, row)
        kind, options = meaning(request, history)
        target = next((options[name] for name in ("at", "to", "node") if name in options), None)
        before = len(history.rows)
        try:
            seen = await run.preview(kind, target, branch=options.get("branch"))
            ran = len(graphs.ran)
            await getattr(run, kind)(**options)
        except hf.Refused:
            if not request.live:
                assert len(engine.store.events(row.run_no)) == before, "a refused request changes nothing"
            return
        was_skipped = kind == "jump" and target in skipped_in(history)  # it is sent there, whatever its condition says
        left_out = kind == "jump" and bool(seen["skipped"])
        now = engine.store.run(RUN)
        assert now is not None
        led_there = bool(History(engine.store, engine.runtime.versions, now).state(now.branch).fold.entered)
        self.passed_over = was_skipped or left_out or led_there or (self.passed_over and kind != "fork")
        if not request.live:
            await self._end(run)
            again = {instance_text(node, path) for node, path, _, _ in graphs.ran[ran:]}
            assert not again & set(seen["reused"]), "what is reused does not run"

    def check(self) -> None:
        check_file(self.path)
        store = SqliteStore(f"sqlite:///{self.path}")
        store.open()
        try:
            row = store.run(RUN)
            if row is None:
                return
            history = History(store, Versions(store), row)
            stored = {event.seq: (event.hash, event.data) for event in history.rows}
            for branch in history.branches:
                line = [(entry.seq, *stored[entry.seq]) for entry in history.line(branch)]
                if branch in self.left:
                    assert line == self.left[branch], f"branch {branch} was changed after it was left"
                if branch != row.branch:
                    self.left[branch] = line
                self._check_recorded_status(history, branch)
        finally:
            store.close()

    def _check_recorded_status(self, history: History, branch: int) -> None:
        """The events of a branch tell its status without its definition, unless they are none and it dropped all."""
        recorded = recorded_status(history.entries, history.branches, branch)
        status = history.state(branch).status
        assert recorded == status or (status, recorded) == ("created", "running")


def skipped_in(history: History) -> list[str]:
    state = history.state(history.row.branch, history.line(history.row.branch))
    return [instance_text(ns.node, ns.path) for ns in state.changed if ns.status == "skipped"]


def meaning(request: Request, history: History) -> tuple[Any, dict[str, Any]]:
    """What a request asks for, given how far the run has come."""
    line = history.line(history.row.branch)
    state = history.state(history.row.branch, line)
    begun = [instance_text(ns.node, ns.path, ns.visit) for ns in state.changed] or ["nothing"]
    failed = [instance_text(ns.node, ns.path) for ns in state.changed if ns.status == "failed"] or ["nothing"]

    def one_of(choices: Any) -> Any:
        return list(choices)[request.pick % len(choices)]

    match request.kind:
        case "retry":
            return "retry", {}
        case "retry one":
            return "retry", {"node": one_of(failed)}
        case "fork seq":
            return "fork", {"at": one_of(line).seq}
        case "fork start":
            return "fork", {"at": "start"}
        case "fork node":
            return "fork", {"at": one_of(begun)}
        case "fork old":
            old = one_of(history.branches)
            seqs = [None, *(entry.seq for entry in history.line(old))]
            return "fork", {"branch": old, "at": seqs[request.pick // 7 % len(seqs)]}
        case "jump":
            return "jump", {"to": one_of(begun)}
    return "jump", {"to": one_of(state.plan.root.nodes)}


@settings(max_examples=examples(100))
@given(
    definitions(size=4),
    INPUTS,
    st.sampled_from(["fail", "continue"]),
    st.none() | st.integers(0, 50),
    st.lists(REQUESTS, min_size=1, max_size=3),
    st.none() | st.integers(2, 12),
    st.booleans(),
)
def test_wherever_a_run_goes_on_no_branch_touches_another_and_what_is_kept_does_not_run_again(
    definition: Definition,
    seed: Any,
    on_failure: str,
    breaks: int | None,
    requests: list[Request],
    dies_at: int | None,
    applied: bool,
) -> None:
    definition = msgspec.structs.replace(definition, settings=Settings(on_failure=on_failure))
    expected = Expected(definition, {"seed": seed})
    graphs.ran.clear()
    graphs.broken.clear()
    got_over = False  # what a failure led to stays as it is, also when the failed node completes later
    if breaks is not None and expected.bodies:
        node, at = list(expected.bodies)[breaks % len(expected.bodies)]
        graphs.broken.add((node, at))
        got_over = on_failure == "continue" or "collect" in errors_around(definition, at)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        tale = Tale(path, definition, seed, requests)
        mortal = MortalStore(f"sqlite:///{path}", dies_at or 1_000_000, applied)
        tale.live(mortal)
        if mortal.dead:
            tale.live(SqliteStore(f"sqlite:///{path}"))
        assert tale.done == len(requests)
        (state,) = check_file(path).values()
        assert state.status in ("completed", "failed")
        if state.status == "completed" and not got_over and not tale.passed_over:
            assert result(path) == expected.result


def result(path: Path) -> Any:
    store = SqliteStore(f"sqlite:///{path}")
    store.open()
    try:
        row = store.run(RUN)
        assert row is not None
        (last,) = store.events(row.run_no, row.last_seq - 1)
        return msgspec.json.decode(last.data)["result"]
    finally:
        store.close()
