"""What an answer says of where its words stand, and what is shown where there is none."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted_server import CUT, head, scripted
from scripted_server import answer as scripted_answer
from scripted_server import say as scripted_word
from tests.unit.conftest import StandInToken
from tests.unit.jobs.test_answer_server import written_by
from tests.unit.questions import make_question

from condensery.errors import AnswerServerFault
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.compression import compress_documents
from condensery.question import NOT_FOUND, Answer, Delta, Retrieved
from condensery.values import Document

RHINE = Document("rhine", "gold: The Rhine passes through Lake Constance. It ends in the sea.")
DOCUMENTS = [Document("noise", "nothing here"), RHINE]


@pytest.fixture
def say(registry: Any) -> Any:
    """Return what lets the stand-in pair write some words, a token each."""
    pair = registry.pairs["pair"]

    def script(*pieces: str, fails: bool = False) -> None:
        async def tokens(words: Sequence[str], max_tokens: int) -> AsyncIterator[StandInToken]:
            for count, piece in enumerate(pieces[:max_tokens], 1):
                last = "length" if count == max_tokens else None
                yield StandInToken(piece, count, last)
            if fails:
                raise RuntimeError("the device is lost")
            if len(pieces) < max_tokens:
                yield StandInToken("", len(pieces), "stop")

        pair._say = tokens

    return script


async def events_of(services: Any, **how: Any) -> tuple[Retrieved, list[Delta], Answer]:
    first, *deltas, last = [event async for event in answer(services, make_question(**how))]
    return first, deltas, last


async def test_an_answer_has_the_sources_words_and_says_where(services, say):
    say("lake", " constance")
    first, deltas, whole = await events_of(services, documents=DOCUMENTS)
    assert whole.answer == "".join(delta.text for delta in deltas) == "Lake Constance"
    assert whole.grounded is True
    cited = {citation.id: citation for citation in whole.citations}
    start, end = cited["rhine"].answer_start, cited["rhine"].answer_end
    assert RHINE.text[start:end] == "Lake Constance"
    assert cited["noise"].answer_start is cited["noise"].answer_end is None
    assert all(citation.answer_start is None for citation in first.citations)
    assert whole.snippets == ()


async def test_places_are_those_of_the_document_where_a_window_of_it_was_read(
    services, registry, say
):
    registry.pairs["pair"].words_each = 8
    text = "none of it " * 5 + "gold gold gold at Lake Constance 🍕 it is. " + "and so on " * 6
    say("lake constance")
    _, _, whole = await events_of(services, documents=[Document("long", text)])
    (citation,) = whole.citations
    assert 0 < citation.start < citation.answer_start < citation.answer_end <= citation.end
    assert text[citation.answer_start : citation.answer_end] == "Lake Constance" == whole.answer


async def test_words_that_stand_nowhere_stay_and_are_said_to(services, say):
    say("the rhine", " and lake geneva")
    _, deltas, whole = await events_of(services, documents=DOCUMENTS)
    assert whole.answer == "".join(delta.text for delta in deltas) == "the rhine and lake geneva"
    assert whole.grounded is False
    assert all(citation.answer_start is None for citation in whole.citations)


async def test_an_answer_read_from_text_has_them_too(services, say):
    say("lake constance")
    whole = await answer_whole(services, make_question(documents=DOCUMENTS, mode="off"))
    assert (whole.answer, whole.grounded) == ("Lake Constance", True)
    comparison = await compare_answers(services, make_question(documents=DOCUMENTS))
    assert comparison.compressed.answer == comparison.plain.answer == "Lake Constance"


async def test_an_answer_of_another_server_has_them_too(services):
    script = scripted_answer("lake", " const", "ance.")
    async with scripted(script) as server, written_by(services, server.url) as elsewhere:
        _, deltas, whole = await events_of(elsewhere, documents=DOCUMENTS)
    assert whole.answer == "".join(delta.text for delta in deltas) == "Lake Constance."
    assert (whole.grounded, whole.finish_reason) == (True, "stop")


async def test_where_the_generator_fails_what_it_wrote_comes_before_the_error(services, say):
    async def shown(services: Any, error: type[Exception]) -> str:
        texts: list[str] = []
        try:
            async for event in answer(services, make_question(documents=DOCUMENTS)):
                texts += [event.text] if isinstance(event, Delta) else []
        except error:
            return "".join(texts)
        raise AssertionError("it did not fail")

    say("through", " lake", " const", fails=True)
    assert await shown(services, RuntimeError) == "through Lake Const"
    say("through", " lake", " geneva", fails=True)
    assert await shown(services, RuntimeError) == "through lake geneva"
    script = [head(), scripted_word("through"), scripted_word(" lake"), CUT]
    async with scripted(script) as server, written_by(services, server.url) as elsewhere:
        assert await shown(elsewhere, AnswerServerFault) == "through Lake"


async def test_a_log_probability_stays_its_tokens(services, say):
    say("lake", " constance")
    _, deltas, whole = await events_of(services, documents=DOCUMENTS, logprobs=1)
    assert whole.answer == "Lake Constance"
    assert [token.text for token in whole.logprobs] == ["lake", " constance"]
    told = [token for delta in deltas for token in delta.logprobs or ()]
    assert tuple(told) == whole.logprobs


async def test_it_ends_before_a_stop_string_in_the_sources_letters(services, say):
    say("through lake", " constance")
    _, deltas, whole = await events_of(services, documents=DOCUMENTS, stop=("Const",))
    assert whole.answer == "".join(delta.text for delta in deltas) == "through Lake "
    assert whole.finish_reason == "stop"


async def test_one_that_was_cut_has_them_as_far_as_it_goes(services, say):
    say("lake", " cons", "tance")
    _, _, whole = await events_of(services, documents=DOCUMENTS, max_tokens=2)
    assert (whole.answer, whole.finish_reason, whole.grounded) == ("Lake Cons", "length", True)


# Where no answer was found


def none_found(**how: Any) -> Any:
    return make_question(how.pop("query", "Which lake?"), **{"min_relevance": 1.0, **how})


async def test_the_nearest_sentences_are_shown_where_none_was_found(services):
    best = Document("best", "gold gold. A lake is named here. Nothing else.")
    documents = [Document("third", "A mill."), best, RHINE, Document("fourth", "A town.")]
    whole = await answer_whole(services, none_found(documents=documents, top_n=1))
    assert (whole.answer, whole.finish_reason) == (NOT_FOUND, "not_found")
    assert whole.grounded is None
    assert [snippet.id for snippet in whole.snippets] == ["best", "rhine", "third"]
    texts = {document.id: document.text for document in documents}
    for snippet in whole.snippets:
        assert texts[snippet.document_id][snippet.start : snippet.end] == snippet.text
        assert documents[snippet.index].id == snippet.document_id
    assert [snippet.text for snippet in whole.snippets] == [
        "A lake is named here.",
        "gold: The Rhine passes through Lake Constance.",
        "A mill.",
    ]
    scores = [snippet.relevance_score for snippet in whole.snippets]
    assert scores == sorted(scores, reverse=True)


async def test_the_headings_above_a_passage_are_not_its_nearest_sentence(services):
    heading = {"heading": ["Mills", "Which lake?"]}
    headed = Document("a", "Mills > Which lake?\n\nA mill is at the Bodensee.", heading)
    whole = await answer_whole(services, none_found(documents=[headed]))
    (snippet,) = whole.snippets
    assert snippet.text == "A mill is at the Bodensee."
    assert headed.text[snippet.start : snippet.end] == snippet.text


async def test_the_sentence_that_the_pair_points_at_is_shown(services, registry):
    pair, sentence = registry.pairs["pair"], "It ends in the sea."
    compress = pair.compress

    async def pointing(*args: Any, **how: Any) -> Any:
        start = RHINE.text.index("ends")
        return [replace(each, pointer=(start, start + 4)) for each in await compress(*args, **how)]

    pair.compress = pointing
    whole = await answer_whole(services, none_found(documents=[RHINE]))
    assert [snippet.text for snippet in whole.snippets] == [sentence]
    compressed = await compress_documents(services, "Which lake?", [RHINE])
    whole = await answer_whole(services, none_found(context=compressed.context))
    assert [snippet.text for snippet in whole.snippets] == [sentence]


async def test_where_another_server_finds_none_they_are_shown_too(services):
    script = scripted_answer(NOT_FOUND)
    async with scripted(script) as server, written_by(services, server.url) as elsewhere:
        whole = await answer_whole(elsewhere, make_question("Which lake?", documents=DOCUMENTS))
    assert (whole.finish_reason, whole.grounded) == ("not_found", None)
    assert whole.snippets[0].text == "gold: The Rhine passes through Lake Constance."


@pytest.mark.parametrize(
    "query",
    ["lake", "?!", "湖はどこ", "which lake " * 350],
    ids=["one word", "no word", "Japanese", "thousands of characters"],
)
@pytest.mark.parametrize(
    "text",
    [
        "| lake | depth |\n|---|---|\n| Constance | 251 m |\n" * 40,
        "def lake(name):\n    return lakes[name]\n\nx = lake('Constance')\n" * 40,
        "lake",
        "lake " * 700,
        "x" * 3900,
        "…!?",
    ],
    ids=["table", "code", "one word", "no sentence", "no blank", "no word"],
)
async def test_whatever_the_question_and_the_passage_are(services, say, query, text):
    documents = [Document("odd", text)]
    whole = await answer_whole(services, none_found(query=query, documents=documents))
    (snippet,) = whole.snippets
    assert 0 < len(snippet.text) <= 300
    assert text[snippet.start : snippet.end] == snippet.text
    say("la", "ke")
    whole = await answer_whole(services, make_question(query, documents=documents))
    assert whole.answer == "lake"
    assert whole.grounded is ("lake" in text)
    (citation,) = whole.citations
    assert (citation.answer_start is not None) is whole.grounded
