import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.unit.conftest import vector_of
from tests.unit.questions import make_question

from condensery.errors import ContextTooLong, InputError, ModelFault
from condensery.jobs.comparison import compare_answers, explain
from condensery.jobs.compression import compress_documents
from condensery.question import Sampling
from condensery.values import Document, PairTraits

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]


@pytest.fixture
def oscar(registry):
    return registry.pairs["pair"]


def ask(**how):
    return make_question(**{"documents": DOCUMENTS, "top_n": 2, **how})


async def test_both_read_the_same_passages_in_the_same_order_compressed_once(services, oscar):
    comparison = await compare_answers(services, ask())
    assert len(oscar.passes) == 1
    assert comparison.compressed.text == "where? 1 2 "
    assert comparison.plain.text == "where? gold gold gold gold again "
    assert comparison.compressed.citations == comparison.plain.citations
    assert (comparison.compressed.compression.status, comparison.plain.compression.status) == (
        "applied",
        "off",
    )
    assert comparison.plain.compression.docs == 0
    assert comparison.plain.compression.flops_used == comparison.compressed.compression.flops_plain
    assert comparison.flops_saved == 50 - 43
    assert oscar.quoted == 2 * [("gold gold gold", "gold again")], "held to what they read"


async def test_only_what_is_read_as_vectors_ends_as_they_point(services, oscar):
    compress = oscar.compress

    async def pointing(*args: Any, **how: Any) -> Any:
        passages = await compress(*args, **how)
        return [replace(each, pointer=(each.start, each.start + 4)) for each in passages]

    oscar.compress = pointing
    await compare_answers(services, ask())
    assert oscar.pointed == [["gold", "gold"], [None, None]]


async def test_whether_it_pays_is_said_with_where_the_time_went(services, oscar):
    comparison = await compare_answers(services, ask())
    times, plain = comparison.compressed.timings, comparison.plain.timings
    assert comparison.pays == (plain.generate_ms > times.compress_ms + times.generate_ms)
    assert comparison.why.startswith("Compressing took ")
    assert ("many times" in comparison.why) == (not comparison.pays)


@pytest.mark.parametrize(("took", "pays"), [(1.0, True), (1e6, False)])
async def test_where_it_does_not_pay_it_says_when_it_would(services, oscar, took, pays):
    comparison = await compare_answers(services, ask())
    times = replace(comparison.compressed.timings, compress_ms=took, generate_ms=1.0)
    compressed = replace(comparison.compressed, timings=times)
    plain = replace(comparison.plain, timings=replace(comparison.plain.timings, generate_ms=1e3))
    why = explain(oscar, compressed, plain)
    assert ("Compression pays where" in why, "it ranks them" in why) == (not pays, not pays)
    oscar.traits = replace(oscar.traits, scores=False)
    assert "it ranks them" not in explain(oscar, compressed, plain)


async def test_as_text_a_long_passage_that_nothing_scores_is_read_in_whole(services, oscar):
    oscar.traits = PairTraits(vectors=(2, 1), rates=(4, 8), scores=False, top_n=0)
    oscar.words_each = 2
    documents = [Document("long", "a b c d e"), Document("short", "f")]
    comparison = await compare_answers(services, ask(documents=documents))
    assert comparison.plain.text == "where? a b c d e f "
    assert comparison.plain.citations[0].text == "a b c d e"
    assert comparison.plain.compression.flops_used == comparison.compressed.compression.flops_plain


async def test_the_answers_do_not_take_each_others_time(services, oscar):
    """The second is begun once the first has ended."""
    ends = []
    generate = oscar.generate_from_prompt

    def watched(*args, **how):
        ends.append(oscar.closed)
        return generate(*args, **how)

    oscar.generate_from_prompt = watched
    await compare_answers(services, ask())
    assert ends == [0, 1]


