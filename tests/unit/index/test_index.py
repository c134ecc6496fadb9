"""What an index finds, through the store."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.index.conftest import (
    DIMS,
    FINGERPRINT,
    SETTINGS,
    assert_agrees,
    assert_best_hits,
    every_backend,
    make_batch,
    make_vectors,
    read_truth,
    score_truth,
)

from condensery.errors import (
    EncoderMismatch,
    InputError,
)
from condensery.index.remote_vectors import RemoteVectors
from condensery.index.store import IndexStore
from condensery.values import Document, IndexSpec, Passage

pytestmark = every_backend


@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_queries_find_what_brute_force_finds(
    store: IndexStore, data_dir: Path, kind: str, metric: str
) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind, "metric": metric}))
    make_batch([f"d{n}" for n in range(100)]).upsert(store, "other")
    truth = read_truth(data_dir, "other")
    assert len(truth) == 200
    for vector in make_vectors(20, seed=5):
        hits = store.query("other", vector, top_k=7)
        assert_best_hits(hits, score_truth(truth, vector, metric), 7)


def test_a_hit_carries_its_passage_as_it_was_written(store: IndexStore) -> None:
    batch = make_batch(["a"])
    batch.upsert(store)
    hits = store.query("kb", batch.vectors[1], top_k=5)
    assert [hit.passage for hit in hits] == [batch.passages[1], batch.passages[0]]
    assert hits[0].score == pytest.approx(1.0)


def test_odd_texts_and_metadata_come_back_unchanged(store: IndexStore) -> None:
    text = "naïve\0 text — 漢字 \U0001f600 and 'quotes'"
    metadata = {"nested": {"list": [1, 2.5, None, True, "é"]}, "": "empty key"}
    document = Document("id with spaces / 漢", text, metadata)
    passages = [
        Passage("p0", document.id, text[3:20], 3, 20, metadata),  # the document's own
        Passage("p1", document.id, "", 0, 0, {}),
    ]
    store.upsert("kb", [document], passages, make_vectors(2), fingerprint=FINGERPRINT)
    assert store.get("kb", [document.id]) == [document]
    hits = store.query("kb", make_vectors(2)[0], top_k=2)
    assert [hit.passage for hit in hits] == passages


def test_an_upsert_replaces_documents_with_their_passages(
    store: IndexStore, data_dir: Path
) -> None:
    make_batch(["a", "b", "c"], seed=1).upsert(store)
    again = make_batch(["b", "d"], seed=2, tag=" (new)")
    again.upsert(store)
    assert store.count("kb") == (4, 8)
    assert store.get("kb", ["d", "b", "nobody", "a"])[:2] == again.documents[::-1]
    assert len(store.get("kb", ["d", "b", "nobody", "a"])) == 3
    best = store.query("kb", again.vectors[0], top_k=1)[0]
    assert best.passage.text == "First of b (new)."
    assert_agrees(store, data_dir)


def test_a_document_may_come_back_with_fewer_passages(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    text = "Only one."
    store.upsert(
        "kb",
        [Document("a", text)],
        [Passage("a#0", "a", text, 0, len(text))],
        make_vectors(1, seed=9),
        fingerprint=FINGERPRINT,
    )
    assert store.count("kb") == (1, 1)
    assert_agrees(store, data_dir)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_deleted_documents_are_found_no_more(store: IndexStore, data_dir: Path, kind: str) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind}))
    batch = make_batch([f"d{n}" for n in range(40)])
    batch.upsert(store, "other")
    assert store.delete("other", ["d0", "d1", "d1", "nobody"]) == 2
    assert store.delete("other", ["d0"]) == 0
    assert store.count("other") == (38, 76)
    hits = store.query("other", batch.vectors[0], top_k=80)
    assert len(hits) == 76
    assert not {"d0", "d1"} & {hit.passage.document_id for hit in hits}
    assert_agrees(store, data_dir, "other")


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_many_replacements_compact_the_cache(store: IndexStore, data_dir: Path, kind: str) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind}))
    ids = [f"d{n}" for n in range(100)]
    for seed in range(12):
        make_batch(ids, seed=seed).upsert(store, "other")
        store.find("other").wait_until_agreed(60)  # a graph is made anew aside
    vectors = store.find("other")._vector_index
    if not isinstance(vectors, RemoteVectors):  # a database does that by itself
        assert len(vectors.cache.rows()) < 2400 - 1000  # of 2,400 ever added, 200 live
    assert_agrees(store, data_dir, "other")


def test_a_refused_upsert_changes_nothing(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a", "b"]).upsert(store)
    batch = make_batch(["a", "new"], seed=3)
    clash = [*batch.passages[:3], Passage("b#0", "new", "First", 0, 5)]
    bad = batch.vectors.copy()
    bad[3, 1] = np.nan
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (
            lambda: store.upsert(
                "kb", batch.documents, clash, batch.vectors, fingerprint=FINGERPRINT
            ),
            InputError,
            "'b#0' belongs to another document",
        ),
        (
            lambda: store.upsert(
                "kb", batch.documents, batch.passages, bad, fingerprint=FINGERPRINT
            ),
            InputError,
            r"vectors\[3\]\[1\]: nan",
        ),
        (
            lambda: store.upsert(
                "kb", batch.documents, batch.passages, batch.vectors, fingerprint="sha256:two"
            ),
            EncoderMismatch,
            "sha256:one, not sha256:two",
        ),
    ]
    before = read_truth(data_dir)
    for call, kind, says in refused:
        with pytest.raises(kind, match=says):
            call()
    assert read_truth(data_dir).keys() == before.keys()
    assert_agrees(store, data_dir)
    batch.upsert(store)
    assert_agrees(store, data_dir)


def test_a_query_of_another_encoder_or_shape_is_refused(store: IndexStore) -> None:
    with pytest.raises(EncoderMismatch, match="sha256:one, not sha256:two"):
        store.query("kb", make_vectors(1)[0], top_k=1, fingerprint="sha256:two")
    with pytest.raises(InputError, match="8 dimensions"):
        store.query("kb", np.zeros(DIMS + 1, np.float32), top_k=1)
    assert store.query("kb", make_vectors(1)[0], top_k=1, fingerprint=FINGERPRINT) == []
