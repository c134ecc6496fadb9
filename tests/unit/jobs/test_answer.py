import asyncio
from dataclasses import asdict

import pytest
from tests.unit.questions import make_question

from condensery.errors import EmptyInput, IndexNotFound, InputError, ModelNotFound
from condensery.jobs import indexes
from condensery.jobs.answer import answer, answer_whole
from condensery.question import Answer, Delta, Likely, Retrieved, Sampling, TokenLogprob
from condensery.request_context import RequestContext, current_request, serving_request
from condensery.values import Document

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold", {"page": 7}),
    Document("good", "gold again"),
]


def sample(services, name, **labels):
    return services.metrics.registry.get_sample_value(name, labels)


async def test_events_come_in_order_and_the_deltas_join_to_the_answer(services):
    events = [
        event async for event in answer(services, make_question(documents=DOCUMENTS, top_n=2))
    ]
    assert isinstance(events[0], Retrieved)
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert isinstance(events[-1], Answer)
    assert "".join(event.text for event in events[1:-1]) == events[-1].text == "where? 1 2 "
    assert events[0].id == events[-1].id
    assert events[0].citations == events[-1].citations


async def test_the_generator_reads_the_most_relevant_best_first(services):
    whole = await answer_whole(services, make_question(documents=DOCUMENTS, top_n=2))
    assert [(citation.id, citation.index) for citation in whole.citations] == [
        ("best", 1),
        ("good", 2),
    ]
    assert whole.citations[0].metadata == {"page": 7}
    assert whole.citations[0].relevance_score > whole.citations[1].relevance_score > 0.5
    assert whole.finish_reason == "stop"


async def test_the_block_says_what_was_done_and_equals_the_metrics(services):
    for _ in range(2):
        whole = await answer_whole(services, make_question(documents=DOCUMENTS, top_n=2))
    block = whole.compression
    assert (block.status, block.mode, block.reason) == ("applied", "auto", None)
    assert (block.docs, block.tokens_in, block.vectors_out, block.ratio) == (2, 5, 4, 1.25)
    assert (block.flops_plain, block.flops_used) == (50, 43)
    totals = ["context_tokens_in", "context_vectors_out"]
    counted = [sample(services, f"condensery_{name}_total", model="pair") for name in totals]
    assert counted == [2 * 5, 2 * 4]
    stage = {"model": "pair", "stage": "compress"}
    assert sample(services, "condensery_stage_duration_seconds_count", **stage) == 2
    stage = {"model": "pair", "stage": "generate"}
    assert sample(services, "condensery_stage_duration_seconds_count", **stage) == 2
    assert sample(services, "condensery_ttft_seconds_count", model="pair") == 2


async def test_passages_come_from_an_index(services):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", DOCUMENTS)
    whole = await answer_whole(services, make_question(index="kb", top_k=3, top_n=1))
    assert [citation.document_id for citation in whole.citations] == ["best"]
    assert whole.citations[0].id == "best#0"
    stage = {"model": "words", "stage": "index"}
    assert sample(services, "condensery_stage_duration_seconds_count", **stage) == 2


async def test_without_compression_the_passages_are_read_as_they_were_found(services):
    whole = await answer_whole(services, make_question(documents=DOCUMENTS, top_n=2, mode="off"))
    assert whole.text == "where? some words here gold gold gold "
    assert [citation.id for citation in whole.citations] == ["plain", "best"]
    assert (whole.compression.status, whole.compression.reason) == ("off", "asked for")
    assert (whole.compression.docs, whole.compression.vectors_out) == (0, 0)
    assert sample(services, "condensery_context_vectors_out_total", model="pair") == 0


async def test_an_index_without_passages_is_reported_as_such(services):
    await indexes.create_index(services, "empty")
    whole = await answer_whole(services, make_question(index="empty"))
    assert whole.citations == ()
    assert (whole.compression.status, whole.compression.reason) == ("off", "no passages were found")


async def test_a_question_that_was_cut_is_reported(services):
    whole = await answer_whole(services, make_question("why " * 30, documents=DOCUMENTS))
    assert "the question was cut" in whole.compression.reason


async def test_max_tokens_ends_an_answer(services):
    whole = await answer_whole(services, make_question(documents=DOCUMENTS, max_tokens=1))
    assert (whole.text, whole.finish_reason, whole.usage.completion_tokens) == (
        "where? ",
        "length",
        1,
    )


async def test_sampling_and_stop_strings_reach_the_generator(services, registry):
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=3)
    asked = make_question(documents=DOCUMENTS, **asdict(sampling), stop=("end", "."))
    whole = await answer_whole(services, asked)
    assert registry.pairs["pair"].asked == [(sampling, ("end", "."))]
    assert whole.logprobs is None


