import resource
import socket
from pathlib import Path

import pytest

from condensery.api.ports import (
    Tls,
    check_free,
    check_keys_for_host,
    is_reachable,
    limit_connections,
    listen,
)
from condensery.auth import Key, Keys
from condensery.errors import PortTaken, SettingError, StartError


def test_files_that_have_changed_since_the_start_are_named(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, flag in ((cert, "--tls-cert"), (key, "--tls-key")):
        with pytest.raises(SettingError) as caught:
            Tls(cert, key).read()
        assert caught.value.message == (
            f"{flag}: {file} is not allowed: it can't be read: No such file or directory."
        )
        file.write_text("no PEM")
    with pytest.raises(SettingError, match="it must be the key of the certificate"):
        Tls(cert, key).read()


def test_a_port_is_held_from_the_first_check_on() -> None:
    with listen("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(PortTaken, match=f"--grpc-port: port {port} on 127.0.0.1 is taken"):
            check_free("127.0.0.1", port, "grpc_port")
        with pytest.raises(PortTaken, match="CONDENSERY_PORT"):
            listen("127.0.0.1", port)
    check_free("127.0.0.1", port, "grpc_port")
    check_free("127.0.0.1", 0, "grpc_port")


@pytest.mark.parametrize("host", ["192.0.2.1", "no host has such a name"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(
        StartError, match=f"--host: '{host}' is no address of this machine"
    ) as caught:
        listen(host, 0)
    assert caught.value.field == "host"


@pytest.mark.parametrize(
    ("files", "limit"), [(1024, 768), (100_000, 4096), (resource.RLIM_INFINITY, 4096), (1, 1)]
)
def test_connections_leave_files_for_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, files: int, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert limit_connections(4096) == limit


def test_an_address_is_loopback_or_others_may_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "localhost"):
        assert not is_reachable(host), host
    for host in ("0.0.0.0", "::", "192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7"):
        assert is_reachable(host), host
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (item, 0)) for item in ("127.0.1.1",)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    assert not is_reachable("box")
    addresses.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0)))
    assert is_reachable("box")  # gRPC listens on every address of a name


def test_others_are_let_in_without_a_key_only_if_a_setting_allows_it() -> None:
    check_keys_for_host("127.0.0.1", Keys(), allow_no_keys=False)
    check_keys_for_host("0.0.0.0", Keys([Key("a", frozenset(), b"")]), allow_no_keys=False)
    check_keys_for_host("0.0.0.0", Keys(), allow_no_keys=True)
    with pytest.raises(SettingError) as caught:
        check_keys_for_host("0.0.0.0", Keys(), allow_no_keys=False)
    assert caught.value.field == "host"
    ways = ("'0.0.0.0'", "CONDENSERY_API_KEY", "--keys-file", "--make-key", "--allow-no-keys")
    assert [way for way in ways if way not in caught.value.message] == []
