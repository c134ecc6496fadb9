import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.lives import live

from condensery.errors import (
    CondenseryError,
    InputError,
    ModelAliasCircle,
    ModelAliasTaken,
    ModelAliasToNothing,
    ModelNotFound,
    StoreError,
)
from condensery.store.aliases import ModelAliases
from condensery.values import ModelIndex

SERVING, TAKEN = {"one", "two"}, {"one", "two", "stored"}


def change(aliases: ModelAliases, **changes: str | None) -> None:
    aliases.change(changes, serving=SERVING, taken=TAKEN)


def test_an_alias_leads_to_a_model_and_to_another_alias_and_a_restart_keeps_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "aliases.json"
    aliases = ModelAliases(path)
    change(aliases, best="one", default="best")
    assert [aliases.resolve(name) for name in ("best", "default", "two")] == ["one", "one", "two"]
    assert ModelAliases(path).targets == {"best": "one", "default": "best"}
    assert aliases.of("one") == ("best", "default")
    assert aliases.of("two") == ()


def test_aliases_are_swapped_all_at_once_and_removed(tmp_path: Path) -> None:
    aliases = ModelAliases(tmp_path / "aliases.json")
    change(aliases, blue="one", green="two", old="one")
    change(aliases, blue="two", green="one", old=None)
    assert aliases.targets == {"blue": "two", "green": "one"}
    assert ModelAliases(tmp_path / "aliases.json").targets == aliases.targets


