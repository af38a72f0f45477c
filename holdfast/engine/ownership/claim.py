"""Claim: finding runs that no engine owns, and claiming them.

Owns: which runs are claimed, when, and how many at once.
Never: reads what it claimed, or decides whether it is driven (load.py).
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence

from holdfast.engine import missing
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.ownership.load import Loader
from holdfast.engine.run.actor import RunActor
from holdfast.engine.runtime import Runtime
from holdfast.model import handlers
from holdfast.model.errors import CorruptJournal
from holdfast.model.statuses import RunStatus
from holdfast.store.row_types import RunRow, TimerRow

log = logging.getLogger("holdfast.engine")
DUE_AT_ONCE = 4_000
"""Due timers that are read together. If there are as many, they are only fired (`fire_due_timers`)."""
LOADED_AT_ONCE = 200
"""Runs that are read together, which takes a few milliseconds; other work has a turn of the loop in between."""
CLAIMED_AT_ONCE = 1_000
"""Runs that are claimed in one transaction: a slow disk costs one wait for all of them."""
CLAIMED_WHILE_DUE = 50
"""The same while timers are due, which come first: few enough not to delay them, enough for other runs to move."""
REFILL_SHARE = 4
"""The part of an engine's room, one in this many, that must be free before it claims more runs."""
NAMES_READ_SECONDS = 1.0
"""How often the store is asked for workflows that this engine can drive without having loaded them."""
IN_VAIN_SHARE = 0.05
"""The share of its time that an engine spends at most on reading due timers of runs that it cannot drive."""


