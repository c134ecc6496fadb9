from dataclasses import replace

import numpy as np
import pytest

from condensery.errors import EmptyInput, EncoderMismatch, IndexExists, IndexNotFound, InputError
from condensery.index.fusion import fuse
from condensery.jobs import indexes, retrieval
from condensery.values import Document, IndexSpec, Passage


@pytest.fixture
async def index(services):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(
        services, "kb", [Document("a", "alpha one"), Document("b", "beta two")]
    )
    return "kb"


async def test_an_index_takes_its_encoders_settings(services):
    info = await indexes.create_index(services, "kb", encoder="other")
    assert (info.encoder, info.fingerprint, info.dims) == ("other", "sha256:other", 8)
    assert await indexes.create_index(services, "kb", encoder="other") == info
    with pytest.raises(IndexExists, match="metric"):
        await indexes.create_index(services, "kb", encoder="other", metric="l2")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"metric": "cosine"}, "metric: 'cosine' is not one of ip, l2"),
        ({"kind": "ivf"}, "kind: 'ivf' is not one of flat, hnsw, ivf_pq"),
        ({"kind": "ivf_pq", "options": {"pq_m": 3}}, "options.pq_m: 3 does not divide 8"),
        ({"dims": 3}, "dims: 3, but words gives vectors of 8"),
    ],
)
async def test_settings_that_can_not_be_are_refused(services, setting, message):
    with pytest.raises(InputError, match=message):
        await indexes.create_index(services, "kb", **setting)


async def test_what_was_written_is_found_counted_and_read(services, index):
    hits = await retrieval.query_index(services, index, vector=None, text="alpha one")
    assert await indexes.count_documents(services, index) == (2, 2)
    assert {hit.passage.document_id for hit in hits} == {"a", "b"}
    assert [
        document.text for document in await indexes.get_documents(services, index, ["b", "nobody"])
    ] == ["beta two"]
    assert await indexes.delete_documents(services, index, ["a", "nobody"]) == 1
    assert await indexes.count_documents(services, index) == (1, 1)


async def test_queries_carry_the_query_prompt_and_documents_none(services, index, registry):
    await retrieval.query_index(services, index, "what?")
    prompts = {text: prompt for text, prompt, _ in registry.encoders["words"].asked}
    assert prompts == {"alpha one": "", "beta two": "", "what?": "query: "}


async def test_a_long_document_becomes_passages_that_know_their_place(services):
    await indexes.create_index(services, "kb")
    text = " ".join(f"word{place}." for place in range(30))
    written = await indexes.upsert_documents(services, "kb", [Document("long", text, {"n": 1})])
    hits = await retrieval.query_index(services, "kb", "word7.", top_k=10)
    assert written.documents == 1
    assert written.passages == len(hits) > 3
    for hit in hits:
        passage = hit.passage
        assert passage.document_id == "long"
        assert passage.text == text[passage.start : passage.end]
        assert len(passage.text.split()) <= 10
        assert passage.metadata == {"n": 1}


async def test_vectors_of_the_caller_need_the_encoders_fingerprint(services, index):
    document, vector = [Document("c", "gamma")], np.ones((1, 8), np.float32)
    with pytest.raises(InputError, match="fingerprint: needed beside vectors"):
        await indexes.upsert_documents(services, index, document, vectors=vector)
    with pytest.raises(EncoderMismatch, match="sha256:words, not 'sha256:other'"):
        await indexes.upsert_documents(
            services, index, document, vectors=vector, fingerprint="sha256:other"
        )
    await indexes.upsert_documents(
        services, index, document, vectors=vector, fingerprint="sha256:words"
    )
    hits = await retrieval.query_index(
        services, index, vector=vector[0], fingerprint="sha256:words"
    )
    assert hits[0].passage.document_id == "c"
    with pytest.raises(EncoderMismatch):
        await retrieval.query_index(services, index, vector=vector[0], fingerprint="sha256:other")


async def test_vectors_that_are_not_finite_too_large_or_too_short_are_named(services, index):
    vectors = np.ones((2, 8), np.float32)
    documents = [Document("c", "gamma"), Document("d", "delta")]
    options = {"vectors": vectors, "fingerprint": "sha256:words"}
    for wrong, shown in ((np.nan, "nan"), (np.inf, "inf"), (-2e16, r"-2\S*e\+16")):
        vectors[1, 3] = wrong
        says = rf"^documents\[1\]\.vector\[3\]: {shown} is not a finite number up to 1e\+16"
        with pytest.raises(InputError, match=says):
            await indexes.upsert_documents(services, index, documents, **options)
    with pytest.raises(InputError, match="vector: 5 numbers, but index 'kb' has 8 dimensions"):
        await retrieval.query_index(
            services, index, vector=vectors[0, :5], fingerprint="sha256:words"
        )
    assert await indexes.count_documents(services, index) == (2, 2)


