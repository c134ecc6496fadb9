"""What each kind can be told, and the one that must be trained."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.index.conftest import (
    FINGERPRINT,
    SETTINGS,
    assert_best_hits,
    events,
    make_batch,
    make_vectors,
    open_store,
    read_truth,
    score_truth,
)

from condensery.errors import IndexExists, InputError
from condensery.index import kinds, passages, restoring, vector_index
from condensery.index.filters import Filter, Match, Range
from condensery.index.kinds import OPTIONS, check_options
from condensery.index.passages import Rows
from condensery.index.store import IndexStore
from condensery.index.vector_index import read_nearest
from condensery.values import Document, Floats, IndexSpec, Passage

DIMS = 16
# Sixteen codes of four bits: 624 passages are enough to be trained on.
PQ: dict[str, Any] = {
    **SETTINGS,
    "dims": DIMS,
    "kind": "ivf_pq",
    "options": {"nlist": 16, "pq_m": 8, "pq_bits": 4},
}
LEAST = 39 * 16
# Codes of five bits, as all but those of four, are compared by other code of FAISS's.
LONG = {"nlist": 16, "pq_m": 8, "pq_bits": 5}


def write(
    store: IndexStore, numbers: Iterator[int] | range, name: str = "pq", *, wait: bool = True
) -> None:
    rows = list(numbers)
    texts = [f"number {n}" for n in rows]
    store.upsert(
        name,
        [
            Document(f"d{n}", text, {"n": n, "even": n % 2 == 0})
            for n, text in zip(rows, texts, strict=True)
        ],
        [
            Passage(f"d{n}#0", f"d{n}", text, 0, len(text))
            for n, text in zip(rows, texts, strict=True)
        ],
        np.stack([vector_of(n) for n in rows]),
        fingerprint=FINGERPRINT,
    )
    if wait:
        settle(store, name)


def settle(store: IndexStore, name: str = "pq") -> None:
    """Wait for what is made aside: a training, a graph, a cache without tombstones."""
    store.find(name).wait_until_agreed(60)


def vector_of(number: int) -> Floats:
    """Vectors around twenty centres."""
    centre = np.random.default_rng(number % 20).standard_normal(DIMS)
    vector = centre + 0.5 * np.random.default_rng(1000 + number).standard_normal(DIMS)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def recall(store: IndexStore, data_dir: Path, chosen: Filter | None = None, **how: Any) -> float:
    """Of the ten nearest, how many are found; scores are those of the vectors, exactly."""
    metric = store.info("pq").metric
    truth = read_truth(data_dir, "pq")
    if how:
        keep = how["keep"]
        truth = {
            identity: vector for identity, vector in truth.items() if keep(int(identity[1:-2]))
        }
    good = 0
    for number in range(50):
        query = vector_of(100_000 + number)
        scores = score_truth(truth, query, metric)
        hits = store.query("pq", query, top_k=10, filter=chosen)
        scores_of = {hit.passage.id: hit.score for hit in hits}
        assert scores_of.keys() <= truth.keys()
        assert len(scores_of) == min(10, len(truth))
        assert scores_of == pytest.approx(
            {name: scores[name] for name in scores_of}, rel=1e-4, abs=1e-5
        )
        assert list(scores_of.values()) == sorted(scores_of.values(), reverse=True)
        good += len(scores_of.keys() & set(sorted(scores, key=lambda name: -scores[name])[:10]))
    return good / 50 / min(10, len(truth))


@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize(("options", "least"), [(PQ["options"], LEAST), (LONG, 39 * 32)])
def test_ivf_pq_is_flat_until_it_has_enough_to_be_trained_on_and_says_so(
    data_dir: Path, metric: str, options: dict[str, int], least: int
) -> None:
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**PQ, "metric": metric, "options": options}))
        write(store, range(least - 1))
        info = store.info("pq")
        assert (info.kind, info.searched_as, info.trains_at) == ("ivf_pq", "flat", least)
        assert info.options == options
        assert recall(store, data_dir) == 1
        write(store, range(least - 1, least))
        info = store.info("pq")
        assert (info.kind, info.searched_as, info.trains_at) == ("ivf_pq", "ivf_pq", None)
        assert store.find("pq")._vector_index.cache._index.nlist == 16
        assert recall(store, data_dir) > 0.95
        write(store, range(least, 1500))
        assert recall(store, data_dir) > 0.95
        few = Filter(must=(Range("n", (("lt", 30),)),))
        assert recall(store, data_dir, few, keep=lambda n: n < 30) == 1
        even = Filter(must=(Match("even", (True,)),))
        assert recall(store, data_dir, even, keep=lambda n: n % 2 == 0) > 0.95


@pytest.mark.parametrize("options", [PQ["options"], LONG])
def test_deleted_and_replaced_passages_are_passed_over_and_compacted(
    data_dir: Path, options: dict[str, int]
) -> None:
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**PQ, "options": options}))
        write(store, range(3000))
        store.delete("pq", [f"d{n}" for n in range(500)])
        assert store.info("pq").tombstones == 500
        assert recall(store, data_dir) > 0.95
        write(store, range(600, 700))
        assert store.info("pq").tombstones == 600
        nothing = store.query("pq", vector_of(100), top_k=5000)
        assert len(nothing) == 2500
        store.delete("pq", [f"d{n}" for n in range(1000, 1700)])
        settle(store)
        info = store.info("pq")
        assert (info.tombstones, info.searched_as, info.passages) == (0, "ivf_pq", 1800)
        assert recall(store, data_dir) > 0.95


def test_it_comes_back_trained_and_catches_up(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = data_dir / "indexes" / "pq" / "vectors.faiss"
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))
        write(store, range(1000))
        before = store.query("pq", vector_of(7), top_k=10)
    with open_store(data_dir) as store:
        assert store.info("pq").searched_as == "ivf_pq"
        assert store.query("pq", vector_of(7), top_k=10) == before
        kept = cache.read_bytes()
        write(store, range(1000, 1100))
        store.delete("pq", ["d3"])
    cache.write_bytes(kept)
    assert events(caplog) == []
    with open_store(data_dir) as store:
        assert recall(store, data_dir) > 0.95
        assert store.info("pq").tombstones == 1
    assert [event for event, _ in events(caplog)] == ["index_cache_caught_up"]


def test_a_cache_from_before_the_training_is_trained_at_start(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = data_dir / "indexes" / "pq" / "vectors.faiss"
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))
        write(store, range(600))
    early = cache.read_bytes()
    with open_store(data_dir) as store:
        write(store, range(600, 700))
    for harm, event in ((early, "index_cache_caught_up"), (b"", "index_cache_rebuilt")):
        cache.write_bytes(harm)
        caplog.clear()
        with open_store(data_dir) as store:
            settle(store)
            assert store.info("pq").searched_as == "ivf_pq"
            assert recall(store, data_dir) > 0.95
        assert [name for name, _ in events(caplog)] == [event]


def test_cells_grow_with_the_index_unless_they_were_given(data_dir: Path) -> None:
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**PQ, "options": {"pq_m": 8, "pq_bits": 4}}))
        for start in range(0, 6000, 1000):
            write(store, range(start, start + 1000))
            rows = start + 1000
            cells = store.find("pq")._vector_index.cache._index.nlist
            assert cells <= kinds.cells_for(rows) < 2 * cells
        assert cells == 128
        assert recall(store, data_dir) > 0.95


class Gate:
    """Stops the making of a cache between two of its blocks until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        begin = vector_index.begin_cache

        def begin_cache(*args: Any) -> Any:
            cache = begin(*args)
            self.reached.set()
            assert self.open.wait(60)
            return cache

        monkeypatch.setattr(vector_index, "begin_cache", begin_cache)


