"""Many who write to one PostgreSQL at once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import Sent
from holdfast.store.sql_files import migrations
from tests.servers import PostgresServer
from tests.store.conformance.store import (
    change,
    make_runs,
    message,
    refusals,
    step,
)
from tests.store.postgres_kit import sql


def test_of_two_stores_that_claim_the_same_runs_each_run_goes_to_one(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    numbers = make_runs(store, 300, engine=None)
    together = threading.Barrier(4)

    def claim(engine: str, one: PostgresStore) -> list[int]:
        together.wait()
        return [row.run_no for row in one.claim(engine, numbers)]

    with ThreadPoolExecutor(4) as pool:
        claims = [pool.submit(claim, f"e{i}", (store, other)[i % 2]) for i in range(4)]
        won = [no for one in claims for no in one.result()]
    assert sorted(won) == numbers
    assert {row.token for row in store.runs(limit=300)} == {2}
    other.close()


@pytest.mark.parametrize(("rounds", "letters"), [(60, 30), (100, 3), pytest.param(1000, 3, marks=pytest.mark.soak)])
def test_committers_that_write_to_each_others_runs_never_meet_crosswise(
    own_server: PostgresServer, rounds: int, letters: int
) -> None:
    own_server.start()
    stores = [PostgresStore(own_server.url("shared")) for _ in range(2)]
    for one in stores:
        one.open()
    lanes = [make_runs(stores[0], 8) for _ in range(8)]
    everybody = [no for lane in lanes for no in lane]

    def live(lane: int) -> None:
        """Every second lane writes to everybody's runs with each of its groups; all name their runs in any order."""
        store, numbers, chance = stores[lane % 2], lanes[lane], random.Random(lane)
        for seq in range(1, rounds + 1):
            group = [step(no, seq) for no in numbers]
            if lane % 4 < 2:
                targets = chance.sample(everybody, letters)
                group[0].messages = [message(f"{lane}-{seq}-{no}", no) for no in targets]
            chance.shuffle(group)
            assert refusals(store, *group) == [None] * len(group)
            if seq % 5 == 0:
                sent = [message(f"{lane}/{seq}/{no}", no) for no in chance.sample(everybody, letters)]
                assert store.send(sent) == ["new"] * len(sent)

    with ThreadPoolExecutor(8) as pool:
        for ended in pool.map(live, range(8)):
            assert ended is None
    assert {row.last_seq for row in stores[0].runs()} == {rounds + 1}
    assert "deadlock" not in (own_server.directory / "log").read_text()
    for one in stores:
        one.close()


def test_a_message_to_a_run_that_ends_at_the_same_moment_is_never_left_unread(store: PostgresStore) -> None:
    """Be it sent from outside or by another run."""
    numbers = make_runs(store, 60)
    (sender,) = make_runs(store, 1)
    together = threading.Barrier(3)

    def end() -> None:
        for no in numbers:
            together.wait()
            ended = change(2, status="completed", engine=None, finished_at=9)
            assert refusals(store, step(no, change=ended, ends=True)) == [None]

    def send() -> list[Sent]:
        became: list[Sent] = []
        for no in numbers:
            together.wait()
            became += store.send([message(f"a{no}", no)])
        return became

    def report() -> None:
        for seq, no in enumerate(numbers, 1):
            together.wait()
            assert refusals(store, step(sender, seq, messages=[message(f"b{no}", no)])) == [None]

    with ThreadPoolExecutor(3) as pool:
        ending, sending, reporting = pool.submit(end), pool.submit(send), pool.submit(report)
        ending.result()
        reporting.result()
    assert set(sending.result()) <= {"new", "finished"}
    assert store.new_messages(numbers) == []
    assert store.suspects("message_of_end", numbers[0], numbers[-1]) == []


def test_two_who_send_the_same_message_at_once_store_it_once(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    (no,) = make_runs(store, 1)
    together = threading.Barrier(4)

    def send(index: int) -> list[Sent]:
        became: list[Sent] = []
        for turn in range(40):
            together.wait()
            became += (store, other)[index % 2].send([message(f"m{turn}", no, b"%d" % (index // 2))])
        return became

    with ThreadPoolExecutor(4) as pool:
        ends = list(zip(*pool.map(send, range(4)), strict=True))
    for one in ends:
        assert one.count("new") == 1
        assert one.count("conflict") == 2
    other.close()


def test_definitions_registered_at_once_are_numbered_without_a_gap(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    with ThreadPoolExecutor(8) as pool:
        hashes = [f"h{i % 12}" for i in range(48)]
        numbers = list(
            pool.map(lambda i: (store, other)[i % 2].register_version("order", hashes[i], b"{}", 1), range(48))
        )
    assert sorted(set(numbers)) == list(range(1, 13))
    assert len(set(zip(hashes, numbers, strict=True))) == 12
    other.close()


def test_stores_that_are_opened_at_once_make_one_schema(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for opened in pool.map(PostgresStore.open, stores):
            assert opened is None
    assert sql(url, "SELECT number FROM holdfast.store_migrations") == [(m.number,) for m in migrations("postgres")]
    for one in stores:
        one.close()
