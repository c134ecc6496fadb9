"""Searches with a filter, against brute force over the passages of the documents it chooses."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.index.conftest import (
    SETTINGS,
    Batch,
    OpenDatabases,
    assert_agrees,
    assert_best_hits,
    every_backend,
    make_batch,
    make_vectors,
    read_truth,
    score_truth,
)
from tests.unit.index.plain_filters import IDS, filters, holds

from condensery.index import vectors
from condensery.index.filters import read_filter
from condensery.index.store import IndexStore
from condensery.values import Document, IndexSpec, Passage

DOCUMENTS = 400
METRICS = ("ip", "l2")


def make_metadata(chance: random.Random) -> dict[str, Any]:
    return {
        "a": chance.choice([True, 1, "1", 0.5, None, "x" * 70]),
        "b": [chance.randrange(4) for _ in range(chance.randrange(3))],
        "n": {"x": chance.randrange(-3, 4), "y": chance.choice(["a", "A", ""])},
        "l": [{"x": chance.randrange(3)} for _ in range(chance.randrange(3))],
        "d.t": chance.random() * 3,
    }


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, open_databases: OpenDatabases
) -> Iterator[tuple[IndexStore, Path, Any]]:
    """Flat indexes of both metrics; documents of one to three passages, some gone again."""
    data_dir = tmp_path_factory.mktemp("filled")
    chance = random.Random(3)
    documents, passages = [], []
    for n in range(DOCUMENTS):
        name = IDS[n] if n < len(IDS) else f"doc {n}"
        words = [f"word{chance.randrange(30)}" for _ in range(chance.randrange(1, 4))]
        text = " ".join(words)
        documents.append(Document(name, text, make_metadata(chance)))
        at = 0
        for place, word in enumerate(words):
            passages.append(
                Passage(f"{name}#{place}", name, word, at, at + len(word), documents[-1].metadata)
            )
            at += len(word) + 1
    batch = Batch(documents, passages, make_vectors(len(passages), seed=1))
    with IndexStore(data_dir, databases=open_databases("-filled")) as store:
        for metric in METRICS:
            store.create(metric, IndexSpec(**{**SETTINGS, "metric": metric}))
            batch.upsert(store, metric)
            store.delete(metric, [f"doc {n}" for n in range(100, 140)])
        kept = {document.id: document.metadata for document in documents}
        for n in range(100, 140):
            del kept[f"doc {n}"]
        yield store, data_dir, kept


@every_backend
@settings(max_examples=150, deadline=None)
@given(filters, st.integers(0, 50), st.sampled_from([1, 5, 40, 2000]), st.sampled_from(METRICS))
def test_a_search_finds_the_best_of_what_the_filter_chooses(
    filled: Any, asked: Any, seed: int, top_k: int, metric: str
) -> None:
    store, data_dir, kept = filled
    chosen = {identity for identity, metadata in kept.items() if holds(asked, identity, metadata)}
    vector = make_vectors(1, seed=seed)[0]
    truth = score_truth(read_truth(data_dir, metric), vector, metric)
    allowed = {
        identity: score
        for identity, score in truth.items()
        if identity.rpartition("#")[0] in chosen
    }
    hits = store.query(metric, vector, top_k=top_k, filter=read_filter(asked))
    assert_best_hits(hits, allowed, top_k)
    assert all(hit.passage.metadata == kept[hit.passage.document_id] for hit in hits)


@settings(max_examples=60, deadline=None)
@given(filters, st.sampled_from([1, 40, 2000]))
def test_words_are_found_in_what_the_filter_chooses(filled: Any, asked: Any, top_k: int) -> None:
    store, _, kept = filled
    text = "word1 word2 word7"
    every = store.query("ip", text, top_k=2000)
    assert len(every) > 50
    chosen = [
        hit for hit in every if holds(asked, hit.passage.document_id, kept[hit.passage.document_id])
    ]
    assert store.query("ip", text, top_k=top_k, filter=read_filter(asked)) == chosen[:top_k]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("few", [0, 1000, 10**9])
def test_hnsw_finds_nearly_all_of_it_however_many_are_allowed(
    store: IndexStore, data_dir: Path, metric: str, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "FEW_FACTOR", few)  # walks always, as it is, and never
    store.create("graph", IndexSpec(**{**SETTINGS, "kind": "hnsw", "metric": metric}))
    ids = [f"d{n}" for n in range(1000)]
    batch = make_batch(ids)
    batch.documents = [
        Document(document.id, document.text, {"n": n, "even": n % 2 == 0})
        for n, document in enumerate(batch.documents)
    ]
    batch.upsert(store, "graph")
    store.delete("graph", [f"d{n}" for n in range(0, 1000, 7)])
    truth = read_truth(data_dir, "graph")
    for most in (2, 10, 100, 500, 1000):
        asked = {
            "must": [{"key": "n", "range": {"lt": most}}, {"key": "even", "match": {"value": True}}]
        }
        hit_count = total = 0
        for vector in make_vectors(20, seed=5):
            scores = score_truth(truth, vector, metric)
            allowed = {
                identity: score
                for identity, score in scores.items()
                if (n := int(identity[1:].partition("#")[0])) < most and n % 2 == 0
            }
            hits = store.query("graph", vector, top_k=10, filter=read_filter(asked))
            assert {hit.passage.id for hit in hits} <= allowed.keys()
            assert len(hits) == min(10, len(allowed))
            best = sorted(allowed, key=lambda number: -allowed[number])[:10]
            hit_count += len({hit.passage.id for hit in hits}.intersection(best))
            total += len(best)
        assert hit_count >= 0.95 * total


@every_backend
def test_a_filter_sees_what_the_query_sees_after_each_write(
    store: IndexStore, data_dir: Path
) -> None:
    asked = read_filter({"must": {"key": "tag", "match": {"value": " new"}}})
    make_batch(["a", "b", "c"], seed=1).upsert(store)
    vector = make_vectors(1)[0]
    assert store.query("kb", vector, top_k=9, filter=asked) == []
    make_batch(["b"], seed=2, tag=" new").upsert(store)
    assert {
        hit.passage.document_id for hit in store.query("kb", vector, top_k=9, filter=asked)
    } == {"b"}
    make_batch(["b"], seed=3).upsert(store)
    assert store.query("kb", vector, top_k=9, filter=asked) == []
    make_batch(["c", "d"], seed=4, tag=" new").upsert(store)
    store.delete("kb", ["c"])
    assert {
        hit.passage.document_id for hit in store.query("kb", "second", top_k=9, filter=asked)
    } == {"d"}
    assert_agrees(store, data_dir)


def test_of_equal_ones_the_older_come_first(store: IndexStore) -> None:
    ids = [f"d{n:02}" for n in range(30)]
    batch = make_batch(ids)
    batch.vectors = np.tile(make_vectors(1), (60, 1))
    batch.upsert(store)
    every = {"must_not": {"has_id": ["d03"]}}
    hits = store.query("kb", batch.vectors[0], top_k=10, filter=read_filter(every))
    assert [hit.passage.id for hit in hits] == [
        f"d{n:02}#{place}" for n in (0, 1, 2, 4, 5) for place in (0, 1)
    ]


@every_backend
def test_values_of_each_type_are_told_apart(store: IndexStore) -> None:
    values = [True, False, 1, 1.0, 0, 1.5, "1", "true", "n1", 2**53, 2**53 + 1, "x" * 70, [True, 2]]
    batch = make_batch([f"d{n}" for n in range(len(values))])
    batch.documents = [
        Document(document.id, document.text, {"a": value})
        for document, value in zip(batch.documents, values, strict=True)
    ]
    batch.upsert(store)
    flat = [value for value in values if not isinstance(value, list)]
    asked = [{"match": {"value": value}} for value in flat]
    asked += [{"match": {"except": [value]}} for value in flat]
    asked += [{"range": {"gte": value}} for value in (0, 1, 1.5, 2**53, 2**53 + 1)]
    for condition in asked:
        filter = {"must": {"key": "a", **condition}}
        chosen = {
            document.id
            for document in batch.documents
            if holds(filter, document.id, dict(document.metadata))
        }
        hits = store.query("kb", batch.vectors[0], top_k=100, filter=read_filter(filter))
        assert {hit.passage.document_id for hit in hits} == chosen, condition


@every_backend
def test_passages_are_chosen_by_their_documents_metadata(store: IndexStore) -> None:
    """Not by their own, which the store may be given; a delete could not tell them apart."""
    batch = make_batch(["a"], tag="t")
    assert batch.passages[0].metadata == {"n": 0}
    batch.upsert(store)
    by_own = read_filter({"must": {"key": "n", "match": {"value": 0}}})
    by_document = read_filter({"must": {"key": "tag", "match": {"value": "t"}}})
    assert store.query("kb", batch.vectors[0], top_k=9, filter=by_own) == []
    assert len(store.query("kb", batch.vectors[0], top_k=9, filter=by_document)) == 2


@every_backend
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_filter_never_sees_half_a_write(store: IndexStore, kind: str) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind}))
    ids = [f"d{n}" for n in range(20)]
    make_batch(ids, tag="0").upsert(store, "other")
    asked = read_filter({"must": {"key": "tag", "match": {"value": "0"}}})
    done = threading.Event()
    errors: list[BaseException] = []
    seen: set[int] = set()

    def read() -> None:
        try:
            for vector in make_vectors(100_000, seed=3):
                if done.is_set():
                    return
                count = len(store.query("other", vector, top_k=1000, filter=asked))
                assert count in (0, 40)
                assert len(store.query("other", "first", top_k=99, filter=asked)) in (0, 20)
                assert store.count("other", asked) in ((0, 0), (20, 40))
                seen.add(count)
        except BaseException as error:
            errors.append(error)
            done.set()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    try:
        for seed in range(2000):
            if done.is_set() or (seed > 50 and seen == {0, 40}):
                break
            make_batch(ids, seed=seed, tag=str(seed % 2)).upsert(store, "other")
    finally:
        done.set()
        for thread in readers:
            thread.join()
    assert not errors
    assert seen == {0, 40}
