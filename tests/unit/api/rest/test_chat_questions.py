"""A chat's body as a question: what can't be had is refused by name, all else is taken and told."""

import pytest

from condensery.api.rest import chat
from condensery.api.rest.chat import NEUTRAL_VALUES, REFUSED_FIELDS
from condensery.api.rest.schemas.rag import AnswerIndex
from condensery.errors import InputError
from condensery.jobs.services import RequestLimits
from condensery.question import AnswerRerank, Question, Sampling
from condensery.values import Document

USER = {"role": "user", "content": "where?"}
CHAT = {"messages": [USER], "documents": ["gold"]}
READ = Question("where?", documents=(Document("0", "gold"),))


def read_chat(body):
    return chat.read_chat(body, RequestLimits())


def test_the_last_message_is_the_question():
    assert read_chat(CHAT).question == READ


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "where"}, {"type": "text", "text": "is it?"}]
    chat = read_chat({**CHAT, "messages": [{"role": "user", "content": parts}]})
    assert chat.question.query == "where\nis it?"


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "seed": 4}, Sampling(0.5, 0.9, 4)),
        ({"logprobs": True}, Sampling(logprobs=0)),
        ({"logprobs": True, "top_logprobs": 3}, Sampling(logprobs=3)),
        ({"logprobs": False, "top_logprobs": 0}, Sampling()),
        ({"temperature": None, "top_p": None, "seed": None, "logprobs": None}, Sampling()),
    ],
)
def test_sampling_is_ours_where_nothing_is_said(fields, asked):
    assert read_chat({**CHAT, **fields}).question.sampling == asked


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, Question("q").max_tokens),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_completion_tokens": 6, "max_tokens": 6}, 6),
        ({"max_completion_tokens": 6, "max_tokens": None}, 6),
    ],
)
def test_both_names_of_the_longest_answer_are_heard(fields, tokens):
    assert read_chat({**CHAT, **fields}).question.max_tokens == tokens


def test_passages_are_named_as_for_an_answer_and_an_index_by_its_name_too():
    body = {"messages": [USER], "rerank": {"top_n": 2}, "min_relevance": 0.5, "stop": "x"}
    for index in ("kb", {"name": "kb"}):
        asked = read_chat({**body, "index": index}).question
        assert asked == Question(
            "where?",
            index=AnswerIndex("kb"),
            rerank=AnswerRerank(2),
            min_relevance=0.5,
            stop=("x",),
        )
    asked = read_chat({"messages": [USER], "context": "ctx_a", "model": "pair"}).question
    assert asked == Question("where?", context="ctx_a", model="pair")


def test_the_last_question_is_asked_and_all_other_messages_are_counted():
    others = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    chat = read_chat({**CHAT, "messages": [*others, USER]})
    assert (chat.question, chat.path) == (READ, "messages[5].content")
    assert chat.unheeded.messages == 5
    begun = {"role": "assistant", "content": "It is"}
    chat = read_chat({**CHAT, "messages": [*others, USER, begun]})
    assert (chat.question, chat.path) == (READ, "messages[5].content")
    assert chat.unheeded.messages == 6
    assert read_chat({**CHAT, "history": "ignore"}).unheeded.messages == 0


def test_a_chat_of_two_hundred_turns_asks_the_last():
    turns = [
        message
        for place in range(200)
        for message in (
            {"role": "user", "content": f"question {place}?"},
            {"role": "assistant", "content": "An answer. " * 50},
        )
    ]
    chat = read_chat({**CHAT, "messages": [*turns, USER]})
    assert (chat.question, chat.unheeded.messages) == (READ, 400)


@pytest.mark.parametrize("messages", [[], [{"role": "system", "content": "a"}]])
def test_a_chat_without_a_question_is_refused(messages):
    with pytest.raises(InputError, match=r"^messages") as caught:
        read_chat({**CHAT, "messages": messages})
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("message", "field", "says"),
    [
        ({"role": "user"}, "messages[0].content", "None is neither"),
        ({"role": "user", "content": 5}, "messages[0].content", "5 is neither"),
        ({"role": "user", "content": " \n"}, "messages[0].content", "empty"),
        ({"role": "user", "content": []}, "messages[0].content", "empty"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]", "5: a pair reads text"),
        ({"role": "user", "content": [{}]}, "messages[0].content[0]", "{}: a pair reads text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages[0].content[1].type",
            "'image_url'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": 5}]},
            "messages[0].content[0].text",
            "5 is no string",
        ),
    ],
)
def test_a_last_message_that_is_no_question_is_told_where(message, field, says):
    with pytest.raises(InputError, match=says) as caught:
        read_chat({**CHAT, "messages": [message]})
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


WRONG = {
    "n": 2,
    "tool_choice": "required",
    "function_call": {"name": "f"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
}
WITHOUT_EFFECT = {
    "logit_bias": {"5": 100},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "reasoning_effort": "high",
    "min_p": 0.1,
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
    "top_k": 5,
    "user": "me",
    "metadata": {"a": "b"},
    "parallel_tool_calls": "perhaps",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "functions": [{"name": "f"}],
    "colour": 5,
    "stream_options": {"include_usage": True},  # of what is not streamed
}


@pytest.mark.parametrize("field", REFUSED_FIELDS)
def test_an_answer_of_another_form_is_refused_by_name(field):
    with pytest.raises(InputError, match=f"^{field}: .*leave this field out") as caught:
        read_chat({**CHAT, field: WRONG[field]})
    assert (caught.value.field, caught.value.value) == (field, WRONG[field])
    for harmless in (None, *REFUSED_FIELDS[field][0]):
        chat = read_chat({**CHAT, field: harmless})
        assert (chat.question, chat.unheeded.fields) == (READ, ())


def test_what_is_without_effect_is_taken_and_listed_but_not_what_happens_anyway():
    chat = read_chat({**CHAT, **WITHOUT_EFFECT})
    assert chat.question == READ
    assert sorted(chat.unheeded.fields) == sorted(WITHOUT_EFFECT)
    assert WITHOUT_EFFECT.keys() >= NEUTRAL_VALUES.keys()
    for field, values in NEUTRAL_VALUES.items():
        for value in (None, *values):
            assert read_chat({**CHAT, field: value}).unheeded.fields == ()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_there_may_be_are_as_many_as_there_may(name):
    most = RequestLimits().max_answer_tokens
    chat = read_chat({**CHAT, name: most + 1})
    assert (chat.question.max_tokens, chat.unheeded.clamped) == (most, {name: most})
    assert read_chat({**CHAT, name: most}).unheeded.clamped == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**CHAT, "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({**CHAT, "logprobs": 2}, "logprobs"),
        ({**CHAT, "temperature": 2.1}, "temperature"),
        ({**CHAT, "history": "keep"}, "history"),
        ({**CHAT, "documents": [{"text": "a", "title": "b"}]}, "documents[0].title"),
        ({**CHAT, "index": {"name": "kb", "k": 5}}, "index.k"),
    ],
)
def test_a_wrong_field_is_named(body, field):
    with pytest.raises(InputError, match="^" + field.replace("[", r"\[")) as caught:
        read_chat(body)
    assert caught.value.field == field


def test_usage_comes_in_a_chunk_of_its_own_where_it_is_asked_for():
    options = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": 1}}
    chat = read_chat({**CHAT, **options})
    assert chat.usage
    assert chat.unheeded.fields == ("stream_options.include_obfuscation",)
    assert not read_chat({**CHAT, "stream": True}).usage
