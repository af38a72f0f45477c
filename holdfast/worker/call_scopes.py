"""Call scopes: which part of a body, and which asyncio task of it, a recorded call belongs to.

Owns: `BodyPart` (the body itself, or one call of a race with what it starts), `TaskScope`, the context variable that
names the creator of a task, and the task factory that numbers tasks.
Rule: a call of a race that loses leaves no trace. How far it gets depends on time, so code after the race may use its
keys, and is not answered by what it was told.
Rule: the scope of a task is the scope of the task that created it, plus the qualified name of its coroutine and its
number among the tasks of that name created in that scope, in order of creation. Which task is quicker does not matter.
A step's function has a scope of its own, so that tasks it creates take no number in the body: on replay it is not run.
Never: fails a task that belongs to no body; for those the factory reads one context variable and calls the loop's own.

The scope of a task is found by the context variable, because a task runs in a copy of its creator's context. Only a
task that is given a context (`create_task(context=...)`) may share that with others; its scope is kept per task.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.model.errors import DuplicateKey
from holdfast.model.limits import TASK_SCOPE_LENGTH_MAX

# --- parts of a body --------------------------------------------------------------------------------------------------

_RACE_BRANCH = re.compile(r"(?<![^/])r\d+\.\d+/")


def race_branch_scope(race: str, place: int) -> str:
    """The scope of what one call of a race does."""
    return f"{race}.{place}/"


def race_name(scope: str, place: int) -> str:
    """The name of a race, which is unique in its instance."""
    return f"{scope}r{place}"


def race_branches_around(scope: str) -> list[str]:
    """The scopes of the calls of races around a scope, outermost first."""
    return [scope[: match.end()] for match in _RACE_BRANCH.finditer(scope)]


class RaceBranch(NamedTuple):
    """One of the calls of a race."""

    race: str
    """The race, by a name that is unique in its instance."""
    place: int
    race_call: object
    """The race as a recorded call."""
    only_call: object | None
    """The recorded call that this branch is, where it is a single one and not a coroutine of several."""
    around: BodyPart


class BodyPart:
    """The body itself, or one call of a race with whatever it starts."""

    __slots__ = ("keys", "last_answer", "lost", "over", "race_branch", "replay")

    def __init__(self, race_branch: RaceBranch | None = None) -> None:
        self.replay: object = None
        """Of the body itself: its recorded calls, while it is in memory."""
        self.race_branch = race_branch
        self.keys: dict[str, str] = {}
        """The scope that each key was used in, of the calls that this part has made in this execution."""
        self.last_answer = 0
        """The number of the latest record that has answered a call of it."""
        self.lost = False
        """It is cancelled, and the body continues without it."""
        self.over = False
        """Its race is over: tasks that it left behind belong to the body."""

    @property
    def body(self) -> BodyPart:
        """The body itself."""
        part = self
        while part.race_branch is not None:
            part = part.race_branch.around
        return part

    def use_key(self, key: str, scope: str, call: str) -> None:
        """A call uses a key. Raises DuplicateKey where another scope of this part, or of those around it, has used
        it."""
        part: BodyPart | None = self
        while part is not None:
            used_in = part.keys.setdefault(key, scope) if part is self else part.keys.get(key, scope)
            if used_in != scope:
                raise DuplicateKey(
                    f"the key {key!r} is used by {call} in {shown(scope)} and before that in {shown(used_in)}: a key "
                    "names one call of a body. Add to the key what tells the two calls apart, for example the name of "
                    "the step"
                )
            part = None if part.race_branch is None else part.race_branch.around

    def take_over_keys(self, winner: BodyPart) -> None:
        """A race of this part is won: what its winner has called counts as called here. Raises DuplicateKey where a
        key of it was used here meanwhile."""
        for key, scope in winner.keys.items():
            self.use_key(key, scope, "the winner of a race")

    def races_of(self, call: object) -> tuple[tuple[tuple[str, int], ...], int]:
        """The races around a recorded call of this part, innermost first, each with the place of its branch; and how
        many of them end when the call does: those in which it, or the race that it ends, is all that a lane does."""
        found: list[tuple[str, int]] = []
        decides = 0
        lane = self.race_branch
        while lane is not None:
            if lane.only_call is call and decides == len(found):
                decides += 1
            found.append((lane.race, lane.place))
            call, lane = lane.race_call, lane.around.race_branch
        return tuple(found), decides


def shown(scope: str) -> str:
    """A scope as messages name it."""
    return f"scope {scope!r}" if scope else "the body"


# --- scopes of tasks --------------------------------------------------------------------------------------------------

Task = asyncio.Task[Any]
Factory = Callable[..., Any]
_PLAIN_NAME = re.compile(r"[\w.<>]+", re.ASCII)
_RACE_NAME = re.compile(r"r\d+")


class TaskScope:
    """Where the calls of one asyncio task are recorded, or those of a step's function while a task runs it."""

    __slots__ = ("_checkpoints", "_counts", "name", "part", "task", "tasks_path")

    def __init__(
        self, part: BodyPart, name: str, *, tasks_path: str = "", task: weakref.ref[Task] | None = None
    ) -> None:
        self.part = part
        self.name = name
        """As events name it, apart from the number of the checkpoint."""
        self.tasks_path = tasks_path
        """The part of the name that tasks in tasks have added to it."""
        self.task = task
        """The task that it belongs to; None until it is known."""
        self._counts: dict[str, int] = {}
        self._checkpoints = 0

    def of_new_task(self, coro: object) -> TaskScope:
        """The scope of one more task that is created here."""
        replay: Any = self.part.body.replay
        if self._checkpoints != replay.checkpoints:  # positions start again, and numbers with them
            self._checkpoints = replay.checkpoints
            self._counts = {}
        label = _label(getattr(coro, "__qualname__", None) or type(coro).__qualname__)
        number = self._counts.get(label, 0) + 1
        self._counts[label] = number
        root = self.name[: len(self.name) - len(self.tasks_path)]
        path = f"{self.tasks_path}{label}.{number}/"
        if len(path) > TASK_SCOPE_LENGTH_MAX:
            path = f"~{_digest(path)}/"
        return TaskScope(self.part, root + path, tasks_path=path)


