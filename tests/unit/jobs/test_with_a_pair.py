"""The jobs over a real pair, small and untrained: what stand-ins can't show."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tiny_pair import pair_files, text_of, tiny_pair

from condensery.errors import CompressionFailed
from condensery.jobs.answer import answered
from condensery.jobs.compare import compare
from condensery.jobs.compress import compress
from condensery.jobs.services import Services
from condensery.questions import Question, Sampling
from condensery.runtime.pair import make_ready
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers
from condensery.values import Document

QUESTION = "who is in the old mill?"
DOCUMENTS = [Document(str(place), text_of(6 + place, seed=place)) for place in range(3)]


@pytest.fixture
def pair():
    return make_ready(tiny_pair(fewer=(1,)))


@pytest.fixture
def real(services, pool, pair, tmp_path) -> Iterator[Services]:
    """Services whose default pair computes."""
    workers = Workers(1)
    files = pair_files(tmp_path, pair)
    with ThreadPoolExecutor(1) as threads:
        reader = Reader.of(
            *(pair, files, workers),
            name="pair",
            threads=threads,
            metrics=services.metrics,
        )
        pool.readers = {"pair": reader}
        yield services
        reader.close()
        workers.close()


def ask(**how):
    return Question(QUESTION, **{"documents": DOCUMENTS, "top_n": 0, "max_tokens": 8, **how})


def sample(services, name, **labels):
    return services.metrics.registry.get_sample_value(
        f"condensery_{name}", {"model": "pair", **labels}
    )


async def test_relevance_and_memory_of_an_answer_are_one_forward_pass(real):
    whole = await answered(real, ask(max_tokens=1))
    assert sample(real, "forward_passes_total") == 1
    assert all(0 < one.relevance_score < 1 for one in whole.citations)
    assert whole.usage.context_vectors == 9


async def test_an_answer_from_a_context_is_token_for_token_that_from_its_documents(real):
    how = {"sampling": Sampling(logprobs=1)}
    given = await answered(real, ask(**how))
    held = await compress(real, QUESTION, DOCUMENTS)
    found = await answered(real, ask(documents=None, context=held.context, **how))
    assert (found.text, found.citations) == (given.text, given.citations)
    assert [one.logprob for one in found.logprobs] == pytest.approx(
        [one.logprob for one in given.logprobs], abs=1e-5
    )
    used = held.compression.flops_used + found.compression.flops_used
    assert used == given.compression.flops_used
    assert found.compression.flops_plain == given.compression.flops_plain


async def test_a_rate_reads_fewer_vectors_in_the_first_place_or_later(real):
    fine = await answered(real, ask())
    coarse = await answered(real, ask(rate=24))
    assert (fine.usage.context_vectors, coarse.usage.context_vectors) == (9, 3)
    held = await compress(real, QUESTION, DOCUMENTS, rate=24)
    later = await answered(real, ask(documents=None, context=held.context))
    assert later.text == coarse.text
    assert coarse.compression.flops_used < fine.compression.flops_used


async def test_a_compressor_that_faults_on_one_passage_of_a_batch_leaves_the_others_alone(
    real, pair
):
    fine = await answered(real, ask())

    def spoil(module, args, out):
        out.memory[1] = torch.nan

    hook = pair.compressor.register_forward_hook(spoil)
    try:
        found = await answered(real, ask())
        with pytest.raises(CompressionFailed, match=r"documents\[1\]"):
            await answered(real, ask(mode="required"))
    finally:
        hook.remove()
    block = found.compression
    assert (block.status, block.docs, block.fallback) == ("partial", 2, (1,))
    assert "(ModelFault)" in block.reason
    assert found.finish_reason in ("stop", "length")
    scores = {one.id: one.relevance_score for one in fine.citations if one.id != "1"}
    for one in found.citations[:2]:
        assert one.relevance_score == pytest.approx(scores[one.id], abs=1e-5)
    assert sample(real, "compression_fallback_total", reason="fault") == 1


async def test_a_compressor_that_raises_falls_back_on_what_plain_reading_says(real, pair):
    plain = await answered(real, ask(mode="off"))

    def refuse(module, args):
        raise RuntimeError("no kernel for this")

    hook = pair.compressor.register_forward_pre_hook(refuse)
    try:
        found = await answered(real, ask())
    finally:
        hook.remove()
    assert (found.compression.status, found.text) == ("fallback", plain.text)
    assert found.compression.fallback == (0, 1, 2)
    assert found.usage == plain.usage


async def test_what_does_not_fit_the_generator_is_left_out_and_the_rest_answered(real):
    documents = [Document(str(place), text_of(20, seed=place)) for place in range(40)]
    found = await answered(real, ask(documents=documents, mode="off"))
    block = found.compression
    assert 0 < len(found.citations) < 40
    assert len(block.left_out) == 40 - len(found.citations)
    reader = real.pool.reader()
    kept = [one.text for one in found.citations]
    assert reader.spare(QUESTION, kept, 8) >= 0
    assert reader.spare(QUESTION, [*kept, documents[len(kept)].text], 8) < 0


async def test_both_sides_of_a_comparison_are_what_each_says_alone(real):
    both = await compare(real, ask())
    alone = await answered(real, ask())
    assert both.compressed.text == alone.text
    assert both.plain.compression.flops_used == both.compressed.compression.flops_plain
    assert both.speedup > 0
    assert replace(both.compressed.compression, compress_ms=0) == replace(
        alone.compression, compress_ms=0
    )
