"""Rates, budgets, what fits, and the threshold."""

import math
import threading

import pytest
from tests.unit.questions import make_question

from condensery.errors import ContextTooLong, InputError, ModelFault
from condensery.jobs import indexes
from condensery.jobs.answer import answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.question import NOT_FOUND
from condensery.values import Document, PairTraits

# Their relevance falls, so that a passage's place is its rank.
DOCUMENTS = [Document(str(count), " ".join(["gold"] * count)) for count in (6, 5, 4, 3, 2, 1)]


@pytest.fixture
def oscar(registry):
    oscar = registry.pairs["pair"]
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), top_n=0)
    return oscar


def ask(**how):
    return make_question(**{"documents": DOCUMENTS, **how})


async def sizes(services, oscar, **how):
    """Return (vectors of each memory in context, places left out, reason)."""
    block = (await answer_whole(services, ask(**how))).compression
    return [len(memory) for memory in oscar.contexts[-1]], block.left_out, block.reason


async def test_the_finest_rate_is_the_default_and_another_takes_the_first_vectors(services, oscar):
    assert await sizes(services, oscar) == ([2] * 6, (), None)
    assert await sizes(services, oscar, ratio=4) == ([2] * 6, (), None)
    whole = await answer_whole(services, ask(ratio=8))
    assert [len(memory) for memory in oscar.contexts[-1]] == [1] * 6
    block = whole.compression
    assert (block.vectors_out, block.tokens_in, block.ratio) == (6, 21, 3.5)
    assert whole.usage.context_vectors == 6


async def test_a_passage_that_grows_is_counted_as_it_is(services, oscar):
    block = (await answer_whole(services, ask(documents=[Document("a", "gold")]))).compression
    assert (block.tokens_in, block.vectors_out, block.ratio, block.reason) == (1, 2, 0.5, None)


async def test_a_pairs_own_number_of_passages_is_read_unless_another_is_asked_for(services, oscar):
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), top_n=3)
    assert await sizes(services, oscar) == ([2] * 3, (), None)
    assert await sizes(services, oscar, top_n=1) == ([2], (), None)
    assert await sizes(services, oscar, top_n=0) == ([2] * 6, (), None)


@pytest.mark.parametrize(
    ("most", "vectors", "left_out"),
    [
        (12, [2] * 6, ()),
        (11, [1] * 6, ()),
        (6, [1] * 6, ()),
        (5, [1] * 5, (5,)),
        (1, [1], (1, 2, 3, 4, 5)),
    ],
)
async def test_a_budget_of_vectors_is_kept_by_the_finest_rate_and_then_by_fewer_passages(
    services, oscar, most, vectors, left_out
):
    selection = await sizes(services, oscar, max_context_vectors=most)
    assert selection[:2] == (vectors, left_out)
    if left_out:
        assert f"left out to keep to max_context_vectors {most}" in selection[2]
        assert selection[2].startswith("1 passage is" if len(left_out) == 1 else "5 passages are")


async def test_a_rate_that_is_asked_for_is_kept_under_a_budget(services, oscar):
    selection = await sizes(services, oscar, ratio=4, max_context_vectors=5)
    assert selection[:2] == ([2, 2], (2, 3, 4, 5))


async def test_a_budget_under_one_passage_is_refused(services, oscar):
    oscar.traits = PairTraits(vectors=(2,), rates=(4,), top_n=0)
    with pytest.raises(InputError, match="max_context_vectors: 1, but one passage is 2"):
        await answer_whole(services, ask(max_context_vectors=1))


async def test_passages_read_as_text_take_nothing_of_a_budget_of_vectors(services, oscar):
    oscar.breaks = ModelFault("broken")
    whole = await answer_whole(services, ask(max_context_vectors=1))
    assert (len(whole.citations), whole.compression.left_out) == (6, ())