def test_writes_and_queries_go_on_while_it_is_trained(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))
        write(store, range(700), wait=False)
        assert gate.reached.wait(60)
        assert store.info("pq").searched_as == "flat"
        assert recall(store, data_dir) == 1
        write(store, range(700, 900), wait=False)  # more, replaced ones, and gone ones
        write(store, range(50, 60), wait=False)
        store.delete("pq", [f"d{n}" for n in (*range(10), *range(750, 760))])
        assert recall(store, data_dir) == 1
        gate.open.set()
        settle(store)
        info = store.info("pq")
        assert (info.searched_as, info.passages) == ("ivf_pq", 700 + 200 - 20)
        assert info.tombstones <= 20
        assert recall(store, data_dir) > 0.95
        found = {hit.document_id for hit in store.query("pq", vector_of(5), top_k=2000)}
        assert found == {f"d{n}" for n in (*range(10, 750), *range(760, 900))}
    with open_store(data_dir) as store:  # it was saved as it became ready
        assert store.info("pq").searched_as == "ivf_pq"


def test_what_grew_while_it_was_trained_is_trained_for_what_it_is(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**PQ, "options": {"pq_m": 8, "pq_bits": 4}}))
        write(store, range(700), wait=False)
        assert gate.reached.wait(60)
        for start in range(700, 6300, 700):
            write(store, range(start, start + 700), wait=False)
        gate.open.set()
        for _ in range(3):  # a training that follows another is waited for then
            settle(store)
        cells = store.find("pq")._vector_index.cache._index.nlist
        assert cells <= kinds.cells_for(6300) < 2 * cells
        assert recall(store, data_dir) > 0.95


