"""Contexts, comparisons, and all that an answer can be asked for, over a real channel."""

import time
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.errors import ModelFault
from condensery.jobs.services import Services
from condensery.question import Sampling
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

QUESTION = "why"
DOCUMENTS = [pb.Document(text="none"), pb.Document(id="b", text="some gold")]


async def refused(call: Any) -> tuple[StatusCode, str | None, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    trailer = dict(error.trailing_metadata() or ())
    return error.code(), trailer.get("x-error"), trailer.get("x-field")


@pytest.fixture
def rag(channel: grpc.aio.Channel) -> Any:
    return stubs.RagStub(channel)


def asked(**how: Any) -> pb.AnswerRequest:
    return pb.AnswerRequest(query=QUESTION, **how)


def to_compress(**how: Any) -> pb.CompressRequest:
    return pb.CompressRequest(**{"query": QUESTION, "documents": DOCUMENTS, **how})


async def test_documents_are_compressed_once_and_answered_from(rag: Any, registry: Any) -> None:
    whole = await rag.Answer(asked(documents=DOCUMENTS))
    started = time.time()
    compressed = await rag.Compress(to_compress())
    assert [
        (item.index, item.id, item.vectors_out, item.status) for item in compressed.results
    ] == [
        (0, "0", 2, "applied"),
        (1, "b", 2, "applied"),
    ]
    assert [round(item.relevance_score, 3) for item in compressed.results] == [0.5, 0.731]
    assert (compressed.model, compressed.fingerprint, compressed.tokens) == (
        "pair",
        "sha256:pair",
        3,
    )
    assert compressed.expires_at == pytest.approx(started + 600, abs=60)
    passes = len(registry.pairs["pair"].passes)
    later = await rag.Answer(asked(context=compressed.context))
    assert (later.answer, later.usage) == (whole.answer, whole.usage)
    assert later.answer == "why 1 0 "
    events = [item async for item in rag.AnswerStream(asked(context=compressed.context))]
    assert events[-1].final.answer == whole.answer
    assert len(registry.pairs["pair"].passes) == passes


async def test_without_keeping_there_is_no_handle(rag: Any, services: Services) -> None:
    compressed = await rag.Compress(to_compress(keep=False, ratio=8))
    assert compressed.context == ""
    assert not compressed.HasField("expires_at")
    assert [item.vectors_out for item in compressed.results] == [1, 1]
    assert services.metrics.registry.get_sample_value("condensery_contexts") == 0


async def test_a_document_that_fails_is_reported_in_its_place(rag: Any, registry: Any) -> None:
    registry.pairs["pair"].faults["none"] = ModelFault("pair: NaN")
    failed, read = (await rag.Compress(to_compress())).results
    assert (failed.status, failed.vectors_out, failed.HasField("relevance_score")) == (
        *("failed", 0),
        False,
    )
    assert "NaN" in failed.reason
    assert (read.status, read.reason, read.HasField("relevance_score")) == ("applied", "", True)


async def test_a_context_is_its_callers_its_questions_and_its_pairs_own(
    rag: Any, registry: Any
) -> None:
    registry.pairs["second"] = replace(
        registry.pairs["pair"], info=replace(registry.pairs["pair"].info, id="second")
    )
    context = (await rag.Compress(to_compress())).context
    refusals = [
        await refused(rag.Answer(pb.AnswerRequest(query="what", context=context))),
        await refused(rag.Answer(asked(context=context, model="second"))),
        await refused(rag.Compare(asked(context="ctx_of_nobody"))),
        await refused(rag.ReleaseContext(pb.ReleaseContextRequest(context="ctx_of_nobody"))),
    ]
    assert refusals == [
        (StatusCode.FAILED_PRECONDITION, "ContextMismatch", "context"),
        (StatusCode.FAILED_PRECONDITION, "ContextMismatch", "context"),
        (StatusCode.NOT_FOUND, "ContextNotFound", "context"),
        (StatusCode.NOT_FOUND, "ContextNotFound", "context"),
    ]
    await rag.ReleaseContext(pb.ReleaseContextRequest(context=context))
    assert (await refused(rag.Answer(asked(context=context))))[0] is StatusCode.NOT_FOUND


async def test_requests_about_a_context_count_for_the_pair_that_made_it(
    rag: Any, registry: Any, services: Services
) -> None:
    registry.pairs["second"] = replace(
        registry.pairs["pair"], info=replace(registry.pairs["pair"].info, id="second")
    )
    context = (await rag.Compress(to_compress(model="second"))).context
    reply = await rag.Answer(asked(context=context))
    assert reply.model == "second"
    assert [item async for item in rag.AnswerStream(asked(context=context))]
    await rag.Compare(asked(context=context))
    await rag.ReleaseContext(pb.ReleaseContextRequest(context=context))
    value = services.metrics.registry.get_sample_value
    labels = {"model": "second", "protocol": "grpc", "code": "ok"}
    counts = {
        task: value("condensery_requests_total", {**labels, "task": task})
        for task in ("compress", "answer", "compare")
    }
    assert counts == {"compress": 2, "answer": 2, "compare": 1}


async def test_two_answers_are_compared(rag: Any) -> None:
    both = await rag.Compare(asked(documents=DOCUMENTS))
    assert (both.compressed.answer, both.plain.answer) == ("why 1 0 ", "why some gold none ")
    assert (both.compressed.compression.status, both.plain.compression.status) == ("applied", "off")
    assert not both.agreement.exact
    assert 0 < both.agreement.f1 < 1
    assert both.agreement.HasField("cosine")
    assert both.speedup > 0
    assert both.flops_saved == both.compressed.compression.flops_saved


async def test_sampling_options_and_stop_strings_reach_the_pair(rag: Any, registry: Any) -> None:
    how: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "seed": -3, "logprobs": 2}
    reply = await rag.Answer(asked(documents=DOCUMENTS, stop=["a", "b"], **how))
    assert registry.pairs["pair"].asked == [(Sampling(**how), ("a", "b"))]
    assert [(item.text, item.logprob) for item in reply.logprobs.tokens] == [
        ("why ", -0.5),
        ("1 ", -0.5),
        ("0 ", -0.5),
    ]
    assert [(item.text, item.logprob) for item in reply.logprobs.tokens[0].top] == [("why ", -0.5)]
    bare = await rag.Answer(asked(documents=DOCUMENTS))
    assert registry.pairs["pair"].asked[-1] == (Sampling(), ())
    assert not bare.HasField("logprobs")
    events = [item async for item in rag.AnswerStream(asked(documents=DOCUMENTS, **how))]
    streamed = [token.text for item in events for token in item.logprobs.tokens]
    assert streamed == ["why ", "1 ", "0 "]


