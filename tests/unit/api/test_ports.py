import resource
from pathlib import Path

import pytest

from condensery.api.ports import Tls, check_free, connection_limit, listen
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
    assert connection_limit(4096) == limit