# 1000 ms a vector; what compressing really takes is little beside it.
@pytest.mark.parametrize(
    ("target", "vectors", "left_out"),
    [
        (12_900, [2] * 6, ()),
        (11_000, [1] * 6, ()),
        (3_900, [1] * 3, (3, 4, 5)),
    ],
)
async def test_a_time_to_aim_at_is_kept_likewise(services, oscar, target, vectors, left_out):
    oscar.ms_each = (0, 1000, 0, 0)
    selection = await sizes(services, oscar, target_ms=target)
    assert selection[0] == vectors
    assert selection[1] == left_out
    assert (f"to keep to target_ms {target}" in (selection[2] or "")) == bool(left_out)


async def test_fewer_passages_are_compressed_where_that_alone_takes_too_long(services, oscar):
    oscar.ms_each = (1000, 1, 0, 0)  # a token, and a vector
    selection = await sizes(services, oscar, target_ms=11_900)
    assert oscar.passes[-1] == [document.text for document in DOCUMENTS[:2]]  # 6 + 5 tokens
    assert selection[1] == (2, 3, 4, 5)
    assert selection[2] == "the last 4 of 6 passages are not compressed, to keep to target_ms 11900"


async def test_a_time_that_nothing_keeps_to_is_aimed_at_with_one_passage(services, oscar):
    oscar.ms_each = (0, 1000, 0, 0)
    vectors, left_out, reason = await sizes(services, oscar, target_ms=1)
    assert (vectors, left_out) == ([1], (1, 2, 3, 4, 5))
    assert "over target_ms 1" in reason


async def test_a_time_without_a_measurement_changes_nothing_and_that_is_reported(services, oscar):
    selection = await sizes(services, oscar, target_ms=1)
    assert selection == (
        [2] * 6,
        (),
        "there is no measurement yet by which to keep to target_ms",
    )


async def test_passages_read_as_text_count_for_the_time(services, oscar):
    oscar.ms_each = (0, 0, 1000, 0)  # a text token
    block = (await answer_whole(services, ask(target_ms=15_900, mode="off"))).compression
    assert block.left_out == (3, 4, 5)  # 6 + 5 + 4 tokens
    assert "to keep to target_ms 15900" in block.reason


@pytest.mark.parametrize(("most", "target"), [(4, 9_000), (9, 4_900)])
async def test_of_two_budgets_the_stricter_holds(services, oscar, most, target):
    oscar.ms_each = (0, 1000, 0, 0)
    selection = await sizes(services, oscar, max_context_vectors=most, target_ms=target)
    assert selection[:2] == ([1] * 4, (4, 5))


async def test_a_smaller_budget_never_reads_more(services, oscar):
    oscar.ms_each = (0, 1000, 0, 0)
    read = [
        sum((await sizes(services, oscar, max_context_vectors=most))[0]) for most in range(1, 14)
    ]
    assert read == sorted(read)
    assert all(vectors <= most for most, vectors in enumerate(read, 1))
    read = [
        sum((await sizes(services, oscar, target_ms=1000 * most + 900))[0]) for most in range(1, 14)
    ]
    assert read == sorted(read)


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_what_does_not_fit_is_left_out_from_the_lowest_rank_and_reported(
    services, oscar, mode
):
    taken = 3 * 2 if mode == "auto" else 6 + 5 + 4
    oscar.positions = 1 + taken + 10  # the question, three passages, the answer
    whole = await answer_whole(services, ask(mode=mode, max_tokens=10))
    block = whole.compression
    assert [citation.index for citation in whole.citations] == [0, 1, 2]
    assert block.left_out == (3, 4, 5)
    assert block.status == ("partial" if mode == "auto" else "off")
    assert "3 passages are left out, since the generator has no room for more" in block.reason


@pytest.mark.parametrize("room", range(1, 9))
async def test_as_many_as_fit_are_read_and_few_more_are_counted(services, oscar, room):
    documents = [Document(str(count), "a b c") for count in range(50)]
    oscar.positions = 1 + 3 * room + 10
    whole = await answer_whole(services, ask(documents=documents, mode="off", max_tokens=10))
    assert [citation.index for citation in whole.citations] == list(range(room))
    assert len(oscar.tokenised) <= 4 * room + 4


