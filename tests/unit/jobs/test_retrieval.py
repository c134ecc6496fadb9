"""What is read where compression fails, and what the report says of it."""

import asyncio
import logging

import pytest
from tests.unit.questions import make_question

from condensery.errors import (
    CompressionFailed,
    DeadlineExceeded,
    InputError,
    ModelFault,
    Overloaded,
    Unavailable,
)
from condensery.jobs import indexes, retrieval
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.compression import compress_documents
from condensery.question import Retrieved
from condensery.values import Document, PairTraits

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]
SECRET = "a secret of the caller's"


@pytest.fixture
def oscar(registry):
    return registry.pairs["pair"]


def ask(**how):
    return make_question(**{"documents": DOCUMENTS, **how})


async def test_relevance_and_memory_cost_one_forward_pass(services, oscar):
    await answer_whole(services, ask())
    assert oscar.passes == [[document.text for document in DOCUMENTS]]


async def test_a_passage_that_fails_is_read_as_text_after_the_others_and_reported(services, oscar):
    oscar.faults["gold gold gold"] = ModelFault(SECRET)
    whole = await answer_whole(services, ask())
    assert [(citation.id, citation.index) for citation in whole.citations] == [
        ("good", 2),
        ("plain", 0),
        ("best", 1),
    ]
    assert whole.text == "where? 2 0 gold gold gold "
    assert [citation.relevance_score is None for citation in whole.citations] == [
        False,
        False,
        True,
    ]
    block = whole.compression
    assert (block.status, block.fallback, block.docs, block.left_out) == ("partial", (1,), 2, ())
    assert (block.tokens_in, block.vectors_out) == (5, 4)
    assert block.reason == (
        "1 of 3 passages could not be compressed (ModelFault): they have no scores and rank last, "
        "and 1 of them in context, read as text"
    )


async def test_a_passage_that_fails_and_is_not_read_is_reported_too(services, oscar):
    oscar.faults["gold gold gold"] = ModelFault(SECRET)
    block = (await answer_whole(services, ask(top_n=1))).compression
    assert (block.status, block.fallback, block.docs) == ("partial", (), 1)
    assert "0 of them in context" in block.reason


async def test_where_all_fail_the_passages_are_read_as_text_in_retrieval_order(services, oscar):
    oscar.breaks = ModelFault(SECRET)
    whole = await answer_whole(services, ask(top_n=2))
    assert whole.text == "where? some words here gold gold gold "
    assert [citation.id for citation in whole.citations] == ["plain", "best"]
    block = whole.compression
    assert (block.status, block.fallback, block.docs) == ("fallback", (0, 1), 0)
    assert block.reason == (
        "no passage could be compressed (ModelFault): read as text, in the order of retrieval"
    )
    assert block.flops_used == block.flops_plain


async def test_where_all_fail_an_indexs_passages_keep_retrievals_scores(services, oscar):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", DOCUMENTS)
    hits = await retrieval.query_index(services, "kb", "where?", top_k=3)
    oscar.breaks = ModelFault(SECRET)
    whole = await answer_whole(services, make_question(index="kb", top_k=3))
    assert [(citation.id, citation.relevance_score) for citation in whole.citations] == [
        (hit.passage.id, hit.score) for hit in hits
    ]


async def test_a_passage_that_fails_alone_does_not_keep_retrievals_score(services, oscar):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", DOCUMENTS)
    oscar.faults["gold gold gold"] = ModelFault(SECRET)
    whole = await answer_whole(services, make_question(index="kb", top_k=3))
    assert [citation.relevance_score for citation in whole.citations][-1] is None


async def test_a_bug_in_the_compressor_is_a_fault_of_it_and_is_logged(services, oscar, caplog):
    oscar.breaks = RuntimeError(SECRET)
    with caplog.at_level(logging.ERROR):
        block = (await answer_whole(services, ask())).compression
    assert (block.status, block.fallback) == ("fallback", (0, 1, 2))
    assert "(RuntimeError)" in block.reason
    assert SECRET not in block.reason
    assert [record.getMessage() for record in caplog.records] == ["compression_failed"]


async def test_compression_over_its_time_is_given_up(services, oscar):
    oscar.delay = 60
    async with asyncio.timeout(20):
        block = (await answer_whole(services, ask(timeout_ms=20))).compression
    assert (block.status, block.fallback) == ("fallback", (0, 1, 2))
    assert "(longer than 20 ms)" in block.reason


async def test_compression_within_its_time_is_not(services):
    block = (await answer_whole(services, ask(timeout_ms=60_000))).compression
    assert (block.status, block.reason) == ("applied", None)


