"""What a model was measured at, by every door of a real server, and by the command line."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.command_line import run

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client
from condensery.errors import ModelNotFound, ReportNotFound, Unauthenticated

PAIR = "oscar-mini"


@pytest.fixture
def stored(store_with_pair: Path) -> Path:
    return store_with_pair / PAIR / "1"


def test_both_doors_hand_out_what_was_published(client: Client | GrpcClient, stored: Path) -> None:
    measured = client.report(PAIR)
    assert measured.report == json.loads((stored / "report.json").read_text())
    manifest = json.loads((stored / "model.json").read_text())
    assert (measured.model, measured.version) == (PAIR, "1")
    assert measured.fingerprint == manifest["fingerprint"]
    assert measured.fingerprint == next(m.fingerprint for m in client.models() if m.name == PAIR)
    assert (measured.card, measured.plots) == (True, ("cost",))
    assert client.report_card(PAIR) == (stored / "card.md").read_text()
    assert client.report_plot(PAIR, "cost") == (stored / "plots" / "cost.png").read_bytes()


async def test_the_async_clients_do_the_same(
    async_client: AsyncClient | AsyncGrpcClient, clients: tuple[Client | GrpcClient, ...]
) -> None:
    rest, _ = clients
    assert await async_client.report(PAIR) == rest.report(PAIR)
    assert await async_client.report_card(PAIR) == rest.report_card(PAIR)
    assert await async_client.report_plot(PAIR, "cost") == rest.report_plot(PAIR, "cost")
    with pytest.raises(ReportNotFound):
        await async_client.report_plot("minilm-l6", "cost")


def test_what_there_is_not_is_the_same_error_at_both_doors(client: Client | GrpcClient) -> None:
    with pytest.raises(ReportNotFound, match="no plot 'cost'"):
        client.report_plot("minilm-l6", "cost")
    for call in (client.report, client.report_card):
        with pytest.raises(ModelNotFound, match="'nobody'"):
            call("nobody")
    with pytest.raises(ReportNotFound, match="no plot 'nope'; there are: cost"):
        client.report_plot(PAIR, "nope")


def test_the_default_encoders_report_says_what_encodings_lose(client: Client | GrpcClient) -> None:
    forms = client.report("minilm-l6").report["encodings"]["scifact"]["forms"]
    assert forms["int8"]["bytes"] == 384
    assert forms["float32"]["recall@10"] >= forms["int8"]["recall@10"]
    low, high = forms["ubinary"]["loss"]["recall@10"][1:]
    assert 0 < low < high


@pytest.mark.parametrize(
    "path",
    [
        "plots/..%2freport.json.png",
        "plots/%2e%2e/%2e%2e/model.json",
        "plots/../../model.json",
        "plots/cost.png/../report.json",
        "plots/cost%00.png",
        "plots/.png",
    ],
)
def test_no_path_leaves_the_report(live_server: Any, path: str) -> None:
    reply = httpx.get(f"{live_server.url}/v1/models/{PAIR}/report/{path}", timeout=60)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] in ("model_not_found", "report_not_found", "not_found")
    assert "safetensors" not in reply.text


def test_a_report_needs_a_key_where_the_list_of_models_does(guarded_server: Any) -> None:
    server, ca = guarded_server.server, guarded_server.ca
    with (
        Client(server.url, ca=ca, api_key=guarded_server.keys["infer"]) as rest,
        GrpcClient(server.grpc, ca=ca, tls=True, api_key=guarded_server.keys["infer"]) as grpc,
        Client(server.url, ca=ca) as stranger,
        GrpcClient(server.grpc, ca=ca, tls=True) as other,
    ):
        assert rest.report(PAIR) == grpc.report(PAIR)
        for client in (stranger, other):
            for call in (
                lambda client=client: client.report(PAIR),
                lambda client=client: client.report_card(PAIR),
                lambda client=client: client.report_plot(PAIR, "cost"),
            ):
                with pytest.raises(Unauthenticated):
                    call()


def test_the_command_line_reads_store_and_server_alike(
    live_server: Any, store_with_pair: Path, tmp_path: Path
) -> None:
    sources = {
        "store": ["--store", str(store_with_pair)],
        "rest": ["--url", live_server.url],
        "grpc": ["--grpc", live_server.grpc],
    }
    for format_ in ("json", "markdown"):
        printed = set()
        for name, where in sources.items():
            folder = tmp_path / format_ / name
            flags = ["--format", format_, "--plots", str(folder), *where]
            printed.add(run("models", "report", PAIR, *flags).stdout)
            stored = store_with_pair / PAIR / "1" / "plots" / "cost.png"
            assert (folder / "cost.png").read_bytes() == stored.read_bytes()
        assert len(printed) == 1
        (text,) = printed
        if format_ == "json":
            assert json.loads(text)["fingerprint"].startswith("sha256:")
        else:
            assert text == (store_with_pair / PAIR / "1" / "card.md").read_text()
