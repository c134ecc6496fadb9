"""The metrics are the sums of the compression blocks that were told."""

import pytest

from condensery.answers import Delta, Retrieved
from condensery.errors import ModelFault
from condensery.jobs import indexes
from condensery.jobs.answer import answer, answered
from condensery.jobs.compare import compare
from condensery.jobs.compress import compress
from condensery.questions import Question
from condensery.values import Document

DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]


@pytest.fixture
def reader(pool):
    return pool.readers["pair"]


def counted(services):
    """Return what the metrics say of compression, by the names that blocks use."""
    found = {}
    for family in services.metrics.registry.collect():
        for sample in family.samples:
            if sample.labels.get("model") == "pair" and sample.name.endswith("_total"):
                rest = [value for name, value in sample.labels.items() if name != "model"]
                name = sample.name.removeprefix("condensery_").removesuffix("_total")
                found[".".join([name, *rest])] = sample.value
    return found


def summed(blocks):
    return {
        "compressed_docs.applied": sum(one.docs for one in blocks),
        "compressed_docs.fallback": sum(len(one.fallback) for one in blocks),
        "compressed_docs.left_out": sum(len(one.left_out) for one in blocks),
        "context_tokens_in": sum(one.tokens_in for one in blocks),
        "context_vectors_out": sum(one.vectors_out for one in blocks),
        "flops_used": sum(one.flops_used for one in blocks),
        "flops_plain": sum(one.flops_plain for one in blocks),
    }


async def test_over_answers_of_all_kinds_the_metrics_are_the_sums_of_the_blocks(
    services, reader, pool
):
    await indexes.create_index(services, "kb")
    await indexes.upsert(services, "kb", DOCUMENTS)

    def ask(**how):
        return Question("where?", **{"documents": DOCUMENTS, **how})

    blocks = [(await answered(services, ask())).compression]
    blocks.append((await answered(services, Question("where?", index="kb", top_n=1))).compression)
    others = (
        {"mode": "off"},
        {"mode": "required", "rate": 8},
        {"max_context_vectors": 2},
        {"min_relevance": 1.0},
        {"documents": [Document("blank", ""), *DOCUMENTS]},
    )
    blocks += [(await answered(services, ask(**how))).compression for how in others]
    streamed = [event async for event in answer(services, ask(rate=8))]
    blocks.append(streamed[-1].compression)
    held = await compress(services, "where?", DOCUMENTS)
    blocks.append(held.compression)
    blocks.append((await compress(services, "where?", DOCUMENTS, keep=False)).compression)
    for _ in range(2):
        found = await answered(services, Question("where?", context=held.context))
        blocks.append(found.compression)
    both = await compare(services, ask())
    blocks += [both.compressed.compression, both.plain.compression]
    reader.positions = 1 + 4 + 64
    blocks.append((await answered(services, ask())).compression)
    reader.positions = 1_000_000
    reader.faults["gold again"] = ModelFault("broken")
    blocks.append((await answered(services, ask())).compression)
    reader.delay = 60
    blocks.append((await answered(services, ask(compress_timeout_ms=1))).compression)

    wanted = summed(blocks)
    assert all(wanted.values())  # else it shows nothing
    metrics = counted(services)
    assert {name: metrics[name] for name in wanted} == wanted
    assert metrics["compression_fallback.fault"] == 1
    assert metrics["compression_fallback.timeout"] == 3
    assert wanted["compressed_docs.fallback"] == 4


async def test_an_answer_that_its_caller_leaves_is_counted_as_far_as_it_came(services):
    stream = answer(services, Question("where?", documents=DOCUMENTS))
    told = await anext(stream)
    assert isinstance(told, Retrieved)
    assert isinstance(await anext(stream), Delta)
    await stream.aclose()
    metrics = counted(services)
    assert {name: metrics[name] for name in summed([])} == summed([told.compression])
    assert metrics["output_tokens"] == 1


async def test_an_answer_that_breaks_is_counted_as_far_as_it_came(services, reader):
    reader.fails_after = 1
    with pytest.raises(RuntimeError):
        await answered(services, Question("where?", documents=DOCUMENTS))
    assert counted(services)["compressed_docs.applied"] == 3


async def test_every_label_set_is_there_at_zero(services):
    metrics = counted(services)
    assert {name: metrics[name] for name in summed([])} == dict.fromkeys(summed([]), 0)
    assert metrics["compression_fallback.fault"] == metrics["compression_fallback.timeout"] == 0
