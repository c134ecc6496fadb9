"""What jobs need of a vector store holds of ours, and of the least that one can be."""

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.jobs.toy_store import ToyStore
from tests.unit.questions import make_question

from condensery.api.rest.http import RestServer
from condensery.client.rest import AsyncClient
from condensery.errors import EncoderMismatch, IndexExists, IndexNotFound, InputError
from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.answer import answer_whole
from condensery.jobs.interfaces import VectorStore
from condensery.jobs.services import Services
from condensery.values import Document

DOCUMENTS = [
    Document("a", "gold in the hills", {"year": 1849, "tags": ["mine", "old"]}),
    Document("b", "bread and grain", {"year": 1950}),
    Document("c", "gold gold in rivers", {"year": 2001, "place": {"name": "yukon"}}),
    Document("d", "silver in the hills", {}),
]
RECENT = {"must": [{"key": "year", "range": {"gte": 1900}}]}


@pytest.fixture(params=["ours", "toy"])
def stored(request: pytest.FixtureRequest, services: Services) -> Services:
    """The services, over each of the stores."""
    if request.param == "ours":
        return services
    toy: VectorStore = ToyStore()
    return replace(services, indexes=toy)


@pytest.fixture
async def kb(stored: Services) -> str:
    await indexes.create_index(stored, "kb")
    await indexes.upsert_documents(stored, "kb", DOCUMENTS)
    return "kb"


def documents_of(hits: Any) -> list[str]:
    return [hit.document_id for hit in hits]


async def test_an_index_is_made_once_listed_and_dropped(stored: Services, kb: str) -> None:
    info = await indexes.get_index(stored, kb)
    assert (info.encoder, info.dims, info.documents, info.passages) == ("words", 8, 4, 4)
    assert await indexes.create_index(stored, kb) == info
    assert await indexes.list_indexes(stored) == [info]
    with pytest.raises(IndexExists):
        await indexes.create_index(stored, kb, metric="l2")
    await indexes.drop_index(stored, kb)
    with pytest.raises(IndexNotFound):
        await retrieval.query_index(stored, kb, "gold")


@pytest.mark.parametrize("search", ["dense", "bm25", "hybrid"])
async def test_what_is_like_a_query_is_found_first(stored: Services, kb: str, search: Any) -> None:
    hits = await retrieval.query_index(stored, kb, "bread and grain", top_k=2, mode=search)
    assert (hits[0].document_id, hits[0].id, hits[0].text) == ("b", "b#0", "bread and grain")
    assert hits[0].score >= hits[-1].score


@pytest.mark.parametrize("search", ["dense", "bm25", "hybrid"])
async def test_a_filter_limits_a_query(stored: Services, kb: str, search: Any) -> None:
    hits = await retrieval.query_index(stored, kb, "gold in", mode=search, filter=RECENT)
    assert set(documents_of(hits)) == ({"c"} if search == "bm25" else {"b", "c"})


@pytest.mark.parametrize(
    ("filter", "chosen"),
    [
        ({"must": {"key": "tags", "match": {"value": "old"}}}, ["a"]),
        ({"must": {"key": "place.name", "match": {"any": ["yukon", "lena"]}}}, ["c"]),
        ({"must": {"key": "year", "match": {"except": [1950]}}}, ["a", "c"]),
        ({"must_not": RECENT["must"]}, ["a", "d"]),
        ({"should": [{"has_id": ["d"]}, {"key": "year", "range": {"lt": 1900}}]}, ["a", "d"]),
        (None, ["a", "b", "c", "d"]),
    ],
)
async def test_a_filter_chooses_the_same_documents_everywhere(
    stored: Services, kb: str, filter: Any, chosen: list[str]
) -> None:
    assert await indexes.count_documents(stored, kb, filter=filter) == (len(chosen), len(chosen))
    page = await indexes.scroll_documents(stored, kb, filter=filter)
    assert [document.id for document in page.documents] == chosen
    if filter is not None:
        assert await indexes.delete_documents(stored, kb, filter=filter) == len(chosen)
        left = await indexes.scroll_documents(stored, kb)
        assert {document.id for document in left.documents} == set("abcd") - set(chosen)


