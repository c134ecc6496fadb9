"""What openai's client gets is what the server says to plain requests."""

import math

import openai
import pytest
from plain import URL, ask

TEXTS = ["The Danube ends in the Black Sea.", "", "Rusalka is an opera. 水"]
USER = {"role": "user", "content": "Where does the Danube end?"}


def make(base: str = "/v1") -> openai.OpenAI:
    return openai.OpenAI(base_url=URL + base, api_key="none", max_retries=0)


def cosine(left: list[float], right: list[float]) -> float:
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    return dot / math.hypot(*left) / math.hypot(*right)


@pytest.mark.parametrize("base", ["/v1", "", "/openai/v1"])
@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"dimensions": 384}])
def test_vectors_are_the_servers_own(base: str, options: dict) -> None:
    plain = ask("/embed", {"inputs": TEXTS})
    data = make(base).embeddings.create(model="minilm-l6", input=TEXTS, **options).data
    assert all(cosine(item.embedding, row) > 0.9995 for item, row in zip(data, plain, strict=True))


def test_models_are_listed_and_retrieved() -> None:
    assert {"minilm-l6", "oscar-mini"} <= {model.id for model in make().models.list()}
    assert make().models.retrieve("minilm-l6").id == "minilm-l6"


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"model": "text-embedding-3-small"}, openai.NotFoundError, "text-embedding-3-small"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": [1, 2]}, openai.BadRequestError, "check_embedding_ctx_length=False"),
        ({"dimensions": 8}, openai.BadRequestError, "dimensions: 8"),
    ],
)
def test_refusals_are_the_clients_own_errors(wrong: dict, kind: type, says: str) -> None:
    with pytest.raises(kind) as caught:
        make().embeddings.create(**{"model": "minilm-l6", "input": "a", **wrong})
    assert says in str(caught.value)


def test_a_streamed_chat_is_the_whole_one() -> None:
    more = {"documents": [TEXTS[0]], "max_tokens": 8}
    ask = make().chat.completions.create
    whole = ask(model="oscar-mini", messages=[USER], extra_body=more)
    parts = ask(model="oscar-mini", messages=[USER], extra_body=more, stream=True)
    joined = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert joined == whole.choices[0].message.content