@pytest.mark.parametrize(
    ("how", "answer", "vectors"),
    [
        ({}, "why 1 0 ", 4),
        ({"top_n": 0}, "why 1 0 ", 4),
        ({"top_n": 1}, "why 1 ", 2),
        ({"ratio": 8}, "why 1 0 ", 2),
        ({"max_context_vectors": 2}, "why 1 0 ", 2),
        ({"max_context_vectors": 1}, "why 1 ", 1),
        ({"compression_mode": "off"}, "why none some gold ", 0),
    ],
    ids=str,
)
async def test_passages_are_read_as_the_request_asks(
    rag: Any, how: dict[str, Any], answer: str, vectors: int
) -> None:
    reply = await rag.Answer(asked(documents=DOCUMENTS, **how))
    assert (reply.answer, reply.usage.context_vectors) == (answer, vectors)


async def test_below_its_threshold_the_answer_says_that_it_was_not_found(rag: Any) -> None:
    reply = await rag.Answer(asked(documents=DOCUMENTS, min_relevance=0.9))
    assert reply.finish_reason == "not_found"
    kept = await rag.Answer(asked(documents=DOCUMENTS, min_relevance=0.7))
    assert kept.finish_reason == "stop"


async def test_what_was_read_as_text_is_named_by_its_place(rag: Any, registry: Any) -> None:
    registry.pairs["pair"].faults["none"] = ModelFault("pair: NaN")
    block = (await rag.Answer(asked(documents=DOCUMENTS))).compression
    assert (block.status, list(block.fallback), list(block.left_out)) == ("partial", [0], [])
    failed = rag.Answer(asked(documents=DOCUMENTS, compression_mode="required"))
    assert (await refused(failed))[:2] == (StatusCode.INTERNAL, "CompressionFailed")


