"""What openai's client gets is what the server says to plain requests."""

import json
import math
import os
import urllib.request

import openai

URL = os.environ["SERVER"]


def ask(path: str, body: dict) -> dict:
    data = json.dumps(body).encode()
    asked = urllib.request.Request(
        f"{URL}{path}", data, {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(asked) as reply:
        return json.load(reply)


def close(left: list[float], right: list[float]) -> bool:
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    return dot / math.hypot(*left) / math.hypot(*right) > 0.9995


texts = ["The Danube ends in the Black Sea.", "", "Rusalka is an opera. 水"]
plain = [row["embedding"] for row in ask("/v1/embeddings", {"input": texts})["data"]]
for base in ("/v1", "", "/openai/v1"):
    client = openai.OpenAI(base_url=URL + base, api_key="none", max_retries=0)
    for options in ({}, {"encoding_format": "float"}, {"dimensions": 384}):
        found = client.embeddings.create(model="minilm-l6", input=texts, **options).data
        assert all(close(one.embedding, row) for one, row in zip(found, plain, strict=True))

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
listed = {model.id for model in client.models.list()}
assert {"minilm-l6", "oscar-mini"} <= listed, listed
assert client.models.retrieve("minilm-l6").id == "minilm-l6"
for wrong, kind, says in (
    ({"model": "text-embedding-3-small", "input": "a"}, openai.NotFoundError, "text-embedding-3"),
    ({"model": "minilm-l6", "input": []}, openai.BadRequestError, "input"),
    ({"model": "minilm-l6", "input": [1, 2]}, openai.BadRequestError, "check_embedding_ctx_length"),
    ({"model": "minilm-l6", "input": "a", "dimensions": 8}, openai.BadRequestError, "dimensions"),
):
    try:
        client.embeddings.create(**wrong)
    except kind as error:
        assert says in str(error), error
    else:
        raise AssertionError(wrong)

question = {"role": "user", "content": "Where does the Danube end?"}
passages = {"documents": [texts[0]], "max_tokens": 8}
whole = client.chat.completions.create(model="oscar-mini", messages=[question], extra_body=passages)
parts = client.chat.completions.create(
    model="oscar-mini", messages=[question], extra_body=passages, stream=True
)
joined = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
assert joined == whole.choices[0].message.content, (joined, whole)
print("ok")
