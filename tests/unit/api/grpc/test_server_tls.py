"""TLS: a certificate of our own making, and files that are none."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import grpc
import pytest
import trustme

from condensery.api.grpc.server import start_server
from condensery.api.ports import Tls
from condensery.errors import SettingError
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

AUTHORITY = trustme.CA()


def write(folder: Path, authority: trustme.CA = AUTHORITY) -> Tls:
    folder.mkdir(exist_ok=True)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return Tls(cert, key)


async def dims(channel: grpc.aio.Channel) -> int:
    request = pb.EmbedBatchRequest(texts=["a"])
    async with channel:
        return int((await stubs.EmbeddingStub(channel).EmbedBatch(request, timeout=30)).dims)


async def test_who_trusts_the_certificate_is_served_and_nobody_else(
    services: Services, tmp_path: Path
) -> None:
    server = await start_server(services, "127.0.0.1", 0, tls=write(tmp_path))
    address = f"127.0.0.1:{server.port}"
    trusting = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
    assert await dims(grpc.aio.secure_channel(address, trusting)) == 8
    wary = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
    for channel in (
        grpc.aio.secure_channel(address, wary),
        grpc.aio.insecure_channel(address),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await dims(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


@pytest.mark.parametrize(
    ("case", "setting"),
    [
        ("no certificate", "tls_cert"),
        ("no key", "tls_key"),
        ("not PEM", "tls_key"),
        ("another's key", "tls_key"),
        ("swapped", "tls_key"),
    ],
)
async def test_files_that_do_not_serve_are_refused_by_the_setting(
    services: Services, tmp_path: Path, case: str, setting: str
) -> None:
    tls = write(tmp_path)
    if case == "no certificate":
        tls.cert.unlink()
    elif case == "no key":
        tls.key.unlink()
    elif case == "not PEM":
        tls.cert.write_text("hello")
    elif case == "another's key":
        tls = Tls(tls.cert, write(tmp_path / "other").key)
    else:
        tls = Tls(tls.key, tls.cert)
    with pytest.raises(SettingError, match=f"--{setting.replace('_', '-')}: ") as caught:
        await start_server(services, "127.0.0.1", 0, tls=tls)
    assert caught.value.field == setting


@pytest.mark.parametrize("silent", ["at TLS", "after TLS", "without TLS"])
async def test_who_does_not_finish_a_handshake_is_ended(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """By default gRPC waits for two minutes, and holds a file as long."""
    monkeypatch.setattr("condensery.api.grpc.server.HANDSHAKE_SECONDS", 0.5)
    tls = None if silent == "without TLS" else write(tmp_path)
    server = await start_server(services, "127.0.0.1", 0, tls=tls)
    context = None
    if silent == "after TLS":
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        AUTHORITY.configure_trust(context)
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        with contextlib.suppress(OSError):
            await reader.read()  # to its end; of HTTP/2 the server's settings come first
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await server.stop(0)
