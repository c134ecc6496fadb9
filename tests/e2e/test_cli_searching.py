"""``condensery index`` on filters, pages and kinds, against a real server."""

import json
from pathlib import Path
from typing import Any

from tests.command_line import Ended, run

EVEN = (
    '{"must": [{"key": "even", "match": {"value": true}}, {"key": "year", "range": {"lt": 1910}}]}'
)


def entries(done: Ended) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_documents_are_found_counted_read_and_deleted_by_a_filter(
    door: tuple[str, str], tmp_path: Path
) -> None:
    name = f"years-{door[0].strip('-')}"
    made = run("index", "create", name, "--kind", "hnsw", "--option", "m=16", *door)
    assert made.stdout.startswith(f"{name}: hnsw, ip, 384 dimensions, ")
    file = tmp_path / "years.jsonl"
    lines = [
        {"id": f"n{i}", "text": f"note {i}", "year": 1900 + i, "even": i % 2 == 0}
        for i in range(130)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("index", "add", name, str(file), *door)
    hits = entries(run("index", "query", name, "note 4", "--filter", EVEN, "--json", *door))
    assert sorted(hit["document_id"] for hit in hits) == ["n0", "n2", "n4", "n6", "n8"]
    counted = run("index", "count", name, "--filter", EVEN, *door)
    assert counted.stdout == "5 documents, 5 passages\n"
    every = entries(run("index", "scroll", name, *door))
    assert sorted(entry["id"] for entry in every) == sorted(entry["id"] for entry in lines)
    assert [entry["id"] for entry in every] == sorted(entry["id"] for entry in every)
    some = entries(run("index", "scroll", name, "--after", "n2", "--limit", "105", *door))
    assert some == [entry for entry in every if entry["id"] > "n2"][:105]
    (first, *_) = entries(
        run("index", "scroll", name, "--filter", EVEN, "--no-text", "--vectors", *door)
    )
    assert set(first) == {"id", "metadata", "passages"}
    assert len(first["passages"][0]["vector"]) == 384
    again = "".join(json.dumps(entry) + "\n" for entry in every)
    written = run("index", "add", name, "-", "--again", *door, stdin=again).stdout
    assert "130 documents written" in written
    got = run("index", "get", name, "n7", "nobody", *door, status=1)
    assert entries(got) == [
        {"id": "n7", "text": "note 7", "metadata": {"year": 1907, "even": False}}
    ]
    assert got.stderr == f"{name}: there is no document 'nobody'\n"
    gone = run("index", "delete", name, "--filter", EVEN, *door)
    assert gone.stdout == "5 documents deleted\n"
    assert run("index", "count", name, *door).stdout == "125 documents, 125 passages\n"
    for wrong, says in (
        (("--filter", "{}"), "filter: it holds no condition"),
        (("n1", "--filter", EVEN), "ids: give `ids` or `filter`, one of them; got both"),
        ((), "ids: "),
        (
            ("--filter", '{"must": [{"key": "year", "range": {"gt": "x"}}]}'),
            "filter.must[0].range.gt",
        ),
    ):
        assert says in run("index", "delete", name, *wrong, *door, status=1).stderr
    run("index", "drop", name, *door)


def test_an_answer_keeps_to_the_filter(door: tuple[str, str]) -> None:
    asked = '{"must": [{"has_id": ["nobody"]}]}'
    done = run("ask", "What is helium?", "--filter", asked, "--json", "--max-tokens", "2", *door)
    assert json.loads(done.stdout)["citations"] == []