@pytest.mark.parametrize("seconds", [None, 60_000])
async def test_a_timeout_inside_the_compressor_is_a_fault_like_others(services, oscar, seconds):
    oscar.breaks = TimeoutError()
    block = (await answer_whole(services, ask(timeout_ms=seconds))).compression
    assert (block.status, "(TimeoutError)" in block.reason) == ("fallback", True)


@pytest.mark.parametrize(
    "error", [Overloaded("full"), Unavailable("draining"), DeadlineExceeded("late")]
)
@pytest.mark.parametrize("where", ["all", "one"])
async def test_what_is_no_fault_of_the_compressor_is_the_callers_to_hear(
    services, oscar, error, where
):
    if where == "all":
        oscar.breaks = error
    else:
        oscar.faults["gold again"] = error
    with pytest.raises(type(error)):
        await answer_whole(services, ask())


async def test_an_error_in_the_request_is_the_callers_to_hear(services, oscar):
    oscar.breaks = InputError("query: too long", field="query")
    with pytest.raises(InputError, match="query: too long"):
        await answer_whole(services, ask())


@pytest.mark.parametrize("where", ["all", "one", "late"])
async def test_required_fails_before_the_first_event_where_auto_would_read_text(
    services, oscar, where
):
    if where == "all":
        oscar.breaks = ModelFault(SECRET)
    elif where == "one":
        oscar.faults["gold gold gold"] = ModelFault(SECRET)
    else:
        oscar.delay = 60
    milliseconds = 50 if where == "late" else 60_000
    stream = answer(services, ask(mode="required", timeout_ms=milliseconds))
    with pytest.raises(CompressionFailed, match="mode is required") as caught:
        await anext(stream)
    assert caught.value.field == ("documents[1]" if where == "one" else "documents[0]")
    assert SECRET not in caught.value.message


async def test_required_compresses_as_auto_does(services):
    whole = await answer_whole(services, ask(mode="required"))
    block = whole.compression
    assert (block.mode, block.status, block.docs) == ("required", "applied", 3)


async def test_without_compression_nothing_is_compressed(services, oscar):
    block = (await answer_whole(services, ask(mode="off"))).compression
    assert oscar.passes == []
    assert (block.status, block.reason, block.compress_ms) == ("off", "asked for", 0)


async def test_a_blank_passage_is_not_read_and_reported(services, oscar):
    documents = [Document("blank", " \n"), *DOCUMENTS]
    whole = await answer_whole(services, ask(documents=documents))
    assert oscar.passes == [[document.text for document in DOCUMENTS]]
    assert [citation.index for citation in whole.citations] == [2, 3, 1]
    block = whole.compression
    assert (block.status, block.left_out) == ("applied", (0,))
    assert block.reason == "1 passage is left out, for want of text"


async def test_a_pair_without_scores_reads_in_retrieval_order_a_failed_passage_in_its_place(
    services, oscar
):
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), scores=False)
    oscar.faults["gold gold gold"] = ModelFault(SECRET)
    whole = await answer_whole(services, ask())
    assert [citation.id for citation in whole.citations] == ["plain", "best", "good"]
    assert whole.text == "where? 0 gold gold gold 2 "
    assert (whole.compression.status, whole.compression.fallback) == ("partial", (1,))


async def test_a_long_passage_is_cited_by_the_window_that_was_read(services, oscar):
    oscar.words_each = 2
    document = Document("long", "one two gold gold three", {"page": 1})
    (cited,) = (await answer_whole(services, ask(documents=[document]))).citations
    assert (cited.text, cited.start, cited.end) == ("gold gold", 8, 17)
    assert cited.metadata == {"page": 1}


async def test_the_first_event_says_of_compression_what_the_last_says(services, oscar):
    oscar.faults["gold gold gold"] = ModelFault(SECRET)
    events = [event async for event in answer(services, ask())]
    assert isinstance(events[0], Retrieved)
    assert events[0].compression == events[-1].compression
    assert events[0].citations == events[-1].citations


async def test_a_citation_is_placed_in_its_document_not_in_the_passage_that_holds_it(
    services, oscar
):
    oscar.words_each = 2
    text = " ".join([f"word{n}" for n in range(20)] + ["gold gold"] + [f"end{n}" for n in range(5)])
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [Document("long", text)])
    hits = await retrieval.query_index(services, "kb", "where?", top_k=5)
    (passage,) = (hit.passage for hit in hits if "gold gold" in hit.passage.text)
    within = passage.text.index("gold gold")
    assert passage.start > 0
    assert within > 0
    whole = await answer_whole(services, make_question(index="kb", top_k=5, top_n=1))
    (cited,) = whole.citations
    assert cited.start == passage.start + within
    assert (cited.text, text[cited.start : cited.end]) == ("gold gold", "gold gold")