def test_an_alias_carries_an_index_and_a_restart_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "aliases.json"
    change(ModelAliases(path), best="one", docs="best@notes?top_k=5&mode=bm25", help="docs")
    aliases = ModelAliases(path)
    wanted = ModelIndex("notes", 5, "bm25")
    for name in ("docs", "help"):
        assert (aliases.resolve(name), aliases.index_of(name)) == ("one", wanted)
    assert aliases.of("one") == ("best", "docs", "help")
    # without an alias too
    assert (aliases.resolve("best@kb"), aliases.index_of("best@kb")) == ("one", ModelIndex("kb"))
    assert [aliases.index_of(name) for name in ("best", "one", "nobody")] == [None] * 3
    with pytest.raises(InputError, match="more than one index"):
        aliases.index_of("help@kb")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one@", "is not MODEL@INDEX"),
        ("@notes", "is not MODEL@INDEX"),
        ("one@notes?top_k=0", "top_k '0'"),
        ("one@notes?top_k=five", "top_k 'five'"),
        ("one@notes?mode=words", "mode 'words' is not one of dense, bm25, hybrid"),
        ("one@notes?colour=red", "option 'colour' is unknown"),
        ("one@notes?top_k=1&top_k=2", "option 'top_k' is given twice"),
    ],
)
def test_a_malformed_index_is_refused_by_its_value(tmp_path: Path, name: str, says: str) -> None:
    aliases = ModelAliases(tmp_path / "aliases.json")
    with pytest.raises(InputError, match=says) as caught:
        aliases.index_of(name)
    assert (caught.value.field, caught.value.value) == ("model", name)
    with pytest.raises(InputError, match=says):
        change(aliases, docs=name)
    assert not aliases.targets


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({}, InputError, "nothing to change"),
        ({"new": "nobody"}, ModelAliasToNothing, "'new' would lead to 'nobody'.*running: one, two"),
        ({"new": "stored"}, ModelAliasToNothing, "'new' would lead to 'stored'"),
        ({"new": "new"}, ModelAliasCircle, "new -> new"),
        ({"new": "other", "other": "new"}, ModelAliasCircle, "new -> other -> new"),
        ({"best": "next"}, ModelAliasCircle, "best -> next -> best"),
        ({"best": "next@notes"}, ModelAliasCircle, "best -> next@notes -> next -> best"),
        ({"a": "one@x", "b": "a@y"}, InputError, "b -> a@y -> a -> one@x .*more than one index"),
        ({"new": "nobody@notes"}, ModelAliasToNothing, "'new' would lead to 'nobody'"),
        ({"one": "two"}, ModelAliasTaken, "'one' is a model's name"),
        ({"stored": "two"}, ModelAliasTaken, "'stored' is a model's name"),
        ({"a b": "one"}, InputError, "'a b' can't be an alias"),
        ({"x" * 65: "one"}, InputError, "can't be an alias"),
        ({"": "one"}, InputError, "'' can't be an alias"),
        ({"gone": None}, ModelNotFound, "no alias 'gone' to remove"),
        ({"best": None}, ModelAliasToNothing, "'next' would lead to 'best'"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_changes(
    tmp_path: Path, changes: dict[str, str | None], error: type[CondenseryError], says: str
) -> None:
    path = tmp_path / "aliases.json"
    aliases = ModelAliases(path)
    change(aliases, best="one", next="best")
    before = path.read_text()
    with pytest.raises(error, match=says) as caught:
        change(aliases, good="two", **changes) if changes else change(aliases)
    assert type(caught.value) is error
    assert aliases.targets == {"best": "one", "next": "best"}
    assert path.read_text() == before


def test_a_disk_that_refuses_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    aliases = ModelAliases(folder / "aliases.json")
    change(aliases, best="one")
    (folder / "aliases.json.partial").mkdir()  # it can't be written beside the old one then
    with pytest.raises(StoreError, match="stay as they were"):
        change(aliases, best="two")
    assert aliases.resolve("best") == "one"
    assert ModelAliases(folder / "aliases.json").resolve("best") == "one"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"format": 1, "aliases": {"a"', "can't be read"),
        ('{"format": 2, "aliases": {}}', "format 2 is newer"),
        ('{"format": 1, "aliases": {"a": "b", "b": "a"}}', "'a' leads in a circle"),
        ('{"format": 1, "aliases": {"a": "one@"}}', "is not MODEL@INDEX"),
        ('{"format": 1, "aliases": {"a": 1}}', "string"),
        ('{"format": 1, "aliases": {"a/b": "one"}}', "'a/b' can't be an alias"),
    ],
)
def test_a_file_that_is_broken_is_named_and_not_taken_for_none(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "aliases.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=says) as caught:
        ModelAliases(path)
    assert str(path) in caught.value.message


def test_one_whose_model_does_not_serve_any_more_does_not_stand_in_others_way(
    tmp_path: Path,
) -> None:
    path = tmp_path / "aliases.json"
    path.write_text(json.dumps({"format": 1, "aliases": {"lost": "refused"}}))
    aliases = ModelAliases(path)
    change(aliases, best="one")
    assert aliases.targets == {"best": "one", "lost": "refused"}
    change(aliases, lost=None)
    assert aliases.targets == {"best": "one"}


def swap_for_ever(folder: Path, say: Any, life: int) -> None:
    aliases = ModelAliases(folder / "aliases.json")
    say("ready")
    for number in range(1_000_000):
        blue, green = ("one", "two") if number % 2 else ("two", "one")
        docs = f"{blue}@notes-{life}-{number}"
        say("begin", blue, green, docs)
        change(aliases, blue=blue, green=green, docs=docs)
        say("done")


def test_what_was_acknowledged_survives_kill_9_whole(tmp_path: Path) -> None:
    draw = random.Random(7)
    state: dict[str, str] = {}
    for life in range(8):
        doubt = state
        for line in live(
            swap_for_ever, tmp_path, life, after=draw.randint(1, 20), wait=draw.uniform(0, 0.01)
        ):
            verb, *targets = line.split()
            if verb == "begin":
                doubt = dict(zip(("blue", "green", "docs"), targets, strict=True))
            elif verb == "done":
                state = doubt
        found = ModelAliases(tmp_path / "aliases.json").targets
        assert found in (state, doubt), f"life {life}"
        state = dict(found)
    assert state