def test_an_index_is_closed_while_it_is_trained(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(monkeypatch)
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))
        write(store, range(700), wait=False)
        assert gate.reached.wait(60)
        index = store.find("pq")
    gate.open.set()
    index.wait_until_agreed(60)
    assert events(caplog) == []
    with open_store(data_dir) as store:
        settle(store)
        assert store.info("pq").searched_as == "ivf_pq"
        assert recall(store, data_dir) > 0.95


def test_what_is_deleted_as_a_training_begins_is_no_fault(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sample_rows, deleted = passages.passage_rows, []

    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))

        def delete_first(connection: Any) -> Rows:
            if threading.current_thread().name == "index-anew" and not deleted:
                deleted.append(store.delete("pq", ["d0"]))
            return sample_rows(connection)

        monkeypatch.setattr(passages, "passage_rows", delete_first)
        write(store, range(LEAST))
        assert deleted == [1]
        assert store.info("pq").searched_as == "flat"  # one too few now
        write(store, range(LEAST, LEAST + 100))
        assert store.info("pq").searched_as == "ivf_pq"
        assert recall(store, data_dir) > 0.95
    assert events(caplog) == []


@pytest.mark.parametrize("fault", [MemoryError("no room"), ValueError("unforeseen")])
def test_a_training_that_fails_is_told_once_and_tried_again_when_there_is_more(
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    def fail(*_: Any) -> Any:
        raise fault

    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**PQ))
        with monkeypatch.context() as patch:
            patch.setattr(vector_index, "begin_cache", fail)
            write(store, range(650))
            write(store, range(650, 660))
        assert [event for event, _ in events(caplog)] == ["index_cache_upkeep_failed"]
        write(store, range(660, 670))
        assert store.info("pq").searched_as == "flat"
        write(store, range(670, 720))
        assert store.info("pq").searched_as == "ivf_pq"
        assert recall(store, data_dir) > 0.95


def test_an_index_whose_graph_is_lost_answers_exactly_until_it_has_a_new_one(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_BUILT_AT_ONCE", 100)
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**SETTINGS, "dims": DIMS, "kind": "hnsw"}))
        write(store, range(300))
        assert store.info("pq").searched_as == "hnsw"
    (data_dir / "indexes" / "pq" / "vectors.faiss").unlink()
    gate = Gate(monkeypatch)
    with open_store(data_dir) as store:
        info = store.info("pq")
        assert (info.searched_as, info.trains_at) == ("flat", None)
        assert recall(store, data_dir) == 1
        even = Filter(must=(Match("even", (True,)),))
        assert recall(store, data_dir, even, keep=lambda n: n % 2 == 0) == 1
        gate.open.set()
        settle(store)
        assert store.info("pq").searched_as == "hnsw"
        assert recall(store, data_dir) > 0.95


def test_hnsw_is_built_with_its_options(data_dir: Path) -> None:
    options = {"m": 8, "ef_construction": 40, "ef_search": 200}
    with open_store(data_dir) as store:
        store.create("graph", IndexSpec(**{**SETTINGS, "kind": "hnsw", "options": options}))
        assert store.info("graph").options == options
    with open_store(data_dir) as store:
        assert store.info("graph").options == options
        cache = store.find("graph")._vector_index.cache
        graph = cache._index.hnsw
        assert (graph.nb_neighbors(1), graph.efConstruction) == (8, 40)
        assert cache._parameters(10, None).efSearch == 200
        again = {**SETTINGS, "kind": "hnsw", "options": dict(reversed(options.items()))}
        assert store.create("graph", IndexSpec(**again)).options == options
        with pytest.raises(IndexExists, match="options is"):
            store.create("graph", IndexSpec(**{**again, "options": {"m": 8}}))


