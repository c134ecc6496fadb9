"""Second names: wherever a name is asked for, all changes or none, and durable."""

import errno
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import SETTINGS, make_batch, make_vectors
from tests.unit.index.lives import live

from condensery.errors import (
    AliasCircle,
    AliasNotFound,
    AliasToNothing,
    EmptyInput,
    IndexAliased,
    IndexNotFound,
    InputError,
    LimitReached,
    NameTaken,
    StorageError,
    StorageFull,
)
from condensery.index.store import IndexStore
from condensery.values import Alias, AliasAction, IndexCaps, IndexSpec


def point(alias: str, index: str) -> AliasAction:
    return AliasAction("create", alias, index)


@pytest.fixture
def two(data_dir: Path) -> Iterator[IndexStore]:
    """A store with indexes one and two, which hold documents of their names."""
    with IndexStore(data_dir) as store:
        for name in ("one", "two"):
            store.create(name, IndexSpec(**SETTINGS))
            make_batch([name]).upsert(store, name)
        yield store


def targets(store: IndexStore) -> dict[str, str | None]:
    return {alias.alias: alias.index for alias in store.maintenance.aliases()}


def test_an_alias_does_wherever_a_name_is_asked_for(two: IndexStore) -> None:
    two.maintenance.update_aliases([point("live", "one")])
    make_batch(["more"], seed=3).upsert(two, "live")
    assert two.info("live") == two.info("one")
    assert two.count("live") == (2, 4)
    assert [document.id for document in two.get("live", ["more", "one"])] == ["more", "one"]
    vector = make_vectors(1)[0]
    assert two.query("live", vector, top_k=9) == two.query("one", vector, top_k=9)
    assert two.query("live", "first", top_k=9) == two.query("one", "first", top_k=9)
    assert two.delete("live", ["more"]) == 1
    assert two.count("one") == (1, 2)
    assert [info.name for info in two.list()] == ["one", "two"]


def test_an_alias_may_point_at_another(two: IndexStore) -> None:
    two.maintenance.update_aliases([point("live", "front"), point("front", "one")])
    assert two.maintenance.aliases() == [
        Alias("front", "one", "one"),
        Alias("live", "front", "one"),
    ]
    two.maintenance.update_aliases([point("front", "two")])
    assert two.info("live").name == "two"
    two.maintenance.update_aliases([AliasAction("rename", "front", "door")])
    assert two.maintenance.aliases() == [Alias("door", "two", "two"), Alias("live", "door", "two")]


