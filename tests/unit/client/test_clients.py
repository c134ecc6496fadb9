"""What holds for all four clients alike."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.questions import QuestionOptions
from condensery.client.rest import AsyncClient, Client
from condensery.client.transports import format_milliseconds
from condensery.errors import InputError

REST_ALONE = {"add_files"}
METHODS = sorted(name for name in dir(Client) if not name.startswith("_"))


@pytest.mark.parametrize("other", [AsyncClient, GrpcClient, AsyncGrpcClient])
def test_all_clients_have_the_same_methods_and_parameters(other: type) -> None:
    missing = set() if issubclass(other, AsyncClient) else REST_ALONE
    assert {name for name in dir(other) if not name.startswith("_")} == {*METHODS} - missing
    for name in METHODS:
        if name in ("send", "stream", *missing):
            continue
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, other))
        assert [*ours.parameters.values()] == [*theirs.parameters.values()], name


def test_methods_show_their_parameters_and_say_what_they_do() -> None:
    assert str(inspect.signature(Client.drop_index)) == "(self, /, name: str)"
    parameters = inspect.signature(Client.answer).parameters
    assert [*parameters] == ["self", "question", *get_type_hints(QuestionOptions)]
    assert parameters["top_n"].annotation == int | None
    for name in METHODS:
        assert (getattr(Client, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("kind", [Client, AsyncClient, GrpcClient, AsyncGrpcClient])
@pytest.mark.parametrize("key", ["", " ", "two\nlines", "é"])
async def test_a_key_that_no_header_carries_is_refused(kind: Any, key: str) -> None:
    with pytest.raises(InputError, match="api_key") as caught:
        kind(api_key=key)
    assert caught.value.field == "api_key"
    assert not key.strip() or key not in caught.value.message


@pytest.mark.parametrize("kind", [Client, AsyncClient, GrpcClient, AsyncGrpcClient])
@pytest.mark.parametrize("content", [None, b"", b"hello", b"\xff\x00"])
async def test_a_file_without_certificates_is_refused(
    kind: Any, content: bytes | None, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_bytes(content)
    with pytest.raises(InputError, match=r"ca: .*ca\.pem") as caught:
        kind(ca=ca)
    assert caught.value.field == "ca"


def test_a_time_without_end_can_be_told() -> None:
    assert format_milliseconds(float("inf")) == "1" + "0" * 15
    assert format_milliseconds(1e-9) == "1"


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        (
            "condensery.client.rest",
            {"grpc", "google", "pydantic", "torch", "fastapi", "faiss", "transformers"},
        ),
        ("condensery.client.grpc", {"pydantic", "torch", "fastapi", "faiss", "transformers"}),
        ("condensery.cli", {"pydantic", "torch", "fastapi", "faiss", "transformers", "grpc"}),
    ],
)
def test_importing_is_light(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert loaded & banned == set()
