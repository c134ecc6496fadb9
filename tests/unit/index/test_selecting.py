"""Documents counted, read page by page and deleted, all or those that a filter chooses."""

import random
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    make_batch,
    make_vectors,
    read_truth,
)

from condensery.errors import StorageFull
from condensery.index.filters import Filter, HasId, Match
from condensery.index.selecting import PageQuery
from condensery.index.store import IndexStore
from condensery.values import IndexSpec

NEW = Filter(must=(Match("tag", ("new",)),))


def ids_of(store: IndexStore, limit: int, **how: object) -> list[str]:
    """Every document's id, read by pages."""
    names: list[str] = []
    after = ""
    while True:
        page = store.scroll("kb", PageQuery(after=after, limit=limit, **how))  # type: ignore[arg-type]
        assert 0 < len(page.documents) <= limit or not names
        names += [document.id for document in page.documents]
        if page.next is None:
            return names
        assert page.next == names[-1]
        after = page.next


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_hold_every_document_once_by_id(store: IndexStore, limit: int) -> None:
    names = [f"d{n}" for n in range(40)] + ["é", "Z", "a b", "漢"]
    random.Random(1).shuffle(names)
    make_batch(names).upsert(store)
    make_batch(["d7", "d9"], seed=2, tag="new").upsert(store)
    store.delete("kb", ["d8"])
    kept = sorted({*names} - {"d8"}, key=str.encode)
    assert ids_of(store, limit) == kept
    assert ids_of(store, limit, filter=NEW) == ["d7", "d9"]
    assert ids_of(store, limit, filter=Filter(must_not=(NEW,))) == [
        identity for identity in kept if identity not in ("d7", "d9")
    ]
    assert ids_of(store, limit, filter=Filter(must=(HasId(()),))) == []


def test_a_page_holds_what_is_asked_for(store: IndexStore) -> None:
    batch = make_batch(["a", "b"], tag="t")
    batch.upsert(store)
    (document, _) = store.scroll("kb", PageQuery()).documents
    assert (document.id, document.text, document.metadata) == (
        "a",
        batch.documents[0].text,
        {"tag": "t"},
    )
    assert document.passages is None
    (_, other) = store.scroll("kb", PageQuery(text=False, metadata=False, vectors=True)).documents
    assert (other.id, other.text, other.metadata) == ("b", None, None)
    assert other.passages is not None
    pieces = [(piece.id, piece.start, piece.end) for piece in other.passages]
    assert pieces == [(piece.id, piece.start, piece.end) for piece in batch.passages[2:]]
    assert np.array_equal([piece.vector for piece in other.passages], batch.vectors[2:])


def test_a_page_ends_where_it_gets_too_long(store: IndexStore) -> None:
    make_batch(["a", "b", "c"]).upsert(store)
    page = store.scroll("kb", PageQuery(max_bytes=10))
    assert ([document.id for document in page.documents], page.next) == (["a"], "a")
    page = store.scroll("kb", PageQuery(after="a", max_bytes=10, text=False, metadata=False))
    assert ([document.id for document in page.documents], page.next) == (["b", "c"], None)


def test_pages_miss_and_repeat_nothing_that_stays_beside_writers(store: IndexStore) -> None:
    stay = [f"stay{n:02}" for n in range(30)]
    make_batch(stay).upsert(store)
    errors: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for round_ in range(100_000):
                if done.is_set():
                    return
                make_batch(stay[round_ % 30 :][:3], seed=round_).upsert(store)
                make_batch([f"other{round_ % 50}"], seed=round_).upsert(store)
                store.delete("kb", [f"other{(round_ * 7) % 50}"])
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            ids = ids_of(store, 4, vectors=True)
            assert len(set(ids)) == len(ids)
            assert [identity for identity in ids if identity.startswith("stay")] == stay
    finally:
        done.set()
        writer.join()
    assert not errors


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_deletion_by_filter_takes_all_it_chooses(
    store: IndexStore, data_dir: Path, kind: str
) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind}))
    make_batch([f"d{n}" for n in range(50)]).upsert(store, "other")
    make_batch([f"d{n}" for n in range(20, 30)], seed=2, tag="new").upsert(store, "other")
    assert store.count("other", NEW) == (10, 20)
    assert store.count("other", Filter(must_not=(NEW,))) == (40, 80)
    assert store.delete("other", NEW) == 10
    assert store.delete("other", NEW) == 0
    assert store.count("other", NEW) == (0, 0)
    assert store.count("other") == (40, 80)
    assert not {"d20#0", "d29#1"} & read_truth(data_dir, "other").keys()
    hits = store.query("other", make_vectors(1)[0], top_k=200)
    assert len(hits) == 80
    assert_agrees(store, data_dir, "other")


def test_a_deletion_by_filter_is_synced_when_it_is_acknowledged(
    disk: Disk, data_dir: Path, tmp_path: Path
) -> None:
    with IndexStore(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b", "c"]).upsert(store)
        make_batch(["c", "d"], seed=2, tag="new").upsert(store)
        disk.keep_all()
        assert store.delete("kb", NEW) == 2
        disk.after_power_cut(tmp_path / "after")
    with IndexStore(tmp_path / "after") as store:
        assert store.count("kb") == (2, 4)
        assert_agrees(store, tmp_path / "after")


def test_a_deletion_that_the_disk_refuses_deletes_nothing(disk: Disk, data_dir: Path) -> None:
    with IndexStore(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch([f"d{n}" for n in range(20)], tag="new").upsert(store)
        for at in range(6):
            left = at

            def refuse(operation: str, path: Path) -> int:
                nonlocal left
                left -= operation == "write"
                return sqlite3.SQLITE_FULL if left < 0 and path.suffix != ".faiss" else 0

            disk.refuse = refuse
            try:
                with pytest.raises(StorageFull):
                    store.delete("kb", NEW)
            finally:
                disk.refuse = lambda operation, path: 0
            assert store.count("kb", NEW) == store.count("kb") == (20, 40)
            assert_agrees(store, data_dir)
        assert store.delete("kb", NEW) == 20
        assert_agrees(store, data_dir)