async def test_long_texts_are_counted_without_stopping_the_event_loop(services, oscar):
    threads = set()

    def watched(done):
        def do(*args):
            threads.add(threading.current_thread())
            return done(*args)

        return do

    for name in ("make_prompt", "count_positions", "count_answer"):
        setattr(oscar, name, watched(getattr(oscar, name)))
    await answer_whole(services, ask(mode="off"))
    assert threads == {threading.current_thread()}
    threads.clear()
    long = [Document(str(count), "words " * 600) for count in range(10)]
    await answer_whole(services, ask(documents=long, mode="off"))
    await answer_whole(services, ask(documents=long, target_ms=1))
    await compare_answers(services, ask(documents=long))
    assert threading.current_thread() not in threads
    assert threads


async def test_what_just_fits_is_read(services, oscar):
    oscar.positions = 1 + 6 * 2 + 10
    block = (await answer_whole(services, ask(max_tokens=10))).compression
    assert (block.status, block.left_out, block.reason) == ("applied", (), None)


async def test_text_in_place_of_vectors_may_not_fit(services, oscar):
    oscar.positions = 1 + 6 + 10
    oscar.breaks = ModelFault("broken")
    block = (await answer_whole(services, ask(max_tokens=10))).compression
    assert (block.status, block.fallback, block.left_out) == ("fallback", (0,), (1, 2, 3, 4, 5))


async def test_required_refuses_what_does_not_fit(services, oscar):
    oscar.positions = 1 + 5 * 2 + 10
    with pytest.raises(ContextTooLong, match="take 2 positions more") as caught:
        await answer_whole(services, ask(mode="required", max_tokens=10))
    assert caught.value.field == "rerank.top_n"


async def test_where_not_even_one_passage_fits_it_is_refused(services, oscar):
    oscar.positions = 1 + 1 + 10
    with pytest.raises(ContextTooLong):
        await answer_whole(services, ask(max_tokens=10))
    with pytest.raises(ContextTooLong) as caught:
        await answer_whole(services, ask(max_tokens=10, documents=DOCUMENTS[:1]))
    assert caught.value.field == "max_tokens"


async def test_an_answer_that_does_not_fit_without_passages_is_refused(services, oscar):
    await indexes.create_index(services, "empty")
    oscar.positions = 10
    with pytest.raises(ContextTooLong):
        await answer_whole(services, make_question(index="empty", max_tokens=10))


@pytest.mark.parametrize("own", [False, True])
async def test_under_the_threshold_nothing_is_generated(services, oscar, own):
    documents = [Document("a", "no such thing"), Document("b", "nor here")]
    least = 0.6  # a passage without "gold" has 0.5
    how = {"documents": documents, "min_relevance": least}
    if own:
        oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), min_relevance=least)
        del how["min_relevance"]
    whole = await answer_whole(services, ask(**how))
    assert (whole.text, whole.finish_reason) == (NOT_FOUND, "not_found")
    assert oscar.contexts == []
    assert [(citation.id, citation.relevance_score) for citation in whole.citations] == [
        ("a", 0.5),
        ("b", 0.5),
    ]
    assert (whole.usage.total_tokens, whole.usage.context_vectors) == (0, 0)
    block = whole.compression
    assert (block.docs, block.status) == (2, "applied")
    assert (block.flops_used, block.flops_plain) == (2, 50)  # two passages were compressed
    assert whole.logprobs is None


async def test_the_threshold_is_of_the_best_passage_and_may_be_reached(services, oscar):
    documents = [Document("a", "no such thing"), Document("b", "gold")]
    best = 1 / (1 + math.exp(-1))
    whole = await answer_whole(services, ask(documents=documents, min_relevance=best - 1e-6))
    assert whole.finish_reason == "stop"
    whole = await answer_whole(services, ask(documents=documents, min_relevance=best + 1e-6))
    assert whole.finish_reason == "not_found"


