"""The jobs over a real pair, small and untrained: what stand-ins can't show."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tests.unit.questions import make_question
from tiny_pair import pair_files, text_of, tiny_pair

from condensery.errors import CompressionFailed
from condensery.jobs.answer import answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.compression import compress_documents
from condensery.jobs.services import Services
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.values import Document

QUESTION = "who is in the old mill?"
DOCUMENTS = [Document(str(place), text_of(6 + place, seed=place)) for place in range(3)]


@pytest.fixture
def pair():
    return prepare_for_inference(tiny_pair(fewer=(1,)))


@pytest.fixture
def real(services, registry, pair, tmp_path) -> Iterator[Services]:
    """Services whose default pair computes."""
    workers = Workers(1)
    files = pair_files(tmp_path, pair)
    with ThreadPoolExecutor(1) as threads:
        oscar = OscarModel.of(
            *(pair, files, workers),
            name="pair",
            threads=threads,
            metrics=services.metrics,
        )
        registry.pairs = {"pair": oscar}
        yield services
        oscar.close()
        workers.close()


def ask(**how):
    return make_question(QUESTION, **{"documents": DOCUMENTS, "top_n": 0, "max_tokens": 8, **how})


def sample(services, name, **labels):
    return services.metrics.registry.get_sample_value(
        f"condensery_{name}", {"model": "pair", **labels}
    )


async def test_relevance_and_memory_of_an_answer_are_one_forward_pass(real):
    whole = await answer_whole(real, ask(max_tokens=1))
    assert sample(real, "forward_passes_total") == 1
    assert all(0 < citation.relevance_score < 1 for citation in whole.citations)
    assert whole.usage.context_vectors == 9


async def test_an_answer_from_a_context_is_token_for_token_that_from_its_documents(real):
    how = {"logprobs": 1}
    direct = await answer_whole(real, ask(**how))
    held = await compress_documents(real, QUESTION, DOCUMENTS)
    answer = await answer_whole(real, ask(documents=None, context=held.context, **how))
    assert (answer.text, answer.citations) == (direct.text, direct.citations)
    assert [logprob.logprob for logprob in answer.logprobs] == pytest.approx(
        [item.logprob for item in direct.logprobs], abs=1e-5
    )
    used = held.compression.flops_used + answer.compression.flops_used
    assert used == direct.compression.flops_used
    assert answer.compression.flops_plain == direct.compression.flops_plain


async def test_a_rate_reads_fewer_vectors_in_the_first_place_or_later(real):
    fine = await answer_whole(real, ask())
    coarse = await answer_whole(real, ask(ratio=24))
    assert (fine.usage.context_vectors, coarse.usage.context_vectors) == (9, 3)
    held = await compress_documents(real, QUESTION, DOCUMENTS, ratio=24)
    later = await answer_whole(real, ask(documents=None, context=held.context))
    assert later.text == coarse.text
    assert coarse.compression.flops_used < fine.compression.flops_used


async def test_a_compressor_that_faults_on_one_passage_of_a_batch_leaves_the_others_alone(
    real, pair
):
    fine = await answer_whole(real, ask())

    def spoil(module, args, out):
        out.memory[1] = torch.nan

    hook = pair.compressor.register_forward_hook(spoil)
    try:
        answer = await answer_whole(real, ask())
        with pytest.raises(CompressionFailed, match=r"documents\[1\]"):
            await answer_whole(real, ask(mode="required"))
    finally:
        hook.remove()
    block = answer.compression
    assert (block.status, block.docs, block.fallback) == ("partial", 2, (1,))
    assert "(ModelFault)" in block.reason
    assert answer.finish_reason in ("stop", "length")
    scores = {
        citation.id: citation.relevance_score for citation in fine.citations if citation.id != "1"
    }
    for item in answer.citations[:2]:
        assert item.relevance_score == pytest.approx(scores[item.id], abs=1e-5)
    assert sample(real, "compression_fallback_total", reason="fault") == 1


async def test_a_compressor_that_raises_falls_back_on_what_plain_reading_says(real, pair):
    plain = await answer_whole(real, ask(mode="off"))

    def refuse(module, args):
        raise RuntimeError("no kernel for this")

    hook = pair.compressor.register_forward_pre_hook(refuse)
    try:
        answer = await answer_whole(real, ask())
    finally:
        hook.remove()
    assert (answer.compression.status, answer.text) == ("fallback", plain.text)
    assert answer.compression.fallback == (0, 1, 2)
    assert answer.usage == plain.usage


async def test_what_does_not_fit_the_generator_is_left_out_and_the_rest_answered(real):
    documents = [Document(str(place), text_of(20, seed=place)) for place in range(40)]
    answer = await answer_whole(real, ask(documents=documents, mode="off"))
    block = answer.compression
    assert 0 < len(answer.citations) < 40
    assert len(block.left_out) == 40 - len(answer.citations)
    oscar = real.registry.pair()
    kept = [citation.text for citation in answer.citations]
    assert oscar.free_positions_for(QUESTION, kept, 8) >= 0
    assert oscar.free_positions_for(QUESTION, [*kept, documents[len(kept)].text], 8) < 0


async def test_both_sides_of_a_comparison_are_what_each_says_alone(real):
    both = await compare_answers(real, ask())
    alone = await answer_whole(real, ask())
    assert both.compressed.text == alone.text
    assert both.plain.compression.flops_used == both.compressed.compression.flops_plain
    assert both.speedup > 0
    assert replace(both.compressed.compression, compress_ms=0) == replace(
        alone.compression, compress_ms=0
    )
