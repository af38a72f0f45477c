"""Errors: everything Holdfast raises, on one screen.

The class docstring is the default message; `code` is the same in Python, on the command line and in the journal.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HoldfastError(Exception):
    """Something in Holdfast went wrong."""

    code: ClassVar[str] = "holdfast_error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


# --- the caller's mistakes -----------------------------------------------------------------------------------


class DefinitionError(HoldfastError):
    """The workflow's definition has problems."""

    code = "invalid_definition"

    def __init__(self, message: str | None = None, problems: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TraceError(DefinitionError):
    """A workflow function does something that cannot be written down as a graph."""

    code = "trace_error"


class InvalidInput(HoldfastError):
    """A value does not fit its declared type."""

    code = "invalid_input"


class UnknownRun(HoldfastError):
    """There is no such run in this store."""

    code = "unknown_run"


class RunExists(HoldfastError):
    """A run with this id exists with another input."""

    code = "run_exists"


class Refused(HoldfastError):
    """The run's owner refused the request."""

    code = "refused"

    def __init__(self, message: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Why, as a code: `closed`, `invalid_answer`, `unknown_wait`, `finished`, ..."""


class NotYetApplied(HoldfastError):
    """The request is stored and will be applied; its outcome is not known yet."""

    code = "not_yet_applied"


class MissingCode(HoldfastError):
    """The code of this run's workflow is not loaded here."""

    code = "missing_code"


class UsageError(HoldfastError):
    """The call does not make sense here."""

    code = "usage"


# --- how runs and nodes end ----------------------------------------------------------------------------------


class RunFailed(HoldfastError):
    """The run failed."""

    code = "run_failed"

    def __init__(self, message: str | None = None, error: Any = None, run_id: str = "", others: Any = ()) -> None:
        super().__init__(message)
        self.error = error
        self.run_id = run_id
        self.others = others
        """Compensations that failed, and effects of unknown outcome that nothing could undo."""


class RunCancelled(HoldfastError):
    """The run was cancelled."""

    code = "run_cancelled"

    def __init__(self, message: str | None = None, run_id: str = "", others: Any = ()) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.others = others
        """As in RunFailed."""


class RunSuspended(HoldfastError):
    """The run waits for something that only a person or another program can bring."""

    code = "run_suspended"

    def __init__(
        self, message: str | None = None, run_id: str = "", waits: tuple[Any, ...] = (), command: str = ""
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.waits = waits
        self.command = command
        """What somebody types to let it go on."""


class Fail(HoldfastError):
    """A body says that it failed, and whether trying again could help."""

    code = "fail"

    def __init__(self, message: str | None = None, *, retryable: bool = True, details: Any = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.details = details
        """Data for the one who handles the failure; JSON, and kept in the journal."""


class ChildFailed(HoldfastError):
    """A child run failed or was cancelled."""

    code = "child_failed"

    def __init__(self, message: str | None = None, run_id: str = "", error: Any = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.error = error


class StepFailed(HoldfastError):
    """A remembered step failed, and its exception type is not known here."""

    code = "step_failed"


class NodeTimeout(HoldfastError, TimeoutError):
    """The node ran longer than its timeout."""

    code = "timeout"


class HeartbeatLost(HoldfastError, TimeoutError):
    """The node did not call ctx.heartbeat in time."""

    code = "heartbeat_lost"


class DuplicateKey(HoldfastError):
    """Two calls of a body in different scopes were given the same key."""

    code = "duplicate_key"


class NotSerialisable(HoldfastError):
    """A value cannot be stored as JSON."""

    code = "not_serialisable"


class ValueTooLarge(HoldfastError):
    """A value is larger than the inline limit."""

    code = "value_too_large"


class OutcomeUnknown(HoldfastError):
    """It is not known whether this happened."""

    code = "outcome_unknown"


class BodyDied(HoldfastError):
    """The process that ran the body ended before the body did."""

    code = "body_died"


# --- the world's weather, and our own bugs ---------------------------------------------------------------------


class StoreError(HoldfastError):
    """The store cannot be used."""

    code = "store_error"


class StoreFull(StoreError):
    """The disk is full; nothing was written. Free some space, then resume."""

    code = "store_full"


class StoreReadOnly(StoreError):
    """The database cannot be written."""

    code = "store_read_only"


class ServerReadOnly(StoreReadOnly):
    """The server takes no writes at the moment: it is a replica, or a right is missing."""

    code = "server_read_only"


class StoreMissing(StoreError):
    """There is no such place for a database."""

    code = "store_missing"


class UnsafeFilesystem(StoreError):
    """The database lies on a file system on which SQLite's locks do not work."""

    code = "unsafe_filesystem"


class StoreGone(StoreError, OutcomeUnknown):
    """The database file at its path is no longer the one that is open; what was committed last may be lost."""

    code = "store_gone"


class StoreDamaged(StoreError):
    """A part of the database cannot be read: the file is damaged."""

    code = "store_damaged"


class StoreInactive(StoreError):
    """The database is a backup, or was restored and not activated yet: engines do not work on it."""

    code = "store_inactive"


class UnfinishedCopy(StoreError):
    """The database was being copied into, and the copy did not come to its end."""

    code = "unfinished_copy"


class NotOurStore(StoreError):
    """The file is not a Holdfast database."""

    code = "not_our_store"


class NewerStore(StoreError):
    """The database was written by a newer Holdfast. Upgrade this one."""

    code = "newer_store"


class LeaseLost(HoldfastError):
    """Another engine owns this run now."""

    code = "lease_lost"


class IllegalTransition(HoldfastError):
    """A bug: a status was about to change in a way that its machine does not allow."""

    code = "illegal_transition"


class CorruptJournal(HoldfastError):
    """The journal of a run cannot be read."""

    code = "corrupt"


class NewerFormat(CorruptJournal):
    """The run was written by a newer Holdfast. Upgrade this one."""

    code = "newer_format"


class CannotBeRepaired(HoldfastError):
    """The run cannot be repaired from its journal."""

    code = "cannot_be_repaired"


class BodyEnded(BaseException):
    """Raised by calls that end the body they are made in. Do not catch it."""

    def __init__(self, message: str, target: str | None, ticket: str | None, output: Any) -> None:
        super().__init__(message)
        self.target = target
        """The node to go to, where the body named it."""
        self.ticket = ticket
        """The ticket, whose node the definition names."""
        self.output = output


class TicketRaised(BodyEnded):
    """Raised by `hf.goto` and `hf.ticket`: the body has ended, and its run goes on at another node. Do not catch it."""

    def __init__(self, *, target: str | None = None, ticket: str | None = None, output: Any = None) -> None:
        super().__init__(f"goto {target}" if ticket is None else f"ticket {ticket}", target, ticket, output)


class Pended(BodyEnded):
    """Raised by `hf.pend`: the body has ended, and its node waits in a basket until it is resumed. Do not catch it."""

    def __init__(
        self,
        basket: str,
        *,
        rerun: bool = False,
        error: str | BaseException | None = None,
        output: Any = None,
        target: str | None = None,
        ticket: str | None = None,
    ) -> None:
        super().__init__(f"pend in {basket}", target, ticket, output)
        self.basket = basket
        self.rerun = rerun
        """The node runs again when it is resumed."""
        self.error = error
        """Why it could not do its work."""


class StepMismatch(BaseException):
    """The code makes another call than the one that is remembered at this position. The run is put on hold with
    `code_changed`, and nothing that the body does afterwards counts. Do not catch it."""

    code: ClassVar[str] = "step_mismatch"

    @property
    def message(self) -> str:
        return str(self.args[0])


class DeadlinePassed(HoldfastError):
    """Nobody answered a question, or sent a signal, in time, and there is no default."""

    code = "deadline_passed"
    retryable = False


class Suspended(BaseException):
    """Raised inside a body that is being left without having ended. Do not catch it; `finally` blocks run."""
