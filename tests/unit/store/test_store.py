import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from condensery.errors import CorruptModel, ModelNotFound, StoreError
from condensery.store import store as store_module
from condensery.store.manifest import BrokenModel, Manifest, StoredModel
from condensery.store.store import ModelStore, shipped_store

Publish = Callable[..., StoredModel]


def edit(model: StoredModel, **changes: object) -> None:
    path = model.path / "model.json"
    content = json.loads(path.read_text())
    content.pop("fingerprint")
    path.write_text(json.dumps(content | changes))


def list_file(model: StoredModel, name: str) -> None:
    edit(model, files={**model.manifest.files, name: "0" * 64})


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link_outside(model: StoredModel) -> None:
    outside = model.root / "outside.json"
    (model.path / "config.json").rename(outside)
    (model.path / "config.json").symlink_to(outside)


BREAKAGES: dict[str, tuple[Callable[[StoredModel], object], str]] = {
    "no model.json": (lambda m: (m.path / "model.json").unlink(), "model.json is missing"),
    "bad JSON": (lambda m: (m.path / "model.json").write_text('{"na'), "model.json: Invalid JSON"),
    "empty model.json": (lambda m: (m.path / "model.json").write_text(""), "model.json: Invalid"),
    "binary model.json": (
        lambda m: (m.path / "model.json").write_bytes(b"\xff\xfe\0"),
        "model.json",
    ),
    "a list": (lambda m: (m.path / "model.json").write_text("[]"), "model.json: "),
    "unreadable model.json": (lambda m: loop(m.path / "model.json"), "model.json: can't be read"),
    "unknown kind": (lambda m: edit(m, kind="magician"), r"model.json: kind: .*'magician'"),
    "unknown format": (lambda m: edit(m, format=2), "model.json: format"),
    "edited": (lambda m: edit(m, fingerprint="sha256:" + "0" * 64), "not that of the content"),
    "another's name": (lambda m: edit(m, name="other"), "is of 'other' version 1, not of its"),
    "another's version": (lambda m: edit(m, version="7"), "is of 'tiny' version 7, not of its"),
    "base unknown": (lambda m: edit(m, base="minilm-l6"), "has no base_fingerprint"),
    "no weights": (lambda m: edit(m, files={}), "lists no .safetensors"),
    "missing file": (lambda m: (m.path / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a directory": (
        lambda m: ((m.path / "config.json").unlink(), (m.path / "config.json").mkdir()),
        "config.json: is not a file",
    ),
    "a loop": (lambda m: loop(m.path / "config.json"), "config.json"),
    "empty file": (lambda m: (m.path / "config.json").write_text(""), "config.json: is empty"),
    "altered file": (
        lambda m: (m.path / "config.json").write_text("{}"),
        r"config.json: sha256 differs: expected [0-9a-f]{12}…, got 44136fa355b3…",
    ),
    "altered weights": (
        lambda m: flip_last_byte(m.path / "model.safetensors"),
        "model.safetensors: sha256 differs",
    ),
    "half a weight file": (
        lambda m: (m.path / "model.safetensors").write_bytes(
            (m.path / "model.safetensors").read_bytes()[:-9]
        ),
        "model.safetensors: bad safetensors header",
    ),
    "not safetensors": (
        lambda m: (m.path / "model.safetensors").write_bytes(b"PK\x03\x04 a zipped pickle"),
        "model.safetensors: bad safetensors header",
    ),
    "absolute": (lambda m: list_file(m, "/etc/passwd"), "/etc/passwd: points outside"),
    "upwards": (lambda m: list_file(m, "../2/x.json"), r"\.\./2/x.json: points outside"),
    "link outside": (link_outside, "config.json: points outside"),
    "pickle listed": (
        lambda m: list_file(m, "pytorch_model.bin"),
        "pytorch_model.bin: is a pickle",
    ),
    "not listed": (
        lambda m: (m.path / "adapter_config.json").write_text("{}"),
        "adapter_config.json: is not listed in model.json",
    ),
}


@pytest.mark.parametrize("case", BREAKAGES)
def test_a_broken_model_is_refused_by_name_and_reason_and_the_rest_open(
    store: ModelStore, publish: Publish, case: str
) -> None:
    whole, broken = publish(store, "whole"), publish(store, "tiny")
    spoil, reason = BREAKAGES[case]
    spoil(broken)
    [first, other] = store.list()
    assert isinstance(first, BrokenModel)
    assert (first.name, first.path) == ("tiny", broken.path)
    with pytest.raises(CorruptModel, match=f"model 'tiny' version 1: .*{reason}"):
        store.open("tiny")
    with pytest.raises(CorruptModel) as caught:
        store.verify("tiny")
    assert caught.value.message == first.reason
    assert other == store.open("whole") == whole


def test_an_unchecked_open_sees_what_is_missing_but_not_what_was_altered(
    store: ModelStore, publish: Publish
) -> None:
    model = publish(store)
    flip_last_byte(model.path / "model.safetensors")
    assert store.open("tiny", check=False) == model
    assert store.list(check=False) == [model]
    (model.path / "config.json").unlink()
    with pytest.raises(CorruptModel, match=r"config\.json is missing"):
        store.open("tiny", check=False)


def test_prose_and_hidden_files_may_lie_beside_a_model(store: ModelStore, publish: Publish) -> None:
    model = publish(store)
    for name in ("NOTES.md", "LICENSE", "licence.txt", "LICENSE-APACHE", "NOTICE"):
        (model.path / name).write_text("I like it.")
    (model.path / ".DS_Store").write_bytes(b"\0")
    assert store.open("tiny") == model


@pytest.mark.parametrize(
    "name", ["LICENSE.safetensors", "notice.py", "Licence.json", "NOTICE.txt.bin"]
)
def test_no_name_makes_prose_of_what_a_loader_could_read(
    store: ModelStore, publish: Publish, name: str
) -> None:
    model = publish(store)
    (model.path / name).write_bytes((model.path / "model.safetensors").read_bytes())
    with pytest.raises(CorruptModel, match=f"{name}: is not listed"):
        store.open("tiny")


def test_alien_things_in_a_root_do_not_break_the_list(store: ModelStore, publish: Publish) -> None:
    model = publish(store)
    (store.own / "README.md").write_text("These are models.")
    (store.own / ".tiny-01234567.partial").mkdir()
    (store.own / "empty").mkdir()
    (store.own / "photos" / "2020 trip").mkdir(parents=True)
    (store.own / "flat").mkdir()
    (store.own / "flat" / "model.json").write_text("{}")
    (store.own / "two words" / "1").mkdir(parents=True)
    (store.own / "tiny" / "latest").mkdir()
    (store.own / "file" / "x").mkdir(parents=True)
    (store.own / "file" / "1").write_text("not a directory")
    entries = {entry.path.relative_to(store.own).as_posix(): entry for entry in store.list()}
    reasons = {path: e.reason for path, e in entries.items() if isinstance(e, BrokenModel)}
    assert reasons == {
        "file/1": "model 'file' version 1: model.json: can't be read: Not a directory",
        "file/x": "x: is not a version (a whole number)",
        "flat": "holds no version such as flat/1/model.json",
        "photos": "holds no version such as photos/1/model.json",
        "tiny/latest": "latest: is not a version (a whole number)",
        "two words": "is not a name that a model may have",
    }
    assert store.open("tiny") == model
    for name in ("flat", "two words"):
        with pytest.raises(CorruptModel, match=name):
            store.open(name)


def test_a_store_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "nowhere", tmp_path / "later")
    assert store.list() == []
    assert store.names() == ()
    with pytest.raises(ModelNotFound, match="there are: none"):
        store.open("tiny")


