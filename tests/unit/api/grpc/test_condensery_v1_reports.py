"""A model's report over gRPC."""

import json
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs


async def report(channel: grpc.aio.Channel, **request: Any) -> pb.GetReportResponse:
    return await stubs.ModelsStub(channel).GetReport(pb.GetReportRequest(**request))


async def test_a_report_says_whose_it_is_and_what_else_there_is(channel: grpc.aio.Channel) -> None:
    reply = await report(channel, model="pair")
    assert (reply.model, reply.version, reply.fingerprint) == ("pair", "3", "sha256:pair")
    assert json.loads(reply.report)["settings"] == {"gold": {"f1": {"mean": 49.5}}}
    assert (reply.has_card, list(reply.plots)) == (True, ["cost"])
    assert (reply.card, dict(reply.pictures)) == ("", {})


async def test_card_and_plots_come_where_they_are_asked_for(channel: grpc.aio.Channel) -> None:
    reply = await report(channel, model="pair", with_card=True, with_plots=["cost", "cost"])
    assert reply.card.startswith("# pair")
    assert dict(reply.pictures) == {"cost": b"\x89PNG of cost"}


@pytest.mark.parametrize(
    ("request_", "kind", "field", "says"),
    [
        ({"model": "words"}, "ReportNotFound", "model", "'words' was never measured"),
        ({"model": "nobody"}, "ModelNotFound", "model", "'nobody'"),
        ({}, "ModelNotFound", "model", "''"),
        ({"model": "pair", "with_plots": ["cost", "../x"]}, "ReportNotFound", "plot", "'../x'"),
    ],
)
async def test_what_there_is_not_is_told_in_our_words(
    channel: grpc.aio.Channel, request_: dict[str, Any], kind: str, field: str, says: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await report(channel, **request_)
    assert caught.value.code() is StatusCode.NOT_FOUND
    trailers = dict(caught.value.trailing_metadata() or ())
    assert (trailers["x-error"], trailers["x-field"]) == (kind, field)
    assert says in (caught.value.details() or "")
