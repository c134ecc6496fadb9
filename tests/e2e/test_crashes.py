"""What ``crashes.py`` does at length, in short."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.crashes import kill_indexes, kill_servers, write_for_ever
from tests.unit.index.lives import Say

from condensery.index import database
from condensery.index.index import Index


@pytest.mark.slow
def test_an_index_that_is_killed_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    seen = kill_indexes(tmp_path / "data", 60)
    assert seen["kills"] == 60
    assert seen["done"] > 500
    assert seen["delete"] > 100
    assert seen["compacted"] > 10
    assert seen["amid a write"] > 0


@pytest.mark.slow
def test_a_server_that_is_killed_loses_nothing_that_was_acknowledged(
    store_with_pair: Path, tmp_path: Path
) -> None:
    seen = kill_servers(tmp_path, 2, store_with_pair)
    assert seen["kills"] == 2
    assert seen["done"] > 4


def write_carelessly(data_dir: Path, say: Say, seed: int) -> None:
    prepare = database._prepare

    def careless(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.execute("PRAGMA synchronous = OFF")

    database._prepare = careless
    write_for_ever(data_dir, say, seed)


def write_forgetfully(verb: str, data_dir: Path, say: Say, seed: int) -> None:
    real, count = getattr(Index, verb), 0

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return real(*args, **kwargs) if count % 4 else 0

    setattr(Index, verb, forgetful)
    write_for_ever(data_dir, say, seed)


def test_a_writer_that_does_not_sync_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="acknowledged and not synced"):
        kill_indexes(tmp_path / "data", 3, life=write_carelessly)


@pytest.mark.parametrize("verb", ["upsert", "delete"])
def test_a_write_that_is_acknowledged_and_not_made_is_noticed(tmp_path: Path, verb: str) -> None:
    with pytest.raises(AssertionError, match=r"not what was acknowledged|not synced"):
        kill_indexes(tmp_path / "data", 20, life=partial(write_forgetfully, verb))