async def test_hybrid_mixes_no_passages_of_two_indexes_that_took_turns_meanwhile(
    services, index, monkeypatch
):
    """Replaced between its two searches, it is asked anew, by the new one's encoder."""
    query, swaps = services.indexes.query, []

    def swapped(name, asked, **options):
        hits = query(name, asked, **options)
        if isinstance(asked, str) and not swaps:
            swaps.append(name)
            services.indexes.drop(name)
            settings = {"metric": "ip", "kind": "flat", "dims": 8}
            services.indexes.create(
                name, IndexSpec(encoder="other", fingerprint="sha256:other", **settings)
            )
            vector = np.ones((1, 8), np.float32)
            services.indexes.upsert(
                *(name, [Document("new", "alpha")]),
                *([Passage("new#0", "new", "alpha", 0, 5)], vector),
                fingerprint="sha256:other",
            )
        return hits

    monkeypatch.setattr(services.indexes, "query", swapped)
    hits = await retrieval.query_index(services, index, "alpha one", mode="hybrid")
    assert swaps == [index]
    assert [hit.passage.document_id for hit in hits] == ["new"]


async def test_an_index_of_an_encoder_that_has_changed_is_not_asked(services, index, registry):
    encoder = registry.encoders["words"]
    encoder.info = replace(encoder.info, fingerprint="sha256:new")
    with pytest.raises(EncoderMismatch, match="sha256:words; the one that runs has sha256:new"):
        await retrieval.query_index(services, index, "alpha")
    del registry.encoders["words"]
    with pytest.raises(EncoderMismatch, match="does not run here"):
        await indexes.upsert_documents(services, index, [Document("c", "gamma")])


async def test_what_is_not_there_or_says_nothing_is_refused(services, index):
    with pytest.raises(IndexNotFound, match="'nobody'"):
        await retrieval.query_index(services, "nobody", "a")
    with pytest.raises(InputError, match="give `query` or `vector`, one of them; got neither"):
        await retrieval.query_index(services, index)
    with pytest.raises(InputError, match="top_k: 101 is not a whole number from 1 to 100"):
        await retrieval.query_index(services, index, "a", top_k=101)
    with pytest.raises(EmptyInput, match="ids"):
        await indexes.delete_documents(services, index, [])
    with pytest.raises(EmptyInput, match="documents"):
        await indexes.upsert_documents(services, index, [])
    with pytest.raises(InputError, match=r"documents\[0\]\.id: ''"):
        await indexes.upsert_documents(services, index, [Document("", "a")])


async def test_dropping_takes_all(services, index):
    await indexes.drop_index(services, index)
    assert await indexes.list_indexes(services) == []


def places(hits):
    return [hit.passage.document_id for hit in hits]


async def test_words_are_looked_for_without_a_forward_pass(services, index, registry):
    registry.encoders["words"].asked.clear()
    hits = await retrieval.query_index(services, index, "TWO alpha two", mode="bm25")
    assert places(hits) == places(services.indexes.query(index, "two alpha", top_k=10))
    assert registry.encoders["words"].asked == []
    # so that an index may outlive its encoder
    del registry.encoders["words"]
    assert places(await retrieval.query_index(services, index, "two", mode="bm25")) == ["b"]
    with pytest.raises(EncoderMismatch):
        await retrieval.query_index(services, index, "two", mode="hybrid")


@pytest.fixture
async def many(services):
    await indexes.create_index(services, "many")
    # of one passage each; "rare" is in every fifth, "odd" in every third
    texts = [
        f"text {n}{' rare' * (n % 5 == 0)}{' odd odd' * (n % 3 == 0)}".strip() for n in range(120)
    ]
    for start in range(0, 120, 40):
        block = [Document(f"d{n}", texts[n]) for n in range(start, start + 40)]
        await indexes.upsert_documents(services, "many", block)
    return "many"


@pytest.mark.parametrize("top_k", [1, 10, 70])
async def test_hybrid_fuses_the_places_in_both_rankings(services, many, registry, top_k):
    text = "rare odd 7"
    registry.encoders["words"].asked.clear()
    hits = await retrieval.query_index(services, many, text, top_k=top_k, mode="hybrid")
    assert [prompt for _, prompt, _ in registry.encoders["words"].asked] == ["query: "]
    depth = max(top_k, retrieval.LEAST_CANDIDATES)
    near = await retrieval.query_index(services, many, text, top_k=depth, mode="dense")
    alike = await retrieval.query_index(services, many, text, top_k=depth, mode="bm25")
    assert len(near) == depth
    assert hits == fuse([near, alike], top_k)
    assert len(hits) == top_k
    assert hits == await retrieval.query_index(services, many, text, top_k=top_k, mode="hybrid")


