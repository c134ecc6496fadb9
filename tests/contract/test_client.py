"""Our own clients against a real server: what one door says, the other says too."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client
from condensery.encodings import ENCODINGS, Encoding, decode, encode
from condensery.errors import (
    CondenseryError,
    EncoderMismatch,
    IndexNotFound,
    InputError,
    ModelNotFound,
)
from condensery.question import Answer, Delta, Retrieved
from condensery.values import Document

QUESTION = "Which lake does the Rhine pass through?"
TEXTS = ["one text", "", "a much longer text than the others are " * 20]
BF16 = 2e-2  # between batches, largest difference of a unit vector's element

Clients = tuple[Client | GrpcClient, ...]

numbers = itertools.count()


@pytest.fixture
def index(client: Client | GrpcClient) -> Iterator[str]:
    name = f"client-{next(numbers)}"
    client.create_index(name)
    yield name
    client.drop_index(name)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_both_clients_read_back_what_was_sent_in_fewer_bytes(
    clients: Clients, encoding: Encoding
) -> None:
    texts = ["an old mill", "", "a river"]
    exact = clients[0].embed(texts)
    wanted = decode(encode(exact, encoding), encoding, exact.shape[1])
    for client in clients:
        vectors = client.embed(texts, dtype=encoding)
        assert vectors.dtype == np.float32
        assert np.array_equal(vectors, wanted)


def test_it_is_ready_and_names_its_models(client: Client | GrpcClient) -> None:
    assert client.ready()
    models = {model.name: model for model in client.models()}
    children = {"minilm-l6-effir", "minilm-l6-shrp", "mini-lm-comp"}
    assert models.keys() == {"minilm-l6", "oscar-mini", *children}
    encoder, pair = models["minilm-l6"], models["oscar-mini"]
    assert (encoder.name, encoder.kind, encoder.dims) == ("minilm-l6", "encoder", 384)
    assert (pair.name, pair.kind) == ("oscar-mini", "oscar-pair")
    assert encoder.pair is None
    assert pair.pair is not None
    assert pair.pair.scores
    assert pair.fingerprint.startswith("sha256:")


def test_vectors_are_float32_of_length_1(client: Client | GrpcClient) -> None:
    vectors = client.embed(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-3
    assert np.linalg.norm(client.embed(TEXTS[:1], normalize=False)) > 1.1


@pytest.mark.parametrize("child", ["minilm-l6-effir", "minilm-l6-shrp"])
def test_a_shipped_child_is_compared_with_its_parent_by_changing_the_model(
    client: Client | GrpcClient, child: str
) -> None:
    texts = ["a river in Europe", "the Danube flows through Vienna", "how to bake bread"]
    parent, own = client.embed(texts), client.embed(texts, model=child)
    assert own.shape == parent.shape
    assert not np.allclose(own, parent, atol=1e-2)
    assert (own * parent).sum(1).min() > 0.5  # random vectors have 0.05
    assert own[0] @ own[1] > own[0] @ own[2] + 0.2


def test_an_encoder_of_memory_tokens_that_ships_finds_what_a_query_asks_for(
    client: Client | GrpcClient,
) -> None:
    passages = ["The Danube flows through Vienna to the Black Sea.", "Bread is baked of flour."]
    (query,) = client.embed(
        ["Which river flows through Vienna?"], model="mini-lm-comp", prompt_name="query"
    )
    near, far = client.embed(passages, model="mini-lm-comp") @ query
    assert near > far + 0.1


def test_both_doors_give_the_same_bits_for_one_text(clients: Clients) -> None:
    rest, grpc = clients
    for text in TEXTS:
        assert rest.embed([text]).tobytes() == grpc.embed([text]).tobytes()
    assert np.abs(rest.embed(TEXTS) - grpc.embed(TEXTS)).max() < BF16


def test_both_doors_rank_and_answer_alike(clients: Clients) -> None:
    passages = ["a passage", "another one", "and a third"]
    ranked = [client.rerank(QUESTION, passages) for client in clients]
    assert [item.index for item in ranked[0]] == [entry.index for entry in ranked[1]]
    assert np.allclose(*[[rank.score for rank in ranks] for ranks in ranked], atol=1e-2)
    answers = [client.answer(QUESTION, index="samples", max_tokens=8) for client in clients]
    assert answers[0].text == answers[1].text != ""
    ids = [sorted(citation.id for citation in answer.citations) for answer in answers]
    assert ids[0] == ids[1]
    assert answers[0].compression.tokens_in == answers[1].compression.tokens_in
    assert answers[0].usage == answers[1].usage


def test_a_ranking_is_ordered_and_can_be_cut(client: Client | GrpcClient) -> None:
    passages = [f"passage number {place}" for place in range(6)]
    ranked = client.rerank(QUESTION, passages)
    assert sorted(item.index for item in ranked) == list(range(6))
    assert all(entry.text == passages[entry.index] for entry in ranked)
    scores = [item.score for item in ranked]
    assert scores == sorted(scores, reverse=True)
    assert [item.index for item in client.rerank(QUESTION, passages, top_n=2)] == [
        item.index for item in ranked[:2]
    ]
    raw = client.rerank(QUESTION, passages, raw_scores=True)
    assert [1 / (1 + np.exp(-item.score)) for item in raw] == pytest.approx(scores, abs=1e-2)


def test_a_streamed_answer_is_its_deltas_joined(client: Client | GrpcClient) -> None:
    first, *deltas, last = client.answer_stream(
        QUESTION, index="samples", top_k=6, top_n=2, max_tokens=12
    )
    assert isinstance(first, Retrieved)
    assert isinstance(last, Answer)
    assert len(deltas) > 5
    assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == last.text
    assert first.id == last.id
    assert first.citations == last.citations
    assert len(last.citations) == 2
    whole = client.answer(QUESTION, index="samples", top_k=6, top_n=2, max_tokens=12)
    assert whole.text == last.text


def test_an_answer_reads_the_documents_it_is_given(client: Client | GrpcClient) -> None:
    documents = ["first passage", Document("mine", "second passage", {"year": 1898})]
    answer = client.answer(QUESTION, documents=documents, top_n=0, max_tokens=4)
    assert sorted(citation.id for citation in answer.citations) == ["0", "mine"]
    mine = next(citation for citation in answer.citations if citation.id == "mine")
    assert mine.metadata == {"year": 1898}
    assert answer.compression.status == "applied"
    plain = client.answer(QUESTION, documents=documents, mode="off", max_tokens=4)
    assert plain.compression.status == "off"
    assert plain.usage.prompt_tokens > answer.usage.prompt_tokens


def test_an_index_holds_what_is_written_into_it(client: Client | GrpcClient, index: str) -> None:
    metadata = {"title": "T", "year": 1898, "ratio": 0.5, "tags": ["a", None, True], "of": {"b": 1}}
    documents = [Document("a", "radium was found", metadata), Document("b", "bread is baked")]
    written = client.upsert(index, documents)
    assert (written.documents, written.passages) == (2, 2)
    assert client.count(index) == (2, 2)
    best = client.query(index, "who found radium?", top_k=1)[0]
    assert (best.passage.document_id, best.passage.text) == ("a", "radium was found")
    assert (best.passage.start, best.passage.end) == (0, 16)
    assert best.passage.metadata == metadata
    info = next(item for item in client.list_indexes() if item.name == index)
    assert (info.documents, info.dims, info.encoder) == (2, 384, "minilm-l6")
    assert client.delete(index, ["a", "nobody"]) == 1
    assert client.count(index) == (1, 1)


def test_an_index_takes_vectors_of_its_encoder_only(
    client: Client | GrpcClient, index: str
) -> None:
    fingerprint = client.models()[0].fingerprint
    vectors = client.embed(["radium", "bread"])
    documents = [Document("a", "radium"), Document("b", "bread")]
    client.upsert(index, documents, vectors=vectors, fingerprint=fingerprint)
    hits = client.query(index, vector=vectors[1], fingerprint=fingerprint, top_k=2)
    assert [hit.passage.document_id for hit in hits] == ["b", "a"]
    assert hits[0].score == pytest.approx(1, abs=1e-4)
    other = "sha256:" + "0" * 64
    with pytest.raises(EncoderMismatch, match=other[:20]):
        client.query(index, vector=vectors[1], fingerprint=other)
    with pytest.raises(EncoderMismatch):
        client.upsert(index, documents, vectors=vectors, fingerprint=other)


def test_errors_are_those_of_the_server(client: Client | GrpcClient, index: str) -> None:
    with pytest.raises(ModelNotFound, match="'nobody'") as no_model:
        client.embed(["x"], model="nobody")
    assert no_model.value.field == "model"
    with pytest.raises(IndexNotFound, match="nowhere"):
        client.query("nowhere", "x")
    with pytest.raises(InputError, match="top_k"):
        client.query(index, "x", top_k=100_000)
    with pytest.raises(InputError, match="10000"):
        client.embed(["x"] * 10_000)
    with pytest.raises(InputError):
        client.embed([])
    with pytest.raises(InputError, match="both"):
        client.query(index, "x", vector=np.zeros(384, np.float32))
    fingerprint = client.models()[0].fingerprint
    with pytest.raises(InputError):
        client.query(index, vector=np.full(384, np.nan, np.float32), fingerprint=fingerprint)
    with pytest.raises(IndexNotFound):
        next(iter(client.answer_stream("q", index="nowhere")))


def test_a_stream_that_is_left_early_harms_nobody(client: Client | GrpcClient) -> None:
    events = client.answer_stream(QUESTION, index="samples", max_tokens=60)
    assert isinstance(next(events), Retrieved)
    del events
    assert client.ready()
    assert client.embed(["x"]).shape == (1, 384)


async def test_the_async_clients_do_the_same(
    async_client: AsyncClient | AsyncGrpcClient, clients: Clients
) -> None:
    assert await async_client.ready()
    client = clients[0]
    assert (await async_client.embed(TEXTS[:1])).tobytes() == client.embed(TEXTS[:1]).tobytes()
    assert await async_client.models() == client.models()
    events = [
        event async for event in async_client.answer_stream(QUESTION, index="samples", max_tokens=8)
    ]
    assert isinstance(events[0], Retrieved)
    last = events[-1]
    assert isinstance(last, Answer)
    assert last.text
    assert "".join(event.text for event in events[1:-1] if isinstance(event, Delta)) == last.text
    with pytest.raises(ModelNotFound):
        await async_client.embed(["x"], model="nobody")
    with pytest.raises(IndexNotFound):
        async for _ in async_client.answer_stream("q", index="nowhere"):
            pass


async def test_an_address_where_nobody_listens_is_unavailable() -> None:
    with GrpcClient("127.0.0.1:9") as client:
        assert not client.ready()
        with pytest.raises(CondenseryError, match=r"127\.0\.0\.1:9: "):
            client.models()
    async with AsyncGrpcClient("127.0.0.1:9") as client_async:
        assert not await client_async.ready()
