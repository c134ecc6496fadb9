"""Cohere's own client, in an environment of its own, of a real server: either version's embed."""

import json
from typing import Any

import numpy as np
import pytest
from tests.contract.environments import python_with, run
from tests.contract.test_client_pages import snippets

from condensery.client.rest import Client
from condensery.encodings import encode

TEXTS = ["a river in Europe", "", "a bridge in Porto " * 300, "naïve façade 北京"]
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

ASK = """
import json, sys, cohere
print("cohere", cohere.__version__)
url, texts, types = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
second = cohere.ClientV2(api_key="none", base_url=url)
asked = {"model": "minilm-l6", "texts": texts, "input_type": "search_document"}
typed = second.embed(**asked, embedding_types=types)
first = cohere.Client(api_key="none", base_url=url)
plain, named = first.embed(**asked), first.embed(**asked, embedding_types=["int8"])
wrong = {}
for name, options in {
    "input_type": {"input_type": "poem"},
    "output_dimension": {"output_dimension": 100},
    "truncate": {"truncate": "NONE"},
    "model": {"model": "nope"},
}.items():
    try:
        second.embed(**{**asked, **options})
    except cohere.core.ApiError as error:
        wrong[name] = [type(error).__name__, error.body["message"]]
print(json.dumps({
    "types": {name: getattr(typed.embeddings, name + "_" * (name == "float")) for name in types},
    "texts": typed.texts,
    "tokens": typed.meta.billed_units.input_tokens,
    "plain": plain.embeddings,
    "replies": [type(one).__name__ for one in (typed, plain, named)],
    "int8": named.embeddings.int8,
    "wrong": wrong,
}))
"""


@pytest.fixture(scope="module")
def python() -> str:
    return python_with("cohere", "cohere")


def test_its_client_reads_our_vectors_in_every_type(live_server: Any, python: str) -> None:
    said = run(python, ASK, live_server.url, json.dumps(TEXTS), json.dumps(TYPES))
    found = json.loads(said.splitlines()[-1])
    with Client(live_server.url) as client:
        wanted = client.embed(TEXTS, normalize=True)
    types = found["types"]
    for given in (types["float"], found["plain"]):
        assert np.array_equal(np.array(given, np.float32), wanted)
    for name in ("int8", "uint8", "binary", "ubinary"):
        assert types[name] == encode(wanted, name).tolist()
    assert found["int8"] == types["int8"]
    assert found["texts"] == TEXTS
    assert found["tokens"] > 256  # the long one is cut to what the model reads
    assert found["replies"] == [
        "EmbedByTypeResponse",
        "EmbeddingsFloatsEmbedResponse",
        "EmbeddingsByTypeEmbedResponse",
    ]
    kinds = {name: kind for name, (kind, _) in found["wrong"].items()}
    bad = ("input_type", "output_dimension", "truncate")
    assert kinds == {**dict.fromkeys(bad, "BadRequestError"), "model": "NotFoundError"}
    for name in ("input_type", "output_dimension", "model"):
        assert found["wrong"][name][1].startswith(name)
    assert found["wrong"]["truncate"][1].startswith("texts[2] has ")


def test_what_its_page_shows_runs(live_server: Any, python: str) -> None:
    for snippet in snippets("cohere"):
        assert run(python, snippet.replace("http://127.0.0.1:8080", live_server.url))
