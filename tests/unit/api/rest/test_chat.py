"""Chats over REST: OpenAI's replies and chunks, and our extras beside them."""

import asyncio
import json

import pytest
from markdown_it import MarkdownIt

from condensery.question import NOT_FOUND, Sampling

CHAT = {
    "messages": [{"role": "user", "content": "where?"}],
    "documents": ["some words", {"id": "best", "text": "gold"}],
}
QUESTION = {"query": "where?", "documents": CHAT["documents"]}
PATH = "/v1/chat/completions"


def chunks_of(text):
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def streamed(client, **more):
    reply = await client.post(PATH, json={**CHAT, "stream": True, **more})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-model"] == "pair"
    return chunks_of(reply.text)


async def test_a_chat_says_what_the_answer_says(client):
    answer = (await client.post("/v1/rag/answer", json=QUESTION)).json()
    reply = await client.post(PATH, json={**CHAT, "user": "me"})
    chat = reply.json()
    (choice,) = chat["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": answer["answer"],
        "refusal": None,
    }
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert chat["id"].startswith("chatcmpl-")
    assert (chat["object"], chat["model"]) == ("chat.completion", "pair")
    assert chat["system_fingerprint"] == "sha256:pair"
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert chat["usage"] == {name: answer["usage"][name] for name in counts}
    extras = chat["condensery"]
    assert extras["citations"] == answer["citations"]
    assert extras["compression"].keys() == answer["compression"].keys()
    assert (extras["finish_reason"], extras["ignored_messages"]) == ("stop", 0)
    assert reply.headers["x-model"] == "pair"