class Claims:
    """Claims runs for one engine."""

    def __init__(self, runtime: Runtime, custody: Custody, loader: Loader, inbox: Inbox) -> None:
        self._runtime = runtime
        self._custody = custody
        self._loader = loader
        self._inbox = inbox
        self.only_root_runs: set[int] | None = None
        """None: every run whose code is here. Else only these runs and their descendants."""
        self._is_reporting_ended = False
        """The waits for children are still being read, page by page."""
        self._last_due: TimerRow | None = None
        """Where the next page of due timers begins, while there are more of them."""
        self._next_due_read = 0.0
        self._only_stored: list[str] = []
        self._next_names_read = 0.0
        self._runnable: dict[tuple[str, int], bool] = {}
        """Versions of workflows that are not loaded here: whether all of their handlers are."""
        self._waking = False
        """A page of due timers is being read and claimed; a second reader would find the same."""
        self._refilling = False
        self._freed = 0
        """Runs that have ended or were suspended since more were claimed."""
        self._last_claimed = ""
        """The workflow of which a run was claimed last."""
        self._known_missing: set[tuple[str, int]] = set()
        """Versions whose missing code was logged."""
        self._has_warned_of_waiting = False
        self._turns = asyncio.Lock()
        """Held while the next page of runs is chosen and claimed."""

    async def sweep(self) -> int:
        """Claim everything that waits for an owner; the number of runs claimed."""
        await self._release_dead()
        runtime = self._runtime
        for unknown in await runtime.read(runtime.store.unknown_owners):
            log.warning("engine %s owns runs and is not registered; they are released", unknown)
            await runtime.committer.call(runtime.store.remove_engine, unknown)
        await self._report_ended()
        claimed = await self.claim_unowned()
        await self._warn_of_missing_code()
        return claimed

    async def _warn_of_missing_code(self) -> None:
        """Log which runs no live engine can drive; the operator has to load their code somewhere."""
        runtime = self._runtime
        if self.only_root_runs is None and runtime.drives and not runtime.stopping:
            said = await runtime.read(missing.warnings, runtime, self._known_missing)
            if not self._has_warned_of_waiting:
                self._has_warned_of_waiting = True
                said += await runtime.read(missing.warnings_of_waiting, runtime)
            for warning in said:
                log.warning("missing_code: %s", warning)

    async def _report_ended(self) -> None:
        """Report ended children to parents without an owner, should a report have been lost. Of very many waits for
        children, all pages but the first are read in the background."""
        if self._is_reporting_ended:
            return
        page = await self._report_page(0)
        if page:
            self._is_reporting_ended = True
            self._runtime.spawn(self._report_more(page))

    async def _report_more(self, page: int) -> None:
        try:
            while page:
                await asyncio.sleep(0)
                page = await self._report_page(page)
        finally:
            self._is_reporting_ended = False

    async def _report_page(self, page: int) -> int:
        found, page = await self._runtime.read(self._runtime.store.waits_for_ended, page)
        for run_no, child in found:
            try:
                await self._inbox.report(child, run_no)
            except CorruptJournal as e:  # its parent keeps waiting; other runs are not affected
                log.error("the end of run %s cannot be reported to the run that waits for it: %s", child, e)
        return page

    async def release_dead_engines(self) -> None:
        """Release the leases of engines whose process has died or that did not renew theirs in time, and claim what is
        free then."""
        if await self._release_dead():
            await self.claim_unowned()

    async def _release_dead(self) -> bool:
        """Whether runs of dead engines were released."""
        runtime = self._runtime
        released_any = False
        for dead in await runtime.read(runtime.lease.dead_engines, runtime.clock.now()):
            freed = await runtime.committer.call(runtime.store.remove_engine, dead.engine, dead.expires_at)
            if freed is None:
                continue  # it has renewed its lease meanwhile
            runtime.lease.locks.remove(dead)
            log.info("engine %s (pid %d) is dead; %d run(s) released", dead.engine, dead.pid, freed)
            released_any = released_any or freed > 0
        return released_any

    async def claim_unowned(self) -> int:
        """Claim runs without an owner, page by page for as long as there is room; return how many. While timers are due
        it is one short page: the other runs are claimed after they have fired."""
        async with self._turns:
            return await self._claim_by_turns()

    async def _claim_by_turns(self) -> int:
        claimed = 0
        while won := await self.claim(await self._claimable_page()):
            claimed += won
            await self.fire_due_timers()  # claiming very many takes a while, and timers must not be late
            if self.has_more_due_timers:
                self._custody.has_unclaimed_runs = True
                break
        return claimed

    async def _claimable_page(self) -> list[int]:
        """Runs without an owner whose code is here: one of each workflow after the other, beginning after the workflow
        of the last claim."""
        runtime, store = self._runtime, self._runtime.store
        room = self._custody.room()
        self._custody.has_unclaimed_runs = self._custody.has_unclaimed_runs or room == 0
        if runtime.stopping or not runtime.drives or room == 0 or self.only_root_runs == set():
            return []
        unowned = await runtime.read(store.unowned_versions)
        runnable = [version for version in unowned if await runtime.read(runtime.versions.runnable, *version)]
        versions = [version for version in runnable if self._custody.has_room_for(runtime.versions.numbered(*version))]
        self._custody.has_unclaimed_runs = self._custody.has_unclaimed_runs or len(versions) < len(runnable)
        # yielded runs must not hide those after them
        passed_over = self._loader.count_yielded()
        roots = None if self.only_root_runs is None else sorted(self.only_root_runs)
        at_once = CLAIMED_WHILE_DUE if self.has_more_due_timers else CLAIMED_AT_ONCE
        limit = min(at_once // max(1, len(versions)) + 1, room + passed_over)
        found = await runtime.read(
            lambda: store.claimable(versions, queues=runtime.queues, root_nos=roots, limit=limit)
        )
        lines: dict[str, list[int]] = defaultdict(list)
        for run_no, workflow, _ in found:
            if not self._loader.is_yielded(run_no):
                lines[workflow].append(run_no)
        turns = sorted(lines, key=lambda workflow: (workflow <= self._last_claimed, workflow))
        page = [
            (run_no, workflow)
            for round_ in itertools.zip_longest(*(lines[workflow] for workflow in turns))
            for workflow, run_no in zip(turns, round_, strict=True)
            if run_no is not None
        ]
        if page:
            self._last_claimed = page[: min(room, len(page))][-1][1]
        return [run_no for run_no, _ in page]

    @property
    def has_more_due_timers(self) -> bool:
        """Whether more timers are due than one page has."""
        return self._last_due is not None and self._runtime.loop.time() >= self._next_due_read

    async def fire_due_timers(self) -> None:
        """Claim the runs of a page of due timers that no engine owns. If there are more of them, or no room for their
        runs, the timers are only fired: they must not wait for bodies of other runs. Those runs are then claimed like
        any other run without an owner."""
        runtime = self._runtime
        is_time = runtime.loop.time() >= self._next_due_read and not self._waking
        if is_time and runtime.drives and not runtime.stopping and not runtime.lease.has_run_out:
            self._waking = True
            try:
                await self._fire_page()
            finally:
                self._waking = False

    async def _fire_page(self) -> None:
        runtime = self._runtime
        began = runtime.loop.time()
        roots = None if self.only_root_runs is None else sorted(self.only_root_runs)
        now, elapsed = runtime.clock.now(), runtime.clock.elapsed()
        names, after = await self._fired_here(), self._last_due
        due = await runtime.read(
            lambda: runtime.store.due_timers(
                now, DUE_AT_ONCE, names, roots, queues=runtime.queues, after=after, elapsed=elapsed
            )
        )
        run_nos = sorted({timer.run_no for timer in due})
        are_many = len(due) == DUE_AT_ONCE
        fire_only = are_many or len(run_nos) > self._custody.room()
        claimed = await self.claim(run_nos, fire_only=fire_only) if due else 0
        self._last_due = due[-1] if are_many else None
        if not claimed:
            took = runtime.loop.time() - began  # in vain: only other engines can drive the runs that are due
            self._next_due_read = began + took / IN_VAIN_SHARE

    async def _fired_here(self) -> list[str]:
        """The workflows whose due timers this engine fires: those that are loaded, and those that only the store knows
        and whose handlers are loaded."""
        runtime = self._runtime
        if runtime.loop.time() >= self._next_names_read:
            self._next_names_read = runtime.loop.time() + NAMES_READ_SECONDS
            self._only_stored = await runtime.read(self._runnable_names)
        return [*handlers.workflow_names(), *self._only_stored]

    def _runnable_names(self) -> list[str]:
        loaded, known = set(handlers.workflow_names()), self._runnable
        for version in self._runtime.store.version_numbers():
            if version[0] not in loaded and version not in known:
                known[version] = self._runtime.versions.runnable(*version)
        return sorted({workflow for (workflow, _), is_runnable in known.items() if is_runnable} - loaded)

    async def claim(self, run_nos: Sequence[int], *, even_without_code: bool = False, fire_only: bool = False) -> int:
        """Claim those of these runs that have no owner and that this engine may drive, and load them; return how many.
        `fire_only`: the due timers of suspended runs are fired, which takes no room. Not cancellable: a claimed run
        that is never loaded would stay owned and idle."""
        left = self._loader.is_yielded
        free = [n for n in run_nos if n not in self._custody.actors and (even_without_code or not left(n))]
        return await self._runtime.run_to_completion(self._claim(free, even_without_code, fire_only)) if free else 0

    async def _claim(self, free: list[int], even_without_code: bool, fire_only: bool) -> int:
        wanted = free if even_without_code else await self._drivable(free, only_waiting=fire_only)
        room = len(wanted) if even_without_code or fire_only else self._custody.room()
        if len(wanted) >= room and not (even_without_code or fire_only):
            self._custody.has_unclaimed_runs = True
            wanted = wanted[:room]
        if not wanted:
            return 0
        coming = 0 if fire_only else len(wanted)
        self._custody.claims_in_progress += coming
        try:
            return await self._take(wanted, fire_only)
        finally:
            self._custody.claims_in_progress -= coming

    async def _take(self, wanted: Sequence[int], fire_only: bool) -> int:
        """Claim page by page, and load what was claimed; while one page is loaded, the next is claimed."""
        runtime = self._runtime
        pages = [wanted[start : start + CLAIMED_AT_ONCE] for start in range(0, len(wanted), CLAIMED_AT_ONCE)]
        pages.reverse()
        claimed: list[RunRow] = []

        async def claim_page() -> Sequence[RunRow]:
            rows = await runtime.committer.call(runtime.store.claim, runtime.lease.engine, pages.pop())
            claimed.extend(rows)
            return rows

        following: asyncio.Task[Sequence[RunRow]] | None = None
        try:
            while following is not None or pages:
                rows = await (following or claim_page())
                following = runtime.spawn(claim_page()) if pages else None
                for start in range(0, len(rows), LOADED_AT_ONCE):
                    page = rows[start : start + LOADED_AT_ONCE]
                    await self._loader.load(page, fire_only=fire_only)
                    if start + LOADED_AT_ONCE < len(rows):
                        await asyncio.sleep(0)
        except Exception:
            if following is not None:
                await asyncio.wait([following])
            unread = [(row.run_no, row.token) for row in claimed if row.run_no not in self._custody.actors]
            if unread and not runtime.stopping:  # no other engine could claim them while this one owns them
                runtime.spawn(self._custody.give_back(unread))
            raise
        return len(claimed)

    def on_room_freed(self) -> None:
        """A run has ended or is suspended: others that found no room may be claimed. Not one by one, which would query
        the store for each; the next poll claims for the last few."""
        runtime = self._runtime
        limit = runtime.settings.concurrency
        if limit is None or not self._custody.has_unclaimed_runs or self._refilling or runtime.stopping:
            return
        self._freed += 1
        if self._freed * REFILL_SHARE >= limit:
            self._refilling = True
            runtime.spawn(self._refill())

    async def _refill(self) -> None:
        try:
            self._freed = 0
            await self.claim_if_room()
        finally:
            self._refilling = False

    async def claim_if_room(self) -> None:
        """Claim runs that found no room before, if there is some now."""
        if not self._has_room_again():
            return
        async with self._turns:
            if self._has_room_again():  # another caller has not used it meanwhile
                self._custody.has_unclaimed_runs = False
                await self._claim_by_turns()

    def _has_room_again(self) -> bool:
        return self._custody.has_unclaimed_runs and self._custody.room() > 0

    async def drive(self, row: RunRow) -> None:
        """Drive a run that a caller of this engine asked for, if its code is here."""
        if self.only_root_runs is not None:
            self.only_root_runs.add(row.root_no)
        await self.claim([row.run_no])

    async def _drivable(self, run_nos: Sequence[int], *, only_waiting: bool = False) -> list[int]:
        """Those of these runs that this engine may drive, and whose code is here."""
        runtime, roots = self._runtime, self.only_root_runs
        found = await runtime.read(runtime.store.workflows_of, run_nos)
        versions = {(workflow, version) for _, _, workflow, version, _, _ in found}
        runnable = {version for version in versions if await runtime.read(runtime.versions.runnable, *version)}
        drivable = {
            run_no
            for run_no, root_no, workflow, version, queue, status in found
            if (roots is None or root_no in roots)
            and runtime.serves(queue)
            and (workflow, version) in runnable
            and (status == RunStatus.SUSPENDED or not only_waiting)
        }
        return [run_no for run_no in run_nos if run_no in drivable]

    async def reclaim(self, actor: RunActor, is_fenced: bool) -> None:
        """Read a run again whose commit was refused. `is_fenced`: its lease may be another engine's."""
        if is_fenced:
            await self._regain(actor)
            return
        row = await self._runtime.read(self._runtime.store.run_by_no, actor.run_no)
        if row is not None and row.engine == self._runtime.lease.engine:
            await self._loader.load([row])

    async def _regain(self, actor: RunActor) -> None:
        """A commit was refused. Usually another engine owns the run now. If this one still does, the database is behind
        what it had acknowledged (a replica that lagged was promoted, a backup was restored), and the run would be
        owned and idle for ever: claim it again as it stands."""
        runtime = self._runtime
        row = await runtime.read(runtime.store.run_by_no, actor.run_no)
        if row is None:
            log.error("run %s is no longer in the database: it was restored to an earlier state", actor.run_id)
        elif (row.engine, row.token) == (runtime.lease.engine, actor.token):
            told = "run %s stands at event %d in the database, which had acknowledged event %d: it was restored to an "
            told += "earlier state. The run continues from there; what it did since is done again, under the same keys"
            log.error(told, actor.run_id, row.last_seq, actor.expected_seq)
            await runtime.committer.insist(runtime.store.release, row.engine, [(row.run_no, row.token)])
            await self.claim([row.run_no])