async def test_a_request_that_names_no_mode_takes_the_servers(services, many):
    best = {}
    for mode in retrieval.SEARCH_MODES:
        hits = await retrieval.query_index(replace(services, search_mode=mode), many, "rare 7")
        assert hits == await retrieval.query_index(services, many, "rare 7", mode=mode)
        best[mode] = hits[0].score
    assert len(set(best.values())) == 3
    assert (await retrieval.query_index(services, many, "rare 7"))[0].score == best["dense"]
    # a vector has no words: the default does not concern it
    by_words = replace(services, search_mode="bm25")
    asked = {"vector": np.ones(8, np.float32), "fingerprint": "sha256:words"}
    assert len(await retrieval.query_index(by_words, many, **asked)) == 10
    assert len(await retrieval.query_index(by_words, many, **asked, mode="dense")) == 10


@pytest.mark.parametrize("mode", ["bm25", "hybrid"])
async def test_a_vector_beside_a_search_by_words_is_refused(services, index, mode):
    asked = {"vector": np.ones(8, np.float32), "fingerprint": "sha256:words"}
    with pytest.raises(InputError, match=f"mode: '{mode}' needs words") as caught:
        await retrieval.query_index(services, index, **asked, mode=mode)
    assert caught.value.field == "mode"


@pytest.fixture
async def dated(services):
    await indexes.create_index(services, "dated")
    texts = [f"text {n} {'rare ' * (n % 5 == 0)}" for n in range(40)]
    documents = [Document(f"d{n}", text, {"year": 1900 + n}) for n, text in enumerate(texts)]
    await indexes.upsert_documents(services, "dated", documents)
    return "dated"


@pytest.mark.parametrize("mode", retrieval.SEARCH_MODES)
async def test_a_filter_chooses_before_the_search_in_every_mode(services, dated, mode):
    late = {"must": [{"key": "year", "range": {"gte": 1935}}]}
    hits = await retrieval.query_index(services, dated, "rare 1", top_k=5, mode=mode, filter=late)
    assert set(places(hits)) == ({"d35"} if mode == "bm25" else {f"d{n}" for n in range(35, 40)})
    nothing = {"must": {"key": "year", "match": {"any": []}}}
    assert await retrieval.query_index(services, dated, "rare", mode=mode, filter=nothing) == []
    every = await retrieval.query_index(services, dated, "rare 7", mode=mode)
    assert every == await retrieval.query_index(services, dated, "rare 7", mode=mode, filter={})
    bad = {"must": [{"key": "year", "range": {"gt": "5"}}]}
    with pytest.raises(InputError, match=r"filter\.must\[0\]\.range\.gt: '5' is not a number"):
        await retrieval.query_index(services, dated, "rare", mode=mode, filter=bad)


async def test_hybrid_fuses_what_both_find_under_the_filter_and_after_deletes(services, dated):
    early = {"must_not": {"key": "year", "range": {"gte": 1930}}}
    await indexes.delete_documents(services, dated, [f"d{n}" for n in range(0, 30, 10)])
    hits = await retrieval.query_index(
        services, dated, "rare 7", top_k=50, mode="hybrid", filter=early
    )
    near = await retrieval.query_index(
        services, dated, "rare 7", top_k=50, mode="dense", filter=early
    )
    alike = await retrieval.query_index(
        services, dated, "rare 7", top_k=50, mode="bm25", filter=early
    )
    assert hits == fuse([near, alike], 50)
    assert set(places(hits)) == {f"d{n}" for n in range(30) if n % 10}
    # of those with the word (5, 15, 25), and of number 7
    assert set(places(alike)) == {"d5", "d15", "d25", "d7"}


@pytest.mark.parametrize("mode", ["sparse", "", "BM25"])
async def test_a_mode_that_does_not_exist_is_named_beside_those_that_do(services, index, mode):
    with pytest.raises(InputError, match="is not one of dense, bm25, hybrid") as caught:
        await retrieval.query_index(services, index, "a", mode=mode)
    assert (caught.value.field, caught.value.value) == ("mode", mode)


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
async def test_every_mode_refuses_what_is_out_of_its_limits(services, index, mode):
    with pytest.raises(InputError, match="top_k: 101"):
        await retrieval.query_index(services, index, "a", top_k=101, mode=mode)
    with pytest.raises(InputError, match=r"query: 100001 characters, over the limit"):
        await retrieval.query_index(services, index, "a" * 100_001, mode=mode)
    with pytest.raises(InputError, match="surrogate"):
        await retrieval.query_index(services, index, "a\ud800", mode=mode)
    with pytest.raises(IndexNotFound):
        await retrieval.query_index(services, "nobody", "a", mode=mode)
    assert await retrieval.query_index(services, index, "?!", mode="bm25") == []
    assert len(await retrieval.query_index(services, index, "?!", mode="hybrid")) == 2