async def test_chunks_join_to_the_whole(client):
    whole = (await client.post(PATH, json=CHAT)).json()
    chunks = await streamed(client)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    same = {(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks}
    assert len(same) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    joined = "".join(choice["delta"].get("content", "") for choice in choices)
    assert joined == whole["choices"][0]["message"]["content"] != ""
    assert [item["finish_reason"] for item in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    assert chunks[-1]["condensery"]["citations"] == whole["condensery"]["citations"]
    assert not any("condensery" in chunk or "usage" in chunk for chunk in chunks[:-1])


async def test_usage_comes_last_where_it_is_asked_for(client):
    whole = (await client.post(PATH, json=CHAT)).json()
    *chunks, last = await streamed(client, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert "condensery" in chunks[-1]


async def test_an_answer_that_is_cut_ends_for_its_length(client):
    chat = (await client.post(PATH, json={**CHAT, "max_completion_tokens": 1})).json()
    assert chat["choices"][0]["finish_reason"] == "length"
    assert chat["usage"]["completion_tokens"] == 1
    assert (await streamed(client, max_tokens=1))[-1]["choices"][0]["finish_reason"] == "length"


async def test_an_answer_that_was_not_found_stops_and_says_so_beside(client):
    chat = (await client.post(PATH, json={**CHAT, "min_relevance": 0.9})).json()
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert "do not hold" in chat["choices"][0]["message"]["content"]
    assert chat["condensery"]["finish_reason"] == "not_found"
    last = (await streamed(client, min_relevance=0.9))[-1]
    assert (last["choices"][0]["finish_reason"], last["condensery"]["finish_reason"]) == (
        "stop",
        "not_found",
    )


async def test_where_none_was_found_the_nearest_sentences_are_a_list_below_it(client):
    link = "A [link](https://x.example), `code`\n| and * a <b>table</b> |"
    documents = [{"id": "a_*b*", "text": link}, {"id": "c", "text": "# 1. No heading ~~at~~ all"}]
    how = {"documents": documents, "min_relevance": 1.0}
    whole = (await client.post(PATH, json={**CHAT, **how})).json()
    content = whole["choices"][0]["message"]["content"]
    assert content.startswith(f"{NOT_FOUND}\n\n")
    shown = MarkdownIt("gfm-like", {"linkify": False}).parse(content)
    kinds = [token.type for token in shown if token.nesting == 1]
    assert kinds == [*["paragraph_open"] * 2, "bullet_list_open"] + 2 * [
        "list_item_open",
        "paragraph_open",
    ]
    *_, first, second = (token.children or [] for token in shown if token.type == "inline")
    for inline, snippet in zip((first, second), whole["condensery"]["snippets"], strict=True):
        assert {token.type for token in inline} == {"text", "strong_open", "strong_close"}
        said = "".join(token.content for token in inline)
        assert said == f"{snippet['document_id']}: {' '.join(snippet['text'].split())}"
    assert {snippet["document_id"] for snippet in whole["condensery"]["snippets"]} == {"a_*b*", "c"}
    chunks = await streamed(client, **how)
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == content
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]


async def test_log_probabilities_come_in_openais_shape(client):
    asked = {"logprobs": True, "top_logprobs": 1}
    chat = (await client.post(PATH, json={**CHAT, **asked})).json()
    logprobs = chat["choices"][0]["logprobs"]
    token = {"token": "where? ", "logprob": -0.5, "bytes": list(b"where? ")}
    assert logprobs["content"][0] == {**token, "top_logprobs": [token]}
    chunks = await streamed(client, **asked)
    choices = [chunk["choices"][0] for chunk in chunks]
    content = [
        item for choice in choices if choice["logprobs"] for item in choice["logprobs"]["content"]
    ]
    assert content == logprobs["content"]
    assert "".join(entry["token"] for entry in content) == chat["choices"][0]["message"]["content"]


async def test_a_token_that_is_part_of_a_character_has_no_bytes(client):
    body = {**CHAT, "messages": [{"role": "user", "content": "\ufffd?"}], "logprobs": True}
    chat = (await client.post(PATH, json=body)).json()
    assert chat["choices"][0]["logprobs"]["content"][0]["bytes"] is None


async def test_how_to_sample_reaches_the_pair(client, registry):
    body = {**CHAT, "temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": "END"}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    assert registry.pairs["pair"].asked == [
        (Sampling(0.5, 0.5, 3), ("END",)),
        (Sampling(temperature=0), ()),
    ]


async def test_a_failure_amid_chunks_is_an_error_that_openais_client_raises(client, registry):
    registry.pairs["pair"].fails_after = 1
    chunks = await streamed(client)
    assert [list(chunk) for chunk in chunks[2:]] == [["error"]]
    assert chunks[2]["error"]["code"] == "internal_error"
    assert "secret detail" not in json.dumps(chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_has_a_status_streamed_or_not(client, stream):
    bad = [
        ({**CHAT, "model": "gpt-4o"}, 404, "model_not_found", "model"),
        ({"messages": CHAT["messages"], "index": "kb"}, 404, "index_not_found", None),
        ({"messages": CHAT["messages"]}, 400, "input_error", "documents"),
        ({**CHAT, "index": "kb"}, 400, "input_error", "documents"),
        ({**CHAT, "n": 2}, 400, "input_error", "n"),
        ({**CHAT, "max_tokens": 0}, 400, "input_error", "max_tokens"),
        ({**CHAT, "max_completion_tokens": -1}, 400, "input_error", "max_completion_tokens"),
        (
            {**CHAT, "messages": [{"role": "user", "content": "a" * 5000}]},
            *(400, "input_error", "messages[0].content"),
        ),
    ]
    for body, status, code, field in bad:
        reply = await client.post(PATH, json={**body, "stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, code), error
        assert field in (None, error["param"])


async def test_what_had_no_effect_is_told_in_headers(client, services):
    messages = [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]
    body = {**CHAT, "messages": messages, "max_tokens": 100_000, "user": "me", "n": 1}
    plain = await client.post(PATH, json=CHAT)
    names = ("x-ignored-messages", "x-ignored-fields", "x-clamped-fields")
    assert not plain.headers.keys() & set(names)
    for stream in (False, True):
        reply = await client.post(PATH, json={**body, "stream": stream})
        assert [reply.headers[name] for name in names] == [
            *("1", "user"),
            f"max_tokens={services.limits.max_answer_tokens}",
        ]
        last = chunks_of(reply.text)[-1] if stream else reply.json()
        assert last["condensery"]["ignored_messages"] == 1


ALONE = {"messages": CHAT["messages"]}


@pytest.fixture
async def kb(client):
    """An index, and an alias of the pair that carries it."""
    await client.put("/v1/indexes/kb", json={})
    documents = [{"id": "best", "text": "gold"}, {"id": "other", "text": "some words"}]
    await client.post("/v1/indexes/kb/documents", json={"documents": documents})
    aliases = {"docs": "pair@kb?top_k=1&mode=bm25", "more": "docs"}
    reply = await client.post("/v1/models/aliases", json={"aliases": aliases})
    assert reply.status_code == 200, reply.text


async def test_a_model_that_carries_an_index_needs_no_other_field(client, kb):
    def found(reply):
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-model"] == "pair"
        body = reply.json()
        return [each["id"] for each in body.get("condensery", body)["citations"]]

    index = {"name": "kb", "top_k": 1, "mode": "bm25"}
    query = {"messages": [{"role": "user", "content": "gold?"}]}
    wanted = found(await client.post(PATH, json={**query, "model": "pair", "index": index}))
    assert len(wanted) == 1
    for model in ("docs", "more", "pair@kb?top_k=1&mode=bm25"):
        assert found(await client.post(PATH, json={**query, "model": model})) == wanted
        asked = {"query": "gold?", "model": model}
        assert found(await client.post("/v1/rag/answer", json=asked)) == wanted
    assert len(found(await client.post(PATH, json={**query, "model": "pair@kb"}))) == 2
    listed = {info["id"]: info for info in (await client.get("/v1/models")).json()["data"]}
    assert listed["docs"]["index"] == index
    assert (listed["docs"]["alias_of"], listed["pair"]["index"]) == ("pair", None)


async def test_what_is_wrong_with_a_model_that_carries_an_index_is_named(client, kb):
    for body, status, field, says in (
        ({**ALONE, "model": "docs", "documents": ["a"]}, 400, "documents", "an index of its own"),
        ({**ALONE, "model": "docs", "index": "kb"}, 400, "index", "an index of its own"),
        ({**ALONE, "model": "pair@kb?top_k=x"}, 400, "model", "top_k 'x'"),
        ({**ALONE, "model": "pair@kb?top_k=99999"}, 400, "model", "top_k 99999"),
        ({**ALONE, "model": "pair@gone"}, 404, "model", "no index 'gone'"),
        ({**ALONE, "model": "nobody@kb"}, 404, "model", "'nobody@kb'"),
        ({**ALONE, "model": "docs@kb"}, 400, "model", "more than one index"),
    ):
        for stream in (False, True):
            reply = await client.post(PATH, json={**body, "stream": stream})
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (status, field), error
            assert says in error["message"]
    await client.delete("/v1/indexes/kb")
    reply = await client.post(PATH, json={**ALONE, "model": "docs"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "index_not_found", "model")
    assert "'docs' is 'pair' with the index 'kb'" in error["message"]


async def test_a_chat_counts_as_an_answer(client):
    await client.post(PATH, json=CHAT)
    await streamed(client)
    await client.post(PATH, json={**CHAT, "model": "gpt-4o"})
    lines = (await client.get("/metrics")).text.splitlines()
    labels = 'protocol="rest",task="answer"}'
    assert f'condensery_requests_total{{code="ok",model="pair",{labels} 2.0' in lines
    assert f'condensery_requests_total{{code="ModelNotFound",model="unknown",{labels} 1.0' in lines


@pytest.mark.parametrize("until", ["http.response.start", "http.response.body"])
async def test_who_leaves_amid_chunks_stops_the_generator(line, registry, services, until):
    asked = line(PATH, {**CHAT, "stream": True})

    held = []

    async def pause(message):
        if message["type"] == until and b'"role"' not in message.get("body", b""):
            held.append(message)
            await asyncio.sleep(60)

    asked.pause = pause
    asked.start()
    await asked.until(lambda: held)
    asked.leave()
    await asked.end()
    began = until == "http.response.body"
    assert registry.pairs["pair"].closed == int(began)
    labels = {"model": "pair", "task": "answer", "protocol": "rest", "code": "Cancelled"}
    metrics = services.metrics.registry
    assert metrics.get_sample_value("condensery_requests_total", labels) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_not_served_is_told_before_its_missing_passages(client, stream):
    asked = {"model": "dosc", "messages": [{"role": "user", "content": "where?"}], "stream": stream}
    reply = await client.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 404, reply.text
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    reply = await client.post("/v1/chat/completions", json={**asked, "model": None})
    assert reply.json()["error"]["param"] == "documents"
