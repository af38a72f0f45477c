"""Several engines on one PostgreSQL while everything is killed: every promise holds, whatever the moment.

`make soak` has ten minutes of it; HOLDFAST_CHAOS_SECONDS=n as much as you like, with as many runs a minute.
HOLDFAST_SEED=n repeats what was done when (not what came of it: processes have their own pace).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.store.urls import store_at
from tests.chaos import places
from tests.chaos.client import Client
from tests.chaos.flows import SLOW
from tests.chaos.inspection import UNFINISHED, Inspection
from tests.chaos.monkey import Monkey, Scale, until
from tests.chaos.orders import mixed
from tests.chaos.workers import Crew
from tests.servers import PostgresServer, required_server
from tests.store.postgres_kit import sql

CUT = Scale(
    seconds=20, runs=220, seats=((), ("default",), ("default", SLOW)), server_kills=1, freezes=1, lease_seconds=2.0
)
WHOLE = Scale(
    seconds=600,
    runs=2000,
    seats=((), ("default",), (SLOW,), ("default", SLOW)),
    server_kills=2,
    freezes=1,
    lease_seconds=2.0,
)
CALM_SECONDS = 300.0
"""How long the last runs may take when nobody is killed any more, before the test gives up."""


def scaled(chosen: Scale) -> Scale:
    seconds = float(os.environ.get("HOLDFAST_CHAOS_SECONDS") or chosen.seconds)
    return replace(chosen, seconds=seconds, runs=int(chosen.runs * seconds / chosen.seconds))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that may be killed."""
    made = required_server()
    try:
        yield made.start()
    finally:
        made.close()


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(CUT, marks=pytest.mark.timeout(600), id="for 20 s"),
        pytest.param(WHOLE, marks=[pytest.mark.soak, pytest.mark.timeout(3600)], id="for 10 min"),
    ],
)
def test_engines_and_the_server_are_killed_again_and_again_and_every_promise_is_kept(
    server: PostgresServer, tmp_path: Path, scale: Scale
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HOLDFAST_SEED={seed}")
    chance, chosen = random.Random(seed), scaled(scale)
    url = _new_store(server)
    orders = mixed(chosen.runs, chance)
    crew = Crew(url, tmp_path, chosen.seats, chosen.lease_seconds)
    client = Client(url, orders, chosen.seconds, random.Random(chance.random()))
    monkey = Monkey(chosen, url, server, crew, chance)
    try:
        began = time.monotonic()
        client.start()
        monkey.play()
        calm = time.monotonic()
        _wait_for_the_end(url, client, crew)
        ended = time.monotonic()
        ledger = client.stop()
        until(crew.is_alone, "dead engines are not buried")
        crew.stop()
    finally:
        client.leave()
        crew.close()
    inspection = Inspection(url, crew, ledger)
    print(
        f"{calm - began:.0f} s: {monkey.kills} kills of {len(chosen.seats)} engines, {monkey.server_kills} of the "
        f"server, {monkey.zombies} zombies; {ended - calm:.1f} s of calm until the end: {inspection.account()}"
    )
    assert len(ledger.started) == len(orders)
    inspection.everything()


def _new_store(server: PostgresServer) -> str:
    url = server.url("chaos")
    store = store_at(url)
    store.open()
    store.close()
    places.watch(url)
    return url


def _wait_for_the_end(url: str, client: Client, crew: Crew) -> None:
    def asked() -> bool:
        crew.look_after()
        return client.has_asked.is_set() or client.error is not None

    def ended() -> bool:
        crew.look_after()
        return client.error is not None or sql(url, UNFINISHED) == []

    def unfinished() -> str:
        return f"these runs do not come to their end: {sql(url, UNFINISHED)}"

    until(asked, lambda: f"the client does not come to its end; {unfinished()}", CALM_SECONDS)
    until(ended, unfinished, CALM_SECONDS)