def test_a_root_that_is_a_file_is_an_error_that_names_it(tmp_path: Path, publish: Publish) -> None:
    (tmp_path / "file").write_text("")
    store = ModelStore(None, tmp_path / "file")
    with pytest.raises(StoreError, match="file can't be read: Not a directory"):
        store.list()
    with pytest.raises(StoreError, match="File exists"):
        publish(store)


@pytest.mark.parametrize("name", ["nope", "", "..", "tiny/1", "/etc", "tiny\0", "x" * 5000])
def test_an_unknown_name_is_answered_with_those_that_exist(
    store: ModelStore, publish: Publish, name: str
) -> None:
    publish(store, "tiny")
    publish(store, "other")
    with pytest.raises(ModelNotFound, match="there are: other, tiny") as caught:
        store.open(name)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("version", ["3", "0", "latest", "../1", "01", ""])
def test_an_unknown_version_is_answered_with_those_that_exist(
    store: ModelStore, publish: Publish, version: str
) -> None:
    publish(store)
    publish(store)
    with pytest.raises(ModelNotFound, match="there are: 1, 2"):
        store.open("tiny", version)


def test_the_highest_version_opens_and_ten_is_higher_than_nine(
    store: ModelStore, publish: Publish
) -> None:
    published = [publish(store) for _ in range(11)]
    assert [model.version for model in published] == [str(n) for n in range(1, 12)]
    assert store.open("tiny") == published[-1]
    assert store.open("tiny", "2") == published[1]
    assert store.list() == published[::-1]


