import math

import pytest
from tests.unit.questions import make_question

from condensery.errors import InputError, PayloadTooLarge
from condensery.jobs.answer import answer
from condensery.values import Document, PairTraits

DOCUMENTS = [Document("a", "gold"), Document("b", "gold again")]


@pytest.mark.parametrize(
    ("how", "field", "says"),
    [
        ({"context": "ctx_1"}, "documents", "got both documents and context"),
        ({"documents": None}, "documents", "got neither"),
        ({"documents": [DOCUMENTS[0]] * 2}, "documents[1].id", r"'a' is the id of documents\[0\]"),
        ({"documents": [Document("a", " ")]}, "documents[0].text", "it is blank"),
        ({"documents": [Document("a", "a" * 2**20)]}, "documents[0].text", "1048576 characters"),
        (
            {"documents": None, "index": "kb", "search": "perhaps"},
            "index.mode",
            "'perhaps' is not one of dense, bm25, hybrid",
        ),
        ({"top_n": 101}, "rerank.top_n", "101 is not a whole number from 0 to 100"),
        ({"ratio": 5}, "compression.ratio", "5 is not a rate that the pair has; there are: 4, 8"),
        ({"ratio": 4, "mode": "off"}, "compression.ratio", "nothing is compressed"),
        ({"max_context_vectors": 0}, "compression.max_context_vectors", "0 is not a number of 1"),
        ({"target_ms": 0.5}, "compression.target_ms", "0.5 is not a number of 1 or more"),
        ({"target_ms": math.inf}, "compression.target_ms", "inf is not"),
        ({"timeout_ms": math.nan}, "compression.timeout_ms", "nan is not"),
        ({"timeout_ms": 0}, "compression.timeout_ms", "0 is not"),
        ({"min_relevance": 1.1}, "min_relevance", "1.1 is not 0 to 1"),
        ({"min_relevance": -0.1}, "min_relevance", "-0.1 is not 0 to 1"),
        ({"min_relevance": 0.5, "mode": "off"}, "min_relevance", "none are scored"),
        ({"stop": ["x"] * 17}, "stop", "17 strings, over the limit of 16"),
        ({"stop": ["x", ""]}, "stop[1]", "the string is empty"),
        ({"stop": ["x" * 257]}, "stop[0]", "257 characters, over the limit of 256"),
        ({"stop": ["\ud800"]}, "stop[0]", "half of a surrogate pair"),
        ({"max_tokens": 513}, "max_tokens", "513 is not a whole number from 1 to 512"),
    ],
)
async def test_what_is_wrong_is_told_by_field_and_value_before_anything_is_done(
    services, registry, how, field, says
):
    stream = answer(services, make_question(**{"documents": DOCUMENTS, **how}))
    with pytest.raises(InputError, match=says) as caught:
        await anext(stream)
    assert caught.value.field == field
    assert registry.pairs["pair"].passes == []


async def test_too_many_documents_are_refused_by_their_number(services):
    documents = [Document(str(count), "gold") for count in range(500)]
    with pytest.raises(PayloadTooLarge, match="documents: 500 items, over the limit of 100"):
        await anext(answer(services, make_question(documents=documents)))


async def test_a_threshold_needs_a_pair_that_scores(services, registry):
    registry.pairs["pair"].traits = PairTraits(vectors=(2,), rates=(4,), scores=False)
    with pytest.raises(InputError, match="pair does not score them") as caught:
        await anext(answer(services, make_question(documents=DOCUMENTS, min_relevance=0.1)))
    assert caught.value.field == "min_relevance"
    await anext(answer(services, make_question(documents=DOCUMENTS, min_relevance=0)))


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "off", "min_relevance": 0, "max_context_vectors": 1, "timeout_ms": 1},
        {"stop": ["x" * 256] * 16, "top_n": 100, "min_relevance": 1},
        {"target_ms": 1, "max_context_vectors": 2, "ratio": 8},
    ],
)
async def test_what_is_just_allowed_is_answered(services, how):
    await anext(answer(services, make_question(documents=DOCUMENTS, **how)))