@pytest.fixture
def unscored(oscar):
    """A pair without a rerank head, whose windows are of two words."""
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), scores=False, top_n=0)
    oscar.words_each = 2
    return oscar


LONG = [Document("long", "a b c d e"), Document("longer", "f g h i j k l"), Document("short", "m")]


async def test_without_a_rerank_head_all_of_a_long_passage_is_read(services, unscored):
    whole = await answer_whole(services, ask(documents=LONG))
    assert [len(memory) for memory in unscored.contexts[-1]] == [2] * (3 + 4 + 1)
    block = whole.compression
    assert (block.docs, block.tokens_in, block.vectors_out) == (3, 13, 16)
    assert block.ratio == 13 / 16
    assert (block.status, block.reason) == ("applied", None)
    assert whole.usage.context_vectors == 16
    assert [item.text for item in whole.citations] == [entry.text for entry in LONG]
    assert [citation.relevance_score for citation in whole.citations] == [None] * 3


async def test_where_not_all_windows_fit_the_first_are_read_and_the_block_tells_of_them(
    services, unscored
):
    unscored.positions = 1 + 2 * (2 + 2 + 1) + 10  # two windows of each, and not three
    whole = await answer_whole(services, ask(documents=LONG, max_tokens=10))
    assert [len(memory) for memory in unscored.contexts[-1]] == [2] * (2 + 2 + 1)
    block = whole.compression
    assert (block.tokens_in, block.vectors_out, block.left_out) == (4 + 4 + 1, 10, ())
    assert block.status == "partial"
    assert block.reason == (
        "3 of the 7 windows of long passages were compressed and are not read, since the "
        "generator has no room for more"
    )
    assert [(citation.text, citation.end) for citation in whole.citations[:2]] == [
        ("a b c d", 7),
        ("f g h i", 7),
    ]
    assert block.flops_used == 10 * 10 + 3, "what was compressed is counted in whole"
    # With less room than for one window each, passages are left out.
    unscored.positions = 1 + 2 * 2 + 10
    block = (await answer_whole(services, ask(documents=LONG, max_tokens=10))).compression
    assert (block.tokens_in, block.vectors_out, block.left_out) == (4, 4, (2,))
    assert "5 of the 7 windows" in block.reason


async def test_a_budget_is_kept_by_fewer_windows_before_fewer_passages(services, unscored):
    for most, vectors, reason in (
        (16, [2] * 8, None),
        (8, [1] * 8, None),
        (6, [1] * 5, "3 of the 7 windows"),
        (3, [1] * 3, "5 of the 7 windows"),
        (2, [1] * 2, "1 passage is left out"),
    ):
        whole = await answer_whole(services, ask(documents=LONG, max_context_vectors=most))
        assert [len(memory) for memory in unscored.contexts[-1]] == vectors
        assert (reason or "") in (whole.compression.reason or "")
        assert (reason is None) == (whole.compression.reason is None)
        assert whole.compression.vectors_out == sum(vectors)


async def test_a_context_holds_every_window_of_a_long_passage(services, unscored):
    direct = await answer_whole(services, ask(documents=LONG))
    held = await compress_documents(services, "where?", LONG)
    assert [(document.vectors_out, document.tokens_in) for document in held.documents] == [
        (6, 5),
        (8, 7),
        (2, 1),
    ]
    assert (held.compression.vectors_out, held.compression.tokens_in) == (16, 13)
    answer = await answer_whole(services, make_question(context=held.context))
    assert (answer.text, answer.citations) == (direct.text, direct.citations)
    coarse = await compress_documents(services, "where?", LONG, ratio=8)
    assert [document.vectors_out for document in coarse.documents] == [3, 4, 1]
    answer = await answer_whole(services, make_question(context=coarse.context))
    assert answer.usage.context_vectors == 8


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_each_text_of_an_answer_becomes_tokens_once(services, oscar, mode):
    whole = await answer_whole(services, ask(mode=mode))
    assert len(whole.citations) == 3
    assert sorted(oscar.tokenised) == sorted(document.text for document in DOCUMENTS)


async def test_a_target_time_tokenises_nothing_that_is_read_as_vectors_anew(services, oscar):
    oscar.ms_each = (0, 1, 0, 0)
    await answer_whole(services, ask(target_ms=10_000))
    assert sorted(oscar.tokenised) == sorted(document.text for document in DOCUMENTS)
