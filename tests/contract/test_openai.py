"""The openai client against the real server."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest


@pytest.fixture
def client(live_server: Any) -> Iterator[openai.OpenAI]:
    url = f"{live_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


TEXTS = ["The Danube ends in the Black Sea.", "", "Rusalka is an opera by Dvořák. 水"]


def test_its_default_base64_and_floats_are_the_same_vectors(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="minilm-l6", input=TEXTS)
    floats = client.embeddings.create(model="minilm-l6", input=TEXTS, encoding_format="float")
    for left, right in zip(packed.data, floats.data, strict=True):
        assert left.index == right.index
        # alone or in any batch the same, but for what bf16 rounds
        assert np.allclose(left.embedding, right.embedding, atol=5e-3)
        assert np.linalg.norm(left.embedding) == pytest.approx(1, abs=1e-5)
    assert packed.model == "minilm-l6"
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


def test_base64_is_little_endian_float32(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(
        model="minilm-l6", input="a", encoding_format="base64"
    )
    text = raw.http_response.json()["data"][0]["embedding"]
    wanted = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
    got = client.embeddings.create(model="minilm-l6", input="a").data[0].embedding
    assert np.array_equal(wanted, np.array(got, np.float32))
    assert wanted.shape == (384,)


def test_vectors_place_a_question_beside_its_answer(client: openai.OpenAI) -> None:
    texts = ["Where does the Danube end?", *TEXTS]
    rows = np.array(
        [item.embedding for item in client.embeddings.create(model="minilm-l6", input=texts).data]
    )
    scores = rows[1:] @ rows[0]
    assert scores.argmax() == 0
    assert scores[0] > 0.5 > scores[2]


def test_an_unknown_model_is_its_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "text-embedding-3-small" in caught.value.message
    assert caught.value.request_id


def test_token_ids_are_refused_by_the_name_of_the_setting(client: openai.OpenAI) -> None:
    for ids in ([1, 2], [[1, 2], [3]]):
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
            client.embeddings.create(model="minilm-l6", input=ids)


def test_an_empty_list_and_other_dimensions_are_bad_requests(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm-l6", input=[])
    assert caught.value.code == "empty_input"
    with pytest.raises(openai.BadRequestError, match="dimensions: 256"):
        client.embeddings.create(model="minilm-l6", input="a", dimensions=256)
    assert len(client.embeddings.create(model="minilm-l6", input="a", dimensions=384).data) == 1


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["minilm-l6", "oscar-mini"]
    assert client.models.retrieve("oscar-mini").id == "oscar-mini"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


async def test_many_callers_at_once_each_get_their_own(live_server: Any) -> None:
    import asyncio

    texts = [f"passage number {place} is about {place * 7}" for place in range(40)]
    limits = httpx.Limits(max_connections=40)
    async with openai.AsyncOpenAI(
        base_url=f"{live_server.url}/v1",
        api_key="none",
        http_client=httpx.AsyncClient(limits=limits),
    ) as client:
        alone = await asyncio.gather(
            *(client.embeddings.create(model="minilm-l6", input=text) for text in texts)
        )
        together = await client.embeddings.create(model="minilm-l6", input=texts)
    rows = np.array([item.data[0].embedding for item in alone])
    wanted = np.array([entry.embedding for entry in together.data])
    assert ((rows * wanted).sum(axis=1) > 0.9995).all()


QUESTION = "Which lake does the Rhine pass through?"
PASSAGES = ["The Rhine passes through Lake Constance.", "Helium is a gas.", "Vasa sank in 1628."]
USER: Any = {"role": "user", "content": QUESTION}
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def answer_of(live_server: Any, **body: Any) -> Any:
    """Return what `/v1/rag/answer` says to the same question."""
    asked = {"query": QUESTION, "max_tokens": 12, **body}
    reply = httpx.post(f"{live_server.url}/v1/rag/answer", json=asked, timeout=60)
    return reply.raise_for_status().json()


def test_a_chat_is_the_answer_to_the_same_question(client: openai.OpenAI, live_server: Any) -> None:
    more: dict[str, Any]
    for more in (
        {"documents": PASSAGES},
        {"index": {"name": "samples", "top_k": 5}, "rerank": {"top_n": 2}},
        {"documents": PASSAGES, "compression": {"mode": "off"}},
    ):
        whole = answer_of(live_server, **more)
        chat = client.chat.completions.create(
            model="oscar-mini", messages=[USER], max_tokens=12, extra_body=more
        )
        assert chat.choices[0].message.content == whole["answer"] != ""
        assert chat.choices[0].message.role == "assistant"
        assert chat.choices[0].finish_reason == whole["finish_reason"]
        assert chat.usage
        assert chat.usage.completion_tokens == whole["usage"]["completion_tokens"]
        assert chat.usage.total_tokens == whole["usage"]["total_tokens"]
        assert chat.model_extra
        assert chat.model_extra["condensery"]["citations"] == whole["citations"]


def test_a_streamed_chat_joins_to_the_whole_one(client: openai.OpenAI, live_server: Any) -> None:
    whole = answer_of(live_server, documents=PASSAGES)
    chunks = list(
        client.chat.completions.create(
            model="oscar-mini",
            messages=[USER],
            max_completion_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"documents": PASSAGES},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(delta or "" for delta in deltas) == whole["answer"]
    assert chunks[-2].choices[0].finish_reason == whole["finish_reason"]
    assert chunks[-2].model_extra
    assert chunks[-2].model_extra["condensery"]["citations"] == whole["citations"]
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == whole["usage"]["completion_tokens"]


def test_its_helper_for_streams_reads_ours(client: openai.OpenAI, live_server: Any) -> None:
    stop = answer_of(live_server, documents=PASSAGES)["answer"].split()[1]
    whole = answer_of(live_server, documents=PASSAGES, stop=stop)
    assert whole["finish_reason"] == "stop"  # the helper takes one that is cut for an error
    with client.chat.completions.stream(
        model="oscar-mini",
        messages=[USER],
        max_tokens=12,
        stop=[stop],
        extra_body={"documents": PASSAGES},
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole["answer"]
    assert stop not in whole["answer"]


def test_log_probabilities_are_read_token_by_token(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="oscar-mini",
        messages=[USER],
        max_tokens=6,
        logprobs=True,
        top_logprobs=2,
        extra_body={"documents": PASSAGES},
    )
    assert chat.choices[0].logprobs
    content = chat.choices[0].logprobs.content
    assert content
    assert chat.usage
    assert len(content) == chat.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0
        # greedy: what was taken is the likeliest
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-4)
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


def test_the_same_seed_gives_the_same_chat_again(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        chat = client.chat.completions.create(
            model="oscar-mini",
            messages=[USER],
            max_tokens=12,
            temperature=2,
            seed=seed,
            extra_body={"documents": PASSAGES},
        )
        return chat.choices[0].message.content

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_compressed_once_a_chat_reads_it_by_its_handle(
    client: openai.OpenAI, live_server: Any
) -> None:
    body = {"query": QUESTION, "documents": PASSAGES}
    done = httpx.post(f"{live_server.url}/v1/compress", json=body, timeout=60).json()
    whole = answer_of(live_server, documents=PASSAGES)
    chat = client.chat.completions.create(
        model="oscar-mini", messages=[USER], max_tokens=12, extra_body={"context": done["context"]}
    )
    assert chat.choices[0].message.content == whole["answer"]
    with pytest.raises(openai.ConflictError) as caught:
        client.with_options(max_retries=0).chat.completions.create(
            model="oscar-mini",
            messages=[{"role": "user", "content": "And the Danube?"}],
            extra_body={"context": done["context"]},
        )
    assert caught.value.code == "context_mismatch"
    httpx.delete(f"{live_server.url}/v1/contexts/{done['context']}").raise_for_status()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(
            model="oscar-mini", messages=[USER], extra_body={"context": done["context"]}
        )


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 2}, "n"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "messages"),
        ({"extra_body": {}}, "documents"),
    ],
)
def test_what_cannot_be_had_is_a_bad_request(
    client: openai.OpenAI, more: dict[str, Any], field: str
) -> None:
    asked = {"messages": [USER], "extra_body": {"documents": PASSAGES}, **more}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="oscar-mini", **asked)
    assert caught.value.param == field


def test_a_conversation_asks_its_last_question_and_tells_what_was_not_read(
    client: openai.OpenAI, live_server: Any
) -> None:
    turns: list[Any] = [{"role": "system", "content": "Be brief."}]
    for place in range(200):
        turns.append({"role": "user", "content": f"What is {place} and {place}?"})
        turns.append({"role": "assistant", "content": f"{2 * place}"})
    parts = [{"type": "text", "text": QUESTION}]
    stop = answer_of(live_server, documents=PASSAGES)["answer"].split()[-1]  # of 512 tokens
    raw = client.chat.completions.with_raw_response.create(
        model="oscar-mini",
        messages=[*turns, {"role": "user", "content": parts}],
        max_tokens=100_000,
        stop=[stop],
        frequency_penalty=0.5,
        presence_penalty=0,
        n=1,
        reasoning_effort="low",
        tools=[TOOL],
        tool_choice="auto",
        user="me",
        extra_body={"documents": PASSAGES},
    )
    chat = raw.parse()
    whole = answer_of(live_server, documents=PASSAGES, stop=stop)
    assert chat.choices[0].message.content == whole["answer"]
    assert raw.headers["x-ignored-messages"] == "401"
    assert chat.model_extra
    assert chat.model_extra["condensery"]["ignored_messages"] == 401
    assert raw.headers["x-clamped-fields"] == "max_tokens=512"
    ignored = raw.headers["x-ignored-fields"].split(", ")
    assert sorted(ignored) == ["frequency_penalty", "reasoning_effort", "tools", "user"]


@pytest.fixture
def docs(live_server: Any) -> Iterator[str]:
    """An alias of the pair that carries the sample index."""
    url = f"{live_server.url}/v1/models/aliases"
    aliases: dict[str, str | None] = {"docs": "oscar-mini@samples?top_k=5&mode=bm25"}
    httpx.post(url, json={"aliases": aliases}).raise_for_status()
    yield "docs"
    httpx.post(url, json={"aliases": {"docs": None}}).raise_for_status()


def test_a_model_that_carries_an_index_is_chatted_with_by_its_name_alone(
    client: openai.OpenAI, live_server: Any, docs: str
) -> None:
    index = {"name": "samples", "top_k": 5, "mode": "bm25"}
    whole = answer_of(live_server, index=index)
    assert docs in [model.id for model in client.models.list()]
    listed = client.models.retrieve(docs)
    assert listed.model_extra
    assert (listed.model_extra["alias_of"], listed.model_extra["index"]) == ("oscar-mini", index)
    for model in (docs, "oscar-mini@samples?top_k=5&mode=bm25"):
        chat = client.chat.completions.create(model=model, messages=[USER], max_tokens=12)
        assert chat.choices[0].message.content == whole["answer"]
        assert chat.model_extra
        assert chat.model_extra["condensery"]["citations"] == whole["citations"]
        with pytest.raises(openai.NotFoundError, match="name the pair alone"):
            client.embeddings.create(model=model, input="a")
    with pytest.raises(openai.NotFoundError, match="'dosc'") as caught:  # not: no passages
        client.chat.completions.create(model="dosc", messages=[USER])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="no index 'gone'") as caught:
        client.chat.completions.create(model="oscar-mini@gone", messages=[USER])
    assert (caught.value.code, caught.value.param) == ("index_not_found", "model")


def test_a_response_is_the_answer_to_the_same_question(
    client: openai.OpenAI, live_server: Any, docs: str
) -> None:
    whole = answer_of(live_server, documents=PASSAGES)
    response = client.responses.create(
        model="oscar-mini",
        input=QUESTION,
        max_output_tokens=12,
        extra_body={"documents": PASSAGES},
    )
    assert response.output_text == whole["answer"]
    assert response.usage
    assert response.usage.output_tokens == whole["usage"]["completion_tokens"]
    assert response.model_extra
    assert response.model_extra["condensery"]["citations"] == whole["citations"]
    turns: Any = [
        {"role": "user", "content": "What is a lake?"},
        {"role": "assistant", "content": "Water."},
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    raw = client.responses.with_raw_response.create(
        model=docs, input=turns, instructions="Be brief.", max_output_tokens=12
    )
    index = {"name": "samples", "top_k": 5, "mode": "bm25"}
    assert raw.parse().output_text == answer_of(live_server, index=index)["answer"]
    assert raw.headers["x-ignored-messages"] == "2"
    assert raw.headers["x-ignored-fields"] == "instructions"


def test_a_streamed_response_and_its_helper_join_to_the_whole_one(
    client: openai.OpenAI, live_server: Any
) -> None:
    whole = answer_of(live_server, documents=PASSAGES)
    asked: Any = {
        "model": "oscar-mini",
        "input": QUESTION,
        "max_output_tokens": 12,
        "extra_body": {"documents": PASSAGES},
    }
    events = list(client.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole["answer"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
    assert "response.output_text.done" in kinds


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"extra_body": {}}, "documents"),
    ],
)
def test_what_a_response_cannot_have_is_a_bad_request(
    client: openai.OpenAI, more: dict[str, Any], field: str
) -> None:
    asked = {"input": QUESTION, "extra_body": {"documents": PASSAGES}, **more}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="oscar-mini", **asked)
    assert caught.value.param == field
