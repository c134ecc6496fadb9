import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from condensery.callers import Call, calling
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
from condensery.jobs.answer import answered
from condensery.jobs.compress import compress, release
from condensery.jobs.contexts import Contexts
from condensery.questions import Question
from condensery.values import Document, PairTraits

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold", {"page": 7}),
    Document("good", "gold again"),
]


@pytest.fixture
def reader(pool):
    return pool.readers["pair"]


async def test_each_document_is_told_in_its_place_with_its_score(services, reader):
    found = await compress(services, "where?", DOCUMENTS)
    assert [(one.index, one.id, one.tokens_in, one.vectors_out) for one in found.documents] == [
        (0, "plain", 3, 2),
        (1, "best", 3, 2),
        (2, "good", 2, 2),
    ]
    assert [one.status for one in found.documents] == ["applied"] * 3
    scores = [one.relevance_score for one in found.documents]
    assert scores == pytest.approx([1 / (1 + np.exp(-count)) for count in (0, 3, 1)])
    assert reader.passes == [[one.text for one in DOCUMENTS]]
    assert (found.model, found.fingerprint, found.tokens) == ("pair", "sha256:pair", 8)


async def test_the_block_bears_the_price_and_the_answers_tell_what_it_saves(services):
    found = await compress(services, "where?", DOCUMENTS)
    block = found.compression
    assert (block.mode, block.status, block.reason) == ("auto", "applied", None)
    assert (block.docs, block.tokens_in, block.vectors_out) == (3, 8, 6)
    assert (block.flops_used, block.flops_plain, block.flops_saved) == (3, 0, -3)
    held = (await answered(services, Question("where?", context=found.context))).compression
    given = (await answered(services, Question("where?", documents=DOCUMENTS))).compression
    assert block.flops_used + held.flops_used == given.flops_used
    assert block.flops_plain + held.flops_plain == given.flops_plain


async def test_an_answer_from_a_context_is_the_one_from_its_documents(services, reader):
    found = await compress(services, "where?", DOCUMENTS)
    held = await answered(services, Question("where?", context=found.context))
    given = await answered(services, Question("where?", documents=DOCUMENTS))
    assert held.text == given.text
    assert held.citations == given.citations
    assert (held.compression.docs, held.compression.compress_ms) == (3, 0)
    assert len(reader.passes) == 2  # nothing was compressed again for the context


async def test_a_context_may_be_read_as_text_too(services, reader):
    found = await compress(services, "where?", DOCUMENTS)
    whole = await answered(services, Question("where?", context=found.context, mode="off"))
    assert whole.text == "where? some words here gold gold gold gold again "
    assert len(reader.passes) == 1


async def test_a_context_says_when_it_ends(services):
    before = time.time()
    found = await compress(services, "where?", DOCUMENTS, ttl_seconds=30)
    assert before + 30 <= found.expires_at <= time.time() + 30


async def test_without_keeping_there_is_no_handle(services):
    found = await compress(services, "where?", DOCUMENTS, keep=False, ttl_seconds=0)
    assert (found.context, found.expires_at) == (None, None)
    assert services.metrics.registry.get_sample_value("condensery_contexts") == 0


async def test_a_rate_is_kept_and_no_finer_one_can_be_had_later(services, reader):
    found = await compress(services, "where?", DOCUMENTS, rate=8)
    assert found.compression.vectors_out == 3
    whole = await answered(services, Question("where?", context=found.context))
    assert whole.usage.context_vectors == 3
    with pytest.raises(InputError, match="4 is not a rate that the context was"):
        await answered(services, Question("where?", context=found.context, rate=4))


async def test_a_context_at_the_finest_rate_is_read_at_any(services):
    found = await compress(services, "where?", DOCUMENTS)
    whole = await answered(services, Question("where?", context=found.context, rate=8))
    assert whole.usage.context_vectors == 3


async def test_what_is_held_holds_no_more_than_it_counts(services, reader):
    """A view would keep its whole batch's vectors, an error the frames it went through."""
    reader.faults["gold again"] = ModelFault("broken")
    found = await compress(services, "where?", DOCUMENTS, rate=8)
    held = services.contexts.get("local", found.context)
    assert [one.memory.base for one in held.passages[:2]] == [None, None]
    assert [len(one.memory) for one in held.passages[:2]] == [1, 1]
    assert held.passages[2].error is None


