"""Process store: one database, and the handle of each process.

Owns: which operations are boundaries (every one that writes), and revoking a dead process's handle.
Never: changes what an operation does; that is the real driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.model.errors import OutcomeUnknown, StoreError, StoreFull
from holdfast.store.queries import Queries
from holdfast.store.row_types import Commit, CommitResult, EngineRow, MessageRow, RunRow, Sent, Standing
from holdfast.store.version_contract import AliasMove, Moved, Retirement
from holdfast.store.version_queries import VersionQueries
from holdfast.testing.simulation.database import WorldDatabase
from holdfast.testing.simulation.faults import PowerCut
from holdfast.testing.simulation.virtual_loop import VirtualClock

T = TypeVar("T")
_READS = frozenset(name for part in (Queries, VersionQueries) for name in vars(part) if not name.startswith("_")) - {
    "store_id",
    "standing",
}
"""Every operation that only reads. One that is neither here nor below is unknown: it may write."""


class Owner(Protocol):
    """The process behind a handle."""

    alive: bool


class Acts(Protocol):
    """Lets writes happen, or something else instead."""

    def write(self, process: Any, verb: str, about: Any, apply: Callable[[], T]) -> T: ...


class ProcessStore:
    """The store as one process sees it: reads go through, writes are boundaries."""

    def __init__(self, shared: WorldDatabase, owner: Owner, acts: Acts, clock: VirtualClock) -> None:
        self.url = shared.url
        self._shared = shared
        self._owner = owner
        self._acts = acts
        self._clock = clock
        self._closed_because: str | None = None
        self._others_wrote = False
        self.contacts = 0
        """How often the process has read here, or sent something: then what it does depends on the world, or the world
        on it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulation does not know {name}, a verb of the store that may write")

    def revoke(self, because: str) -> None:
        """Let nothing of this handle reach the database from now on."""
        self._closed_because = because

    def unknown(self, verb: str) -> OutcomeUnknown:
        """Close the store for good and return what the driver raises when COMMIT fails."""
        self.revoke("an I/O error at COMMIT left the outcome open; open it again")
        return OutcomeUnknown(f"{verb}: an I/O error at COMMIT; it is not known whether it happened")

    @staticmethod
    def full(verb: str) -> StoreFull:
        return StoreFull(f"{verb}: the disk is full; nothing was written")

    @property
    def is_closed(self) -> bool:
        """True if nothing can be read or written through it any more."""
        return self._closed_because is not None

    def others_wrote(self) -> None:
        self._others_wrote = True

    def _check(self) -> None:
        if self._closed_because is not None:
            raise StoreError(f"the store cannot be used: {self._closed_because}")

    def _write(self, verb: str, about: Any, *args: Any) -> Any:
        if not self._owner.alive:
            raise PowerCut
        self._check()
        return self._acts.write(self._owner, verb, about, lambda: self._shared.write(verb, *args))

    def found_out(self, verb: str, about: Any, result: Any) -> Any:
        """The result of a write that happened long ago. The driver of a server has lost the connection by then, and
        looks up what became of a commit."""
        return self._shared.write("commit_in_doubt", about) if verb == "commit" and self.is_shared else result

    # --- the contract ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Do nothing: the database exists."""

    def close(self) -> None:
        self.revoke("it was closed")

    def store_id(self) -> str:
        """The same in every world, so that idempotency keys of two explorations can be compared."""
        return "simulation"

    @property
    def file(self) -> Path | None:
        return None

    def standing(self) -> Standing:
        return Standing(1, "")

    @property
    def is_shared(self) -> bool:
        return self._shared.is_shared

    def now(self) -> int:
        return self._clock.now()

    def listen(self, wake: Callable[[], None]) -> None:
        """Do nothing: the world makes each process poll that has not seen the latest change."""

    def changed(self) -> bool:
        self.contacts += 1
        found, self._others_wrote = self._others_wrote, False
        return found

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        landed: list[CommitResult] = self._write("commit", group, group)
        return landed

    def reserve_run_numbers(self, count: int) -> int:
        first: int = self._write("reserve_run_numbers", None, count)
        return first

    def register_version(
        self, workflow: str, content_hash: str, definition: bytes, now: int, code: bytes = b"", deploy: bool = False
    ) -> int:
        row = (workflow, content_hash, definition, now, code, deploy)
        number: int = self._write("register_version", workflow, *row)
        return number

    def retire_version(self, workflow: str, version: int, now: int) -> Retirement:
        done: Retirement = self._write("retire_version", (workflow, version), workflow, version, now)
        return done

    def move_alias(self, move: AliasMove, versions: Sequence[int]) -> Moved:
        moved: Moved = self._write("move_alias", move, move, versions)
        return moved

    def register_engine(self, row: EngineRow) -> None:
        self._write("register_engine", row, row)

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        alive: bool = self._write("renew_engine", (engine, expires_at), engine, expires_at, awake_until)
        return alive

    def set_offer(self, engine: str, can_run: bytes) -> bool:
        said: bool = self._write("set_offer", engine, engine, can_run)
        return said

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        freed: int | None = self._write("remove_engine", engine, engine, expires_at)
        return freed

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        taken: int = self._write("take_slots", (engine, pool), engine, pool, wanted, limit)
        return taken

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        self._write("give_slots", (engine, pool), engine, pool, count)

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        won: list[RunRow] = self._write("claim", run_nos, engine, run_nos)
        return won

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        released: int = self._write("release", leases, engine, leases, unused)
        return released

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        held: bool = self._write("set_hold", (run_no, hold), run_no, token, engine, hold)
        return held

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        done: bool = self._write("raise_token", (run_no, raised), run_no, token, engine, raised)
        return done

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        became: list[Sent] = self._write("send", messages, messages)
        return became


def _reading(verb: str) -> Callable[..., Any]:
    def read(self: ProcessStore, *args: Any, **kwargs: Any) -> Any:
        self._check()
        self.contacts += 1
        return getattr(self._shared, verb)(*args, **kwargs)

    return read


for _verb in _READS:
    setattr(ProcessStore, _verb, _reading(_verb))
