"""Which commits go together, and when those who made them hear of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from holdfast.engine.committer import SERVED_GROUP_MAX, Committer
from holdfast.model.errors import StoreFull
from holdfast.store.api import Commit, Landed, Store

RUNS = 2 * SERVED_GROUP_MAX + 1


class Tape:
    """A store that writes down what is asked of it. What happens is told in the order in which it happens."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.groups: list[list[int]] = []
        self.full_times = 0

    def commit(self, group: Sequence[Commit]) -> list[Landed]:
        if self.full_times:
            self.full_times -= 1
            raise StoreFull("full")
        self.groups.append([commit.run_no for commit in group])
        return [Landed(None)] * len(group)


class Hand:
    """A writer that works when it is told to."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()

    def put(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    @property
    def idle(self) -> bool:
        return not self.jobs

    def close(self) -> None:
        while self.jobs:
            self.jobs.popleft()()

    async def write(self) -> None:
        """One job, and the loop hears of it."""
        self.jobs.popleft()()
        await asyncio.sleep(0)


class Told:
    """Whoever handed a commit over; knows how many groups waited at the writer when it was told."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.sent_before: int | None = None

    def landed(self, outcome: Landed) -> None:
        assert outcome.refusal is None
        self.sent_before = len(self._hand.jobs)


def many_commits(tape: Tape) -> tuple[Committer, Hand, list[Told]]:
    hand = Hand()
    committer = Committer(cast(Store, tape), asyncio.get_running_loop(), _fail, hand)
    landers = [Told(hand) for _ in range(RUNS)]
    for run_no, lander in enumerate(landers):
        committer.submit(Commit(run_no, 1, 0), lander)
    committer.flush()
    return committer, hand, landers


def _fail(error: BaseException) -> None:
    raise error


async def test_where_a_server_writes_many_runs_are_parted_into_groups_in_their_order() -> None:
    tape = Tape(is_shared=True)
    committer, hand, landers = many_commits(tape)
    while hand.jobs:
        assert len(hand.jobs) == 1  # one group at the server
        await hand.write()
    assert [len(group) for group in tape.groups] == [SERVED_GROUP_MAX, SERVED_GROUP_MAX, 1]
    assert [run_no for group in tape.groups for run_no in group] == list(range(RUNS))
    assert all(lander.sent_before is not None for lander in landers)
    assert committer.idle


async def test_where_a_server_writes_the_next_group_is_sent_before_the_last_one_is_told() -> None:
    _, hand, landers = many_commits(Tape(is_shared=True))
    await hand.write()
    assert [lander.sent_before for lander in landers[:SERVED_GROUP_MAX]] == [1] * SERVED_GROUP_MAX
    assert landers[SERVED_GROUP_MAX].sent_before is None


async def test_into_a_file_everybody_is_written_at_once_and_told_before_anybody_else_is_sent() -> None:
    tape = Tape(is_shared=False)
    committer, hand, landers = many_commits(tape)
    late = Told(hand)
    committer.submit(Commit(RUNS, 1, 0), late)
    await hand.write()
    assert [len(group) for group in tape.groups] == [RUNS]
    assert {lander.sent_before for lander in landers} == {0}
    await hand.write()
    assert late.sent_before == 0


@pytest.mark.parametrize("is_shared", [True, False])
async def test_while_the_disk_is_full_the_group_that_found_it_full_stays_the_first(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.committer.FULL_RETRY_SECONDS", 0.0)
    tape = Tape(is_shared=is_shared)
    tape.full_times = 2
    _, hand, landers = many_commits(tape)
    for _ in range(2):
        await hand.write()
        assert not hand.jobs
        while not hand.jobs:  # noqa: ASYNC110 - the committer tries again in one of the next turns
            await asyncio.sleep(0)
    while hand.jobs:
        await hand.write()
    assert [run_no for group in tape.groups for run_no in group] == list(range(RUNS))
    assert all(lander.sent_before is not None for lander in landers)


async def test_one_who_cannot_take_its_outcome_keeps_it_from_nobody_else() -> None:
    hand = Hand()
    committer = Committer(cast(Store, Tape(is_shared=True)), asyncio.get_running_loop(), _fail, hand)
    broken: Any = object()
    other = Told(hand)
    committer.submit(Commit(1, 1, 0), broken)
    committer.submit(Commit(2, 1, 0), other)
    committer.flush()
    await hand.write()
    assert other.sent_before is not None
