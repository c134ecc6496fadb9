"""TEI's smaller routes over REST."""

import numpy as np
import pytest

SENTENCES = {"source_sentence": "alpha", "sentences": ["alpha", "beta", "gamma delta"]}


async def test_every_token_has_its_vector(client):
    vectors = (await client.post("/embed_all", json={"inputs": ["a b c", "d"]})).json()
    assert [len(rows) for rows in vectors] == [3, 1]
    whole = (await client.post("/embed", json={"inputs": ["d"]})).json()
    assert vectors[1] == whole
    assert len((await client.post("/embed_all", json={"inputs": "a b"})).json()) == 1


async def test_no_more_texts_are_taken_apart_than_any_list_may_have(client, services, monkeypatch):
    monkeypatch.setattr("condensery.jobs.embed.MAX_TOKEN_VECTORS", 10**9)
    most = services.limits.max_items
    assert (await client.post("/embed_all", json={"inputs": ["a"] * most})).status_code == 200
    reply = await client.post("/embed_all", json={"inputs": ["a"] * (most + 1)})
    assert (reply.status_code, f"limit of {most}" in reply.text) == (413, True), reply.text


async def test_similarities_are_cosines_of_the_embeddings(client):
    reply = await client.post("/similarity", json={"inputs": SENTENCES})
    texts = [SENTENCES["source_sentence"], *SENTENCES["sentences"]]
    own, *rest = np.array((await client.post("/embed", json={"inputs": texts})).json())
    assert reply.json() == pytest.approx((rest @ own).tolist(), abs=1e-6)
    assert reply.json()[0] == pytest.approx(1)
    assert reply.headers["x-model"] == "words"


async def test_tokens_have_places_and_ids_spell_texts(client):
    tokens = (await client.post("/tokenize", json={"inputs": "ab  c"})).json()
    assert tokens == [
        [
            {"id": 0, "text": "<s>", "special": True, "start": None, "stop": None},
            {"id": 2, "text": "ab", "special": False, "start": 0, "stop": 2},
            {"id": 1, "text": "c", "special": False, "start": 4, "stop": 5},
        ]
    ]
    body = {"inputs": ["ab", ""], "add_special_tokens": False}
    assert [len(row) for row in (await client.post("/tokenize", json=body)).json()] == [1, 0]
    assert (await client.post("/decode", json={"ids": [0, 5]})).json() == ["5"]
    body = {"ids": [[0, 5], [7]], "skip_special_tokens": False}
    assert (await client.post("/decode", json=body)).json() == ["0 5", "7"]


@pytest.mark.parametrize(
    ("body", "as_if"),
    [
        ({"inputs": ["a", "b"]}, "/embed"),
        ({"inputs": SENTENCES}, "/similarity"),
        ({"query": "q", "texts": ["a", "gold"]}, "/rerank"),
    ],
)
async def test_the_root_does_what_the_body_asks_for(client, body, as_if):
    wanted = (await client.post(as_if, json=body)).json()
    for path in ("/", "/invocations"):  # the second is SageMaker's
        assert (await client.post(path, json=body)).json() == wanted


async def test_the_root_classifies_where_its_model_does(client, registry, classifier_of):
    registry.classifiers["nli"] = classifier_of("nli", "no", "yes")
    for inputs in ("a", [["a"], ["a", "b"]]):
        for body, headers in (({"model": "nli"}, {}), ({}, {"x-model": "nli"})):
            asked = {"inputs": inputs, **body}
            wanted = await client.post("/predict", json={**asked, "model": "nli"})
            reply = await client.post("/", json=asked, headers=headers)
            assert reply.json() == wanted.json()
            assert reply.status_code == 200
    assert (await client.post("/", json={"inputs": "a"})).json()[0][0] > -9, "the default embeds"
    registry.encoders.clear()
    registry.pairs.clear()
    reply = await client.post("/", json={"inputs": "a"})
    assert {item["label"] for item in reply.json()} == {"no", "yes"}, "the only one classifies"


async def test_openai_s_embeddings_have_other_paths_too(client):
    body = {"input": ["a"]}
    wanted = (await client.post("/v1/embeddings", json=body)).json()
    for path in ("/embeddings", "/openai/v1/embeddings"):
        assert (await client.post(path, json=body)).json() == wanted


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.jobs.embed.MAX_TOKEN_VECTORS", 8 * 16 + 15)  # 16 tokens a text
    monkeypatch.setattr("condensery.jobs.embed.MAX_TOKENIZED_CHARACTERS", 1000)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/", {}, 422, "inputs: this field is missing"),
        ("/", {"inputs": 3}, 422, "inputs: 3 is neither"),
        ("/", {"inputs": {"sentences": ["a"]}}, 422, "inputs.source_sentence: this field"),
        ("/embed_all", {"inputs": []}, 400, "inputs: the list is empty"),
        ("/embed_all", {"inputs": [[1]]}, 422, "inputs[0]"),
        ("/embed_all", {"inputs": ["a"] * 9}, 413, "inputs: 9 items, over the limit of 8"),
        ("/similarity", {"inputs": {**SENTENCES, "sentences": []}}, 400, "inputs.sentences: the"),
        (
            "/similarity",
            {"inputs": {**SENTENCES, "source_sentence": "a" * 4001}},
            422,
            "inputs.source_sentence[0]: 4001 characters",
        ),
        (
            "/similarity",
            {"inputs": SENTENCES, "parameters": {"prompt_name": "x"}},
            422,
            "prompt_name",
        ),
        ("/tokenize", {"inputs": ["a", "b" * 4001]}, 422, "inputs[1]: 4001 characters"),
        ("/tokenize", {"inputs": ["a" * 90] * 12}, 413, "inputs: 1080 characters, over the limit"),
        ("/decode", {"ids": [1, -1]}, 422, "ids[0]: -1 is not a token id"),
        ("/decode", {"ids": [[1], [2**32]]}, 422, f"ids[1]: {2**32} is not a token id"),
        ("/decode", {"ids": [[1], [2], [5, 999_999]]}, 422, "ids[2]: 999999 is not a token id"),
        ("/decode", {"ids": ["a"]}, 422, "ids"),
        ("/decode", {"ids": []}, 400, "ids: the list is empty"),
    ],
)
async def test_what_is_wrong_is_named(client, path, body, status, says):
    reply = await client.post(path, json=body)
    assert (reply.status_code, says in reply.json()["error"]) == (status, True), reply.text
