"""OpenAI's responses: the same answers as chats, in the newer shape, whole or as typed events."""

import json

import pytest

from condensery.api.rest.responses import NEUTRAL_VALUES, REFUSED_FIELDS

ASKED = {"input": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}
PATH = "/v1/responses"


def events_of(text):
    *blocks, end = text.split("\n\n")
    assert end == ""
    events = []
    for place, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == place
        events.append(event)
    return events


async def streamed(client, **more):
    reply = await client.post(PATH, json={**ASKED, "stream": True, **more})
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    return events_of(reply.text)


async def test_a_response_says_what_a_chat_says(client):
    chat = {"messages": [{"role": "user", "content": "where?"}], "documents": ASKED["documents"]}
    said = (await client.post("/v1/chat/completions", json=chat)).json()
    reply = await client.post(PATH, json={**ASKED, "metadata": {"a": "b"}})
    response = reply.json()
    (message,) = response["output"]
    (part,) = message["content"]
    assert (part["type"], part["text"]) == ("output_text", said["choices"][0]["message"]["content"])
    assert (message["type"], message["role"], message["status"]) == (
        *("message", "assistant"),
        "completed",
    )
    assert (response["object"], response["status"], response["model"]) == (
        *("response", "completed"),
        "pair",
    )
    assert (response["metadata"], response["incomplete_details"]) == ({"a": "b"}, None)
    usage, other = response["usage"], said["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (
        *(other["prompt_tokens"], other["completion_tokens"]),
        other["total_tokens"],
    )
    assert response["condensery"]["citations"] == said["condensery"]["citations"]
    assert reply.headers["x-model"] == "pair"


async def test_its_events_come_in_openais_order_and_their_text_joins_to_the_whole(client):
    whole = (await client.post(PATH, json=ASKED)).json()["output"][0]["content"][0]["text"]
    events = await streamed(client)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert "".join(deltas) == whole != ""
    done = {event["type"].removeprefix("response."): event for event in events}
    assert done["output_text.done"]["text"] == done["content_part.done"]["part"]["text"] == whole
    last, begun = done["completed"]["response"], done["created"]["response"]
    assert last["output"][0] == done["output_item.done"]["item"]
    assert last["condensery"]["citations"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert begun["id"] == last["id"]
    places = {(event["item_id"], event["output_index"]) for event in events if "item_id" in event}
    assert places == {(last["output"][0]["id"], 0)}


async def test_an_answer_that_is_cut_is_incomplete(client):
    response = (await client.post(PATH, json={**ASKED, "max_output_tokens": 1})).json()
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (await streamed(client, max_output_tokens=1))[-1]["type"] == "response.incomplete"


async def test_an_answer_that_was_not_found_has_the_nearest_sentences(client):
    response = (await client.post(PATH, json={**ASKED, "min_relevance": 0.9})).json()
    text = response["output"][0]["content"][0]["text"]
    events = await streamed(client, min_relevance=0.9)
    assert "".join(event.get("delta", "") for event in events) == text
    assert response["condensery"]["finish_reason"] == "not_found"
    assert response["condensery"]["snippets"]


async def test_a_conversation_asks_its_last_question_and_tells_what_had_no_effect(client, services):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": "what?"},
        {"type": "function_call_output", "call_id": "a", "output": "5"},
        {"role": "user", "content": [{"type": "input_text", "text": "where?"}]},
    ]
    plain = (await client.post(PATH, json=ASKED)).json()
    body = {**ASKED, "input": items, "instructions": "Be kind.", "max_output_tokens": 100_000}
    body |= {"reasoning": {"effort": "low"}, "user": None}
    body |= {"tools": [{"type": "web_search"}], "tool_choice": "auto"}
    reply = await client.post(PATH, json=body)
    response = reply.json()
    assert response["output"][0]["content"] == plain["output"][0]["content"]
    assert response["condensery"]["ignored_messages"] == 3
    assert reply.headers["x-ignored-messages"] == "3"
    ignored = reply.headers["x-ignored-fields"].split(", ")
    told = ["input[].call_id", "input[].output", "instructions", "reasoning", "tools"]
    assert sorted(ignored) == told
    limit = services.limits.max_answer_tokens
    assert reply.headers["x-clamped-fields"] == f"max_output_tokens={limit}"


async def test_what_asks_for_what_happens_anyway_is_not_listed(client):
    for field, values in {
        **NEUTRAL_VALUES,
        **{k: v for k, (v, _) in REFUSED_FIELDS.items()},
    }.items():
        for value in (None, *values):
            reply = await client.post(PATH, json={**ASKED, field: value})
            assert reply.status_code == 200, reply.text
            assert "x-ignored-fields" not in reply.headers, field


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": " "}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "system", "content": "a"}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": "a" * 5000}, "input"),
        ({"documents": None}, "documents"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_what_cannot_be_had_is_refused_by_name(client, more, field, stream):
    reply = await client.post(PATH, json={**ASKED, **more, "stream": stream})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(field)


async def test_a_failure_amid_events_is_an_error_that_openais_client_raises(client, registry):
    registry.pairs["pair"].fails_after = 1
    last = (await streamed(client))[-1]
    assert (last["type"], last["code"], last["error"]["code"]) == ("error", *["internal_error"] * 2)
    assert "secret detail" not in json.dumps(last)
