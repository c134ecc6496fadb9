"""With ``--json`` a command prints what REST replies, object by object."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from condensery.cli import main


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command against a real door; returns the objects that it prints."""

    def run(line: str) -> list[Any]:
        assert main([*line.split(), "--json", "--url", url]) == 0
        return list(map(json.loads, capsys.readouterr().out.splitlines()))

    return run


@pytest.fixture
def post(url: str) -> Any:
    return lambda path, body: httpx.post(url + path, json=body, timeout=60).json()


def without_times(found: Any) -> Any:
    return {name: value for name, value in found.items() if name not in ("began", "ended")}


def test_indexes_and_their_documents(run: Any, url: str, post: Any, tmp_path: Path) -> None:
    (made,) = run("index create notes --encoder words")
    assert [made, *run("index list")] == [
        httpx.get(f"{url}/v1/indexes/notes").json(),
        *httpx.get(f"{url}/v1/indexes").json()["data"],
    ]
    documents = [{"id": "a", "text": "alpha", "metadata": {"n": 1}}, {"id": "b", "text": "beta"}]
    post("/v1/indexes/notes/documents", {"documents": documents})
    found = post("/v1/indexes/notes/query", {"query": "alpha", "top_k": 2})["results"]
    assert run("index query notes alpha --top-k 2") == found
    assert run("index count notes") == [post("/v1/indexes/notes/documents/count", {})]
    (deleted,) = run("index delete notes a")
    assert (deleted, post("/v1/indexes/notes/documents/delete", {"ids": ["b"]})) == (
        {"deleted": 1},
        {"deleted": 1},
    )
    run("index create other --encoder words")
    (dropped,) = run("index drop notes")
    assert {**dropped, "name": "other"} == httpx.delete(f"{url}/v1/indexes/other").json()


def test_aliases_snapshots_and_rebuilds(run: Any, url: str) -> None:
    run("index create notes --encoder words")
    aliases = run("index alias set live=notes next=kb")
    assert aliases == httpx.get(f"{url}/v1/indexes/aliases").json()["data"] != []
    assert run("index alias list") == aliases
    (made,) = run("index snapshot make notes")
    listed = httpx.get(f"{url}/v1/indexes/notes/snapshots").json()["data"]
    assert [made] == run("index snapshot list notes") == listed
    (restored,) = run("index restore notes --into again")
    assert restored == httpx.get(f"{url}/v1/indexes/again").json()
    (deleted,) = run(f"index snapshot delete notes {made['id']}")
    assert deleted == {"id": made["id"], "deleted": True}
    (rebuilt,) = run("index rebuild notes")
    seen = httpx.get(f"{url}/v1/indexes/notes/rebuild").json()
    assert without_times(rebuilt) == without_times(seen)


def test_models_of_a_server(run: Any, url: str, post: Any) -> None:
    assert run("models status") == post("/v2/repository/index", {})
    aliases = httpx.get(f"{url}/v1/models/aliases").json()
    assert run("models alias") == [{"aliases": aliases["aliases"]}]
    (loaded,) = run("models load other --version 3")
    assert {"object", "id", "model", "previous", "changed", "seconds"} <= loaded.keys()


def test_vectors_and_rankings(run: Any, post: Any) -> None:
    body = {"model": "words", "input": ["a", "b"]}
    for printed, replied in zip(
        run("embed a b --model words"), post("/v1/embeddings", body)["data"], strict=True
    ):
        assert printed.pop("embedding") == pytest.approx(replied.pop("embedding"), rel=1e-6)
        assert printed == replied
    body = {"query": "a", "documents": ["a", "b"], "return_documents": True}
    assert run("rerank a a b") == post("/v1/rerank", body)["results"]
