"""The header ``x-model`` names the model of every route whose body can, where the body does not."""

from typing import get_args

from tests.unit.api.rest.every_route import REQUESTS

from condensery.api.rest.endpoint import RouteTable
from condensery.api.rest.routes import route_sections
from condensery.api.rest.validation import field_names

ROUTES = [route for section in route_sections().values() for route in section]
SPARSE = ("POST", "/embed_sparse", {"inputs": "a"})  # which no model here answers


def names_a_model(route):
    """Whether a route's body, or one of them, can name a model."""
    schemas = get_args(route.body) or (route.body,)
    return not route.form and any("model" in field_names(body) for body in schemas if body)


async def test_the_header_names_the_model_that_the_body_does_not(
    client, registry, classifier_of, subtests
):
    registry.classifiers["nli"] = classifier_of("nli", "no", "yes")
    table, left = RouteTable(ROUTES), {route.path for route in ROUTES if names_a_model(route)}
    for method, path, body in (*REQUESTS, SPARSE):
        route = table.find(path)[0][method]
        if not names_a_model(route):
            continue
        left.discard(route.path)
        unnamed = {name: value for name, value in body.items() if name != "model"}
        for named, wanted in (
            ({}, "theirs"),
            ({"model": None}, "theirs"),
            ({"model": "mine"}, "mine"),
        ):
            with subtests.test(f"{method} {path}", body=body, **named):
                reply = await client.request(
                    method, path, json={**unnamed, **named}, headers={"x-model": "theirs"}
                )
                assert reply.status_code == 404
                assert f"model '{wanted}'" in reply.text
    assert not left


async def test_a_stream_too_is_of_the_model_that_the_header_names(client):
    for path, asked in (
        ("/v1/rag/answer", {"query": "where?"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "where?"}]}),
        ("/v1/responses", {"input": "where?"}),
    ):
        body = {**asked, "documents": ["gold"], "stream": True}
        reply = await client.post(path, json=body, headers={"x-model": "nosuch"})
        assert (reply.status_code, "nosuch" in reply.text) == (404, True)
        reply = await client.post(path, json=body, headers={"x-model": "pair"})
        assert (reply.status_code, reply.headers["x-model"]) == (200, "pair")


async def test_where_no_body_names_a_model_the_header_harms_nothing(client):
    header = {"x-model": "nosuch"}
    assert (await client.put("/v1/indexes/kb", json={}, headers=header)).status_code == 200
    documents = {"documents": [{"id": "a", "text": "gold"}]}
    reply = await client.post("/v1/indexes/kb/documents", json=documents, headers=header)
    assert reply.status_code == 200
    reply = await client.post("/v1/indexes/kb/query", json={"query": "gold"}, headers=header)
    assert reply.status_code == 200


async def test_a_header_that_is_no_models_name_is_refused_as_one_in_the_body_is(client):
    chat = {"messages": [{"role": "user", "content": "where?"}], "documents": ["gold"]}
    reply = await client.post("/v1/chat/completions", json=chat, headers={"x-model": "pair@@"})
    named = await client.post("/v1/chat/completions", json={**chat, "model": "pair@@"})
    assert reply.status_code == named.status_code
    assert reply.json() == named.json()