def test_two_aliases_are_swapped_in_one_go(two: IndexStore) -> None:
    two.maintenance.update_aliases([point("blue", "one"), point("green", "two")])
    seen: list[tuple[str | None, str | None]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            ends = targets(two)
            seen.append((ends["blue"], ends["green"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(40):
        alias, other = ("two", "one") if turn % 2 == 0 else ("one", "two")
        two.maintenance.update_aliases([point("blue", alias), point("green", other)])
    done.set()
    watcher.join()
    assert set(seen) <= {("one", "two"), ("two", "one")}
    two.maintenance.update_aliases(  # as Qdrant's users write it
        [AliasAction("delete", "blue"), AliasAction("rename", "green", "blue")]
    )
    assert targets(two) == {"blue": "two"}


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ([point("new", "nowhere")], AliasToNothing, "alias 'new' would point at 'nowhere'"),
        ([point("a", "b"), point("b", "a")], AliasCircle, "in a circle: a -> b -> a"),
        ([point("a", "a")], AliasCircle, "a -> a"),
        ([point("live", "live2"), point("live2", "live")], AliasCircle, "circle"),
        ([point("two", "one")], NameTaken, r"actions\[1\].alias: 'two' is the name of an index"),
        (
            [AliasAction("delete", "nope")],
            AliasNotFound,
            "no alias 'nope'; there are: good, kept, live",
        ),
        ([AliasAction("delete", "one")], AliasNotFound, "no alias 'one'"),
        ([AliasAction("rename", "nope", "x")], AliasNotFound, "no alias 'nope'"),
        ([AliasAction("rename", "live", "two")], NameTaken, r"actions\[1\].to: 'two'"),
        ([AliasAction("rename", "live", "kept")], NameTaken, "'kept'"),
        ([point("Big Name", "one")], InputError, r"actions\[1\].alias: 'Big Name' is not"),
        ([point("aliases", "one")], InputError, "taken by a route"),
        ([point("x", "../etc")], InputError, r"actions\[1\].index"),
        ([AliasAction("create", "x")], InputError, r"actions\[1\].index: None"),
        ([AliasAction("forget", "live")], InputError, "'forget' is not one of create, delete"),  # type: ignore[arg-type]
        ([point("last", "kept"), AliasAction("delete", "kept")], AliasToNothing, "'last'"),
    ],
)
def test_one_wrong_change_and_none_is_made(
    two: IndexStore, data_dir: Path, actions: Any, error: Any, message: str
) -> None:
    two.maintenance.update_aliases([point("live", "one"), point("kept", "two")])
    before = targets(two), (data_dir / "indexes" / "aliases.json").read_text()
    with pytest.raises(error, match=message) as caught:
        two.maintenance.update_aliases([point("good", "one"), *actions])
    assert type(caught.value) is error
    assert (targets(two), (data_dir / "indexes" / "aliases.json").read_text()) == before


def test_no_change_at_all_is_refused(two: IndexStore) -> None:
    with pytest.raises(EmptyInput, match="actions"):
        two.maintenance.update_aliases([])


def test_there_are_as_many_aliases_as_there_may_be(two: IndexStore, data_dir: Path) -> None:
    two.maintenance.update_aliases([point(f"a{n}", "one") for n in range(3)])
    two.close()
    with IndexStore(data_dir, caps=IndexCaps(aliases=2)) as store:  # more were there already
        with pytest.raises(LimitReached, match="would be 4 aliases, and there may be 2 ") as caught:
            store.maintenance.update_aliases([point("a9", "one")])
        assert caught.value.field == "actions"
        assert len(targets(store)) == 3
        store.maintenance.update_aliases([point("a0", "two")])
        store.maintenance.update_aliases([AliasAction("rename", "a0", "b0")])
        store.maintenance.update_aliases([AliasAction("delete", "b0"), AliasAction("delete", "a1")])
        store.maintenance.update_aliases([point("c", "one")])
        with pytest.raises(LimitReached):
            store.maintenance.update_aliases([point("d", "one")])
        assert targets(store) == {"a2": "one", "c": "one"}


def test_an_index_that_an_alias_leads_to_is_not_dropped(two: IndexStore) -> None:
    two.maintenance.update_aliases([point("front", "one"), point("live", "front")])
    for name in ("one", "front", "live"):
        with pytest.raises(IndexAliased, match=r"'one' can't be deleted .* aliases: front, live"):
            two.drop(name)
    assert two.count("live") == (1, 2)
    two.maintenance.update_aliases([point("front", "two")])
    two.drop("one")
    assert two.info("live").name == "two"
    with pytest.raises(IndexNotFound):
        two.info("one")


def test_an_index_is_not_made_under_an_aliases_name(two: IndexStore) -> None:
    two.maintenance.update_aliases([point("live", "one")])
    with pytest.raises(NameTaken, match="'live' is an alias, of index 'one'"):
        two.create("live", IndexSpec(**SETTINGS))
    with pytest.raises(InputError, match="'aliases' is taken by a route"):
        two.create("aliases", IndexSpec(**SETTINGS))


def test_aliases_are_there_after_opening_again(two: IndexStore, data_dir: Path) -> None:
    two.maintenance.update_aliases([point("live", "two")])
    two.close()
    with IndexStore(data_dir) as again:
        assert targets(again) == {"live": "two"}
        assert again.count("live") == (1, 2)


def test_an_alias_whose_index_was_taken_away_says_so_and_harms_no_other(
    two: IndexStore, data_dir: Path
) -> None:
    two.maintenance.update_aliases([point("live", "two"), point("first", "one")])
    two.close()
    (data_dir / "indexes" / "two").rename(data_dir / "elsewhere")
    with IndexStore(data_dir) as again:
        assert targets(again) == {"live": None, "first": "one"}
        with pytest.raises(AliasToNothing, match="'live' points at index 'two'"):
            again.count("live")
        again.maintenance.update_aliases([point("second", "one")])
        again.maintenance.update_aliases([point("live", "one")])
        assert again.count("live") == (1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "damaged: not JSON"),
        (b"\xff\xfe", "damaged: not JSON"),
        (b"[]", "damaged: it names no format"),
        (b'{"format": 1, "aliases": {"live": 3}}', "damaged: it holds no aliases"),
        (b'{"format": 2, "names": {}}', "format 2, written by a newer version"),
    ],
)
def test_a_file_that_can_not_be_read_keeps_nobody_from_the_indexes(
    two: IndexStore, data_dir: Path, content: bytes, message: str
) -> None:
    two.close()
    file = data_dir / "indexes" / "aliases.json"
    file.write_bytes(content)
    with IndexStore(data_dir) as again:
        assert again.count("one") == (1, 2)
        calls: list[Any] = [
            lambda: again.count("live"),
            again.maintenance.aliases,
            lambda: again.maintenance.update_aliases([point("live", "one")]),
            lambda: again.drop("one"),
            lambda: again.create("live", IndexSpec(**SETTINGS)),
        ]
        for call in calls:
            with pytest.raises(StorageError, match=message):
                call()
        assert again.count("one") == (1, 2)
    assert file.read_bytes() == content


