"""Files that a power cut, a person or a half-made upgrade left behind."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.crash.supervisor import Arena
from tests.crash.test_kill_points import check_chain, check_mixed
from tests.engine.kit import check_file

WAL_HEADER, FRAME_HEADER = 32, 24
Journal = dict[str, list[bytes]]


@pytest.fixture
def dead(arena: Arena) -> Arena:
    """An arena whose engine was killed with some commits in the write-ahead log, which nobody has looked at since."""
    arena.finish("chain:base")
    life = arena.start("mixed:r", "chain:s", HOLDFAST_DIE_AT="commit.after:12")
    arena.died(life, look=False)
    assert frames(arena) > 20
    return arena


def wal(arena: Arena) -> Path:
    return Path(f"{arena.db}-wal")


def frame_bytes(arena: Arena) -> int:
    return FRAME_HEADER + int.from_bytes(arena.db.read_bytes()[16:18], "big")


def frames(arena: Arena) -> int:
    """Frames that are in use: the log was made longer than what was written, and its rest is zeros or older frames."""
    data = wal(arena).read_bytes()
    salt, count = data[16:24], 0
    while data[WAL_HEADER + count * frame_bytes(arena) :][8:16] == salt:
        count += 1
    return count


def copy(arena: Arena, name: str) -> Arena:
    """The files as they are, in another place; what lies beside the log is SQLite's to make anew."""
    other = arena.sibling(name)
    for file in (arena.db, wal(arena), arena.effects_file):
        shutil.copy(file, other.folder)
    return other


def journal(arena: Arena) -> Journal:
    """Every run's event hashes, after everything was proven."""
    found: Journal = {run_id: [] for run_id in check_file(arena.db)}
    for run_id, digest in arena.query(
        "SELECT run_id, hash FROM run_events JOIN run_state USING (run_no) ORDER BY run_no, seq"
    ):
        found[run_id].append(digest)
    return found


def finish_and_check(arena: Arena) -> None:
    arena.finish("mixed:r", "chain:s")
    check_mixed(arena, "r")
    check_chain(arena, "s")


def test_f28_whatever_part_of_the_log_reached_the_disk_is_an_exact_prefix_and_goes_on(dead: Arena) -> None:
    """Cut at every frame, and at random bytes with rubbish behind; every few of them run to the end."""
    whole = journal(copy(dead, "whole"))
    data, size, count = wal(dead).read_bytes(), frame_bytes(dead), frames(dead)
    chance = random.Random(28)
    end = WAL_HEADER + size * count
    cuts = [*range(WAL_HEADER, end + 1, size), 0, WAL_HEADER - 1, WAL_HEADER + 1]
    cuts += [chance.randrange(end) for _ in range(12)]
    lengths: list[int] = []
    for n, cut in enumerate(sorted(cuts)):
        torn = copy(dead, f"torn-{n}")
        rubbish = chance.randbytes(min(3 * size, end - cut)) if n % 2 else b""
        wal(torn).write_bytes(data[:cut] + rubbish)
        found = journal(torn)
        for run_id, hashes in found.items():
            assert hashes == whole[run_id][: len(hashes)], f"cut at {cut}: {run_id} is no prefix"
        lengths.append(sum(map(len, found.values())))
        if n % 16 == 0:
            finish_and_check(torn)
        shutil.rmtree(torn.folder)
    assert lengths == sorted(lengths), "a longer log never holds less"
    assert len(set(lengths)) > 5, "the cuts fell between different commits"


def test_f29_a_byte_that_changed_in_the_log_ends_it_there_or_is_named(dead: Arena) -> None:
    whole = journal(copy(dead, "whole"))
    data = wal(dead).read_bytes()
    end = WAL_HEADER + frames(dead) * frame_bytes(dead)
    chance = random.Random(29)
    for n in range(24):
        torn = copy(dead, f"flipped-{n}")
        at = chance.randrange(end)
        wal(torn).write_bytes(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])
        for run_id, hashes in journal(torn).items():
            assert hashes == whole[run_id][: len(hashes)], f"flipped at {at}: {run_id} is no prefix"
        if n % 8 == 0:
            finish_and_check(torn)


def test_f32_a_deleted_shm_file_costs_nothing(dead: Arena) -> None:
    whole = journal(copy(dead, "whole"))
    Path(f"{dead.db}-shm").unlink()
    assert journal(dead) == whole
    finish_and_check(dead)


def test_f32_a_deleted_log_takes_the_runs_back_and_their_effects_repeat_under_the_same_keys(dead: Arena) -> None:
    """Nothing outside the log says how long it was, so that this is not noticed: what remains is the state of the last
    checkpoint, whole and consistent, and what happened since happens again."""
    whole = journal(copy(dead, "whole"))
    wal(dead).unlink()
    Path(f"{dead.db}-shm").unlink()
    found = journal(dead)
    assert found.keys() < whole.keys()
    for run_id, hashes in found.items():
        assert hashes == whole[run_id][: len(hashes)]
    finish_and_check(dead)  # also that no effect has two keys


# --- a killed upgrade (F11) -----------------------------------------------------------------------------------------


def schema(arena: Arena) -> list[tuple[str, str]]:
    return arena.query("SELECT name, sql FROM sqlite_schema ORDER BY name")


def killed_while_migrating(arena: Arena) -> int:
    """Kill at the first statement, the second, and so on, always on what the last one left; how many there were."""
    for number in range(1, 200):
        life = arena.start("chain:r", CRASH_STATEMENT=str(number))
        if not arena.died(life, look=False):
            return number - 1
        if arena.db.stat().st_size:
            ((result,),) = arena.query("PRAGMA integrity_check")
            assert result == "ok"
            tables = {name for name, _ in schema(arena)}
            assert not tables or {"store_meta", "store_migrations"} <= tables, "a schema is there as a whole, or not"
    raise AssertionError("it never came to the end")


def test_f11_a_new_file_whose_making_is_killed_at_any_statement_is_made_at_the_next_open(arena: Arena) -> None:
    fresh = arena.sibling("fresh")
    fresh.finish("chain:r")
    statements = killed_while_migrating(arena)
    assert statements > 10
    assert schema(arena) == schema(fresh)
    arena.look()
    check_chain(arena)
