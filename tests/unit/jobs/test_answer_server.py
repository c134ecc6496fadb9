"""Answers that another server writes: all else stays here, and no other door feels its faults."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from scripted_server import HOLD, ScriptedServer, Step, answer, head, say, scripted, unused_url
from tests.unit.questions import make_question

from condensery.errors import (
    AnswerServerUnavailable,
    CompressionFailed,
    ContextTooLong,
    InputError,
    ModelFault,
)
from condensery.jobs.answer import answer as answer_events
from condensery.jobs.answer import answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.compression import compress_documents
from condensery.jobs.embed import embed
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.question import NOT_FOUND, Delta, Retrieved
from condensery.runtime.answer_server import AnswerServerConfig, RemoteGenerator
from condensery.values import Document

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold", {"page": 7}),
    Document("good", "gold again"),
]
OK = answer("Seven", " traits")


@asynccontextmanager
async def written_by(services: Services, url: str, **config: Any) -> AsyncIterator[Services]:
    config = {"retries": 0, **config}
    made = RemoteGenerator(
        AnswerServerConfig(f"{url}/chat/completions", "qwen", **config), services.metrics
    )
    try:
        yield replace(services, answer_server=made)
    finally:
        await made.close()


def sent_passages(server: ScriptedServer) -> list[str]:
    """Return the passages of the last request, best first."""
    parts = server.asked[-1].body["messages"][0]["content"].split("\n\n")[1:-1]
    return [part.split("] ", 1)[1] for part in parts]


async def test_the_text_is_theirs_and_ranking_and_citations_are_ours(services, registry):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        question = make_question(documents=DOCUMENTS, top_n=2)
        first, *deltas, whole = [event async for event in answer_events(elsewhere, question)]
    assert isinstance(first, Retrieved)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert whole.text == "".join(delta.text for delta in deltas) == "Seven traits"
    assert (first.generator, whole.generator) == ("qwen", "qwen")
    assert (first.model, whole.model, whole.finish_reason) == ("pair", "pair", "stop")
    assert [citation.id for citation in whole.citations] == ["best", "good"]
    assert sent_passages(server) == ["gold gold gold", "gold again"]
    usage = whole.usage
    assert (usage.prompt_tokens, usage.context_vectors, usage.completion_tokens) == (11, 0, 7)
    assert registry.pairs["pair"].contexts == [], "the pair's own generator ran"
    own = services.metrics.output_tokens.labels("pair")._value.get()
    assert own == 0, "tokens of another server are counted as the pair's"


async def test_the_block_says_that_compression_only_ranked(services):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        whole = await answer_whole(elsewhere, make_question(documents=DOCUMENTS, target_ms=900))
    block = whole.compression
    assert (block.status, block.mode) == ("off", "auto")
    assert (block.docs, block.vectors_out, block.fallback_docs) == (0, 0, ())
    assert (block.flops_plain, block.flops_used) == (0, 3)  # of the stand-in, one a passage
    assert "target_ms 900" in block.reason


async def test_under_the_threshold_it_is_not_even_asked(services):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        question = make_question(documents=DOCUMENTS[:1], min_relevance=0.9)
        first, _, whole = [event async for event in answer_events(elsewhere, question)]
        assert server.asked == []
    assert (whole.text, whole.finish_reason) == (NOT_FOUND, "not_found")
    assert first.generator is whole.generator is None
    assert whole.usage.total_tokens == 0


@pytest.mark.parametrize(
    ("words", "finish"),
    [
        ((NOT_FOUND,), "not_found"),
        (("The passages do ", "not hold the answer"), "not_found"),
        ((NOT_FOUND, " But I know it."), "stop"),
    ],
)
async def test_its_own_not_found_is_told_as_ours_is(services, words, finish):
    async with scripted(answer(*words)) as server, written_by(services, server.url) as elsewhere:
        whole = await answer_whole(elsewhere, make_question(documents=DOCUMENTS))
    assert (whole.text, whole.finish_reason) == ("".join(words), finish)


@pytest.mark.parametrize(
    "words",
    [
        (NOT_FOUND, "\n\nThe nearest sentences:\n\n- **a**: gold", "\n- **b**: again" * 99),
        ("\n", NOT_FOUND[:9], f"{NOT_FOUND[9:]}\n- gold"),
        (NOT_FOUND, "\n", "gold"),
    ],
)
async def test_what_it_lists_below_its_not_found_is_not_taken_for_an_answer(services, words):
    script = [head(), *map(say, words), HOLD]  # nor waited for
    async with scripted(script) as server, written_by(services, server.url) as elsewhere:
        question = make_question(documents=DOCUMENTS, max_tokens=1)
        _, *deltas, whole = [event async for event in answer_events(elsewhere, question)]
        await server.left.wait()
    assert "".join(delta.text for delta in deltas).strip() == NOT_FOUND == whole.text.strip()
    assert (whole.finish_reason, whole.grounded) == ("not_found", None)
    assert [near.id for near in whole.snippets] == ["best", "good", "plain"]


async def test_passages_over_the_budget_are_left_out_from_the_last(services):
    long = [Document(str(n), "gold " * (5 - n) + "x" * 100) for n in range(4)]
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        sizes = elsewhere.answer_server.count_positions([document.text for document in long])
    async with (
        scripted(OK) as server,
        written_by(services, server.url, context_tokens=sum(sizes[:2])) as elsewhere,
    ):
        whole = await answer_whole(elsewhere, make_question(documents=long, top_n=0))
        assert sent_passages(server) == [document.text for document in long[:2]]
        assert [citation.id for citation in whole.citations] == ["0", "1"]
        assert whole.compression.left_out == (2, 3)
        with pytest.raises(ContextTooLong):  # all of them, or none
            await answer_whole(elsewhere, make_question(documents=long, top_n=0, mode="required"))
        huge = [Document("huge", "gold " * 700)]
        with pytest.raises(ContextTooLong) as caught:
            await answer_whole(elsewhere, make_question(documents=huge))
        assert caught.value.field == "documents"
        assert len(server.asked) == 1


async def test_of_a_long_passage_the_best_window_is_sent_and_all_where_nothing_scores(
    services, registry
):
    oscar = registry.pairs["pair"]
    oscar.words_each = 3
    documents = [Document("long", "some words here gold gold gold and the end")]
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        whole = await answer_whole(elsewhere, make_question(documents=documents))
        assert sent_passages(server) == ["gold gold gold"]
        assert (whole.citations[0].start, whole.citations[0].end) == (16, 30)
        oscar.traits = replace(oscar.traits, scores=False)
        whole = await answer_whole(elsewhere, make_question(documents=documents))
        assert sent_passages(server) == [documents[0].text]
        assert whole.citations[0].text == documents[0].text
        assert whole.compression.left_out == ()


async def test_a_passage_that_could_not_be_ranked_is_sent_unless_ranking_is_required(
    services, registry
):
    registry.pairs["pair"].faults["some words here"] = ModelFault("NaN")
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        whole = await answer_whole(elsewhere, make_question(documents=DOCUMENTS))
        assert sent_passages(server)[-1] == "some words here"
        assert whole.compression.fallback_docs == (0,)
        with pytest.raises(CompressionFailed):
            await answer_whole(elsewhere, make_question(documents=DOCUMENTS, mode="required"))
        assert len(server.asked) == 1


async def test_without_compression_passages_go_in_the_order_of_retrieval(services, registry):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        question = make_question(documents=DOCUMENTS, top_n=2, mode="off")
        whole = await answer_whole(elsewhere, question)
        assert sent_passages(server) == ["some words here", "gold gold gold"]
    assert (whole.compression.status, whole.compression.reason) == ("off", "asked for")
    assert registry.pairs["pair"].passes == []


async def test_a_held_context_is_answered_from_its_texts(services):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        held = await compress_documents(elsewhere, "where?", DOCUMENTS)
        whole = await answer_whole(elsewhere, make_question(context=held.context, top_n=1))
        assert sent_passages(server) == ["gold gold gold"]
    assert whole.generator == "qwen"


async def test_log_probabilities_are_refused_by_name(services):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        with pytest.raises(InputError) as caught:
            await answer_whole(elsewhere, make_question(documents=DOCUMENTS, logprobs=1))
        assert server.asked == []
    assert caught.value.field == "logprobs"


async def test_a_comparison_is_of_the_pairs_own_answers(services):
    async with scripted(OK) as server, written_by(services, server.url) as elsewhere:
        comparison = await compare_answers(elsewhere, make_question(documents=DOCUMENTS))
        assert server.asked == []
    assert comparison.compressed.generator is comparison.plain.generator is None
    assert comparison.compressed.compression.status == "applied"


async def test_while_it_is_down_answers_fail_and_nothing_else_does(services):
    async with written_by(services, await unused_url()) as elsewhere:
        with pytest.raises(AnswerServerUnavailable):
            await answer_whole(elsewhere, make_question(documents=DOCUMENTS))
        assert (await embed(elsewhere, ["a text"])).tokens == 2
        assert (await rerank(elsewhere, "q", ["gold", "lead"])).items[0].index == 0
        assert elsewhere.health.ready


async def test_who_leaves_an_answer_ends_the_request_for_it(services):
    script: Sequence[Step] = [head(), say("Se"), HOLD]
    async with scripted(script) as server, written_by(services, server.url) as elsewhere:
        events = answer_events(elsewhere, make_question(documents=DOCUMENTS))
        await anext(events)
        await anext(events)
        await events.aclose()
        async with asyncio.timeout(20):
            await server.left.wait()
