"""Publishing: whole or not at all, whatever kills it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from condensery.errors import CorruptModel, StoreError
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore

MakeManifest = Callable[..., Manifest]

# Publishes for ever; argv: source, root.
PUBLISHER = """
import sys
from pathlib import Path
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
store = ModelStore(None, Path(sys.argv[2]))
manifest = Manifest(name="tiny", kind="encoder", pooling="mean", max_tokens=16)
print("ready", flush=True)
while True:
    store.publish(Path(sys.argv[1]), manifest)
"""

# Publishes once where no file may be longer than argv[3] bytes; the kernel refuses the write.
CRAMPED = """
import resource, sys
from pathlib import Path
from condensery.errors import StoreError
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
manifest = Manifest(name="tiny", kind="encoder", pooling="mean", max_tokens=16)
try:
    ModelStore(None, Path(sys.argv[2])).publish(Path(sys.argv[1]), manifest)
except StoreError as error:
    print(error.message)
"""


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob(".*")) if root.exists() else []


def test_a_publisher_killed_at_any_moment_leaves_only_whole_models(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    # Some 20 ms a publish here: large enough for the kill to land inside one.
    weights = {f"layer.{n}": np.ones((512, 512), np.float32) for n in range(4)}
    save_file(weights, files / "model.safetensors")
    chance = random.Random(0)
    left = 0
    for kill in range(50):
        if kill >= 5 and left:  # more than five only where none of those landed inside a publish
            break
        command = [sys.executable, "-c", PUBLISHER, str(files), str(store.own)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
        left = max(left, len(leftovers(store.own)))
        assert all(isinstance(entry, StoredModel) for entry in store.list())
    assert left > 0, "no kill landed inside a publish: the test shows nothing"
    before = len(store.list())
    assert store.publish(files, manifest()).version == str(before + 1)


@pytest.mark.parametrize("limit", [8, 40_000], ids=["any file", "the weights"])
def test_a_disk_that_refuses_leaves_nothing_half_visible(
    store: ModelStore, files: Path, limit: int
) -> None:
    save_file({"weight": np.ones((128, 128), np.float32)}, files / "model.safetensors")
    command = [sys.executable, "-c", CRAMPED, str(files), str(store.own), str(limit)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "model 'tiny' can't be written to the store: File too large" in printed
    assert store.list() == []
    assert leftovers(store.own) == []
    assert not (store.own / "tiny").exists()


def test_every_file_is_synced_before_the_rename_and_the_parents_after(
    store: ModelStore, files: Path, manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def watch_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        sync(descriptor)

    def watch_rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    (files / "extra").mkdir()
    (files / "extra" / "more.json").write_text("{}")
    monkeypatch.setattr(os, "fsync", watch_sync)
    monkeypatch.setattr(Path, "rename", watch_rename)
    model = store.publish(files, manifest())
    aside, parents = events[: events.index("rename")], events[events.index("rename") + 1 :]
    synced = {*(Path(name).name for name in model.manifest.files), "model.json", "extra"}
    assert {name for name in aside if not name.endswith(".partial")} == synced
    assert aside[-2].endswith(".partial") or aside[-1].endswith(".partial")
    assert parents[:2] == ["tiny", "own"]


def test_two_publishers_of_one_name_make_two_versions(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: store.publish(files, manifest()), range(24)))
    assert sorted(int(model.version) for model in made) == list(range(1, 25))
    assert store.list() == sorted(made, key=lambda model: -int(model.version))


def test_old_leftovers_of_the_name_are_swept_and_nothing_else(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    names = [".tiny-0123abcd.partial", ".tiny-big-0123abcd.partial", ".tiny-dcba3210.partial"]
    old = time.time() - 3700
    for name in names:
        (store.own / name).mkdir(parents=True)
        (store.own / name / "model.safetensors").write_bytes(b"half")
        os.utime(store.own / name / "model.safetensors", (old, old))
        os.utime(store.own / name, (old, old))
    os.utime(store.own / names[2] / "model.safetensors")  # someone is writing there
    store.publish(files, manifest())
    assert leftovers(store.own) == names[1:]


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "sub/weights.pth", "x.pkl", "modeling.py"]
)
def test_pickles_and_code_are_refused_by_name(
    store: ModelStore, files: Path, manifest: MakeManifest, name: str
) -> None:
    (files / name).parent.mkdir(exist_ok=True)
    (files / name).write_bytes(b"cos\nsystem\n")
    with pytest.raises(StoreError, match=f"{name}: is a pickle or code"):
        store.publish(files, manifest())
    assert store.list() == []


def test_files_can_be_given_one_by_one_under_other_names(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    (files / "pytorch_model.bin").write_bytes(b"not taken")
    chosen = {"weights/model.safetensors": files / "model.safetensors"}
    model = store.publish(chosen, manifest())
    assert list(model.manifest.files) == ["weights/model.safetensors"]
    assert store.open("tiny") == model
    assert model.weights == (model.path / "weights" / "model.safetensors",)


@pytest.mark.parametrize(
    ("name", "content", "error", "reason"),
    [
        ("config.json", "", StoreError, "config.json: is empty"),
        ("config.json", "{", StoreError, "config.json: is not JSON"),
        ("config.json", "[" * 100_000, StoreError, "config.json: is not JSON"),
        ("model.safetensors", "junk", CorruptModel, "model.safetensors: bad safetensors header"),
    ],
)
def test_files_that_are_broken_already_are_not_published(
    store: ModelStore,
    files: Path,
    manifest: MakeManifest,
    name: str,
    content: str,
    error: type[StoreError],
    reason: str,
) -> None:
    (files / name).write_text(content)
    with pytest.raises(error, match=reason):
        store.publish(files, manifest())
    assert store.list() == []
    assert leftovers(store.own) == []


def test_a_model_without_weights_is_not_published(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    (files / "model.safetensors").unlink()
    with pytest.raises(StoreError, match=r"needs \.safetensors weights"):
        store.publish(files, manifest())


def test_a_file_that_is_not_there_is_named(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    with pytest.raises(StoreError, match=r"gone\.safetensors: there is no such file"):
        store.publish({"gone.safetensors": files / "gone"}, manifest())


def test_a_name_changed_without_validation_does_not_leave_the_root(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    with pytest.raises(StoreError, match=r"'\.\./up' can't be a model's name"):
        store.publish(files, manifest().model_copy(update={"name": "../up"}))


def test_what_manifest_says_of_files_is_not_believed(
    store: ModelStore, files: Path, manifest: MakeManifest
) -> None:
    claimed = {"model.safetensors": "0" * 64, "other.json": "0" * 64}
    model = store.publish(files, manifest(version="9", files=claimed))
    assert model.version == "1"
    assert store.verify("tiny") == model