async def test_documents_are_read_by_id_and_page_by_page(stored: Services, kb: str) -> None:
    assert await indexes.get_documents(stored, kb, ["c", "nobody", "a"]) == [
        DOCUMENTS[2],
        DOCUMENTS[0],
    ]
    first = await indexes.scroll_documents(stored, kb, limit=3, with_vectors=True, with_text=False)
    assert ([document.id for document in first.documents], first.next) == (["a", "b", "c"], "c")
    assert first.documents[0].text is None
    assert first.documents[0].passages is not None
    (passage,) = first.documents[0].passages
    assert (passage.id, passage.vector.shape) == ("a#0", (8,))
    last = await indexes.scroll_documents(stored, kb, after="c")
    assert ([document.id for document in last.documents], last.next) == (["d"], None)
    assert last.documents[0].text == "silver in the hills"


async def test_a_document_written_again_replaces_all_its_passages(
    stored: Services, kb: str
) -> None:
    long = Document("a", " ".join(f"word{place}." for place in range(30)))
    written = await indexes.upsert_documents(stored, kb, [long])
    assert written.passages > 1
    assert await indexes.count_documents(stored, kb) == (4, 3 + written.passages)
    await indexes.upsert_documents(stored, kb, DOCUMENTS[:1])
    assert await indexes.count_documents(stored, kb) == (4, 4)
    assert await indexes.delete_documents(stored, kb, ["a", "a", "nobody"]) == 1
    assert "a" not in documents_of(await retrieval.query_index(stored, kb, "gold in the hills"))


async def test_vectors_of_another_encoder_are_refused(stored: Services, kb: str) -> None:
    spec: dict[str, Any] = {"fingerprint": "sha256:other", "embedded_for": None}
    with pytest.raises(EncoderMismatch):
        stored.indexes.query(kb, np.ones(8, np.float32), top_k=1, **spec)
    with pytest.raises(EncoderMismatch):
        stored.indexes.upsert(kb, [Document("x", "x")], [], np.empty((0, 8), np.float32), **spec)
    assert await indexes.count_documents(stored, kb) == (4, 4)


async def test_an_answer_is_read_from_what_is_retrieved(stored: Services, kb: str) -> None:
    question = make_question("where is gold?", index=kb, top_k=3, top_n=1, filter=RECENT)
    answer = await answer_whole(stored, question)
    assert [citation.document_id for citation in answer.citations] == ["c"]


async def test_what_a_store_has_not_is_refused_by_name(services: Services) -> None:
    toy = replace(services, indexes=ToyStore())
    await indexes.create_index(toy, "kb")
    with pytest.raises(InputError, match="snapshot"):
        await maintenance.create_snapshot(toy, "kb")
    for job in (
        maintenance.list_index_aliases(toy),
        maintenance.list_snapshots(toy, "kb"),
        maintenance.rebuild_index(toy, "kb"),
        maintenance.cancel_rebuild(toy, "kb"),
    ):
        with pytest.raises(InputError, match="aliases, restores and rebuilds"):
            await job
    await maintenance.resume_rebuilds(toy)


@pytest.fixture
async def client(stored: Services) -> AsyncIterator[AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = RestServer(stored, listener)
    await server.started()
    async with AsyncClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        yield client
    await server.stop(0)


async def test_rest_serves_it(client: AsyncClient) -> None:
    await client.create_index("kb")
    assert (await client.upsert("kb", DOCUMENTS)).passages == 4
    hits = await client.query("kb", "bread and grain", top_k=2, filter=RECENT)
    assert documents_of(hits) == ["b", "c"]
    assert await client.count("kb", filter=RECENT) == (2, 2)
    assert (await client.answer("where is gold?", index="kb")).citations
    assert await client.delete("kb", ["b"]) == 1
    await client.drop_index("kb")
    assert await client.list_indexes() == []


def test_the_toy_has_all_that_a_store_must_have() -> None:
    asked = {name for name in vars(VectorStore) if not name.startswith("_")}
    assert asked - set(dir(ToyStore)) == set()
