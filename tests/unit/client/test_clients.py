"""What holds for all four clients alike."""

import inspect
import subprocess
import sys

import pytest

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client

METHODS = sorted(name for name in vars(Client) if not name.startswith("_"))


@pytest.mark.parametrize("other", [AsyncClient, GrpcClient, AsyncGrpcClient])
def test_all_clients_have_the_same_methods_and_parameters(other: type) -> None:
    assert sorted(name for name in vars(other) if not name.startswith("_")) == METHODS
    for name in METHODS:
        if name in ("send", "stream"):
            continue
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, other))
        assert [*ours.parameters.values()] == [*theirs.parameters.values()], name


def test_methods_show_their_parameters_and_say_what_they_do() -> None:
    assert str(inspect.signature(Client.count)) == "(self, /, name: str)"
    for name in METHODS:
        assert (getattr(Client, name).__doc__ or "").strip(), name


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("condensery.client.rest", {"grpc", "torch", "fastapi", "faiss", "transformers"}),
        ("condensery.client.grpc", {"torch", "fastapi", "faiss", "transformers"}),
        ("condensery.cli", {"torch", "fastapi", "faiss", "transformers", "grpc"}),
    ],
)
def test_importing_is_light(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert loaded & banned == set()
