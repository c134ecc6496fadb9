import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.questions import make_question

from condensery.errors import (
    CompressionFailed,
    ContextMismatch,
    ContextNotFound,
    EmptyInput,
    InputError,
    ModelFault,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
)
from condensery.jobs.answer import answer_whole
from condensery.jobs.compression import compress_documents, release_context
from condensery.jobs.contexts import ContextStore
from condensery.request_context import RequestContext, serving_request
from condensery.values import Document, PairTraits

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold", {"page": 7}),
    Document("good", "gold again"),
]


@pytest.fixture
def oscar(registry):
    return registry.pairs["pair"]


async def test_each_document_is_reported_in_its_place_with_its_score(services, oscar):
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    assert [
        (document.index, document.id, document.tokens_in, document.vectors_out)
        for document in compressed.documents
    ] == [
        (0, "plain", 3, 2),
        (1, "best", 3, 2),
        (2, "good", 2, 2),
    ]
    assert [document.status for document in compressed.documents] == ["applied"] * 3
    scores = [document.relevance_score for document in compressed.documents]
    assert scores == pytest.approx([1 / (1 + np.exp(-count)) for count in (0, 3, 1)])
    assert oscar.passes == [[document.text for document in DOCUMENTS]]
    assert (compressed.model, compressed.fingerprint, compressed.tokens) == (
        "pair",
        "sha256:pair",
        8,
    )


async def test_the_block_bears_the_price_and_the_answers_tell_what_it_saves(services):
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    block = compressed.compression
    assert (block.mode, block.status, block.reason) == ("auto", "applied", None)
    assert (block.docs, block.tokens_in, block.vectors_out) == (3, 8, 6)
    assert (block.flops_used, block.flops_plain, block.flops_saved) == (3, 0, -3)
    held = (await answer_whole(services, make_question(context=compressed.context))).compression
    direct = (await answer_whole(services, make_question(documents=DOCUMENTS))).compression
    assert block.flops_used + held.flops_used == direct.flops_used
    assert block.flops_plain + held.flops_plain == direct.flops_plain


async def test_an_answer_from_a_context_is_the_one_from_its_documents(services, oscar):
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    held = await answer_whole(services, make_question(context=compressed.context))
    direct = await answer_whole(services, make_question(documents=DOCUMENTS))
    assert held.text == direct.text
    assert held.citations == direct.citations
    assert (held.compression.docs, held.compression.compress_ms) == (3, 0)
    assert len(oscar.passes) == 2  # nothing was compressed again for the context


async def test_a_context_may_be_read_as_text_too(services, oscar):
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    whole = await answer_whole(services, make_question(context=compressed.context, mode="off"))
    assert whole.text == "where? some words here gold gold gold gold again "
    assert len(oscar.passes) == 1


async def test_a_context_says_when_it_ends(services):
    before = time.time()
    compressed = await compress_documents(services, "where?", DOCUMENTS, ttl_s=30)
    assert before + 30 <= compressed.expires_at <= time.time() + 30


async def test_without_keeping_there_is_no_handle(services):
    compressed = await compress_documents(services, "where?", DOCUMENTS, keep=False, ttl_s=0)
    assert (compressed.context, compressed.expires_at) == (None, None)
    assert services.metrics.registry.get_sample_value("condensery_contexts") == 0


async def test_a_rate_is_kept_and_no_finer_one_can_be_had_later(services, oscar):
    compressed = await compress_documents(services, "where?", DOCUMENTS, ratio=8)
    assert compressed.compression.vectors_out == 3
    whole = await answer_whole(services, make_question(context=compressed.context))
    assert whole.usage.context_vectors == 3
    with pytest.raises(InputError, match="4 is not a rate that the context was"):
        await answer_whole(services, make_question(context=compressed.context, ratio=4))


async def test_a_context_at_the_finest_rate_is_read_at_any(services):
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    whole = await answer_whole(services, make_question(context=compressed.context, ratio=8))
    assert whole.usage.context_vectors == 3


async def test_what_is_held_holds_no_more_than_it_counts(services, oscar):
    """A view would keep its batch's vectors alive, an error the frames that it passed."""
    oscar.faults["gold again"] = ModelFault("broken")
    compressed = await compress_documents(services, "where?", DOCUMENTS, ratio=8)
    held = services.contexts.get("local", compressed.context)
    assert [passage.memory.base for passage in held.passages[:2]] == [None, None]
    assert [len(passage.memory) for passage in held.passages[:2]] == [1, 1]
    assert held.passages[2].error is None


async def test_a_document_that_fails_alone_is_reported_and_read_as_text_later(services, oscar):
    oscar.faults["gold gold gold"] = ModelFault("a vector came out with NaN")
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    document = compressed.documents[1]
    assert (document.status, document.reason) == (
        "failed",
        "ModelFault: a vector came out with NaN",
    )
    assert (document.relevance_score, document.tokens_in, document.vectors_out) == (None, 0, 0)
    block = compressed.compression
    assert (block.status, block.docs, block.fallback) == ("partial", 2, ())
    assert block.reason == "1 of 3 passages could not be compressed (ModelFault)"
    whole = await answer_whole(services, make_question(context=compressed.context))
    assert whole.text == "where? 2 0 gold gold gold "
    assert (whole.compression.status, whole.compression.fallback) == ("partial", (1,))
    with pytest.raises(CompressionFailed, match=r"documents\[1\]"):
        await answer_whole(services, make_question(context=compressed.context, mode="required"))