async def test_a_threshold_of_none_overrides_the_pairs_own(services, oscar):
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), min_relevance=0.99)
    documents = [Document("a", "no such thing")]
    assert (await answer_whole(services, ask(documents=documents))).finish_reason == "not_found"
    whole = await answer_whole(services, ask(documents=documents, min_relevance=0))
    assert whole.finish_reason == "stop"


async def test_a_passage_without_a_score_may_hold_the_answer(services, oscar):
    documents = [Document("a", "no such thing"), Document("b", "unreadable")]
    oscar.faults["unreadable"] = ModelFault("broken")
    whole = await answer_whole(services, ask(documents=documents, min_relevance=0.9))
    assert whole.finish_reason == "stop"


async def test_what_compressing_took_is_gone_of_the_time_that_is_aimed_at(services, oscar):
    oscar.ms_each, oscar.delay = (0, 1, 0, 0), 0.05  # twelve vectors, or six, take as many ms
    selected = await sizes(services, oscar, target_ms=55)
    assert len(selected[0]) < len(DOCUMENTS), "50 ms of the 55 at least are gone"
    assert "target_ms" in selected[2]
    oscar.delay = 0
    assert await sizes(services, oscar, target_ms=60_000) == ([2] * 6, (), None)


async def test_a_passage_without_a_score_ranks_last_and_has_none_of_retrievals(services, oscar):
    documents = [Document("a", "where unreadable"), Document("b", "gold"), Document("c", "no")]
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", documents)
    asked = make_question(index="kb", top_k=3)
    citations = (await answer_whole(services, asked)).citations
    assert {item.document_id for item in citations} == {"a", "b", "c"}
    oscar.faults["where unreadable"] = ModelFault("broken")
    whole = await answer_whole(services, asked)
    assert [citation.document_id for citation in whole.citations] == ["b", "c", "a"]
    assert whole.citations[0].relevance_score == pytest.approx(1 / (1 + math.exp(-1)))
    assert whole.citations[2].relevance_score is None, "a cosine is on another scale"
    for text in ("gold", "no"):
        oscar.faults[text] = ModelFault("broken")
    whole = await answer_whole(services, asked)
    assert max(citation.relevance_score for citation in whole.citations) > 0, (
        "of none scored, retrieval's"
    )


async def test_an_index_without_passages_does_not_hold_the_answer(services, oscar):
    await indexes.create_index(services, "empty")
    whole = await answer_whole(services, make_question(index="empty", min_relevance=0.1))
    assert (whole.finish_reason, whole.citations) == ("not_found", ())
    assert "no passages were found" in whole.compression.reason


async def test_a_pairs_own_threshold_means_nothing_where_it_does_not_score(services, oscar):
    oscar.traits = PairTraits(vectors=(2,), rates=(4,), scores=False, min_relevance=0.99)
    assert (await answer_whole(services, ask())).finish_reason == "stop"


@pytest.mark.parametrize(
    ("weight", "read"), [(0.0, "last"), (0.5, "last"), (1.5, "first"), (9.0, "first")]
)
async def test_a_passages_place_in_the_index_counts_as_much_as_the_pair_says(
    services, oscar, weight, read
):
    # BM25 finds them in this order: ever fewer of their words are the question. Logits 1, 0, 2.
    documents = [
        Document("first", "question question gold"),
        Document("second", "question and four more words"),
        Document("last", "question gold gold and ever so many more other words"),
    ]
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", documents)
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), top_n=1, rank_weight=weight)
    found = make_question("question", index="kb", search="bm25")
    whole = await answer_whole(services, found)
    assert [citation.document_id for citation in whole.citations] == [read]
    # A request's own documents come in no order that says anything.
    whole = await answer_whole(services, make_question("question", documents=documents))
    assert [citation.document_id for citation in whole.citations] == ["last"]