async def test_what_does_not_fit_is_the_callers_to_shorten(rag: Any, registry: Any) -> None:
    registry.pairs["pair"].positions = 5
    wide = await refused(rag.Answer(asked(documents=DOCUMENTS)))
    assert wide[:2] == (StatusCode.INVALID_ARGUMENT, "ContextTooLong")


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid", ""])
async def test_an_index_is_searched_in_the_mode_asked_for(
    channel: grpc.aio.Channel, mode: str
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb"))
    documents = [pb.Document(id="a", text="the red fox"), pb.Document(id="b", text="a blue whale")]
    await stub.Upsert(pb.UpsertRequest(index="kb", documents=documents))
    text = "a whale" if mode == "bm25" else "a blue whale"
    queried = await stub.Query(pb.QueryRequest(index="kb", query=text, top_k=1, mode=mode))
    assert [item.id for item in queried.hits] == ["b#0"]
    reply = await stubs.RagStub(channel).Answer(
        pb.AnswerRequest(query=text, index="kb", top_k=1, search_mode=mode)
    )
    assert [item.id for item in reply.citations] == ["b#0"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (asked(documents=DOCUMENTS, ratio=3), "compression.ratio"),
        (asked(documents=DOCUMENTS, temperature=2.5), "temperature"),
        (asked(documents=DOCUMENTS, temperature=float("nan")), "temperature"),
        (asked(documents=DOCUMENTS, top_p=0), "top_p"),
        (asked(documents=DOCUMENTS, logprobs=21), "logprobs"),
        (asked(documents=DOCUMENTS, min_relevance=float("inf")), "min_relevance"),
        (asked(documents=DOCUMENTS, target_ms=-1), "compression.target_ms"),
        (asked(documents=DOCUMENTS, stop=[""]), "stop[0]"),
        (asked(index="kb", search_mode="fuzzy"), "index.mode"),
        (to_compress(ratio=3), "ratio"),
        (to_compress(ttl_s=0.5), "ttl_s"),
        (to_compress(ttl_s=float("nan")), "ttl_s"),
        (to_compress(query=" "), "query"),
        (to_compress(documents=[]), "documents"),
        (pb.QueryRequest(index="kb", query="a", mode="fuzzy"), "mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_wrong_is_refused_by_its_field(
    channel: grpc.aio.Channel, message: Any, field: str
) -> None:
    await stubs.IndexStub(channel).Create(pb.CreateIndexRequest(name="kb"))
    rag = stubs.RagStub(channel)
    calls = {
        pb.AnswerRequest: (rag.Answer, rag.Compare),
        pb.CompressRequest: (rag.Compress,),
        pb.QueryRequest: (stubs.IndexStub(channel).Query,),
    }
    for call in calls[type(message)]:
        code, _, named = await refused(call(message))
        assert (code, named) == (StatusCode.INVALID_ARGUMENT, field)


async def test_what_a_pair_can_do_is_listed(channel: grpc.aio.Channel) -> None:
    listed = (await stubs.ModelsStub(channel).List(pb.ListModelsRequest())).models
    assert [item.HasField("pair") for item in listed] == [False, False, True]
    traits = listed[2].pair
    assert (list(traits.vectors), list(traits.rates)) == ([2, 1], [4, 8])
    assert (traits.scores, traits.top_n, traits.min_relevance) == (True, 5, 0)
