"""TEI's /predict over REST."""

import math

import pytest

pytestmark = pytest.mark.usefixtures("classifiers")
LABELS = ["contradiction", "entailment", "neutral"]


async def test_labels_come_likeliest_first_and_sum_to_one(client):
    predictions = (await client.post("/predict", json={"inputs": "e n n"})).json()
    assert [item["label"] for item in predictions] == ["neutral", "entailment", "contradiction"]
    powers = [math.e**2, math.e, 1]
    for prediction, power in zip(predictions, powers, strict=True):
        assert prediction["score"] == pytest.approx(power / sum(powers), abs=1e-6)


async def test_raw_scores_are_logits(client):
    predictions = (
        await client.post("/predict", json={"inputs": "e n n", "raw_scores": True})
    ).json()
    assert [item["score"] for item in predictions] == [2.0, 1.0, 0.0]


async def test_a_label_by_itself_is_likely_by_its_sigmoid(client):
    body = {"inputs": "r r", "model": "cross"}
    assert (await client.post("/predict", json=body)).json() == [
        {"score": pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6), "label": "relevant"}
    ]


@pytest.mark.parametrize(
    ("inputs", "first"),
    [
        ("cc", "contradiction"),
        (["cc"], "contradiction"),
        (["cc", "ee"], "entailment"),  # a pair
        ([["cc"]], ["contradiction"]),
        ([["cc"], ["cc", "ee"], "nn"], ["contradiction", "entailment", "neutral"]),
    ],
)
async def test_a_text_a_pair_and_a_list_of_either(client, inputs, first):
    predictions = (await client.post("/predict", json={"inputs": inputs})).json()
    if isinstance(first, str):
        assert predictions[0]["label"] == first
    else:
        assert [rows[0]["label"] for rows in predictions] == first
        assert all(sorted(row["label"] for row in rows) == LABELS for rows in predictions)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": ["a", "b", "c"]}, "inputs: ['a', 'b', 'c'] is neither a text nor a pair"),
        ({"inputs": [["a"], []]}, "inputs[1]: [] is neither a text nor a pair"),
        ({"inputs": [["a", "b", "c"]]}, "inputs[0]: ['a', 'b', 'c'] is neither"),
        ({"inputs": [["a"], [1]]}, "inputs[1]: [1] is neither"),
        ({"inputs": 5}, "inputs: 5 is no text, pair or list"),
        ({}, "inputs: this field is missing"),
        ({"inputs": "a" * 200, "truncate": False}, "inputs[0] has too many tokens"),
        ({"inputs": [["a"], ["b", "c" * 4001]]}, "inputs[1]: 4001 characters, over the limit"),
        ({"inputs": "a", "raw_scores": 1}, "raw_scores: 1"),
    ],
)
async def test_what_is_no_input_is_named(client, body, says):
    reply = await client.post("/predict", json=body)
    assert reply.status_code == 422
    assert says in reply.json()["error"]
    assert reply.json()["error_type"] == "Validation"


async def test_an_empty_list_is_refused(client):
    reply = await client.post("/predict", json={"inputs": []})
    assert (reply.status_code, reply.json()["error_type"]) == (400, "Empty")


async def test_too_long_a_text_is_cut_where_it_is_asked_for(client, registry):
    text = "c" * 100 + "n" * 100
    for side, first in (("Right", "contradiction"), ("Left", "neutral"), ("left", "neutral")):
        body = {"inputs": text, "truncation_direction": side}
        assert (await client.post("/predict", json=body)).json()[0]["label"] == first
        await client.post("/embed", json=body)
    assert registry.encoder().sides == ["right", "left", "left"]
    reply = await client.post("/embed", json={"inputs": "a", "truncation_direction": "up"})
    assert (reply.status_code, "truncation_direction: 'up'" in reply.text) == (422, True)
    body = {"query": "q", "texts": ["a"], "truncation_direction": "Left"}
    assert "truncation_direction" in (await client.post("/rerank", json=body)).json()["error"]


async def test_a_model_may_be_named_by_a_header(client):
    header = {"x-model": "cross"}
    predictions = (await client.post("/predict", json={"inputs": "r"}, headers=header)).json()
    assert [item["label"] for item in predictions] == ["relevant"]
    body = {"inputs": "r", "model": "nli"}  # the body says more
    assert len((await client.post("/predict", json=body, headers=header)).json()) == 3
    reply = await client.post("/embed", json={"inputs": "r"}, headers={"x-model": "other"})
    assert reply.headers["x-model"] == "other"
    assert (await client.post("/predict", json={"inputs": "r"}, headers={"x-model": "x"})).is_error


async def test_what_was_cut_is_reported(client):
    reply = await client.post("/predict", json={"inputs": [["a"], ["b", "c" * 101]]})
    assert reply.headers["x-truncated-inputs"] == "1"
    assert reply.headers["x-model"] == "nli"


async def test_where_nothing_classifies_tei_says_backend(client, registry):
    registry.classifiers.clear()
    reply = await client.post("/predict", json={"inputs": "a"})
    assert (reply.status_code, reply.json()["error_type"]) == (424, "Backend")
    assert "no classifier serves" in reply.json()["error"]


async def test_an_unknown_model_is_not_found_and_classifying_is_counted(client):
    assert (await client.post("/predict", json={"inputs": "a", "model": "x"})).status_code == 404
    await client.post("/predict", json={"inputs": "a"})
    counted = (await client.get("/metrics")).text
    line = 'condensery_requests_total{code="ok",model="nli",protocol="rest",task="classify"} 1.0'
    assert line in counted


async def test_info_and_models_name_the_labels(client):
    info = (await client.get("/info")).json()
    assert info["capabilities"]["predict"] == ["nli", "cross"]
    assert info["capabilities"]["rerank"] == ["pair", "cross"]
    models = {item["id"]: item for item in (await client.get("/v1/models")).json()["data"]}
    assert models["nli"]["labels"] == LABELS
    assert models["words"]["labels"] == []