async def test_logprobs_come_with_their_deltas_and_joined_with_the_answer(services):
    asked = make_question(documents=DOCUMENTS, logprobs=1)
    events = [event async for event in answer(services, asked)]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [delta.logprobs for delta in deltas] == [
        (TokenLogprob(delta.text, -0.5, (Likely(delta.text, -0.5),)),) for delta in deltas
    ]
    assert events[-1].logprobs == tuple(logprob for delta in deltas for logprob in delta.logprobs)
    assert "".join(logprob.text for logprob in events[-1].logprobs) == events[-1].text


async def test_leaving_while_passages_are_compressed_ends_that(services, registry):
    oscar = registry.pairs["pair"]
    oscar.delay = 60
    task = asyncio.create_task(answer_whole(services, make_question(documents=DOCUMENTS)))
    async with asyncio.timeout(20):
        while not oscar.passes:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert oscar.contexts == []


async def test_times_add_up(services):
    whole = await answer_whole(services, make_question(documents=DOCUMENTS))
    times = whole.timings
    parts = times.retrieve_ms + times.compress_ms + times.generate_ms
    assert 0 < parts <= times.total_ms
    assert times.retrieve_ms + times.compress_ms <= times.ttft_ms <= times.total_ms


async def test_leaving_early_stops_the_generator(services, registry):
    stream = answer(services, make_question(documents=DOCUMENTS))
    async for event in stream:
        if isinstance(event, Delta):
            break
    await stream.aclose()
    assert registry.pairs["pair"].closed == 1


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({}, InputError, "one of them.*got neither"),
        ({"documents": DOCUMENTS, "index": "kb"}, InputError, "got both documents and index"),
        ({"documents": []}, EmptyInput, "documents: the list is empty"),
        ({"documents": DOCUMENTS, "mode": "perhaps"}, InputError, "compression.mode: 'perhaps'"),
        ({"documents": DOCUMENTS, "max_tokens": 0}, InputError, "max_tokens: 0"),
        ({"documents": DOCUMENTS, "top_n": -1}, InputError, "rerank.top_n: -1"),
        ({"index": "kb", "top_k": 1000}, InputError, "index.top_k: 1000"),
        ({"documents": DOCUMENTS, "query": " "}, InputError, "query: the question is empty"),
        ({"documents": DOCUMENTS, "query": "\u200b\u0301 \x01"}, InputError, "question is empty"),
        ({"documents": [Document("a", "a" * 4001)]}, InputError, r"documents\[0\]\.text: 4001"),
        ({"documents": DOCUMENTS, "model": "nobody"}, ModelNotFound, "'nobody'"),
        ({"index": "nowhere"}, IndexNotFound, "'nowhere'"),
    ],
)
async def test_a_bad_request_fails_before_the_first_event(services, request_, error, message):
    stream = answer(services, make_question(**{"query": "where?", **request_}))
    with pytest.raises(error, match=message):
        await anext(stream)


async def test_waiting_for_the_generators_room_is_told_apart_from_generating(services, registry):
    oscar = registry.pairs["pair"]
    oscar.waited = 3600.0  # more than anything takes here: it is taken off, not measured
    whole = await answer_whole(services, make_question(documents=DOCUMENTS))
    assert whole.timings.queue_ms == 3_600_000
    assert whole.timings.generate_ms == 0
    stage = {"model": "pair", "stage": "generate"}
    assert sample(services, "condensery_stage_duration_seconds_sum", **stage) == 0
    stage = {"model": "pair", "stage": "tokenize"}
    assert sample(services, "condensery_stage_duration_seconds_count", **stage) == 1


async def test_what_compression_waits_and_tokenises_is_told_apart_from_compressing(
    services, registry
):
    oscar = registry.pairs["pair"]
    compress = oscar.compress

    async def slowly(*args, **how):
        current_request().stats.queued += 0.25
        current_request().stats.tokenizing += 0.125
        await asyncio.sleep(0.4)
        return await compress(*args, **how)

    oscar.compress = slowly
    with serving_request(RequestContext()):
        whole = await answer_whole(services, make_question(documents=DOCUMENTS))
    times = whole.timings
    assert times.queue_ms == pytest.approx(250)
    assert times.tokenize_ms >= 125
    assert times.compress_ms == pytest.approx(whole.compression.compress_ms - 375)
    parts = (times.retrieve_ms, times.queue_ms, times.tokenize_ms, times.compress_ms)
    assert sum(parts) + times.generate_ms <= times.total_ms


async def test_a_long_question_is_not_said_to_be_cut_where_nothing_is_compressed(services):
    whole = await answer_whole(
        services, make_question("why " * 30, documents=DOCUMENTS, mode="off")
    )
    assert whole.compression.reason == "asked for"
    assert whole.text.startswith("why " * 30)