def test_a_circle_that_somebody_wrote_into_the_file_is_no_hang(
    two: IndexStore, data_dir: Path
) -> None:
    two.close()
    file = data_dir / "indexes" / "aliases.json"
    file.write_text(json.dumps({"format": 1, "aliases": {"a": "b", "b": "a", "ok": "one"}}))
    with IndexStore(data_dir) as again:
        with pytest.raises(AliasToNothing):
            again.count("a")
        assert again.count("ok") == (1, 2)
        again.maintenance.update_aliases([point("a", "one")])
        assert targets(again) == {"a": "one", "b": "one", "ok": "one"}


def test_a_change_is_on_the_disk_before_it_is_acknowledged(
    two: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle: int) -> None:
        fsync(handle)
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().name}")

    def watched_replace(path: Path, to: Path) -> Path:
        steps.append(f"rename {path.name}")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    two.maintenance.update_aliases([point("live", "one")])
    assert steps == ["sync aliases.json.partial", "rename aliases.json.partial", "sync indexes"]


@pytest.mark.parametrize("refused", ["write_text", "replace"])
def test_a_disk_that_refuses_leaves_the_aliases_as_they_were(
    two: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    two.maintenance.update_aliases([point("live", "one")])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(Path, refused, refuse)
        with pytest.raises(StorageFull, match=r"indexes/aliases\.json is full"):
            two.maintenance.update_aliases([point("live", "two")])
    assert targets(two) == {"live": "one"}
    two.close()
    with IndexStore(data_dir) as again:
        assert targets(again) == {"live": "one"}


def swap_for_ever(data_dir: Path, say: Any, seed: int) -> None:
    draw = random.Random(seed)
    with IndexStore(data_dir) as store:
        say("ready")
        while True:
            alias, other = draw.sample(["one", "two"], 2)
            say("begin", alias, other)
            store.maintenance.update_aliases([point("blue", alias), point("green", other)])
            say("done")


def test_what_was_acknowledged_survives_kill_9_whole(two: IndexStore, data_dir: Path) -> None:
    two.maintenance.update_aliases([point("blue", "one"), point("green", "two")])
    two.close()
    draw = random.Random(5)
    state, changes = ("one", "two"), 0
    for life in range(12):
        doubt = None
        for line in live(
            swap_for_ever, data_dir, life, after=draw.randint(1, 30), wait=draw.uniform(0, 0.01)
        ):
            verb, *pair = line.split()
            if verb == "begin":
                doubt = (pair[0], pair[1])
            elif verb == "done":
                assert doubt is not None
                state, doubt, changes = doubt, None, changes + 1
        with IndexStore(data_dir) as store:
            ends = targets(store)
            pair_found = (ends["blue"], ends["green"])
            assert pair_found in {state, doubt}, f"life {life}"
            state = pair_found  # type: ignore[assignment]
            assert store.count("blue") == (1, 2)
    assert changes > 12
