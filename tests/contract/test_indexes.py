"""Indexes by each door of a real server: filters, pages, deletions; both doors say the same."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import CondenseryError, IndexExists, InputError
from condensery.values import Document

Clients = tuple[Client | GrpcClient, ...]
DOCUMENTS = [
    Document("rhine", "The Rhine passes through Lake Constance.", {"year": 1898, "km": 1233.5}),
    Document("danube", "The Danube is 2,850 km long.", {"year": 1900, "tags": ["long", "east"]}),
    Document("porto", "Porto has six bridges.", {"year": 1886, "tags": ["bridges"], "city": True}),
    Document(
        "radium", "Radium was found by the Curies.", {"year": 1898, "by": [{"name": "Curie"}]}
    ),
    Document("bread", "Bread rises with yeast."),
]
FILTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "range": ({"must": {"key": "year", "range": {"gte": 1890, "lt": 1900}}}, {"rhine", "radium"}),
    "fraction": ({"must": {"key": "km", "range": {"gt": 1233.25}}}, {"rhine"}),
    "value": ({"must": [{"key": "city", "match": {"value": True}}]}, {"porto"}),
    "whole number": ({"must": {"key": "year", "match": {"value": 1900}}}, {"danube"}),
    "any": ({"must": {"key": "tags", "match": {"any": ["east", "bridges"]}}}, {"danube", "porto"}),
    "except": ({"must": {"key": "year", "match": {"except": [1898]}}}, {"danube", "porto"}),
    "nested": ({"must": {"key": "by[].name", "match": {"value": "Curie"}}}, {"radium"}),
    "ids": ({"should": [{"has_id": ["bread"]}, {"has_id": ["porto"]}]}, {"bread", "porto"}),
    "not": ({"must_not": {"key": "year", "range": {"gt": 0}}}, {"bread"}),
    "deep": (
        {"must": [{"must_not": [{"has_id": ["bread", "rhine", "porto"]}]}]},
        {"danube", "radium"},
    ),
    "none": ({"must": {"key": "year", "match": {"value": "1900"}}}, set()),
    "all": ({}, {item.id for item in DOCUMENTS}),
}
WRONG = [
    ({"must": [{"key": "year", "range": {"gt": "5"}}]}, "filter.must[0].range.gt"),
    ({"must": [{"key": "year", "match": {"value": None}}]}, "filter.must[0].match"),
    ({"some": []}, "filter.some"),
    ({"must": {"key": "a[0]", "match": {"value": 1}}}, "filter.must.key"),
]

numbers = itertools.count()


@pytest.fixture
def index(client: Client | GrpcClient) -> Iterator[str]:
    name = f"filtered-{next(numbers)}"
    client.create_index(name)
    client.upsert(name, DOCUMENTS)
    yield name
    client.drop_index(name)


@pytest.mark.parametrize("case", FILTERS)
def test_both_doors_find_what_a_filter_chooses(clients: Clients, index: str, case: str) -> None:
    asked, expected = FILTERS[case]
    for search in ("dense", "hybrid"):
        results = [
            client.query(index, "a river", search=search, filter=asked) for client in clients
        ]
        rest, grpc = ([hit.passage for hit in hits] for hits in results)
        assert rest == grpc
        scores = [[hit.score for hit in hits] for hits in results]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)  # over gRPC they are float32
        assert {hit.passage.document_id for hit in results[0]} == expected


def test_an_answer_reads_what_a_filter_chooses(client: Client | GrpcClient, index: str) -> None:
    asked, expected = FILTERS["range"]
    how: Any = {"index": index, "filter": asked, "max_tokens": 2, "top_n": 0}
    answer = client.answer("Which lake?", **how)
    assert {citation.document_id for citation in answer.citations} == expected
    both = client.compare("Which lake?", **how)
    assert {item.document_id for item in both.plain.citations} == expected


@pytest.mark.parametrize(("asked", "field"), WRONG)
def test_what_is_wrong_with_a_filter_is_named_alike(
    clients: Clients, index: str, asked: Any, field: str
) -> None:
    messages = []
    for client in clients:
        with pytest.raises(InputError) as caught:
            client.query(index, "a river", filter=asked)
        assert caught.value.field == field
        messages.append(caught.value.message)
        with pytest.raises(CondenseryError) as answered:
            client.answer("Which lake?", index=index, filter=asked)
        assert answered.value.field == f"index.{field}"
    assert messages[0] == messages[1]


def test_an_index_is_made_of_the_kind_and_options_asked_for(clients: Clients) -> None:
    for client in clients:
        name = f"kinds-{next(numbers)}"
        options = {"pq_m": 48, "nprobe": 20}
        made = client.create_index(name, kind="ivf_pq", options=options)
        assert (made.kind, made.options, made.trains_at) == ("ivf_pq", options, 39 * 256)
        client.upsert(name, DOCUMENTS)
        (info,) = (index for index in client.list_indexes() if index.name == name)
        assert (info.kind, info.searched_as, info.passages) == ("ivf_pq", "flat", 5)
        assert len(client.query(name, "a river")) == 5
        with pytest.raises(IndexExists, match="options is"):
            client.create_index(name, kind="ivf_pq", options={"pq_m": 96})
        client.drop_index(name)
        for wrong, field in (
            ({"kind": "hnsw", "options": {"nlist": 4}}, "options.nlist"),
            ({"kind": "hnsw", "options": {"m": 1}}, "options.m"),
            ({"kind": "ivf_pq", "options": {"pq_m": 7}}, "options.pq_m"),
            ({"kind": "flat", "options": {"m": 8}}, "options.m"),
        ):
            with pytest.raises(InputError) as caught:
                client.create_index(name, **wrong)
            assert caught.value.field == field


def test_both_doors_count_page_and_read_alike(clients: Clients, index: str) -> None:
    asked, expected = FILTERS["range"]
    for client in clients:
        assert client.count(index, filter=asked) == (2, 2)
        assert client.count(index) == client.count(index, filter={}) == (5, 5)
        assert client.get(index, ["porto", "nobody", "bread"]) == [DOCUMENTS[2], DOCUMENTS[4]]
    pages = [client.scroll(index, filter=asked) for client in clients]
    assert pages[0] == pages[1]
    assert {document.id for document in pages[0].documents} == expected
    assert [item.text for item in pages[0].documents] == [DOCUMENTS[3].text, DOCUMENTS[0].text]
    assert pages[0].next is None
    bare = [client.scroll(index, with_text=False, with_metadata=False) for client in clients]
    assert bare[0] == bare[1]
    assert {(entry.text, entry.metadata) for entry in bare[0].documents} == {(None, None)}


def test_pages_follow_each_other_to_the_end(client: Client | GrpcClient, index: str) -> None:
    first = client.scroll(index, limit=2)
    assert ([document.id for document in first.documents], first.next) == (
        ["bread", "danube"],
        "danube",
    )
    client.delete(index, ["danube"])
    client.upsert(index, [DOCUMENTS[2], Document("aare", "A river in Bern.")])
    rest = client.scroll(index, limit=2, after=first.next)
    assert ([item.id for item in rest.documents], rest.next) == (["porto", "radium"], "radium")
    last = client.scroll(index, limit=2, after=rest.next)
    assert ([entry.id for entry in last.documents], last.next) == (["rhine"], None)


def test_vectors_come_with_their_passages(clients: Clients, index: str) -> None:
    pages = [client.scroll(index, limit=1, with_vectors=True) for client in clients]
    (passage,), (other,) = (page.documents[0].passages or () for page in pages)
    assert (passage.id, passage.start, passage.end) == ("bread#0", 0, len(DOCUMENTS[4].text))
    assert (passage.vector.shape, passage.vector.dtype) == ((384,), other.vector.dtype)
    assert passage.vector.tobytes() == other.vector.tobytes()


def test_a_filter_deletes_what_it_chooses(client: Client | GrpcClient, index: str) -> None:
    asked, expected = FILTERS["any"]
    assert client.delete(index, filter=asked) == 2
    assert client.delete(index, filter=asked) == 0
    left = {document.id for document in client.scroll(index).documents}
    assert left == {item.id for item in DOCUMENTS} - expected


def test_a_deletion_is_by_ids_or_by_a_filter_that_says_something(
    clients: Clients, index: str
) -> None:
    asked, _ = FILTERS["any"]
    for client in clients:
        for how, field in (
            ({}, "ids"),
            ({"ids": []}, "ids"),
            ({"ids": ["rhine"], "filter": asked}, "ids"),
            ({"ids": [], "filter": asked}, "ids"),
            ({"filter": {}}, "filter"),
            ({"filter": {"must": [{"should": []}]}}, "filter"),
            ({"filter": WRONG[0][0]}, WRONG[0][1]),
        ):
            with pytest.raises(InputError) as caught:
                client.delete(index, **how)
            assert caught.value.field == field, how
        for how, field in (
            ({"limit": 0}, "limit"),
            ({"limit": 5000}, "limit"),
            ({"after": "x" * 501}, "after"),
            ({"filter": WRONG[0][0]}, WRONG[0][1]),
        ):
            with pytest.raises(InputError) as caught:
                client.scroll(index, **how)
            assert caught.value.field == field, how
        assert client.count(index) == (5, 5)


def test_hybrid_forgets_what_is_deleted_and_keeps_to_the_filter(
    clients: Clients, index: str
) -> None:
    """By words and by meaning alike, on a plain query, by each door."""
    late = {"must": {"key": "year", "range": {"gte": 1890}}}
    for client in clients:
        hits = client.query(index, "bridges of Porto", search="hybrid")
        assert hits[0].passage.document_id == "porto"
        hits = client.query(index, "bridges of Porto", search="hybrid", filter=late)
        assert {hit.passage.document_id for hit in hits} == {"rhine", "danube", "radium"}
    assert clients[0].delete(index, filter={"must": {"has_id": ["porto", "danube"]}}) == 2
    for client in clients:
        for search in ("hybrid", "bm25", "dense"):
            hits = client.query(index, "bridges of Porto and Danube", search=search)
            documents = {hit.passage.document_id for hit in hits}
            assert not documents & {"porto", "danube"}
            assert len(documents) == {"hybrid": 3, "dense": 3}.get(search, len(documents))
        hits = client.query(index, "Radium and bread", search="hybrid", filter=late)
        assert [hit.passage.document_id for hit in hits] == ["radium", "rhine"]


def test_both_doors_show_the_heading_that_a_passage_is_found_under(
    clients: Clients, client: Client | GrpcClient, index: str
) -> None:
    heading = "Yeast of the Alps"
    rest_of_it = " ".join(f"Sample {number} was kept in a cold room." for number in range(60))
    client.upsert(index, [Document("yeast", f"{heading}\n\n{rest_of_it}")])
    for search in ("bm25", "hybrid"):
        results = [client.query(index, "alps", search=search, top_k=9) for client in clients]
        rest, grpc = ([hit.passage for hit in hits] for hits in results)
        assert rest == grpc
        found = [hit for hit in rest if hit.document_id == "yeast"]
        assert len(found) > 3
        for hit in found:
            assert hit.heading == (heading if hit.start else "")
            assert (heading in hit.text) == (not hit.start)