async def test_a_document_that_fails_alone_is_told_and_read_as_text_later(services, reader):
    reader.faults["gold gold gold"] = ModelFault("a vector came out with NaN")
    found = await compress(services, "where?", DOCUMENTS)
    told = found.documents[1]
    assert (told.status, told.reason) == ("failed", "ModelFault: a vector came out with NaN")
    assert (told.relevance_score, told.tokens_in, told.vectors_out) == (None, 0, 0)
    block = found.compression
    assert (block.status, block.docs, block.fallback) == ("partial", 2, ())
    assert block.reason == "1 of 3 passages could not be compressed (ModelFault)"
    whole = await answered(services, Question("where?", context=found.context))
    assert whole.text == "where? 2 0 gold gold gold "
    assert (whole.compression.status, whole.compression.fallback) == ("partial", (1,))
    with pytest.raises(CompressionFailed, match=r"documents\[1\]"):
        await answered(services, Question("where?", context=found.context, mode="required"))


async def test_where_all_fail_the_first_error_is_raised(services, reader):
    reader.faults = {one.text: ModelFault(one.id) for one in DOCUMENTS}
    with pytest.raises(ModelFault, match="plain"):
        await compress(services, "where?", DOCUMENTS)
    reader.breaks = Overloaded("full")
    with pytest.raises(Overloaded, match="full"):
        await compress(services, "where?", DOCUMENTS)


async def test_a_blank_document_is_told_and_never_read(services, reader):
    found = await compress(services, "where?", [Document("blank", "  "), *DOCUMENTS])
    told = found.documents[0]
    assert (told.status, told.reason) == ("failed", "there is no text in it")
    assert found.compression.left_out == (0,)
    whole = await answered(services, Question("where?", context=found.context))
    assert [one.index for one in whole.citations] == [2, 3, 1]
    assert whole.compression.left_out == (0,)


async def test_a_question_that_was_cut_is_reported(services):
    found = await compress(services, "why " * 30, DOCUMENTS)
    assert found.compression.reason == "for compression the question was cut to 8 of its 30 tokens"


async def test_a_pair_without_scores_gives_none(services, reader):
    reader.traits = PairTraits(vectors=(2,), rates=(4,), scores=False)
    found = await compress(services, "where?", DOCUMENTS)
    assert [one.relevance_score for one in found.documents] == [None] * 3


async def test_a_context_is_its_callers(services):
    with calling(Call(caller="alice")):
        found = await compress(services, "where?", DOCUMENTS)
        await answered(services, Question("where?", context=found.context))
    with calling(Call(caller="bob")):
        with pytest.raises(ContextNotFound):
            await answered(services, Question("where?", context=found.context))
        with pytest.raises(ContextNotFound):
            release(services, found.context)
    with calling(Call(caller="alice")):
        release(services, found.context)
        with pytest.raises(ContextNotFound):
            release(services, found.context)


async def test_a_context_is_one_pairs_and_one_questions(services, pool, reader):
    pool.readers["other"] = replace(reader, info=replace(reader.info, name="other"))
    found = await compress(services, "where?", DOCUMENTS, model="other")
    whole = await answered(services, Question("where?", context=found.context))
    assert whole.model == "other"  # the context's own, though not the default
    with pytest.raises(ContextMismatch, match="by other, and pair"):
        await answered(services, Question("where?", context=found.context, model="pair"))
    with pytest.raises(ContextMismatch, match="another question"):
        await answered(services, Question("when?", context=found.context))
    pool.readers["other"].info = replace(reader.info, name="other", fingerprint="sha256:new")
    with pytest.raises(ContextMismatch, match="sha256:new"):
        await answered(services, Question("where?", context=found.context))


async def test_a_caller_without_room_is_told_before_anything_is_compressed(services, reader):
    services = replace(services, contexts=Contexts(4 * 30_000))
    long = [Document("a", "gold " * 700)]
    await compress(services, "where?", long, ttl_seconds=60)
    before = len(reader.passes)
    with pytest.raises(Overloaded) as caught:
        await compress(services, "where?", long)
    assert 0 < caught.value.retry_after_seconds <= 60
    assert len(reader.passes) == before
    with pytest.raises(PayloadTooLarge):
        await compress(services, "where?", [Document(str(n), "x" * 3000) for n in range(4)])


async def test_leaving_ends_it_and_nothing_is_held(services, reader):
    reader.delay = 60
    task = asyncio.create_task(compress(services, "where?", DOCUMENTS))
    async with asyncio.timeout(20):
        while not reader.passes:  # noqa: ASYNC110
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
        ({"text": "\n"}, InputError, "query: the question is empty"),
        ({"text": "q" * 5000}, InputError, "query: 5000 characters"),
        ({"model": "nobody"}, ModelNotFound, "'nobody'"),
        ({"rate": 5}, InputError, "ratio: 5 is not a rate that the pair has; there are: 4, 8"),
        ({"ttl_seconds": 0.0}, InputError, "ttl_s"),
    ],
)
async def test_a_bad_request_is_refused_by_field_and_value(services, request_, error, message):
    with pytest.raises(error, match=message):
        await compress(services, **{"text": "where?", "documents": DOCUMENTS, **request_})
