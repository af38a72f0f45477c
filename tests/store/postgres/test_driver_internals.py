"""The private names of asyncpg and asyncio: an installation that lacks one, or changed one, is refused at open."""

from __future__ import annotations

import asyncio
import platform
import re
import tomllib
from asyncio import tasks
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from holdfast.model.errors import StoreError
from holdfast.store.postgres import driver_internals
from holdfast.store.postgres.postgres_store import PostgresStore
from tests.servers import PostgresServer
from tests.tidy_code import ROOT


def refused_at_open(server: PostgresServer) -> str:
    store = PostgresStore(server.url())
    with pytest.raises(StoreError) as refused:
        store.open()
    with pytest.raises(StoreError, match="could not be opened"):
        store.runs()
    return str(refused.value)


def test_the_bound_of_the_project_is_the_one_that_the_driver_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert driver_internals.SUPPORTED in project["project"]["dependencies"]


@pytest.mark.parametrize(
    ("owner", "name"), [(asyncpg.Connection, "_get_statement"), (tasks, "_leave_task"), (asyncpg.Connection, "_config")]
)
def test_an_installation_without_one_of_the_names_is_refused_before_it_connects(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    store = PostgresStore("postgresql://nowhere.invalid/shop")
    with pytest.raises(StoreError) as refused:
        store.open()
    assert f"asyncpg {asyncpg.__version__} on Python {platform.python_version()}: it lacks " in str(refused.value)
    assert name in str(refused.value)
    assert f"pip install '{driver_internals.SUPPORTED}'" in str(refused.value)


def test_a_name_that_takes_other_arguments_is_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(self: Any, query: str) -> None:
        raise AssertionError

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", changed)
    monkeypatch.setattr("holdfast.store.postgres.postgres_connections._verify", lambda raw, shown: asyncio.sleep(0))
    assert re.search(r"asyncpg \d.*TypeError.*changed\(\) takes 2 positional", refused_at_open(postgres))


def test_arrays_that_do_not_arrive_as_they_were_sent_are_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_another_order(values: Any) -> bytes:
        return encode(list(reversed(values)))

    encode: Callable[[Any], bytes] = driver_internals.texts
    monkeypatch.setattr(driver_internals, "texts", in_another_order)
    assert "an array does not reach the server as it was sent" in refused_at_open(postgres)


def test_a_statement_that_is_prepared_twice_is_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepared_apart(connection: Any, statements: Any) -> None:
        for statement in statements:
            kept.append(await connection.prepare(statement))

    kept: list[Any] = []
    monkeypatch.setattr(driver_internals, "prepare", prepared_apart)
    assert "`fetch` does not find a statement that was prepared" in refused_at_open(postgres)


def test_a_loop_that_does_not_come_back_to_the_outer_one_is_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(loop: Any, work: Any) -> Any:
        work.close()
        return asyncio.get_running_loop(), asyncio.current_task()

    monkeypatch.setattr(driver_internals, "run_blocking", elsewhere)
    assert "an event loop does not run inside another one" in refused_at_open(postgres)
