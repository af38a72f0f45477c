"""Isolation: finding the run that kills its engine, among those that were merely beside it.

Owns: which runs are suspects, whose turn it is, and what has to wait meanwhile.
Never: takes a run over or puts one on hold (loading.py).
Invariants: while a suspect has its turn no other body is running in this process and none is started, so whoever was
cut off then is the one that did it. A suspect that waits for its turn is not owned: it counts no recovery, another
engine may try it, a person may cancel it. A turn ends when the suspect has made progress, rests, or has ended.
On crash: the counts of the rows say who the suspects are; nothing else is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.actor import RunActor
from holdfast.engine.slots import Place
from holdfast.model import commands as cmd
from holdfast.model.errors import StoreError
from holdfast.model.limits import (
    ISOLATION_SECONDS_MAX,
    SUSPECT_PATIENCE_SECONDS,
    SUSPECT_PATIENCE_SECONDS_MAX,
    SUSPECT_RECOVERIES,
)
from holdfast.model.statuses import NodeStatus, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
LOOK_SECONDS = 0.01
"""How often is asked whether other bodies are still running."""
AGAIN_SECONDS = 1.0
"""How soon a turn that the store did not let happen is taken again."""
TOO_LONG = (
    f"it has run alone for {ISOLATION_SECONDS_MAX:g} s and has neither ended nor remembered anything, so the others go "
    "on beside it. A long body should call ctx.step or ctx.checkpoint now and then."
)


def is_suspect(recoveries: int, cut_off: bool, max_recoveries: int) -> bool:
    """Whether the next recovery of a run must be made alone. The one that would reach the limit always is."""
    return recoveries + cut_off >= min(SUSPECT_RECOVERIES, max_recoveries)


class _Suspect(NamedTuple):
    recoveries: int
    place: Place
    """What it has of the places of its workflow."""


class Isolation:
    """Gives one suspect after the other a turn in which nothing else runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._suspects: dict[int, _Suspect] = {}
        """Runs that wait for their turn."""
        self._placeless: set[int] = set()
        """Runs that wait for a place among those of their workflow, and then for their turn."""
        self._at_work = False
        self._starts: list[Callable[[], bool]] = []
        """Bodies of other runs that wait until they may start."""
        self._mail: dict[int, RunActor] = {}
        """Other runs whose mail could wake a body."""
        self.closed = False
        """No body may start, but those of the run whose turn it is."""
        self.turn_of: int | None = None

    def __contains__(self, run_no: int) -> bool:
        return run_no in self._suspects or run_no in self._placeless

    def __len__(self) -> int:
        """How many runs wait, for their turn or for a place."""
        return len(self._suspects) + len(self._placeless)

    def add(self, run_no: int, recoveries: int, place: Place, priority: int) -> None:
        """A run that may only go on alone, and with a place of its own: those that it holds up keep theirs, and other
        engines are at work beside it."""
        suspect = _Suspect(recoveries, place)
        if self._engine.slots.take(place):
            self._line_up(run_no, suspect)
        else:
            self._placeless.add(run_no)
            self._engine.slots.wait(place, priority, lambda: self._place_free(run_no, suspect))

    def _place_free(self, run_no: int, suspect: _Suspect) -> bool:
        if self._engine.stopping or not self._engine.slots.take(suspect.place):
            return False
        self._placeless.discard(run_no)
        self._line_up(run_no, suspect)
        return True

    def _line_up(self, run_no: int, suspect: _Suspect) -> None:
        self._suspects[run_no] = suspect
        if not self._at_work:
            self._at_work = True
            self._engine.spawn(self._take_turns())

    # --- what waits meanwhile --------------------------------------------------------------------------------

    def admits(self, run_no: int, start: Callable[[], bool]) -> bool:
        """Whether a body of this run may start now; if not, `start` is called when it may."""
        if not self.closed or run_no == self.turn_of:
            return True
        self._starts.append(start)
        return False

    def keeps_mail_of(self, actor: RunActor) -> bool:
        """Whether a run must not hear what could wake its bodies. A cancel is always heard."""
        if self.turn_of is None or actor.run_no == self.turn_of:
            return False
        mail = [command for command, _ in actor.mailbox]
        asked = [command.kind for command in mail if type(command) is cmd.Message]
        if "cancel" in asked or not (asked or any(type(command) is cmd.FireTimer for command in mail)):
            return False
        self._mail[actor.run_no] = actor
        return True

    def _open(self) -> None:
        self.closed, self.turn_of = False, None
        starts, self._starts = self._starts, []
        for start in starts:
            start()
        mail, self._mail = self._mail, {}
        for actor in mail.values():
            actor.look_at_mail()

    # --- turns -----------------------------------------------------------------------------------------------

    async def _take_turns(self) -> None:
        try:
            while self._suspects:
                await self._quiet()
                if self._engine.stopping:  # a recovery that leads to nothing would count
                    break
                # the most suspicious one last: it may end this process, and the others could have gone on
                run_no = min(self._suspects, key=lambda n: self._suspects[n].recoveries)
                try:
                    await self._turn(run_no)
                except StoreError as e:
                    log.warning("a run that is to go on alone could not be read, trying again: %s", e)
                    self._open()
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self._suspects.pop(run_no, None)
                self._open()
                await self._engine.recovery.catch_up()
        finally:
            self._at_work = False
            self._open()

    async def _quiet(self) -> None:
        """Return when no body is running, and from then on none starts. At first we wait for a moment when there is
        nothing to do; if none comes, new bodies wait for those that run. The others are held up for at most half of
        the time: a suspect must not stop everything because somebody's body takes long."""
        patience = SUSPECT_PATIENCE_SECONDS
        while True:
            idle = await self._within(patience, self._is_idle)
            self.closed = True
            if idle or await self._within(patience, self._no_body_runs):
                return
            self._open()
            patience = min(2 * patience, SUSPECT_PATIENCE_SECONDS_MAX)

    async def _within(self, seconds: float, condition: Callable[[], bool]) -> bool:
        deadline = self._engine.loop.time() + seconds
        while not condition():
            if self._engine.loop.time() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def _is_idle(self) -> bool:
        return not any(a.mailbox or a.in_flight for a in self._engine.actors.values()) and self._no_body_runs()

    def _no_body_runs(self) -> bool:
        """Whatever its rows say, a run has none that waits for a place among those of its workflow: it was cut off. The
        place may be that of a suspect, who waits until no body runs."""
        at_work = [actor for actor in self._engine.actors.values() if not actor.awaits_place]
        return not any(self._is_busy(actor, NodeStatus.RUNNING) for actor in at_work)

    def _is_busy(self, actor: RunActor, *statuses: NodeStatus) -> bool:
        """Whether a body of this run is in one of these statuses and does not merely wait."""
        parked = self._engine.executor.all_parked
        return any(
            ns.status in statuses and ns.plan.body is None and not parked(actor.run_no, ns.node, ns.path)
            for ns in actor.state.nodes.values()
        )

    async def _turn(self, run_no: int) -> None:
        """Let a suspect run alone for as long as a crash would be its own doing."""
        engine = self._engine
        self.turn_of = run_no
        deadline = engine.loop.time() + ISOLATION_SECONDS_MAX
        moved = engine.hub.listen(run_no)
        try:
            claimed = await engine.recovery.claim([run_no], alone=True)
            actor = engine.actors.get(run_no)
            if not (claimed and actor is not None and actor.counted):  # else the place is the run's own from now on
                engine.slots.free(self._suspects[run_no].place)
            if actor is None:  # somebody else has it, or it is on hold now
                return
            log.warning("run %s goes on alone: engines died while it ran, and it may be the cause", actor.run_id)
            while not self._is_cleared(actor):
                if engine.loop.time() > deadline:
                    log.warning("run %s: %s", actor.run_id, TOO_LONG)
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):  # a wake-up can be missing, and a body may run for ever
                        await moved.wait()
                moved.clear()
        finally:
            engine.hub.leave(run_no, moved)

    def _is_cleared(self, actor: RunActor) -> bool:
        if actor.gone or actor.state.status is RunStatus.SUSPENDED:
            return True
        if actor.mailbox or actor.in_flight:
            return False
        if actor.state.recoveries == 0 and actor.expected_seq == actor.state.seq:  # progress, and it is durable
            return True
        return not self._is_busy(actor, NodeStatus.RUNNING, NodeStatus.SCHEDULED)
