"""What is hashed when: once while a server starts, anew for each who asks later."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from condensery.errors import CorruptModel
from condensery.store import checking
from condensery.store.checking import PIECE_BYTES, hashed_once, sha256_of
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = list[str]()

    def count(path: Path) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(checking, "sha256_of", count)
    return names


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_file_is_hashed_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "weights"
    path.write_bytes(content := bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    assert sha256_of(path) == sha256(content).hexdigest()


def test_files_are_hashed_once_in_such_a_block_by_whichever_thread(
    store: ModelStore, publish: Callable[..., StoredModel], hashed: list[str]
) -> None:
    files = publish(store).manifest.files
    hashed.clear()
    gate = threading.Barrier(4)

    def read() -> None:
        gate.wait(timeout=60)
        store.open("tiny")

    with hashed_once(), ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(read) for _ in range(4)]:
            done.result()
    assert sorted(hashed) == sorted(files)
    store.open("tiny")
    store.open("tiny")
    assert len(hashed) == 3 * len(files)


def test_a_file_that_was_changed_is_hashed_again(
    store: ModelStore, publish: Callable[..., StoredModel]
) -> None:
    weights = publish(store).path / "model.safetensors"
    content = weights.read_bytes()
    with hashed_once():
        store.open("tiny")
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CorruptModel, match="sha256 differs"):
            store.open("tiny")


def test_a_file_that_cannot_be_read_is_no_hash_for_who_waits(
    store: ModelStore, publish: Callable[..., StoredModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store)

    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checking, "sha256_of", fail)
    with hashed_once():
        for _ in range(2):
            with pytest.raises(CorruptModel, match="can't be read: Input/output error"):
                store.open("tiny")
