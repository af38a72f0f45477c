"""Aliases: which version a start by name gets, who moved them, and the way back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import holdfast as hf
from holdfast.store.version_contract import AliasMove, Retirement
from tests.versions.flows import line, vs_first, vs_second, vs_third

VERSIONS = ((vs_first,), (vs_second,), (vs_third,))


async def deployed(engine: hf.Engine) -> None:
    for nodes in VERSIONS:
        await engine.deploy(line(*nodes))


async def version_of(run: hf.Run[Any]) -> int:
    version: int = (await run.show())["version"]
    return version


async def test_a_start_by_name_follows_stable_and_a_named_alias_follows_itself(address: str) -> None:
    async with hf.open(address) as engine:
        await deployed(engine)
        await engine.set_alias("vs_line", "stable", 1)
        await engine.set_alias("vs_line", "canary", 2)
        assert await version_of(await engine.start("vs_line", x=1)) == 1
        assert await version_of(await engine.start("vs_line@canary", x=1)) == 2
        assert await version_of(await engine.start("vs_line@latest", x=1)) == 3
        await engine.remove_alias("vs_line", "stable", reason="no longer", actor="ann")
        assert await version_of(await engine.start("vs_line", x=1)) == 3
        assert [one["alias"] for one in await engine.aliases("vs_line")] == ["canary"]


@pytest.mark.slow
async def test_ten_thousand_starts_are_shared_within_the_band_and_stick_to_their_key(address: str) -> None:
    async with hf.open(address, drive=False) as engine:
        await deployed(engine)
        await engine.set_alias("vs_line", "stable", 1, weights={2: 10})

        async def start(n: int, key: str) -> int:
            run = await engine.start("vs_line", run_id=f"{key}-{n}", rollout_key=key, x=n)
            row = engine.store.run(run.run_id)
            assert row is not None
            return row.version

        keys = [f"customer-{n}" for n in range(5_000)]
        first = [await asyncio.gather(*(start(0, key) for key in keys[at : at + 500])) for at in range(0, 5_000, 500)]
        before = dict(zip(keys, [version for part in first for version in part], strict=True))
        again = [await asyncio.gather(*(start(1, key) for key in keys[at : at + 500])) for at in range(0, 5_000, 500)]
        assert before == dict(zip(keys, [version for part in again for version in part], strict=True)), "sticky"
        found = Counter(before.values())
        assert abs(found[2] - 500) <= 5 * (5_000 * 0.1 * 0.9) ** 0.5, found
        await engine.set_alias("vs_line", "stable", 1, weights={2: 25})
        moved = {key: await start(2, key) for key in keys[:500]}
        assert all(moved[key] == 2 for key in moved if before[key] == 2), "a higher weight takes no key away"


async def test_without_a_rollout_key_the_run_id_decides(address: str) -> None:
    async with hf.open(address, drive=False) as engine:
        await deployed(engine)
        await engine.set_alias("vs_line", "stable", 1, weights={2: 50})
        runs = [await engine.start("vs_line", run_id=f"r{n}", x=n) for n in range(100)]
        found = [await version_of(run) for run in runs]
        assert 25 <= found.count(2) <= 75
        await engine.set_alias("vs_line", "stable", 3)
        again = [await engine.start("vs_line", run_id=f"r{n}", x=n) for n in range(100)]
        assert [await version_of(run) for run in again] == found, "a known run id is that run"


async def test_the_history_says_who_moved_an_alias_when_where_and_why(address: str) -> None:
    async with hf.open(address) as engine:
        await deployed(engine)
        await engine.set_alias("vs_line", "stable", 1, actor="ann", reason="first")
        await engine.set_alias("vs_line", "stable", 1, weights={2: 12.5}, actor="bob")
        await engine.set_alias("vs_line", "stable", 1, weights={2: 12.5}, actor="bob")  # says nothing new
        await engine.rollback("vs_line", actor="eve", reason="errors")
        shown = await engine.alias_history("vs_line")
        assert [(one["actor"], one["reason"], one["before"], one["target"]) for one in shown] == [
            ("ann", "first", None, {"version": 1, "weights": {}}),
            ("bob", "", {"version": 1, "weights": {}}, {"version": 1, "weights": {2: 12.5}}),
            ("eve", "errors", {"version": 1, "weights": {2: 12.5}}, {"version": 1, "weights": {}}),
        ]
        assert all(one["at"] for one in shown)


async def test_rolling_back_twice_goes_back_two_moves(address: str) -> None:
    async with hf.open(address) as engine:
        await deployed(engine)
        for version in (1, 2, 3):
            await engine.set_alias("vs_line", "stable", version)
        for expected in (2, 1):
            await engine.rollback("vs_line")
            ((now),) = await engine.aliases("vs_line")
            assert now["target"]["version"] == expected
        with pytest.raises(hf.Refused, match="has never pointed elsewhere"):
            await engine.rollback("vs_line")
        await engine.set_alias("vs_line", "stable", 3)
        await engine.remove_alias("vs_line", "stable")
        await engine.rollback("vs_line")
        assert await version_of(await engine.start("vs_line", x=1)) == 3


async def test_an_alias_cannot_point_to_what_is_not_there_or_is_retired(address: str) -> None:
    async with hf.open(address) as engine:
        await deployed(engine)
        await engine.retire("vs_line", 2)
        with pytest.raises(hf.HoldfastError, match="has no version 9"):
            await engine.set_alias("vs_line", "stable", 9)
        with pytest.raises(hf.HoldfastError, match="version 2 of workflow vs_line is retired"):
            await engine.set_alias("vs_line", "stable", 1, weights={2: 1})
        with pytest.raises(hf.HoldfastError, match="no workflow other"):
            await engine.set_alias("other", "stable", 1)
        assert await engine.aliases() == []
        await engine.set_alias("vs_line", "stable", 1)
        with pytest.raises(hf.Refused, match="the alias stable names it"):
            await engine.retire("vs_line", 1)


async def test_an_alias_that_moves_between_choice_and_commit_starts_nothing_retired(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has chosen version 1 and sleeps; meanwhile the alias moves on and version 1 is retired."""
    async with hf.open(address) as engine, hf.open(address, drive=False) as operator:
        await deployed(engine)
        await engine.set_alias("vs_line", "stable", 1)
        number, moved = engine.starting.number, []

        async def number_late() -> int:
            if not moved:
                moved.append(True)
                await operator.set_alias("vs_line", "stable", 2)
                await operator.retire("vs_line", 1)
            return await number()

        monkeypatch.setattr(engine.starting, "number", number_late)
        run = await engine.start("vs_line", x=3)
        assert (await version_of(run), await run.result()) == (2, 30)
        assert [row.version for row in engine.store.runs()] == [2]


async def test_two_callers_that_roll_back_at_once_go_back_one_move(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(address) as engine:
        await deployed(engine)
        for version in (1, 2, 3):
            await engine.set_alias("vs_line", "stable", version)
        moves = engine.store.alias_moves("vs_line", "stable")
        await engine.rollback("vs_line")

        def as_before(*_: str) -> list[AliasMove]:
            return moves

        monkeypatch.setattr(engine.store, "alias_moves", as_before)  # read before the other caller's move
        with pytest.raises(hf.Refused, match="was moved by another caller"):
            await engine.rollback("vs_line", reason="me too")
        assert (await engine.aliases())[0]["target"]["version"] == 2
        assert engine.store.retire_version("vs_line", 2, 1) == Retirement("aliased", 0, ["stable"])
