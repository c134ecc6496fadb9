"""``condensery eval oscar`` on a stored pair."""

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError, ModelNotFound
from condensery.methods.oscar.measured import read_report
from condensery.methods.oscar.report import main
from condensery.methods.trainer.reports import command_line

Row = dict[str, Any]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    rows = [
        {
            "question": f"When was the mill of town {n} built?",
            "answers": [str(1500 + n)],
            "context": f"The mill of town {n} by the river was built in {1500 + n}.",
            "title": f"Town {n}",
        }
        for n in range(12)
    ]
    corpus = [{"_id": str(n), "title": "", "text": row["context"]} for n, row in enumerate(rows)]
    for name, some in (("questions.jsonl", rows), ("corpus.jsonl", corpus)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in some))
    (folder / "part.json").write_text(json.dumps({"rerank": {"towns": {"queries": 3}}}))
    log = [{"step": 5, "steps": 5, "items": 9}, {"step": 5, "steps": 5, "validation": {"em": 1.0}}]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    return folder


def flags(store: Path, files: Path, *more: str) -> list[str]:
    return [
        *("--store", str(store), "--questions", str(files / "questions.jsonl")),
        *("--answer-tokens", "4", "--count", "6", "--device", "cpu", "--dtype", "float32", *more),
    ]


@pytest.mark.tiny_run
def test_a_report_is_written_that_publishing_can_read(
    store_with_pair: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    words = flags(store_with_pair, files, "--out", str(out), "--passages", "1,4", "--read", "2")
    words += ["--corpus", str(files / "corpus.jsonl"), "--run", str(files)]
    words += ["--part", str(files / "part.json")]
    words += ["--settings", "gold,gold_among_five,others_passages,compressed,reranked"]
    main(words)
    report, content = read_report(out)
    assert report.model == "oscar-mini"
    assert report.fingerprint
    assert report.counts("compressed", "reranked") == [1, 4]
    assert report.abstention is not None
    assert report.training == [{"step": 5, "items": 9, "em": 1.0}]
    assert report.rerank["towns"].queries == 3
    assert report.command.startswith("condensery eval oscar --store models --questions ")
    assert f"{files.name}/questions.jsonl" in report.command
    assert str(tmp_path) not in out.read_text()  # no path of this machine
    assert set(content["versions"]) == {"python", "condensery", "torch", "transformers"}
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:]] == list(report.settings)
    assert (tmp_path / "report.answers" / "about.json").exists()


def test_without_a_file_the_report_is_printed(
    store_with_pair: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(flags(store_with_pair, files, "--settings", "no_passage"))
    assert list(json.loads(capsys.readouterr().out)["settings"]) == ["no_passage"]


def test_passages_are_found_by_vectors_too(
    store_with_pair: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = flags(store_with_pair, files, "--settings", "compressed_2,bm25_2")
    main([*words, "--corpus", str(files / "corpus.jsonl"), "--retrieval", "hybrid"])
    report = json.loads(capsys.readouterr().out)
    assert report["measured_on"]["retrieval"] == "bm25+hybrid"
    # By words alone some find but one passage; vectors find two for each question.
    assert report["settings"]["bm25_2"]["passages"] < 2
    assert report["settings"]["compressed_2"]["passages"] == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--passages", "1,two"], "passages: '1,two' is no list of numbers"),
        (["--at-once", "0"], "at_once: 0 is less than 1"),
        (["--count", "0"], "count: 0 is less than 1"),
        (["--judge", "http://127.0.0.1:9/v1"], "--judge and --judge-model go together"),
        (["--judge", "here", "--judge-model", "j"], "judge: 'here' is no http"),
        (["--out", "/nowhere/at/all.json"], "out: /nowhere/at is no folder"),
        (["--run", "/nowhere"], "run: .* has no validation"),
        (["--part", "/nowhere"], "part: /nowhere"),
        (["--settings", "golden"], "settings: 'golden' is none of"),
        (["--settings", "plain"], "plain needs a corpus"),
    ],
)
def test_bad_input_is_refused_by_name(
    store_with_pair: Path, files: Path, more: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        main(flags(store_with_pair, files, *more))


def test_a_model_that_is_not_there_is_named(store_with_pair: Path, files: Path) -> None:
    with pytest.raises(ModelNotFound, match="other-pair"):
        main(flags(store_with_pair, files, "--model", "other-pair"))


def test_answers_are_judged_on_request(
    store_with_pair: Path,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = []

    class Half(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers["authorization"])
            self.rfile.read(int(self.headers["content-length"]))
            text = json.dumps({"choices": [{"message": {"content": "0.5"}}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("CONDENSERY_JUDGE_KEY", "secret")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Half) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        words = flags(store_with_pair, files, "--settings", "gold", "--judge", url)
        main([*words, "--judge-model", "judge-7b"])
        server.shutdown()
        thread.join()
    text = capsys.readouterr().out
    report = json.loads(text)
    assert report["settings"]["gold"]["judge"]["mean"] == 50
    assert report["judge"] == {"model": "judge-7b", "failed": []}
    assert keys == ["Bearer secret"] * 6
    assert "secret" not in text


def test_a_command_is_told_without_this_machines_paths() -> None:
    words = ["--store", "/data/models", "--judge", "http://host/v1", "--settings", "gold"]
    shortened = "condensery eval oscar --store models --judge http://host/v1 --settings gold"
    assert command_line("eval oscar", words) == shortened


@pytest.mark.slow
def test_killed_or_interrupted_it_goes_on_with_the_same_command(
    store_with_pair: Path, files: Path, tmp_path: Path
) -> None:
    def words(out: str) -> list[str]:
        words = flags(store_with_pair, files, "--settings", "gold")
        words[words.index("--count") + 1] = "10"
        words[words.index("--answer-tokens") + 1] = "30"  # so that it takes a while
        return [*words, "--at-once", "1", "--out", str(tmp_path / out)]

    def stop(with_: signal.Signals) -> tuple[int, str]:
        condensery = Path(sys.executable).with_name("condensery")
        with subprocess.Popen(
            [str(condensery), "eval", "oscar", *words("stopped.json")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                before, deadline = answered(tmp_path), time.monotonic() + 200
                while answered(tmp_path) <= before and time.monotonic() < deadline:
                    time.sleep(0.01)
                process.send_signal(with_)
                _, printed = process.communicate(timeout=30)
            finally:
                process.kill()
        return process.returncode, printed

    assert stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert 0 < answered(tmp_path) < 10
    status, printed = stop(signal.SIGINT)
    assert status == 130
    assert "the same command goes on" in printed
    assert "Traceback" not in printed
    assert answered(tmp_path) < 10
    assert not (tmp_path / "stopped.json").exists()
    reports = []
    for name in ("stopped.json", "whole.json"):
        main(words(name))
        reports.append(json.loads((tmp_path / name).read_text()))
    for report in reports:
        del report["command"]
        for figures in report["settings"].values():
            assert figures.pop("seconds") > 0
    assert reports[0] == reports[1]


def answered(folder: Path) -> int:
    paths = (folder / "stopped.answers").glob("gold-*.jsonl")
    return sum(path.read_text().count("\n") for path in paths)
