"""Recording: what every recorded call on ctx does, whichever it is: takes its position, and commits its result.

Owns: `RecordingContext`, the part of `ctx` that steps.py and racing.py are written against.
Never: offers a call to bodies (context.py), reads a record (replay.py).
On crash: a call whose result was not committed is made again when the body runs again.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import UsageError
from holdfast.model.limits import REMEMBERED_CALLS_MAX, REMEMBERED_CALLS_WARN
from holdfast.worker.plain_context import PlainContext
from holdfast.worker.recorded_calls import Call, inner_scope


class RecordingContext(PlainContext):
    """A ctx whose calls are recorded."""

    _key: str | None = None
    """The name by which the next call goes instead of its position."""

    def _made(self, kind: str, name: str, args: Any) -> Call:
        """A call takes its position now, in the scope of the task that makes it."""
        activation = self._activation
        activation.check()
        replay = activation.replay
        if replay.checkpoints and not activation.checkpoint_read:
            raise UsageError(
                "this body has a checkpoint, and ctx.checkpointed was not read before the first remembered call: it "
                "would repeat what came before its loop. Begin with `state = ctx.checkpointed or ...`"
            )
        if replay.calls >= REMEMBERED_CALLS_MAX:
            raise UsageError(
                f"more than {REMEMBERED_CALLS_MAX:,} remembered calls: use ctx.checkpoint(...), or split the work into "
                "children"
            )
        if replay.calls >= REMEMBERED_CALLS_WARN and not replay.has_warned:
            replay.has_warned = True
            self.log.warning("%d remembered calls without a checkpoint: replay gets slow", replay.calls)
        return replay.call(activation.scope_here(), kind, name, args, self._key)

    async def _record(
        self, call: Call, data: bytes, attempt: int = 1, *, won: tuple[tuple[str, int], ...] = (), undo: str = ""
    ) -> int | None:
        """Commit a recorded result; `won`, of a race: which, and which of its calls. Where another call of it has won
        meanwhile, that one is given back, and nothing was committed."""
        activation, a = self._activation, self._activation.attempt
        event = ev.StepCompleted(
            call.scope, call.position, call.kind, call.name, call.digest, msgspec.Raw(data), call.key, attempt, undo
        )
        races = (*won, *activation.replay.ends_with(call))
        winner: int | None = await activation.commit(
            cmd.RecordStep(a.node, a.path, a.attempt, event, races, visit=a.visit)
        )
        return winner

    async def _begin_again(self, call: Call) -> None:
        """Prepare another try of a step: the calls that it made itself are replayed, as they would be after a crash."""
        activation, a = self._activation, self._activation.attempt
        replay, inner = activation.replay, inner_scope(call)
        if replay.has_any(inner):
            await activation.port.flushed()
            rows = await activation.port.memory(a.node, a.path, a.memory_seq, ())
            replay.begin_again(inner, activation.read_replay(rows))

    def _sub(self, call: Call, attempt: int | None) -> Self:
        """The context of a step that takes one itself. A plain function has no tries of its own: its
        attempt is that of its caller."""
        return type(self)(self._activation, call, attempt or self._step_attempt)