async def test_where_all_fail_the_first_error_is_raised(services, oscar):
    oscar.faults = {document.text: ModelFault(document.id) for document in DOCUMENTS}
    with pytest.raises(ModelFault, match="plain"):
        await compress_documents(services, "where?", DOCUMENTS)
    oscar.breaks = Overloaded("full")
    with pytest.raises(Overloaded, match="full"):
        await compress_documents(services, "where?", DOCUMENTS)


async def test_a_blank_document_is_reported_and_never_read(services, oscar):
    compressed = await compress_documents(services, "where?", [Document("blank", "  "), *DOCUMENTS])
    document = compressed.documents[0]
    assert (document.status, document.reason) == ("failed", "there is no text in it")
    assert compressed.compression.left_out == (0,)
    whole = await answer_whole(services, make_question(context=compressed.context))
    assert [citation.index for citation in whole.citations] == [2, 3, 1]
    assert whole.compression.left_out == (0,)


async def test_a_question_that_was_cut_is_reported(services):
    compressed = await compress_documents(services, "why " * 30, DOCUMENTS)
    assert (
        compressed.compression.reason
        == "for compression the question was cut to 8 of its 30 tokens"
    )


async def test_a_pair_without_scores_gives_none(services, oscar):
    oscar.traits = PairTraits(vectors=(2,), rates=(4,), scores=False)
    compressed = await compress_documents(services, "where?", DOCUMENTS)
    assert [document.relevance_score for document in compressed.documents] == [None] * 3


async def test_a_context_is_its_callers(services):
    with serving_request(RequestContext(caller="alice")):
        compressed = await compress_documents(services, "where?", DOCUMENTS)
        await answer_whole(services, make_question(context=compressed.context))
    with serving_request(RequestContext(caller="bob")):
        with pytest.raises(ContextNotFound):
            await answer_whole(services, make_question(context=compressed.context))
        with pytest.raises(ContextNotFound):
            release_context(services, compressed.context)
    with serving_request(RequestContext(caller="alice")):
        release_context(services, compressed.context)
        with pytest.raises(ContextNotFound):
            release_context(services, compressed.context)


async def test_a_context_is_one_pairs_and_one_questions(services, registry, oscar):
    registry.pairs["other"] = replace(oscar, info=replace(oscar.info, id="other"))
    compressed = await compress_documents(services, "where?", DOCUMENTS, model="other")
    whole = await answer_whole(services, make_question(context=compressed.context))
    assert whole.model == "other"  # the context's own, though not the default
    with pytest.raises(ContextMismatch, match="by other, and pair"):
        await answer_whole(services, make_question(context=compressed.context, model="pair"))
    with pytest.raises(ContextMismatch, match="another question"):
        await answer_whole(services, make_question("when?", context=compressed.context))
    registry.pairs["other"].info = replace(oscar.info, id="other", fingerprint="sha256:new")
    with pytest.raises(ContextMismatch, match="sha256:new"):
        await answer_whole(services, make_question(context=compressed.context))


async def test_a_caller_without_room_is_told_before_anything_is_compressed(services, oscar):
    services = replace(services, contexts=ContextStore(4 * 30_000))
    long = [Document("a", "gold " * 700)]
    await compress_documents(services, "where?", long, ttl_s=60)
    before = len(oscar.passes)
    with pytest.raises(Overloaded) as caught:
        await compress_documents(services, "where?", long)
    assert 0 < caught.value.retry_after_seconds <= 60
    assert len(oscar.passes) == before
    with pytest.raises(PayloadTooLarge):
        await compress_documents(
            services, "where?", [Document(str(n), "x" * 3000) for n in range(4)]
        )


async def test_leaving_ends_it_and_nothing_is_held(services, oscar):
    oscar.delay = 60
    task = asyncio.create_task(compress_documents(services, "where?", DOCUMENTS))
    async with asyncio.timeout(20):
        while not oscar.passes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert services.metrics.registry.get_sample_value("condensery_contexts") == 0


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"documents": []}, EmptyInput, "documents: the list is empty"),
        ({"documents": [Document("a", " "), Document("b", "")]}, InputError, "it is blank"),
        ({"documents": DOCUMENTS * 2}, InputError, r"\[3\]\.id: 'plain' is the id of documents\[0"),
        (
            {"documents": [Document(str(n), "gold") for n in range(500)]},
            PayloadTooLarge,
            "documents: 500 items, over the limit of 100",
        ),
        ({"documents": [Document("a", "a" * 2**20)]}, InputError, r"documents\[0\]\.text: 1048576"),
        ({"query": "\n"}, InputError, "query: the question is empty"),
        ({"query": "q" * 5000}, InputError, "query: 5000 characters"),
        ({"model": "nobody"}, ModelNotFound, "'nobody'"),
        ({"ratio": 5}, InputError, "ratio: 5 is not a rate that the pair has; there are: 4, 8"),
        ({"ttl_s": 0.0}, InputError, "ttl_s"),
    ],
)
async def test_a_bad_request_is_refused_by_field_and_value(services, request_, error, message):
    with pytest.raises(error, match=message):
        await compress_documents(
            services, **{"query": "where?", "documents": DOCUMENTS, **request_}
        )
