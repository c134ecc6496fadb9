"""The description says what is true: of every route, every reply and every refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from condensery import errors
from condensery.api.rest import notices, replies, replies_rag, replies_upkeep
from condensery.api.rest.app import App
from condensery.api.rest.describing import describe, errors_of
from condensery.api.rest.errors import row_of
from condensery.api.rest.routes import sections
from condensery.index.checks import check_name
from condensery.jobs.services import Limits

ROOT = Path(__file__).parents[4]
ROUTES = [route for section in sections().values() for route in section]
DESCRIBED = describe(sections(), Limits())


def operation_of(route: Any) -> Any:
    return DESCRIBED["paths"][route.template][route.method.lower()]


def named(route: Any) -> str:
    return f"{route.method} {route.template}"


def test_the_file_is_what_the_app_describes():
    app = App(sections(), Limits())
    path = ROOT / "docs" / "openapi.json"
    assert json.loads(path.read_text()) == app.openapi(), "run `make openapi` and commit it"


async def test_a_server_describes_its_own_limits(door, services):
    described = (await door.get("/openapi.json")).json()
    texts = described["components"]["schemas"]["TeiRerankRequest"]["properties"]["texts"]
    assert (texts["minItems"], texts["maxItems"]) == (1, services.limits.max_items)


@pytest.mark.parametrize("route", ROUTES, ids=named)
def test_every_route_is_described_whole(route):
    operation = operation_of(route)
    assert operation["summary"].endswith(".")
    assert ("requestBody" in operation) == (route.body is not None)
    good = operation["responses"]["200"]
    assert route.media in good["content"]
    if route.media == "application/json":
        assert good["content"][route.media]["schema"], "what the reply holds is not said"
    names = [one.get("name", one.get("$ref")) for one in operation["parameters"]]
    assert ("name" in names) == ("{name" in route.path)
    needs = [row_of(kind).status(route.family) for kind in errors_of(route)]
    assert {str(status) for status in needs} <= operation["responses"].keys()


def test_names_of_operations_are_unique():
    names = [operation_of(route)["operationId"] for route in ROUTES]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere():
    text = json.dumps(DESCRIBED)
    for reference in {part.split('"')[0] for part in text.split('"#/')[1:]}:
        found = DESCRIBED
        for step in reference.split("/"):
            found = found[step]
        assert found is not None


@pytest.mark.parametrize(
    ("path", "method", "statuses"),
    [
        (
            "/v1/rag/answer",
            "post",
            "200 400 401 403 404 408 409 410 413 424 429 431 500 503 504",
        ),
        ("/v1/contexts/{name}", "delete", "200 400 401 403 404 408 410 429 431 500 503 504"),
        ("/embed", "post", "200 400 401 403 404 408 413 422 424 429 431 500 503 504"),
        ("/v1/embeddings", "post", "200 400 401 403 404 408 413 429 431 500 503 504"),
        ("/rerank", "post", "200 400 401 403 404 408 413 422 424 429 431 500 503 504"),
        ("/livez", "get", "200 400 431 500 503"),
        ("/metrics", "get", "200 400 401 431 500"),
        (
            "/v1/indexes/{name}/documents",
            "post",
            "200 400 401 403 404 408 409 413 429 431 500 503 504 507",
        ),
    ],
)
def test_statuses_are_those_that_come(path, method, statuses):
    assert " ".join(DESCRIBED["paths"][path][method]["responses"]) == statuses


def test_names_of_indexes_are_those_that_are_taken():
    import re

    schema = DESCRIBED["paths"]["/v1/indexes/{name}"]["get"]["parameters"][0]["schema"]
    for name in ("a", "0", "a.b_c-d", "a" * 64, "a" * 65, "A", "", ".a", "a b", "é"):
        allowed = bool(re.search(schema["pattern"], name))
        try:
            check_name(name)
        except errors.InputError:
            assert not allowed
        else:
            assert allowed


QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}
DOCUMENTS = [{"id": "a", "text": "alpha", "metadata": {"n": [1, None, {"x": "y"}]}}]
CHAT = {"messages": [{"role": "user", "content": "where?"}], "documents": QUESTION["documents"]}
COHERE = {"texts": ["a", "b"], "input_type": "search_query"}
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
REPLIES = [
    ("POST", "/v1/embeddings", {"input": ["a", "b"]}, replies.Embeddings),
    ("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}, replies.Embeddings),
    ("POST", "/v1/embeddings", {"input": "a", "embed_dtype": "ubinary"}, replies.Embeddings),
    ("POST", "/embeddings", {"input": "a"}, replies.Embeddings),
    ("POST", "/openai/v1/embeddings", {"input": "a"}, replies.Embeddings),
    ("POST", "/embed", {"inputs": ["a", "b"]}, replies.Vectors),
    ("POST", "/", {"inputs": ["a", "b"]}, replies.Anything),
    ("POST", "/", {"query": "q", "texts": ["a", "gold"]}, replies.Anything),
    ("POST", "/invocations", {"inputs": "a"}, replies.Anything),
    ("POST", "/embed_all", {"inputs": ["a", "b"]}, replies.TokenVectors),
    (
        *("POST", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        replies.Cosines,
    ),
    ("POST", "/tokenize", {"inputs": ["a", "b"]}, replies.Tokenized),
    ("POST", "/decode", {"ids": [1, 2]}, replies.Decoded),
    ("POST", "/predict", {"inputs": "a"}, replies.Predictions),
    ("POST", "/predict", {"inputs": [["a"], ["a", "b"]]}, replies.Predictions),
    ("POST", "/rerank", {"query": "q", "texts": ["a", "gold"]}, replies.AnyRanking),
    ("POST", "/rerank", {"query": "q", "texts": ["a"], "return_text": True}, replies.AnyRanking),
    ("POST", "/rerank", {**QUESTION, "return_documents": True}, replies.AnyRanking),
    ("POST", "/v1/embed", {"texts": ["a", "b"]}, replies.CohereEmbeddings),
    ("POST", "/v1/embed", {**COHERE, "embedding_types": ["int8"]}, replies.CohereEmbeddings),
    ("POST", "/v2/embed", {**COHERE, "embedding_types": TYPES}, replies.CohereByType),
    ("POST", "/v1/rerank", QUESTION, replies.Ranking),
    ("POST", "/v2/rerank", QUESTION, replies.Ranking),
    (
        *("POST", "/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
        replies.NimRanking,
    ),
    ("POST", "/v1/rerank", {**QUESTION, "return_documents": True}, replies.Ranking),
    ("POST", "/v1/rag/answer", QUESTION, replies_rag.WholeAnswer),
    ("POST", "/v1/rag/answer", {**QUESTION, "logprobs": 2}, replies_rag.WholeAnswer),
    (
        *("POST", "/v1/rag/answer", {**QUESTION, "compression": {"mode": "off"}}),
        replies_rag.WholeAnswer,
    ),
    ("POST", "/v1/rag/compare", QUESTION, replies_rag.Comparison),
    ("POST", "/v1/chat/completions", CHAT, replies_rag.ChatCompletion),
    (
        *("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}),
        replies_rag.ChatCompletion,
    ),
    ("POST", "/v1/compress", QUESTION, replies_rag.Compressed),
    ("POST", "/v1/compress", {**QUESTION, "return": "stats"}, replies_rag.Compressed),
    ("DELETE", "/v1/contexts/ctx_...", None, replies_rag.Released),
    ("PUT", "/v1/indexes/kb", {}, replies.Index),
    ("GET", "/v1/indexes", None, replies.Indexes),
    ("GET", "/v1/indexes/kb", None, replies.Index),
    ("POST", "/v1/indexes/kb/documents", {"documents": DOCUMENTS}, replies.Written),
    ("GET", "/v1/indexes/aliases", None, replies_upkeep.Aliases),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"create_alias": {"alias": "live", "index": "kb"}}]},
        replies_upkeep.Aliases,
    ),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"delete_alias": {"alias": "live"}}]},
        replies_upkeep.Aliases,
    ),
    ("POST", "/v1/indexes/kb/snapshots", None, replies_upkeep.Snapshot),
    ("GET", "/v1/indexes/kb/snapshots", None, replies_upkeep.Snapshots),
    ("GET", "/v1/indexes/kb/snapshots/snap_...", None, replies_upkeep.Snapshot),
    ("POST", "/v1/indexes/kb/snapshots/snap_.../restore", {}, replies.Index),
    ("DELETE", "/v1/indexes/kb/snapshots/snap_...", None, replies_upkeep.SnapshotDeleted),
    ("POST", "/v1/indexes/kb/rebuild", {"encoder": "other"}, replies_upkeep.Rebuild),
    ("GET", "/v1/indexes/kb/rebuild", None, replies_upkeep.Rebuild),
    ("DELETE", "/v1/indexes/kb/rebuild", None, replies_upkeep.RebuildCancelled),
    ("POST", "/v1/indexes/kb/documents/get", {"ids": ["a", "b"]}, replies.Documents),
    ("POST", "/v1/indexes/kb/documents/count", {}, replies.Counts),
    ("POST", "/v1/indexes/kb/documents/scroll", {}, replies.Page),
    ("POST", "/v1/indexes/kb/documents/scroll", {"with_vectors": True}, replies.Page),
    (
        *("POST", "/v1/indexes/kb/documents/scroll"),
        *({"with_text": False, "with_metadata": False, "limit": 1}, replies.Page),
    ),
    ("POST", "/v1/indexes/kb/query", {"query": "alpha"}, replies.Hits),
    ("POST", "/v1/indexes/kb/documents/delete", {"ids": ["a"]}, replies.Deleted),
    ("DELETE", "/v1/indexes/kb", None, replies.Dropped),
    ("GET", "/v1/models", None, notices.Models),
    ("GET", "/models", None, notices.InfinityModels),
    ("GET", "/v1/models/words", None, notices.Model),
    ("GET", "/v1/models/pair/report", None, notices.Report),
    ("POST", "/v1/models/aliases", {"aliases": {"best": "other"}}, notices.ModelAliases),
    ("GET", "/v1/models/aliases", None, notices.ModelAliases),
    ("POST", "/v1/models/words/load", {"version": "2"}, notices.Loaded),
    ("POST", "/v1/models/words/reload", {}, notices.Loaded),
    ("POST", "/v1/models/pair/unload", {}, notices.Unloaded),
    ("POST", "/v2/repository/index", {"ready": True}, list[notices.KServeVersion]),
    ("POST", "/v2/repository/models/words/load", {}, notices.KServeVersion),
    ("POST", "/v2/repository/models/pair/unload", {}, notices.KServeVersion),
    ("GET", "/info", None, notices.TeiInfo),
    ("GET", "/version", None, notices.Version),
    ("GET", "/openapi.json", None, dict[str, Any]),
    ("GET", "/v2", None, notices.KServeServer),
    ("GET", "/v2/models/pair", None, notices.KServeModel),
    ("GET", "/v2/models/words/ready", None, notices.KServeModelReady),
    ("GET", "/livez", None, notices.Status),
    ("GET", "/readyz", None, notices.Status),
    ("GET", "/startupz", None, notices.Status),
    ("GET", "/health", None, notices.Status),
    ("GET", "/ping", None, notices.Status),
    ("GET", "/v2/health/live", None, notices.KServeLive),
    ("GET", "/v2/health/ready", None, notices.KServeReady),
]


async def test_replies_hold_what_is_described_and_nothing_else(door, classifiers):
    answered, held, made = set(), "", ""
    classifiers.encoders["other"].delay = 60  # so that there is a rebuild to cancel
    for method, path, body, schema in REPLIES:
        template = path.replace("/kb", "/{name}").replace("/ctx_...", "/{name}")
        template = template.replace("/snap_...", "/{snapshot}")
        asked = path.replace("ctx_...", held).replace("snap_...", made)
        reply = await door.request(method, asked, json=body)
        assert reply.status_code == 200, reply.text
        TypeAdapter(schema).validate_json(reply.content, strict=True)
        if schema is replies_rag.Compressed:
            held = reply.json()["context"] or held
        if schema is replies_upkeep.Snapshot:
            made = reply.json()["id"]
        for name in ("words", "pair"):
            template = template.replace(f"/{name}", "/{name}")
        (route,) = [one for one in ROUTES if (one.method, one.template) == (method, template)]
        assert route.reply == schema
        answered.add((method, template))
    assert answered == {(one.method, one.template) for one in ROUTES if one.reply is not None}


async def test_the_page_lists_every_route_and_loads_nothing(door):
    reply = await door.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = reply.text
    for route in ROUTES:
        assert f"<code>{route.method} {route.template}</code>" in page
    # Links lead to this page and to its description, and nothing is run or fetched.
    links = {part.split("'")[0] for part in page.split("href='")[1:]}
    assert {link for link in links if not link.startswith("#")} == {"openapi.json"}
    for link in links:
        assert link == "openapi.json" or f"id='{link[1:]}'" in page
    for loads in ("<script", "src=", "<link", "url(", "@import", "//"):
        assert loads not in page
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")


def test_what_a_description_holds_is_no_html():
    from condensery.api.rest.pages import render

    described = json.loads(json.dumps(DESCRIBED))
    described["paths"]["/embed"]["post"]["summary"] = "<script>alert(1)</script> `<b>`"
    page = render(described)
    assert "<script" not in page
    assert "<code>&lt;b&gt;</code>" in page
