"""Errors: everything Holdfast raises, on one screen.

The first paragraph of a class docstring is the default message, the second says what to do: docs/errors.md is made from
them (`python3 dev.py docs`). `code` is the same in Python, on the command line and in the journal.
"""

from __future__ import annotations

from typing import Any, ClassVar


def default_message(error: type[BaseException]) -> str:
    """Return the first paragraph of the class docstring, on one line."""
    return " ".join((error.__doc__ or "").partition("\n\n")[0].split())


class HoldfastError(Exception):
    """Something in Holdfast went wrong.

    The base class of every error that Holdfast raises: catch it to catch them all.
    """

    code: ClassVar[str] = "holdfast_error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or default_message(type(self)))

    @property
    def message(self) -> str:
        return str(self.args[0])


# --- the caller's mistakes -----------------------------------------------------------------------------------


class DefinitionError(HoldfastError):
    """The workflow's definition has problems.

    `problems` lists them, each with a code, the node and a hint. `holdfast validate FILE.py` prints the same list
    without starting anything.
    """

    code = "invalid_definition"

    def __init__(self, message: str | None = None, problems: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TraceError(DefinitionError):
    """A workflow function does something that cannot be recorded as a graph.

    A function under `@hf.workflow` without `ctx` is called once, with placeholders, to record the graph. Use
    `hf.when`, `hf.map` or `hf.loop` in place of `if` and `for` over results, or write durable code: an `async`
    function that takes `ctx`.
    """

    code = "trace_error"


class InvalidInput(HoldfastError):
    """A value does not fit its declared type.

    The message names the field and what was expected. Nothing was stored.
    """

    code = "invalid_input"


class UnknownRun(HoldfastError):
    """This store has no run with this id.

    Ids are exact in Python and for every verb that changes something; the message names ids that look alike. Check
    that the database is the one you mean (`HOLDFAST_DATABASE_URL`).
    """

    code = "unknown_run"


class UnknownVersion(HoldfastError):
    """There is no workflow of this name in the database, or no such version or alias of it.

    `holdfast workflows` lists what was deployed or started here, `holdfast versions NAME` the versions of one.
    """

    code = "unknown_version"


class VersionRetired(HoldfastError):
    """The version is retired: nothing of it starts.

    Start another version (`NAME@latest`), or deploy this one again: `holdfast deploy FILE.py:NAME`.
    """

    code = "version_retired"


class RunExists(HoldfastError):
    """A run with this id exists with another input.

    Starting a run twice with one id and the same input returns the same run. With another input, choose another
    id, or `holdfast fork` the existing run.
    """

    code = "run_exists"


class Refused(HoldfastError):
    """The engine that drives the run refused the request.

    `reason` says why, as a code (`closed`, `invalid_answer`, `unknown_wait`, `finished`, ...). The run has not
    changed.
    """

    code = "refused"

    def __init__(self, message: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Why, as a code: `closed`, `invalid_answer`, `unknown_wait`, `finished`, ..."""


class NotYetApplied(HoldfastError):
    """The request is stored and will be applied; its outcome is not known yet.

    No engine that can apply it is running, or the run is on hold. Do not send the request again: start a worker,
    or resume the run.
    """

    code = "not_yet_applied"


class MissingCode(HoldfastError):
    """The code of this run's workflow is not loaded here.

    The message names the handlers that the run needs and those that are loaded. Import the module before
    `hf.open`, name the file on the command line (`--code FILE.py`), or deploy the code again under its old name.
    """

    code = "missing_code"


class SecretUnavailable(HoldfastError):
    """A secret that the body needs is not provided here, or its workflow may not use it.

    The operator provides secrets where runs are driven: `HOLDFAST_SECRET_<NAME>`, a file in `HOLDFAST_SECRETS_DIR`, or
    `hf.open(secrets=...)`. Provide it, then `holdfast retry RUN`.
    """

    code = "secret_unavailable"


class UsageError(HoldfastError):
    """The call does not make sense here.

    The message says which rule the call breaks. Nothing was done.
    """

    code = "usage"


# --- how runs and nodes end ----------------------------------------------------------------------------------


class RunFailed(HoldfastError):
    """The run failed.

    `error` is the failure of the node that decided it. `holdfast why RUN` explains it; `holdfast retry RUN`
    executes what failed again, with the same idempotency keys.
    """

    code = "run_failed"

    def __init__(self, message: str | None = None, error: Any = None, run_id: str = "", others: Any = ()) -> None:
        super().__init__(message)
        self.error = error
        self.run_id = run_id
        self.others = others
        """Compensations that failed, and effects of unknown outcome that nothing could undo."""


class RunCancelled(HoldfastError):
    """The run was cancelled.

    `holdfast events RUN` names who cancelled it. `holdfast fork RUN` starts from it.
    """

    code = "run_cancelled"

    def __init__(self, message: str | None = None, run_id: str = "", others: Any = ()) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.others = others
        """As in RunFailed."""


class RunSuspended(HoldfastError):
    """The run waits for a person or for another program.

    `waits` lists what it waits for, `command` is the command line that ends the first wait.
    """

    code = "run_suspended"

    def __init__(
        self, message: str | None = None, run_id: str = "", waits: tuple[Any, ...] = (), command: str = ""
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.waits = waits
        self.command = command
        """The command line that ends the first wait."""


class Fail(HoldfastError):
    """A body reports that it failed, and whether another attempt could help.

    Raise it in a body. `retryable=False` ends the node whatever its retry policy says; `retry_after` is the least
    number of seconds until the next attempt, up to the policy's `max_delay`; `details` is stored in the journal.
    """

    code = "fail"
    retry_after: float | None = None
    """Seconds until the next attempt, at least."""

    def __init__(
        self,
        message: str | None = None,
        *,
        retryable: bool = True,
        retry_after: float | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        if retry_after is not None:
            self.retry_after = retry_after
        self.details = details
        """Data about the failure, as JSON; stored in the journal."""


class ChildFailed(HoldfastError):
    """A child run failed or was cancelled.

    `run_id` is the child. Retry the child (`holdfast retry CHILD`), or handle the exception in the parent.
    """

    code = "child_failed"

    def __init__(self, message: str | None = None, run_id: str = "", error: Any = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.error = error


class StepFailed(HoldfastError):
    """A step failed, and its exception class cannot be imported here.

    The message is that of the original exception. Make the class importable, or catch `StepFailed`.
    """

    code = "step_failed"


class NodeTimeout(HoldfastError, TimeoutError):
    """The node ran longer than its timeout.

    It counts as a failure for the retry policy. An async body is cancelled, a process is killed; a thread that
    does not end is abandoned, and the message says so.
    """

    code = "timeout"


class HeartbeatLost(HoldfastError, TimeoutError):
    """The node did not call ctx.heartbeat in time.

    It counts as a failure for the retry policy. Call `ctx.heartbeat()` at least once per `heartbeat` interval.
    """

    code = "heartbeat_lost"


class DuplicateKey(HoldfastError):
    """Two calls of a body in different scopes were given the same key.

    A key names one call of the whole body. Make it unique, for instance with the id of the item.
    """

    code = "duplicate_key"


class NotSerialisable(HoldfastError):
    """A value cannot be stored as JSON.

    Return dicts, lists, strings, numbers, booleans, None, dataclasses, msgspec or pydantic models. The message
    names the part that does not fit.
    """

    code = "not_serialisable"


class ValueTooLarge(HoldfastError):
    """A value is larger than the inline limit.

    The message has both sizes. Store the data elsewhere and return a reference to it.
    """

    code = "value_too_large"


class OutcomeUnknown(HoldfastError):
    """It is not known whether this happened.

    The store failed between a write and its answer. Read the run before you act again; a start with the same id
    and input is always safe.
    """

    code = "outcome_unknown"


class BodyDied(HoldfastError):
    """The process that executed the body ended before the body did.

    Out of memory, a signal, or a crash of a native library. It counts as an interrupted attempt.
    """

    code = "body_died"


# --- the world's weather, and our own bugs ---------------------------------------------------------------------


class StoreError(HoldfastError):
    """The store cannot be used.

    The message has the reason that the database gave.
    """

    code = "store_error"


class StoreFull(StoreError):
    """The disk is full; nothing was written. Free some space, then resume.

    Engines that are running wait for space and continue by themselves.
    """

    code = "store_full"


class StoreReadOnly(StoreError):
    """The database cannot be written.

    Check the owner and the mode of the file and of its folder, and whether its file system became read-only.
    """

    code = "store_read_only"


class FilesystemReadOnly(StoreReadOnly):
    """The file system of the database accepts no writes.

    It was mounted read-only, or became so after an error of the disk. A worker that starts ends with exit code 1, so
    that its supervisor restarts it: nothing about the worker is wrong.
    """

    code = "filesystem_read_only"


class ServerReadOnly(StoreReadOnly):
    """The server accepts no writes at the moment: it is a replica, or a right is missing.

    Engines that are running wait. A worker that starts ends with exit code 1, so that its supervisor restarts it.
    """

    code = "server_read_only"


class StoreMissing(StoreError):
    """There is no such place for a database.

    The folder does not exist, or a read-only verb was given a file that does not exist. Check the address.
    """

    code = "store_missing"


class UnsafeFilesystem(StoreError):
    """The database is on a file system on which SQLite's locks do not work.

    Move the file to a local disk, or use PostgreSQL. `allow_network_filesystem=True` accepts the risk when exactly
    one process opens the file.
    """

    code = "unsafe_filesystem"


class StoreGone(StoreError, OutcomeUnknown):
    """The database file at its path is no longer the one that is open; what was committed last may be lost.

    The file or its log was deleted, moved or replaced under a running engine, which stops at once. Stop all
    engines, put the file back or restore a backup (`holdfast db restore`), then start them.
    """

    code = "store_gone"


class StoreDamaged(StoreError):
    """A part of the database cannot be read: the file is damaged.

    Runs that need that part are put on hold; the others continue. `holdfast doctor --deep` names what is affected;
    restore a backup, or `holdfast recover` the runs.
    """

    code = "store_damaged"


class StoreInactive(StoreError):
    """The database is a backup, or was restored and not activated yet: engines do not work on it.

    Verbs that only read work. `holdfast db activate` lets engines drive its runs; do that only when no engine
    drives the original.
    """

    code = "store_inactive"


class UnfinishedCopy(StoreError):
    """The database was being copied into, and the copy did not finish.

    Delete it and copy again (`holdfast db copy`).
    """

    code = "unfinished_copy"


class NotOurStore(StoreError):
    """The file is not a Holdfast database.

    Check the address. Nothing was changed.
    """

    code = "not_our_store"


class NewerStore(StoreError):
    """The database was written by a newer Holdfast. Upgrade this one.

    A newer version has migrated the schema; this version cannot open it.
    """

    code = "newer_store"


class LeaseLost(HoldfastError):
    """Another engine owns this run now.

    This engine was too slow to renew its lease, and another one took its run over. Nothing of this call was
    written.
    """

    code = "lease_lost"


class IllegalTransition(HoldfastError):
    """A bug: a status was about to change in a way that its machine does not allow.

    The run is put on hold and its journal is intact. Please report it with `holdfast events RUN`.
    """

    code = "illegal_transition"


class CorruptJournal(HoldfastError):
    """The journal of a run cannot be read.

    The run is on hold and nothing of it acts. `holdfast doctor --deep` names the event; `holdfast recover RUN`
    opens a branch before it.
    """

    code = "corrupt"


class NewerFormat(CorruptJournal):
    """The run was written by a newer Holdfast. Upgrade this one.

    Engines of the newer version drive it; this one leaves it alone.
    """

    code = "newer_format"


class CannotBeRepaired(HoldfastError):
    """The run cannot be repaired from its journal.

    The message says what is missing. Restore a backup, or start the run anew under another id.
    """

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
    """Raised by `hf.goto` and `hf.ticket`: the body ends, and its run continues at another node. Do not catch it."""

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
    """The code makes another call than the one that is recorded at this position. The run is put on hold with
    `code_changed`, and nothing that the body does afterwards counts. Do not catch it.

    Deploy the old code again, or accept the change (`holdfast resume RUN --accept-change`, with `--dry-run`
    first). `ctx.patched` lets code change while runs are in flight.
    """

    code: ClassVar[str] = "step_mismatch"

    @property
    def message(self) -> str:
        return str(self.args[0])


class DeadlinePassed(HoldfastError):
    """A question or a signal was not answered in time, and has no default.

    Give the wait a `default`, or handle the exception in the body.
    """

    code = "deadline_passed"
    retryable = False


class Suspended(BaseException):
    """Raised inside a body that is being left without having ended. Do not catch it; `finally` blocks run."""