def test_a_broken_newest_version_is_refused_not_replaced_by_an_older_one(
    store: ModelStore, publish: Publish
) -> None:
    older, newer = publish(store), publish(store)
    (newer.path / "config.json").unlink()
    with pytest.raises(CorruptModel, match="version 2: config"):
        store.open("tiny")
    assert store.open("tiny", "1") == older


def test_the_own_root_wins_and_the_list_shows_both(tmp_path: Path, publish: Publish) -> None:
    shipped = publish(ModelStore(None, tmp_path / "shipped"))
    own = publish(ModelStore(None, tmp_path / "own"), licence="mine")
    only = publish(ModelStore(None, tmp_path / "shipped"), "only-shipped")
    store = ModelStore(tmp_path / "shipped", tmp_path / "own")
    assert store.list() == [only, own, shipped]
    assert [entry.root.name for entry in store.list()] == ["shipped", "own", "shipped"]
    assert store.names() == ("only-shipped", "tiny")
    assert store.open("tiny") == own
    assert store.open("only-shipped") == only


def test_publishing_over_a_shipped_name_makes_its_next_version_in_the_own_root(
    tmp_path: Path, publish: Publish
) -> None:
    shipped = publish(ModelStore(None, tmp_path / "shipped"))
    store = ModelStore(tmp_path / "shipped", tmp_path / "own")
    own = publish(store)
    assert (own.version, own.root) == ("2", tmp_path / "own")
    assert store.open("tiny") == own
    assert store.open("tiny", "1") == shipped
    assert ModelStore(None, tmp_path / "shipped").list() == [shipped]


def test_a_pair_finds_its_base_in_the_version_it_was_made_with(
    store: ModelStore, publish: Publish
) -> None:
    base = publish(store, "base")
    pair = publish(store, "pair", kind="oscar-pair", method="oscar", base="base")
    assert pair.manifest.base_fingerprint == base.manifest.fingerprint
    newer = publish(store, "base", pooling="cls")
    assert store.open("base") == newer
    assert store.open_base(pair) == base
    shutil.rmtree(base.path)
    with pytest.raises(ModelNotFound, match=r"'pair' needs 'base' with fingerprint sha256:"):
        store.open_base(pair)
    with pytest.raises(StoreError, match="'base' has no base"):
        store.open_base(newer)


def test_a_pair_whose_base_is_altered_gets_no_base(store: ModelStore, publish: Publish) -> None:
    base = publish(store, "base")
    pair = publish(store, "pair", kind="oscar-pair", base="base")
    flip_last_byte(base.path / "model.safetensors")
    with pytest.raises(CorruptModel, match="sha256 differs"):
        store.open_base(pair)


def test_a_pair_without_its_base_is_not_published(store: ModelStore, publish: Publish) -> None:
    with pytest.raises(ModelNotFound, match="no model 'base'"):
        publish(store, "pair", base="base")
    assert store.list() == []


def test_the_stored_fingerprint_follows_weights_and_tokenizer(
    store: ModelStore, files: Path, manifest: Callable[..., Manifest]
) -> None:
    first = store.publish(files, manifest())
    (files / "card.md").write_text("# Another card\n")
    same = store.publish(files, manifest(licence="mit", quality={"sts": 0.7}))
    assert same.manifest.fingerprint == first.manifest.fingerprint
    (files / "tokenizer.json").write_text('{"version": "1.1"}')
    tokenizer = store.publish(files, manifest())
    weight = np.zeros((4, 8), np.float32)
    save_file({"weight": weight}, files / "model.safetensors")
    weights = store.publish(files, manifest())
    assert len({m.manifest.fingerprint for m in (first, tokenizer, weights)}) == 3


def test_the_shipped_store_is_that_of_the_wheel_else_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "service" / "condensery"
    monkeypatch.setattr(store_module, "__file__", str(package / "store" / "store.py"))
    assert shipped_store() is None
    (tmp_path / "model_store").mkdir()
    assert shipped_store() is None  # not a checkout of ours
    (tmp_path / "pyproject.toml").write_text("")
    assert shipped_store() == tmp_path / "model_store"
    (package / "model_store").mkdir(parents=True)
    assert shipped_store() == package / "model_store"


def test_no_shipped_model_read_what_is_kept_for_measuring() -> None:
    shipped = shipped_store()
    assert shipped is not None
    models = ModelStore(shipped, shipped / "none").list()
    assert models
    for model in models:
        lines = [model.manifest.provenance.command, *model.manifest.provenance.data]
        lines += [path.read_text() for path in model.path.glob("data.json")]
        assert not [line for line in lines if "msmarco" in line.lower()], model.name


def test_publishing_stamps_the_time(store: ModelStore, publish: Publish) -> None:
    assert abs(publish(store).manifest.created - time.time()) < 60
