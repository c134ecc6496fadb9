"""A chat's body as a question: what would be without effect is refused by name."""

import pytest

from condensery.api.rest.chat import REFUSED_FIELDS, read_chat
from condensery.api.rest.schemas.rag import AnswerIndex
from condensery.errors import InputError
from condensery.question import AnswerRerank, Question, Sampling
from condensery.values import Document

USER = {"role": "user", "content": "where?"}
CHAT = {"messages": [USER], "documents": ["gold"]}
READ = Question("where?", documents=(Document("0", "gold"),))


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


def test_earlier_messages_are_refused_or_ignored_and_counted():
    earlier = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    body = {**CHAT, "messages": [*earlier, USER]}
    with pytest.raises(InputError, match=r'^messages: 4 of them.*"history": "ignore"') as caught:
        read_chat(body)
    assert (caught.value.field, caught.value.value) == ("messages", 4)
    chat = read_chat({**body, "history": "ignore"})
    assert (chat.question, chat.ignored, chat.path) == (READ, 3, "messages[3].content")
    assert read_chat({**CHAT, "history": "ignore"}).ignored == 0


@pytest.mark.parametrize(
    ("message", "field", "says"),
    [
        ({"role": "assistant", "content": "a"}, "messages[0].role", "'assistant': the last"),
        ({"role": "system", "content": "a"}, "messages[0].role", "'system'"),
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
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "logit_bias": {"5": 100},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "reasoning_effort": "high",
    "verbosity": "low",
    "web_search_options": {},
    "top_k": 5,
    "min_p": 0.1,
}


@pytest.mark.parametrize("field", REFUSED_FIELDS)
def test_what_would_be_without_effect_is_refused_by_name(field):
    with pytest.raises(InputError, match=f"^{field}: .*leave this field out") as caught:
        read_chat({**CHAT, field: WRONG[field]})
    assert (caught.value.field, caught.value.value) == (field, WRONG[field])
    for harmless in REFUSED_FIELDS[field][0]:
        assert read_chat({**CHAT, field: harmless}).question == READ


def test_what_changes_no_answer_and_what_is_unknown_are_ignored():
    more = {"user": "me", "metadata": {"a": "b"}, "store": True, "parallel_tool_calls": False}
    assert read_chat({**CHAT, **more, "prediction": {}, "colour": 5}).question == READ


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [USER]}, "documents"),
        ({**CHAT, "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({**CHAT, "logprobs": 2}, "logprobs"),
        ({**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
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
    assert read_chat({**CHAT, **options}).usage
    assert not read_chat({**CHAT, "stream": True}).usage