async def test_agreement_is_measured_by_words_and_by_vectors(services):
    comparison = await compare_answers(services, ask())
    assert not comparison.exact
    # "where 1 2" and "where gold gold gold gold again"
    assert comparison.f1 == pytest.approx(2 * 1 / (3 + 6))
    left, right = (vector_of(text) for text in (comparison.compressed.text, comparison.plain.text))
    assert comparison.cosine == pytest.approx(float(left @ right), abs=1e-6)


async def test_answers_that_differ_by_case_and_articles_are_exact(services, oscar):
    texts = iter(["The Mill!", "a mill"])

    async def say(words, max_tokens):
        yield type(
            "Step",
            (),
            {"text": next(texts), "count": 1, "finish": "stop", "logprob": None, "waited": 0.0},
        )

    oscar._say = say
    comparison = await compare_answers(services, ask())
    assert (comparison.exact, comparison.f1) == (True, 1.0)
    assert isinstance(comparison.exact, bool)


async def test_without_an_encoder_there_is_no_cosine(services, registry):
    registry.encoder = lambda name=None: registry._find({}, name or "none")
    assert (await compare_answers(services, ask())).cosine is None


async def test_speedup_is_plains_time_over_compressions_and_generations(services):
    comparison = await compare_answers(services, ask())
    took = comparison.compressed.timings
    assert comparison.speedup == pytest.approx(
        comparison.plain.timings.generate_ms / (took.compress_ms + took.generate_ms)
    )
    assert took.compress_ms > 0
    assert comparison.plain.timings.compress_ms == 0


async def test_a_context_is_compared_without_compressing_again(services, oscar):
    held = await compress_documents(services, "where?", DOCUMENTS)
    comparison = await compare_answers(services, make_question(context=held.context))
    assert len(oscar.passes) == 1
    assert comparison.compressed.text == "where? 1 2 0 "
    assert comparison.plain.text == "where? gold gold gold gold again some words here "
    assert math.isfinite(comparison.speedup)


async def test_of_a_long_passage_both_read_the_same_window(services, oscar):
    oscar.words_each = 2
    documents = [Document("long", "one two gold gold three")]
    comparison = await compare_answers(services, ask(documents=documents))
    assert comparison.plain.text == "where? gold gold "
    assert comparison.plain.citations == comparison.compressed.citations


async def test_what_does_not_fit_as_text_is_left_out_of_the_plain_answer_alone(services, oscar):
    oscar.positions = 1 + 4 + 64  # as vectors; as text the two are 5
    comparison = await compare_answers(services, ask())
    assert len(comparison.compressed.citations) == 2
    assert [citation.id for citation in comparison.plain.citations] == ["best"]
    assert comparison.plain.compression.left_out == (2,)
    assert "no room" in comparison.plain.compression.reason
    oscar.positions = 1 + 4 + 64
    with pytest.raises(ContextTooLong):
        await compare_answers(services, ask(documents=[Document("a", "gold " * 5)]))


async def test_a_fallback_is_compared_as_it_is_and_reported_as_one(services, oscar):
    oscar.breaks = ModelFault("broken")
    comparison = await compare_answers(services, ask())
    assert comparison.compressed.compression.status == "fallback"
    assert comparison.plain.compression.fallback == ()
    assert comparison.exact


async def test_an_answer_not_found_is_compared_with_what_plain_reading_says(services):
    comparison = await compare_answers(services, ask(min_relevance=1.0))
    assert comparison.compressed.finish_reason == "not_found"
    assert comparison.plain.finish_reason == "stop"
    assert math.isfinite(comparison.speedup)


async def test_both_are_generated_the_same_way(services, oscar):
    sampling = Sampling(temperature=0.5, seed=1)
    await compare_answers(services, ask(**asdict(sampling), stop=("x",), max_tokens=1))
    assert oscar.asked == [(sampling, ("x",))] * 2


async def test_without_compression_there_is_nothing_to_compare(services, oscar):
    with pytest.raises(InputError, match="'off' leaves nothing to compare") as caught:
        await compare_answers(services, ask(mode="off"))
    assert caught.value.field == "compression.mode"
    assert oscar.passes == []
