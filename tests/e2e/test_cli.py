"""The command line against a real server; as a process where its streams or signals are meant."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tests.command_line import run
from tests.e2e.conftest import CONDENSERY

QUESTION = "Which lake does the Rhine pass through?"


def test_ask_prints_an_answer_its_passages_and_what_compression_did(door: tuple[str, str]) -> None:
    arguments = ("ask", QUESTION, "--top-k", "7", "--top-n", "3", "--max-tokens", "8", *door)
    answer, place, sources = run(*arguments).stdout.split("\n\n")
    *passages, compression = sources.splitlines()
    assert len(passages) == 3
    assert all("#0  " in line for line in passages)
    assert compression.startswith("compression: applied, 3 passages, ")

    whole = json.loads(run(*arguments, "--json").stdout)
    assert whole["text"] == answer
    assert [citation["id"] for citation in whole["citations"]] == [
        line.split()[1] for line in passages
    ]
    assert ("false" in place) == (whole["grounded"] is False)


def test_where_none_is_found_ask_shows_the_nearest_sentences_and_its_status_is_3(
    door: tuple[str, str], live_server: Any
) -> None:
    arguments = ("ask", QUESTION, "--min-relevance", "1", *door)
    whole = json.loads(run(*arguments, "--json", status=3).stdout)
    assert len(whole["snippets"]) == 3
    for more in ((), ("--no-stream",)):
        answer, near, _ = run(*arguments, *more, status=3).stdout.split("\n\n")
        assert answer == whole["answer"]
        for snippet in whole["snippets"]:
            assert " ".join(snippet["text"].split()) in near
            place = f"{snippet['document_id']}, characters {snippet['start']} to {snippet['end']}"
            assert place in near
    body = {"query": QUESTION, "index": {"name": "samples"}, "min_relevance": 1.0}
    reply = httpx.post(f"{live_server.url}/v1/rag/answer", json=body, timeout=60).json()
    assert reply.keys() <= whole.keys()
    assert reply["snippets"] == whole["snippets"]


def test_ask_can_read_passages_plain(door: tuple[str, str]) -> None:
    done = run("ask", QUESTION, "--no-compress", "--no-stream", "--max-tokens", "4", *door)
    assert done.stdout.splitlines()[-1].startswith("compression: off")


def test_what_was_compressed_is_asked_by_its_handle(door: tuple[str, str], tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The Rhine passes through Lake Constance.\n\nBread rises.\n")
    more = '{"id": "mine", "text": "Helium is a gas."}\n'
    head, *rows, block, handle = run(
        "compress", QUESTION, str(notes), "-", "--ttl", "60", *door, stdin=more
    ).stdout.splitlines()
    assert head.split() == ["PLACE", "SCORE", "TOKENS", "VECTORS", "WINDOWS", "STATUS", "ID"]
    assert [row.split()[-1] for row in rows] == ["notes-1", "notes-2", "mine"]
    assert block.startswith("compression: applied, 3 passages, ")
    context = handle.split()[1]
    arguments = ("ask", QUESTION, "--context", context, "--max-tokens", "8", *door)
    answer = json.loads(run(*arguments, "--json").stdout)
    assert sorted(citation["id"] for citation in answer["citations"]) == [
        "mine",
        "notes-1",
        "notes-2",
    ]
    assert answer["text"] == run(*arguments).stdout.split("\n\n")[0]
    gone = run("ask", QUESTION, "--context", "ctx_of_nobody", *door, status=1)
    assert gone.stderr == "condensery: context: there is no such handle.\n"


def test_ask_compares_both_ways(door: tuple[str, str]) -> None:
    arguments = ("ask", QUESTION, "--top-k", "3", "--max-tokens", "8", "--compare", *door)
    printed = run(*arguments).stdout
    assert printed.startswith("compressed: ")
    assert "\nplain:      " in printed
    assert "\nagreement: " in printed
    assert "\nspeedup: " in printed
    assert printed.splitlines()[-1].startswith("GFLOPs, analytic: ")
    content = json.loads(run(*arguments, "--search", "bm25", "--json").stdout)
    assert content["plain"]["compression"]["status"] == "off"


def test_embed_prints_json_lines_or_writes_an_array(door: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    texts = ["one text", "a second text", ""]
    done = run("embed", *texts, *door)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["text"] for entry in printed] == texts
    file = tmp_path / "texts"
    file.write_text("\n".join(texts) + "\n\n")
    done = run("embed", "--file", str(file), "--out", str(out), *door)
    assert "4 vectors of 384 dimensions" in done.stderr
    array = np.load(out)
    assert array.dtype == np.float32
    assert np.abs(array[:3] - [entry["vector"] for entry in printed]).max() < 5e-3


def test_an_index_is_made_filled_asked_and_dropped(door: tuple[str, str], tmp_path: Path) -> None:
    name = f"notes-{door[0].strip('-')}"
    file = tmp_path / f"{name}.jsonl"
    lines = [
        {"id": f"n{i}", "text": f"note {i} is about {i}", "year": 1900 + i} for i in range(300)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("index", "add", str(file), *door).stdout.strip() == (
        f"{name}: 300 documents written, 300 passages"
    )
    again = run("index", "add", name, "-", *door, stdin=file.read_bytes())
    assert again.stdout.strip() == (
        f"{name}: 0 documents written, 0 passages; 300 were there already"
    )
    again = run("index", "add", name, "-", "--again", *door, stdin=file.read_bytes())
    assert again.stdout.strip() == f"{name}: 300 documents written, 300 passages"
    assert run("index", "count", name, *door).stdout.strip() == "300 documents, 300 passages"
    result = run("index", "query", name, "note 17 is about 17", "--top-k", "2", "--json", *door)
    best = json.loads(result.stdout.splitlines()[0])
    assert best["document_id"] == "n17"
    assert best["metadata"] == {"year": 1917}
    assert run("index", "delete", name, "n17", "nobody", *door).stdout.strip() == (
        "1 of 2 documents deleted"
    )
    assert f"{name} " in run("index", "list", *door).stdout
    assert run("index", "drop", name, *door).stdout.strip() == f"{name}: dropped"
    gone = run("index", "count", name, *door, status=1)
    assert name in gone.stderr
    assert len(gone.stderr.splitlines()) == 1


def test_a_bad_line_is_named_and_what_was_written_stays(live_server: Any, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    good = [json.dumps({"id": f"n{i}", "text": "words"}) for i in range(200)]
    file.write_text("\n".join([*good, '{"id": "x"}']))
    done = run("index", "add", str(file), "--url", live_server.url, status=4)
    assert done.stdout == "broken: 200 documents written, 200 passages\n"
    assert f"not read: {file}: line 201: text: is missing" in done.stderr
    count = run("index", "count", "broken", "--url", live_server.url)
    assert count.stdout.startswith("200 documents")


def test_rerank_prints_the_best_first(door: tuple[str, str]) -> None:
    done = run("rerank", QUESTION, "one passage", "another passage", "a third one", *door)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert sorted(row[1] for row in rows) == ["0", "1", "2"]
    scores = [float(row[0]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    best = run("rerank", QUESTION, "--file", "-", "--top-n", "1", *door, stdin="one passage\nx\n")
    assert len(best.stdout.splitlines()) == 1


def test_an_unknown_index_is_one_line_and_1(door: tuple[str, str]) -> None:
    done = run("ask", QUESTION, "--index", "nowhere", *door, status=1)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("condensery: ")
    assert "nowhere" in line


def test_a_reader_that_leaves_is_no_error(live_server: Any, tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text("some text\n" * 600)
    command = f"'{CONDENSERY}' embed --file '{file}' --url {live_server.url} | head -c 100"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == b""
    assert done.returncode == 141


def test_an_interrupt_ends_quietly(live_server: Any) -> None:
    process = subprocess.Popen(
        [CONDENSERY, "index", "add", "x", "-", "--url", live_server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until_idle(process.pid)  # it waits for a first line that does not come
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def until_idle(pid: int) -> None:
    """Wait until a process has had no use for the processor for a second."""
    if not Path("/proc/self/stat").exists():
        time.sleep(10)
        return
    before, since = "", time.monotonic()
    while time.monotonic() < since + 1:
        time.sleep(0.05)
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        spent = " ".join(fields[10:12])
        if state != "S" or spent != before:
            before, since = spent, time.monotonic()