@pytest.mark.parametrize(
    ("kind", "options", "field", "says"),
    [
        ("flat", {"m": 8}, "options.m", "unknown option; kind flat has: none"),
        ("hnsw", {"nlist": 8}, "options.nlist", "kind hnsw has: m, ef_construction, ef_search"),
        ("hnsw", {"m": 3}, "options.m", "3 is not a whole number from 4 to 128"),
        ("hnsw", {"m": "8"}, "options.m", "'8' is not a whole number"),
        ("hnsw", {"m": True}, "options.m", "True is not a whole number"),
        ("ivf_pq", {"nprobe": 0}, "options.nprobe", "0 is not a whole number from 1"),
        ("ivf_pq", {"pq_m": 5}, "options.pq_m", "5 does not divide 16 dimensions"),
        ("ivf_pq", {"pq_m": 32}, "options.pq_m", "32 does not divide 16 dimensions"),
        ("ivf_pq", {"pq_bits": 9}, "options.pq_bits", "from 4 to 8"),
        ("ivf_pq", {"nlist": 8, "nprobe": 9}, "options.nprobe", "9 is over nlist, 8"),
        ("ivf_pq", [], "options", "[] is not an object"),
    ],
)
def test_an_invalid_option_is_named(kind: str, options: Any, field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        check_options(kind, options, 16)
    assert caught.value.field == field
    assert says in caught.value.message


def test_a_long_name_of_an_option_is_not_repeated_at_length() -> None:
    with pytest.raises(InputError) as caught:
        check_options("hnsw", {"x" * 100_000: 1}, 16)
    assert len(caught.value.message) < 250


def test_an_index_with_codes_of_eight_bits_from_before_goes_on(
    data_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What options leave out was 8 bits then: the file is searched as it is."""
    spec = IndexSpec(**{**PQ, "metric": "l2", "options": {"nlist": 16}})
    with monkeypatch.context() as older, open_store(data_dir) as store:
        older.setattr(kinds, "bits_for", lambda *_: kinds.FULL_BITS)
        store.create("pq", spec)
        for start in range(0, 10_000, 2500):
            write(store, range(start, start + 2500), wait=False)
        settle(store)
        assert store.find("pq")._vector_index.cache._index.pq.nbits == 8
    monkeypatch.setattr(kinds, "bits_for", lambda *_: kinds.FAST_BITS)
    with open_store(data_dir) as store:
        assert store.find("pq")._vector_index.cache._index.pq.nbits == 8
        assert recall(store, data_dir) > 0.95
        write(store, range(10_000, 10_010))
        assert recall(store, data_dir) > 0.95
    assert events(caplog) == []


def test_what_is_left_out_follows_from_the_size() -> None:
    assert check_options("ivf_pq", None, 384) == {}
    assert [kinds.codes_for(dims, 8) for dims in (1, 3, 7, 16, 384, 385)] == [1, 1, 1, 4, 96, 77]
    assert [kinds.codes_for(dims, 4) for dims in (1, 3, 7, 16, 384, 385)] == [1, 1, 1, 8, 192, 77]
    for options, bits in (({}, 4), ({"pq_m": 8}, 8), ({"pq_bits": 6}, 6)):
        assert kinds.bits_for(options, 384) == bits
    # where few divide the dimensions, or vectors are short, codes of 4 bits tell less
    assert {kinds.bits_for({}, dims) for dims in (2, 3, 12, 16, 21, 35, 48, 97, 385)} == {8}
    assert {kinds.bits_for({}, dims) for dims in (18, 22, 58, 64, 100, 128, 768, 1024)} == {4}
    assert kinds.least_rows({}) == 39 * 256
    for rows in (1, 624, 9984, 20_000, 100_000, 1_000_000):
        cells = kinds.cells_for(rows)
        assert cells & (cells - 1) == 0
        assert cells <= max(kinds.LEAST_CELLS, rows // 39)
        assert kinds.sample_size({}, rows) <= rows
        assert 1 <= kinds.probes_for(cells) <= cells
    assert kinds.cells_for(1_000_000) == 2048
    assert set(OPTIONS) == {"flat", "hnsw", "ivf_pq"}


@pytest.mark.parametrize("noise", [0, 0.01, 0.1, 1])
@pytest.mark.parametrize("gone", [0, 3])
def test_vectors_are_read_as_far_as_codes_may_be_wrong(noise: float, gone: int) -> None:
    """With codes that are right those first; with wrong ones as many as it takes."""
    chance = np.random.default_rng(5)
    exact = chance.standard_normal(400).astype(np.float32)
    by_code = exact + noise * chance.standard_normal(400).astype(np.float32)
    near = np.argsort(-by_code)
    there = np.ones(400, dtype=bool)
    there[near[:: 400 // gone] if gone else []] = False  # of a write in progress, say
    read: list[int] = []

    def score(rows: Sequence[int]) -> tuple[Rows, Floats]:
        read.extend(rows)
        found = np.array([row for row in rows if there[row]], dtype=np.int64)
        return found, exact[found]

    found, scores = read_nearest(score, near.tolist(), by_code[near].tolist(), 10)
    best = found[np.argsort(-scores)[:10]]
    assert set(best) == set(np.flatnonzero(there)[np.argsort(-exact[there])[:10]])
    assert read == near[: len(read)].tolist()
    assert len(read) == {0: 40, 0.01: 40, 0.1: 40, 1: 40 + 80 + 160}[noise]


def test_copies_of_a_vector_do_not_tell_how_wrong_codes_are() -> None:
    """All have the same error, by which the nearest could not stand after them."""
    chance = np.random.default_rng(6)
    exact = np.concatenate([np.full(40, 1.0), chance.uniform(0, 0.9, 160)]).astype(np.float32)
    by_code = np.concatenate([exact[:40], np.sort(chance.uniform(0, 0.99, 160))[::-1]])
    exact[50] = 2.0

    def score(rows: Sequence[int]) -> tuple[Rows, Floats]:
        found = np.array(sorted(rows))
        return found, exact[found]

    found, scores = read_nearest(score, range(200), by_code.tolist(), 10)
    assert found[scores.argmax()] == 50


def test_few_hits_are_those_of_all_cells(store: IndexStore, data_dir: Path) -> None:
    """More than the nearest cells hold are found in the others."""
    store.create("pq", IndexSpec(**{**PQ, "options": {**PQ["options"], "nprobe": 1}}))
    write(store, range(1000))
    query = vector_of(3)
    hits = store.query("pq", query, top_k=1000)
    assert_best_hits(hits, score_truth(read_truth(data_dir, "pq"), query), 1000)


@pytest.mark.parametrize("times", [0, 1e-37])
@pytest.mark.parametrize("options", [PQ["options"], LONG])
def test_a_query_to_which_all_codes_are_equally_near_has_its_hits(
    data_dir: Path, options: dict[str, int], times: float
) -> None:
    """FAISS returns none of codes of 4 bits then."""
    even = Filter(must=(Match("even", (True,)),))
    with open_store(data_dir) as store:
        store.create("pq", IndexSpec(**{**PQ, "options": options}))
        write(store, range(1300))
        store.delete("pq", [f"d{n}" for n in range(100)])
        assert store.info("pq").searched_as == "ivf_pq"
        query = np.float32(times) * vector_of(3)
        for top_k in (1, 10, 1000, 5000):
            for chosen, there in ((None, 1200), (even, 600)):
                hits = store.query("pq", query, top_k=top_k, filter=chosen)
                numbers = {int(hit.document_id[1:]) for hit in hits}
                assert len(numbers) == len(hits) == min(top_k, there)
                assert min(numbers) >= 100
                assert chosen is None or not any(number % 2 for number in numbers)


def test_readers_of_codes_never_see_half_a_write(data_dir: Path) -> None:
    """All of one write or none, in a search of all cells, while it is compacted, too."""
    errors: list[BaseException] = []
    done = threading.Event()
    seen: set[str] = set()
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**{**PQ, "dims": 8, "options": {**PQ["options"], "pq_m": 4}}))
        ids = [f"d{n}" for n in range(100)]
        make_batch([f"filler{n}" for n in range(400)]).upsert(store)
        make_batch(ids, tag="0").upsert(store)
        settle(store, "kb")
        assert store.info("kb").searched_as == "ivf_pq"

        def read() -> None:
            try:
                for vector in make_vectors(100_000, seed=3):
                    if done.is_set():
                        return
                    hits = store.query("kb", vector, top_k=1100)
                    texts = [hit.passage.text for hit in hits if "filler" not in hit.passage.id]
                    assert len(hits) == 1000
                    assert len(texts) == 200
                    tags = {text.rstrip(".")[-1] for text in texts}
                    assert len(tags) == 1
                    seen.update(tags)
                    assert len(store.query("kb", vector, top_k=7)) == 7
            except BaseException as error:
                errors.append(error)
                done.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for seed in range(300):
                if done.is_set() or (seed > 20 and len(seen) > 1):
                    break
                tag = "even" if seed % 2 else "odd"
                make_batch(ids, seed=seed, tag=tag).upsert(store)
        finally:
            done.set()
            reader.join()
        assert not errors
        assert len(seen) > 1
        settle(store, "kb")
        assert store.info("kb").tombstones < 2000
