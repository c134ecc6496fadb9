"""The metrics are the sums of the compression reports."""

import pytest
from tests.unit.questions import make_question

from condensery.errors import ModelFault
from condensery.jobs import indexes
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.compression import compress_documents
from condensery.question import Delta, Retrieved
from condensery.values import Document

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]


@pytest.fixture
def oscar(registry):
    return registry.pairs["pair"]


def counted(services):
    """Return what the metrics say of compression, by the names that blocks use."""
    values = {}
    for family in services.metrics.registry.collect():
        for sample in family.samples:
            if sample.labels.get("model") == "pair" and sample.name.endswith("_total"):
                rest = [value for name, value in sample.labels.items() if name != "model"]
                name = sample.name.removeprefix("condensery_").removesuffix("_total")
                values[".".join([name, *rest])] = sample.value
    return values


def summed(reports):
    return {
        "compressed_docs.applied": sum(report.docs for report in reports),
        "compressed_docs.fallback": sum(len(report.fallback) for report in reports),
        "compressed_docs.left_out": sum(len(report.left_out) for report in reports),
        "context_tokens_in": sum(report.tokens_in for report in reports),
        "context_vectors_out": sum(report.vectors_out for report in reports),
        "flops_used": sum(report.flops_used for report in reports),
        "flops_plain": sum(report.flops_plain for report in reports),
    }


async def test_over_answers_of_all_kinds_the_metrics_are_the_sums_of_the_blocks(
    services, oscar, registry
):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", DOCUMENTS)

    def ask(**how):
        return make_question(**{"documents": DOCUMENTS, **how})

    reports = [(await answer_whole(services, ask())).compression]
    reports.append((await answer_whole(services, make_question(index="kb", top_n=1))).compression)
    others = (
        {"mode": "off"},
        {"mode": "required", "ratio": 8},
        {"max_context_vectors": 2},
        {"min_relevance": 1.0},
        {"documents": [Document("blank", ""), *DOCUMENTS]},
    )
    answers = [await answer_whole(services, ask(**how)) for how in others]
    reports += [each.compression for each in answers]
    streamed = [event async for event in answer(services, ask(ratio=8))]
    reports.append(streamed[-1].compression)
    held = await compress_documents(services, "where?", DOCUMENTS)
    reports.append(held.compression)
    reports.append(
        (await compress_documents(services, "where?", DOCUMENTS, keep=False)).compression
    )
    for _ in range(2):
        whole = await answer_whole(services, make_question(context=held.context))
        reports.append(whole.compression)
    both = await compare_answers(services, ask())
    reports += [both.compressed.compression, both.plain.compression]
    oscar.positions = 1 + 4 + 64
    reports.append((await answer_whole(services, ask())).compression)
    oscar.positions = 1_000_000
    oscar.faults["gold again"] = ModelFault("broken")
    reports.append((await answer_whole(services, ask())).compression)
    oscar.delay = 60
    reports.append((await answer_whole(services, ask(timeout_ms=1))).compression)

    wanted = summed(reports)
    assert all(wanted.values())  # else it shows nothing
    metrics = counted(services)
    assert {name: metrics[name] for name in wanted} == wanted
    assert metrics["compression_fallback.fault"] == 1
    assert metrics["compression_fallback.timeout"] == 3
    assert wanted["compressed_docs.fallback"] == 4
    assert [each.finish_reason for each in answers].count("not_found") == 1
    assert metrics["answers.not_found"] == 1
    ended = sum(value for name, value in metrics.items() if name.startswith("answers."))
    assert ended == len(reports) - 2  # two were compressed only


async def test_every_scored_passage_is_in_the_distribution_whether_it_is_read_or_not(services):
    def scored(name):
        return services.metrics.registry.get_sample_value(f"condensery_relevance_{name}", labels)

    labels = {"model": "pair"}
    whole = await answer_whole(services, make_question(documents=DOCUMENTS, top_n=1))
    assert len(whole.citations) == 1
    assert scored("count") == len(DOCUMENTS)
    assert 0 < scored("sum") <= len(DOCUMENTS)
    await answer_whole(services, make_question(documents=DOCUMENTS, mode="off"))
    assert scored("count") == len(DOCUMENTS)  # as text nothing scored them


async def test_an_answer_that_its_caller_leaves_is_counted_as_far_as_it_came(services):
    stream = answer(services, make_question(documents=DOCUMENTS))
    retrieved = await anext(stream)
    assert isinstance(retrieved, Retrieved)
    assert isinstance(await anext(stream), Delta)
    await stream.aclose()
    metrics = counted(services)
    assert {name: metrics[name] for name in summed([])} == summed([retrieved.compression])
    assert metrics["output_tokens"] == 1


async def test_an_answer_that_breaks_is_counted_as_far_as_it_came(services, oscar):
    oscar.fails_after = 1
    with pytest.raises(RuntimeError):
        await answer_whole(services, make_question(documents=DOCUMENTS))
    assert counted(services)["compressed_docs.applied"] == 3


async def test_every_label_set_is_there_at_zero(services):
    metrics = counted(services)
    assert {name: metrics[name] for name in summed([])} == dict.fromkeys(summed([]), 0)
    assert metrics["compression_fallback.fault"] == metrics["compression_fallback.timeout"] == 0