current_scope: ContextVar[TaskScope | None] = ContextVar("holdfast_current_scope", default=None)
"""The scope of the code that runs: of a body, of one of its tasks, or of a step; None outside of durable code."""

_given_a_context: weakref.WeakKeyDictionary[Task, TaskScope] | None = None
"""Scopes of tasks that were created with a context, in which other tasks may set the variable; None until there is one.
(Every step asks: to ask whether a WeakKeyDictionary is empty takes longer.)"""


def scope_here() -> TaskScope | None:
    """The scope of the code that runs now."""
    if _given_a_context is not None and (task := running_task()) is not None and task in _given_a_context:
        return _given_a_context[task]
    return current_scope.get()


def scope_of(task: Task) -> TaskScope | None:
    """The scope of the running task. None: the engine did not see how this task was created."""
    scope = scope_here()
    if scope is None:
        return None
    if scope.task is None:
        scope.task = weakref.ref(task)
    return scope if scope.task() is task else None


def enter(name: str) -> TaskScope | None:
    """From here on the running task has a scope of this name; `leave` with what this returns is the way back."""
    before = scope_here()
    if before is not None:
        _set(TaskScope(before.part, name, task=_running()))
    return before


def leave(before: TaskScope | None) -> None:
    """The running task has the scope again that it had before `enter`."""
    if before is not None:
        _set(before)


def _set(scope: TaskScope) -> None:
    current_scope.set(scope)
    if _given_a_context is not None and (task := running_task()) is not None and task in _given_a_context:
        _given_a_context[task] = scope


def _running() -> weakref.ref[Task] | None:
    task = running_task()
    return None if task is None else weakref.ref(task)


def running_task() -> Task | None:
    """The task that runs; None also where no loop runs, as in a thread or while a loop is torn down."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def begin(part: BodyPart, name: str) -> None:
    """Give the running task this scope, whichever task created it: a body begins, or a call of a race."""
    _set(TaskScope(part, name, task=_running()))


@lru_cache(maxsize=1024)
def _label(qualified_name: str) -> str:
    """The name of a coroutine as a part of a scope; a very long or odd one by its digest, and one that could be taken
    for a race."""
    is_plain = _PLAIN_NAME.fullmatch(qualified_name) and not _RACE_NAME.fullmatch(qualified_name)
    if is_plain and len(qualified_name) <= TASK_SCOPE_LENGTH_MAX // 2:
        return qualified_name
    return f"~{_digest(qualified_name)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


# --- the factory -----------------------------------------------------------------------------------------------------


class _Installed:
    """The factory of a loop, shared by the engines on it."""

    __slots__ = ("before", "engines", "factory")

    def __init__(self, before: Factory | None, engines: int) -> None:
        self.before = before
        self.factory = _numbering(before or _plain_task)
        self.engines = engines


_making: set[int] = set()
"""The coroutines, by their `id`, that a factory has numbered and is making a task of: a factory of ours below it, with
one of another library between them, does not number them again."""
_installed: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Installed] = weakref.WeakKeyDictionary()


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Learn of every task that is created on a loop, through its task factory."""
    now = loop.get_task_factory()
    found = _installed.get(loop)
    if found is None or found.factory is not now:
        found = _installed[loop] = _Installed(now, 0 if found is None else found.engines)
        loop.set_task_factory(found.factory)
    found.engines += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Give a loop its own factory back, when the last engine on it has closed. One that was set since is kept."""
    found = _installed.get(loop)
    if found is None:
        return
    found.engines -= 1
    if found.engines <= 0:
        del _installed[loop]
        if loop.get_task_factory() is found.factory:
            loop.set_task_factory(found.before)


def _plain_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> Task:
    return asyncio.Task(coro, loop=loop, **options)


def _numbering(make: Factory) -> Factory:
    get = current_scope.get

    def create_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        creator = get()
        if creator is None or creator.part.body.replay is None:  # no body, or one that is over
            return make(loop, coro, **options)
        return _create(scope_here() or creator, make, loop, coro, options)

    return create_task


def _create(
    creator: TaskScope, make: Factory, loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]
) -> Any:
    """Number a task before it is made: an eager one begins to run while it is made."""
    global _given_a_context
    if id(coro) in _making:
        return make(loop, coro, **options)
    scope = creator.of_new_task(coro)
    context = options.get("context")
    is_set = context is not None and _set_in(context, scope)
    token = None if is_set else current_scope.set(scope)
    _making.add(id(coro))
    try:
        task = make(loop, coro, **options)
    finally:
        _making.discard(id(coro))
        if token is not None:
            current_scope.reset(token)
    scope.task = weakref.ref(task)
    if context is not None:
        if _given_a_context is None:
            _given_a_context = weakref.WeakKeyDictionary()
        now = context.get(current_scope, scope)  # an eager task may have entered a step already
        _given_a_context[task] = now if now.task is not None and now.task() is task else scope
    return task


def _set_in(context: Any, scope: TaskScope) -> bool:
    """Set the variable in a context; False: it is the one that runs."""
    try:
        context.run(current_scope.set, scope)
    except RuntimeError:
        return False
    return True
