"""Addresses: which driver they mean, what of them is shown, and what is not made for somebody who only reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.model.errors import StoreMissing, UsageError
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.store.urls import database_file, is_postgres, shown, store_at
from tests.servers import PostgresServer
from tests.store.postgres_kit import columns


@hf.workflow
async def urls_greeting(ctx: hf.Context, name: str) -> str:
    return f"hello {name}"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("runs.db", SqliteStore),
        ("sqlite:///runs.db", SqliteStore),
        ("sqlite://", SqliteStore),
        ("C:runs.db", SqliteStore),
        ("postgresql://host/runs", PostgresStore),
        ("postgres://host/runs", PostgresStore),
        ("PostgreSQL://host/runs", PostgresStore),
    ],
)
def test_an_address_means_a_driver(url: str, kind: type) -> None:
    assert type(store_at(url)) is kind
    assert is_postgres(url) == (kind is PostgresStore)


@pytest.mark.parametrize("url", ["mysql://me:secret@host/runs", "postgresql+asyncpg://me:secret@host/runs"])
def test_an_unknown_scheme_is_refused_with_what_there_is_and_without_the_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"use sqlite:///file\.db, a path, or postgresql://") as refused:
        store_at(url)
    assert "secret" not in refused.value.message


def test_a_server_has_no_file_and_a_file_has_one() -> None:
    assert database_file("postgresql://host/runs") is None
    assert database_file("runs.db") == Path.cwd() / "runs.db"


def test_what_is_shown_has_no_password_and_is_good_in_any_directory() -> None:
    assert shown("postgresql://me:secret@host/runs?schema=x&sslpassword=secret") == "postgresql://me@host/runs?schema=x"
    assert shown("runs.db") == f"sqlite:///{Path.cwd() / 'runs.db'}"
    assert shown("sqlite://") == "sqlite://"


def test_without_create_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="there is no database"):
        store_at(str(tmp_path / "runs.db"), create=False).open()
    assert list(tmp_path.iterdir()) == []


def test_without_create_an_empty_file_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    with pytest.raises(StoreMissing, match=r"there is no database in .*runs\.db yet: the file is empty"):
        store_at(str(tmp_path / "runs.db"), create=False).open()
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("runs.db", 0)]


def test_without_create_a_schema_that_is_not_there_is_not_made(postgres: PostgresServer) -> None:
    url = postgres.url()
    with pytest.raises(StoreMissing, match="nothing of Holdfast is in the schema"):
        store_at(url, create=False).open()
    assert columns(url) == set()


def test_without_create_a_store_that_is_there_is_opened(postgres: PostgresServer, tmp_path: Path) -> None:
    for url in (postgres.url(), str(tmp_path / "runs.db")):
        for create in (True, False):
            store = store_at(url, create=create)
            store.open()
            assert store.counts() == {}
            store.close()


def test_hf_run_and_hf_open_take_the_address_of_a_server(postgres: PostgresServer) -> None:
    url = postgres.url().replace("postgresql:", "postgres:")
    assert hf.run(urls_greeting, run_id="greeting", name="Ada", db=url) == "hello Ada"
    assert hf.run(urls_greeting, run_id="greeting", name="Ada", db=url) == "hello Ada"


async def test_an_engine_that_is_opened_on_a_server_finds_what_another_one_left(postgres: PostgresServer) -> None:
    url = postgres.url()
    async with hf.open(url) as engine:
        await (await engine.start(urls_greeting, run_id="greeting", name="Ada")).result()
    async with hf.open(url) as engine:
        assert await engine.get("greeting").result() == "hello Ada"
