"""Keyword arguments as one question."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from condensery.client.questions import PATHS, QuestionOptions, make_documents, make_question
from condensery.errors import InputError
from condensery.question import AnswerCompression, AnswerIndex, AnswerRerank, Question
from condensery.values import Document


def test_its_keywords_are_what_can_be_said_of_a_question() -> None:
    parts = {"index": AnswerIndex, "rerank": AnswerRerank, "compression": AnswerCompression}
    paths = {entry.name for entry in fields(Question)} - {"query", *parts}
    paths |= {f"{part}.{entry.name}" for part, kind in parts.items() for entry in fields(kind)}
    keywords = get_type_hints(QuestionOptions)
    assert {PATHS.get(keyword, keyword) for keyword in keywords} == paths
    assert len(keywords) == len(paths)


def test_what_is_not_said_is_as_a_question_has_it() -> None:
    assert make_question("why?") == Question("why?")


def test_what_is_said_is_in_the_question() -> None:
    question = make_question(
        "why?", index="kb", search="hybrid", top_n=0, seed=7, temperature=0.5, logprobs=0
    )
    assert question == Question(
        "why?",
        index=AnswerIndex("kb", mode="hybrid"),
        rerank=AnswerRerank(0),
        temperature=0.5,
        seed=7,
        logprobs=0,
    )


def test_a_text_among_the_documents_is_named_by_its_place() -> None:
    mine = Document("mine", "two", {"year": 1898})
    question = make_question("why?", documents=["one", mine, "three"])
    assert question.documents == [Document("0", "one"), mine, Document("2", "three")]


def test_one_text_is_no_list_of_its_letters() -> None:
    with pytest.raises(InputError, match="'a passage' is one text") as caught:
        make_documents("a passage")
    assert caught.value.field == "documents"
    assert make_question("why?", stop="\n\n").stop == ("\n\n",)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 3), ("temperature", float("nan")), ("top_p", 0), ("logprobs", 21)],
)
def test_a_value_out_of_its_range_is_refused_by_field_and_value(field: Any, value: float) -> None:
    how: Any = {field: value}
    with pytest.raises(InputError, match=f"{field}={value}") as caught:
        make_question("why?", **how)
    assert caught.value.field == field


def test_a_filter_without_an_index_would_have_no_effect_and_is_refused() -> None:
    with pytest.raises(InputError, match="there is no index to filter") as caught:
        make_question("why?", documents=["one"], filter={"must": []})
    assert caught.value.field == "filter"


@pytest.mark.parametrize("unknown", ["indx", "text", "sampling"])
def test_a_keyword_that_there_is_not_is_a_mistake_of_the_caller(unknown: str) -> None:
    how: Any = {unknown: "kb"}
    with pytest.raises(TypeError, match=unknown):
        make_question("why?", **how)
