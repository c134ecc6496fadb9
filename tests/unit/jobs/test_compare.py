import math

import pytest
from tests.unit.conftest import vector_of

from condensery.errors import ContextTooLong, InputError, ModelFault
from condensery.jobs.compare import compare
from condensery.jobs.compress import compress
from condensery.questions import Question, Sampling
from condensery.values import Document, PairTraits

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]


@pytest.fixture
def reader(pool):
    return pool.readers["pair"]


def ask(**how):
    return Question("where?", **{"documents": DOCUMENTS, "top_n": 2, **how})


async def test_both_read_the_same_passages_in_the_same_order_compressed_once(services, reader):
    found = await compare(services, ask())
    assert len(reader.passes) == 1
    assert found.compressed.text == "where? 1 2 "
    assert found.plain.text == "where? gold gold gold gold again "
    assert found.compressed.citations == found.plain.citations
    assert (found.compressed.compression.status, found.plain.compression.status) == (
        "applied",
        "off",
    )
    assert found.plain.compression.docs == 0
    assert found.plain.compression.flops_used == found.compressed.compression.flops_plain
    assert found.flops_saved == 50 - 43


async def test_as_text_a_long_passage_that_nothing_scores_is_read_in_whole(services, reader):
    reader.traits = PairTraits(vectors=(2, 1), rates=(4, 8), scores=False, top_n=0)
    reader.words_each = 2
    documents = [Document("long", "a b c d e"), Document("short", "f")]
    found = await compare(services, ask(documents=documents))
    assert found.plain.text == "where? a b c d e f "
    assert found.plain.citations[0].text == "a b c d e"
    assert found.plain.compression.flops_used == found.compressed.compression.flops_plain


async def test_the_answers_do_not_take_each_others_time(services, reader):
    """The second is begun once the first has ended."""
    ends = []
    generate = reader.generate_from

    def watched(*args, **how):
        ends.append(reader.closed)
        return generate(*args, **how)

    reader.generate_from = watched
    await compare(services, ask())
    assert ends == [0, 1]


async def test_agreement_is_told_by_words_and_by_vectors(services):
    found = await compare(services, ask())
    assert not found.exact
    # "where 1 2" and "where gold gold gold gold again"
    assert found.f1 == pytest.approx(2 * 1 / (3 + 6))
    one, other = (vector_of(text) for text in (found.compressed.text, found.plain.text))
    assert found.cosine == pytest.approx(float(one @ other), abs=1e-6)


async def test_answers_that_differ_by_case_and_articles_are_exact(services, reader):
    said = iter(["The Mill!", "a mill"])

    async def say(words, max_tokens):
        yield type(
            "Step",
            (),
            {"text": next(said), "count": 1, "finish": "stop", "logprob": None, "waited": 0.0},
        )

    reader._say = say
    found = await compare(services, ask())
    assert (found.exact, found.f1) == (True, 1.0)
    assert isinstance(found.exact, bool)


async def test_without_an_encoder_there_is_no_cosine(services, pool):
    pool.encoder = lambda name=None: pool._find({}, name or "none")
    assert (await compare(services, ask())).cosine is None


async def test_speedup_is_plains_time_over_compressions_and_generations(services):
    found = await compare(services, ask())
    took = found.compressed.timings
    assert found.speedup == pytest.approx(
        found.plain.timings.generate_ms / (took.compress_ms + took.generate_ms)
    )
    assert took.compress_ms > 0
    assert found.plain.timings.compress_ms == 0


async def test_a_context_is_compared_without_compressing_again(services, reader):
    held = await compress(services, "where?", DOCUMENTS)
    found = await compare(services, Question("where?", context=held.context))
    assert len(reader.passes) == 1
    assert found.compressed.text == "where? 1 2 0 "
    assert found.plain.text == "where? gold gold gold gold again some words here "
    assert math.isfinite(found.speedup)


async def test_of_a_long_passage_both_read_the_same_window(services, reader):
    reader.words_each = 2
    documents = [Document("long", "one two gold gold three")]
    found = await compare(services, ask(documents=documents))
    assert found.plain.text == "where? gold gold "
    assert found.plain.citations == found.compressed.citations


async def test_what_does_not_fit_as_text_is_left_out_of_the_plain_answer_alone(services, reader):
    reader.positions = 1 + 4 + 64  # as vectors; as text the two are 5
    found = await compare(services, ask())
    assert len(found.compressed.citations) == 2
    assert [one.id for one in found.plain.citations] == ["best"]
    assert found.plain.compression.left_out == (2,)
    assert "no room" in found.plain.compression.reason
    reader.positions = 1 + 4 + 64
    with pytest.raises(ContextTooLong):
        await compare(services, ask(documents=[Document("a", "gold " * 5)]))


async def test_a_fallback_is_compared_as_it_is_and_said_to_be_one(services, reader):
    reader.breaks = ModelFault("broken")
    found = await compare(services, ask())
    assert found.compressed.compression.status == "fallback"
    assert found.plain.compression.fallback == ()
    assert found.exact


async def test_an_answer_not_found_is_compared_with_what_plain_reading_says(services):
    found = await compare(services, ask(min_relevance=1.0))
    assert found.compressed.finish_reason == "not_found"
    assert found.plain.finish_reason == "stop"
    assert math.isfinite(found.speedup)


async def test_both_are_generated_the_same_way(services, reader):
    sampling = Sampling(temperature=0.5, seed=1)
    await compare(services, ask(sampling=sampling, stop=("x",), max_tokens=1))
    assert reader.asked == [(sampling, ("x",))] * 2


async def test_without_compression_there_is_nothing_to_compare(services, reader):
    with pytest.raises(InputError, match="'off' leaves nothing to compare") as caught:
        await compare(services, ask(mode="off"))
    assert caught.value.field == "compression.mode"
    assert reader.passes == []
