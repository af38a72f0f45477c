"""Executor: the live bodies of an engine, and what the engine asks of them.

Owns: which bodies of which run are alive, starting each in its place, answering, stopping and unwinding them.
Never: runs a body itself (pipeline.py); decides about retries or readiness; holds anything durable.
On crash: bodies die with the process; the next owner of the run runs them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.engine import asyncio_internals, crash_points
from holdfast.engine.ports import Attempt
from holdfast.model.limits import SYNC_THREADS
from holdfast.model.views import Emitted
from holdfast.worker import call_scopes, ending, rehearsing
from holdfast.worker.activation import Activation
from holdfast.worker.body_life import LeaveReason
from holdfast.worker.isolated import IsolatedActivation
from holdfast.worker.permissions import Permissions
from holdfast.worker.pipeline import BodyPipeline
from holdfast.worker.secret_values import OperatorSecrets, SecretValues

Key = tuple[str, str]
"""(node, path)"""
_NONE: dict[Key, Activation] = {}
"""The bodies of a run that has none; never changed."""


class LocalExecutor(BodyPipeline):
    """Runs bodies for an engine in the same process."""

    def __init__(
        self,
        *,
        threads: int = SYNC_THREADS,
        processes: int | None = None,
        grace_seconds: float = 10.0,
        secrets: SecretValues | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        super().__init__(threads, processes, grace_seconds, permissions or Permissions())
        self._secrets = secrets or OperatorSecrets(permissions=permissions)
        self._live: dict[int, dict[Key, Activation]] = {}
        """The live bodies of each run; an empty dict stays until the run is unwound: its next body starts soon."""
        self._leaving: set[asyncio.Task[Any]] = set()
        """Bodies that were evicted or superseded and still clean up."""
        self._stopped = False

    # --- what the engine asks ------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop, threads_lost: Callable[[int], None]) -> None:
        self._loop = loop
        self._given_up.on_change = threads_lost
        call_scopes.install(loop)
        asyncio_internals.shows_waits()  # so that the warning is logged when the engine opens

    def start(self, attempt: Attempt) -> None:
        if crash_points.hit is not None:
            crash_points.hit("body.before")
        if attempt.isolated:
            self._start_isolated(attempt)
            return
        activation = self._activation(attempt)
        if self._stopped:  # what was committed while the engine stopped begins elsewhere
            activation.leave(LeaveReason.STOP)
            ending.not_begun(activation)
            return
        run_no = attempt.port.run_no
        bodies = self._live.get(run_no)
        if bodies is None:
            bodies = self._live[run_no] = {}
        bodies[activation.key] = activation
        match attempt.handler.kind:
            case "async":
                activation.task = asyncio.Task(
                    self._run_async(activation), loop=activation.loop, name=attempt.node, context=self._context.copy()
                )
            case "inline":
                self._start_inline(activation)
            case "sync":
                self._run_sync(activation)
            case "process":
                activation.task = self.task(self._run_process(activation))

    def _start_isolated(self, attempt: Attempt) -> None:
        activation = IsolatedActivation(attempt, self._exited, self._loop)
        activation.grace_seconds = self._grace_seconds
        activation.secrets = self._secrets
        if self._stopped:
            activation.leave(LeaveReason.STOP)
            ending.not_begun(activation)
            return
        self._live.setdefault(attempt.port.run_no, {})[activation.key] = activation
        activation.task = self.task(self._run_isolated(activation))

    def _activation(self, attempt: Attempt) -> Activation:
        activation = Activation(attempt, self._exited, self._loop)
        activation.grace_seconds = self._grace_seconds
        activation.secrets, activation.permissions = self._secrets, self._permissions
        if attempt.handler.takes_ctx:
            steps = activation.steps
            steps.start_thread, steps.given_up = self._start_step, self._given_up
            steps.grace_seconds = self._grace_seconds
        return activation

    def _find(self, run_no: int, node: str, path: str) -> Activation | None:
        return self._live.get(run_no, _NONE).get((node, path))

    def answer(self, run_no: int, node: str, path: str, wait_id: str, outcome: str, value: bytes) -> bool:
        activation = self._find(run_no, node, path)
        if activation is None:
            return False
        activation.answer(wait_id, outcome, value)
        return True

    def is_live(self, run_no: int, node: str, path: str) -> bool:
        return (node, path) in self._live.get(run_no, _NONE)

    def all_parked(self, run_no: int, node: str, path: str) -> bool:
        activation = self._find(run_no, node, path)
        return activation is not None and activation.all_parked

    def is_idle(self, run_no: int) -> bool:
        return all(activation.may_be_evicted for activation in self._live.get(run_no, _NONE).values())

    def cancel(self, run_no: int, node: str, path: str, grace_seconds: float) -> None:
        activation = self._find(run_no, node, path)
        if activation is not None:
            activation.cancel(grace_seconds)

    def supersede(self, run_no: int, node: str, path: str) -> None:
        activation = self._find(run_no, node, path)
        if activation is not None:
            self._let_clean_up(activation)
            activation.supersede()

    def pause(self, run_no: int) -> None:
        for activation in list(self._live.get(run_no, _NONE).values()):
            # a body that must not be repeated unasked, or that runs such a step, finishes its node unless it only waits
            repeats = activation.attempt.definition.on_crash == "rerun" and not activation.steps.any_unrepeatable
            if activation.all_parked or repeats:
                activation.leave(LeaveReason.PAUSE)

    def leave(self, run_no: int, node: str, path: str, reason: LeaveReason) -> None:
        """Unwind one body without ending it."""
        activation = self._find(run_no, node, path)
        if activation is not None:
            activation.leave(reason)

    def unwind(self, run_no: int) -> None:
        for activation in self._live.pop(run_no, _NONE).values():
            only_waits = activation.may_be_evicted
            activation.leave(LeaveReason.EVICT)
            self._let_clean_up(activation)
            if not only_waits:
                activation.loop.call_later(self._grace_seconds, activation.cut_off)
            ending.left(activation)  # its slot is free now

    def _let_clean_up(self, activation: Activation) -> None:
        if activation.task is not None:
            self._leaving.add(activation.task)
            activation.task.add_done_callback(self._leaving.discard)

    def emitted(self, run_no: int) -> list[Emitted]:
        """What live bodies of a run have shown with ctx.emit, by body, as far as it is kept."""
        bodies = self._live.get(run_no, _NONE).values()
        return [shown for activation in bodies for shown in activation.emitted or ()]

    def progress(self, run_no: int) -> dict[tuple[str, str], tuple[float, float | None, str]]:
        """What bodies of a run said about how far they are."""
        found = {key: activation.progress for key, activation in self._live.get(run_no, _NONE).items()}
        return {key: progress for key, progress in found.items() if progress is not None}

    async def rehearse(
        self, attempt: Attempt, memory: Sequence[tuple[str, bytes]]
    ) -> tuple[list[str], list[str], list[str]]:
        return await rehearsing.rehearse(attempt, memory)

    async def stop(self, grace_seconds: float) -> None:
        self._stopped = True
        activations = self._all()
        for activation in activations:
            activation.leave(LeaveReason.STOP)
            if activation.thread is not None and activation.thread.give_up_unless_begun():
                ending.not_begun(activation)
        bodies = [*(a.task for a in activations if a.task is not None), *self._leaving]
        bodies += [task for a in activations for task in a.tasks]
        deadline = asyncio.get_running_loop().time() + grace_seconds
        while (self._all() or self._leaving) and asyncio.get_running_loop().time() < deadline:
            pending = [t for t in bodies if not t.done()]
            if pending:
                await asyncio.wait(pending, timeout=min(0.05, grace_seconds))
            else:
                await asyncio.sleep(0.005)
        for task in bodies:
            task.cancel()
        if bodies:
            await asyncio.wait(bodies, timeout=1.0)
        for activation in self._all():
            ending.left(activation)
        await self.close_pools()
        call_scopes.uninstall(self._loop)

    def _all(self) -> list[Activation]:
        return [activation for bodies in self._live.values() for activation in bodies.values()]

    def _exited(self, activation: Activation, left: bool) -> None:
        key, port = activation.key, activation.port
        bodies = self._live.get(port.run_no, _NONE)
        if bodies.get(key) is activation:
            del bodies[key]
        port.body_exited(key, left)
