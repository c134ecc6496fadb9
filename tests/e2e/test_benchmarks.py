"""The benchmarks, small: what they keep beside their figures, and the pages that are made of it.

Nothing here says how fast anything is.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.e2e.conftest import run_whole

from condensery.networks import quantised
from condensery.runtime import device

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SPIN = """
import sys, time
ends = time.process_time() + float(sys.argv[1])
while time.process_time() < ends:
    pass
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a benchmark as one beside it does."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(script: str, *argv: str, seconds: float = 110) -> str:
    done = run_whole([sys.executable, str(FOLDER / script), *argv], seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_recorded(about: dict[str, Any], script: str) -> None:
    """See that a raw file says where and beside what it was made."""
    assert about["command"].startswith(f"python benchmarks/{script}")
    assert about["machine"]["kind"]
    assert about["machine"]["cores"] >= 1
    assert about["versions"]
    assert about["others"]["seconds"] > 0
    assert about["others"]["cores"] >= 0
    assert about["others"]["load_after"] >= 0


def test_a_cpus_kind_is_told_by_what_it_multiplies_with(benchmark: Any) -> None:
    recording = benchmark("recording")
    for flags, kind in (
        ("sse2 avx2 fma avx512f avx512_bf16 amx_bf16 amx_tile", "AMX"),
        ("avx2 avx512f avx512_bf16", "AVX512-bf16"),
        ("avx2 avx512f", "AVX512"),
        ("fma avx2", "AVX2"),
    ):
        cpuinfo = f"processor : 0\nmodel name : A CPU: the best\nflags : {flags}\n\nflags : avx2\n"
        name, multiplies = recording.read_cpu(cpuinfo)
        assert (name, recording.kind_of(multiplies)) == ("A CPU: the best", kind)
    assert recording.kind_of(frozenset()) not in recording.KINDS.values()


def test_what_others_use_is_told_apart_from_what_we_started(benchmark: Any) -> None:
    recording = benchmark("recording")
    before = recording.tree_seconds(), recording.busy_seconds()
    # A child that ended, one that lives, and a grandchild that is nobody's any more.
    subprocess.run([sys.executable, "-c", SPIN, "0.5"], check=True)
    alive = subprocess.Popen(
        [sys.executable, "-c", SPIN + "print(flush=True); sys.stdin.read()", "0.5"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert alive.stdout
    alive.stdout.readline()
    orphan = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {SPIN!r} + 'print()', '0.5'])\n"
        "os._exit(0)\n"
    )
    read, write = os.pipe()
    subprocess.run([sys.executable, "-c", orphan], check=True, stdout=write)
    os.close(write)
    with os.fdopen(read) as done:
        done.read()  # until the orphan has ended
    ours = recording.tree_seconds() - before[0]
    busy = recording.busy_seconds() - before[1]
    alive.communicate()
    assert ours >= 1.0
    assert busy - ours >= 0.4, "what is none of ours counts as others'"


def test_folders_of_one_machine_are_not_told(benchmark: Any) -> None:
    command = benchmark("recording").tell_command(
        ["--data", "/home/me/sets/scifact", "--rounds", "3"]
    )
    assert command == "--data scifact --rounds 3"
    command = benchmark("recording").tell_command(
        ["--out", "/home/me/out/index.json", "docs/x.json"]
    )
    assert command == "--out out/index.json docs/x.json"


ABOUT: dict[str, Any] = {
    "date": "2026-01-01",
    "command": "python benchmarks/some.py",
    "machine": {"cpu": "A CPU", "kind": "AVX512", "flags": [], "cores": 2, "python": "3.11.7"},
    "versions": {"torch": "2.13.0"},
    "others": {"seconds": 9, "load_before": 1, "load_after": 2, "cpu_seconds": 1, "cores": 0.11},
}
FIRST_LINES = "2 cores of A CPU (AVX512)"


def test_encoders_are_compared_in_equal_dtypes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, contenders = benchmark("encode"), benchmark("encode_contenders")
    monkeypatch.setattr(quantised, "can_quantise", lambda *_: False)
    monkeypatch.setattr(device, "choose_dtype", lambda _: torch.float32)
    assert contenders.contenders([])[0] == ["sentence-transformers fp32", "condensery fp32"]
    monkeypatch.setattr(device, "choose_dtype", lambda _: torch.bfloat16)
    names, _ = contenders.contenders([])
    assert names == [
        *("sentence-transformers fp32", "condensery fp32"),
        *("sentence-transformers bf16", "condensery bf16"),
    ]
    every, missing = contenders.contenders()
    assert set(names) < set(every) | {f"{name} bf16" for name in missing}
    assert "ONNX Runtime bf16" not in every
    monkeypatch.setattr(quantised, "can_quantise", lambda weights, _: weights == "int8")
    assert contenders.contenders([])[0] == [*names, "condensery int8"]
    monkeypatch.setattr(quantised, "can_quantise", lambda *_: True)
    assert contenders.contenders([])[0] == [*names, "condensery int16", "condensery int8"]
    rates = dict(zip(names, (100.0, 120.0, 300.0, 600.0), strict=True))
    rows = [
        {
            "name": name,
            "tokens_per_second": rate,
            "lowest": rate - 1,
            "highest": rate + 1,
            "texts_per_second": rate / 10,
            "cosine_least": 0.9999,
            "cosine_mean": 0.99995,
            "cores": 1.9,
            "foreign_cores": 0.01,
            "rounds": [],
        }
        for name, rate in rates.items()
    ]
    encode.add_ratios(rows)
    assert [row["ours_to_it"] for row in rows] == pytest.approx([1.2, 1, 2, 1])
    assert [row["to_default"] for row in rows] == pytest.approx([1, 1.2, 3, 6])
    table = {"title": "Passages", "texts": 8, "mean": 9, "shortest": 3, "longest": 12}
    page = encode.render(
        {
            **ABOUT,
            "rounds": 4,
            "contenders": {
                name: {"workers": 2, "threads": 2, "chosen": "float32"} for name in rates
            },
            "missing": ["OpenVINO"],
            "tables": [{**table, "results": rows}],
        }
    )
    assert FIRST_LINES in "\n".join(page.splitlines()[:4])
    assert "| condensery bf16 | 600 (599 to 601) | 60 | 6.00 | 1.00 | 0.99990 / 0.99995 |" in page
    assert "Not installed here: OpenVINO." in page
    assert "other processes used 0.11 cores" in page
    assert "chooses fp32 by itself" in page


def test_every_round_of_a_service_is_told_and_uneven_ones_by_name(benchmark: Any) -> None:
    service, report = benchmark("service"), benchmark("service_report")

    def cells(*rates: float) -> list[dict[str, float]]:
        others = dict.fromkeys(("p50_ms", "p95_ms", "server_cores", "foreign_cores"), 1.0)
        timings = {"total": 8.0, "tokenization": 1.0, "queue": 2.0, "inference": 4.0}
        return [
            {
                "requests_per_second": rate,
                "requests": 5,
                "mean_ms": 10.0,
                "timings_ms": timings,
                **others,
            }
            for rate in rates
        ]

    rows = [service.summarise(8, {"condensery": cells(200, 202, 198), "naive": cells(50, 100, 51)})]
    page = report.render(
        {
            **ABOUT,
            "rounds": 3,
            "seconds": 5,
            "tables": [
                {
                    "title": "Single queries",
                    "texts": 1,
                    "results": rows,
                    "least_cosine": 0.9999,
                    "texts_compared": 64,
                }
            ],
            "infinity": {},
            "generator": {"requests_per_second": 30000},
        }
    )
    assert FIRST_LINES in "\n".join(page.splitlines()[:4])
    assert "| 8 | condensery | 200 (198 to 202) | 1.0 / 1.0 |  | 1.00 | 1.00 |" in page
    assert "| 8 | naive | 51 (50 to 100) | 1.0 / 1.0 | 3.92 (2.02 to 4.00) | 1.00 | 1.00 |" in page
    assert "| 8 | 10.00 | 1.00 | 2.00 | 4.00 | 1.00 | 2.00 |" in page, "the parts add up"
    assert "Rounds lie far apart of naive with 8 clients." in page
    assert "infinity was not installed" in page
    assert "in the same run." in page
    rounded = {"condensery": cells(200), "condensery int8": cells(300)}
    table = {"title": "Single queries", "texts": 1, "results": [service.summarise(8, rounded)],
             "least_cosine": 1.0, "texts_compared": 64, "least_cosine_int8": 0.99876}  # fmt: skip
    shown = report.render_table(table)
    assert "| 8 | condensery int8 | 300 (300 to 300) | 1.0 / 1.0 | 0.67 (0.67 to 0.67) |" in shown
    assert "in the same run; of condensery int8 0.9988." in shown


def test_searching_by_words_keeps_every_figure_and_makes_its_page(tmp_path: Path) -> None:
    result = run("search.py", "--passages", "300", "--out", str(tmp_path / "words.json"))
    report = json.loads((tmp_path / "words.json").read_text())
    assert_recorded(report, "search.py")
    assert len(report["each_ms"]) == report["questions"] == 100
    page = (tmp_path / "words.md").read_text()
    assert page.strip() == result.strip()
    assert report["machine"]["kind"] in page.splitlines()[2]


def test_filters_keep_every_row_and_two_runs_make_one_page(tmp_path: Path) -> None:
    out = tmp_path / "index.json"
    small = ("--passages", "600", "--dims", "8", "--queries", "3", "--out", str(out))
    run("filters.py", *small, "--kinds", "flat", "hnsw")
    run("filters.py", *small, "--switch")
    report = json.loads(out.read_text())
    assert report.keys() == {"found", "walked"}
    for part in report.values():
        assert_recorded(part, "filters.py")
    assert [(row["kind"], row["filter"]) for row in report["found"]["rows"]] == [
        (kind, name)
        for kind in ("flat", "hnsw")
        for name in ("none", "scattered", "scattered", "together", "together")
    ]
    assert all(row["recall_before"] == 1 for row in report["found"]["rows"][:5]), "flat is exact"
    assert [row["allowed"] for row in report["walked"]["rows"]] == [3, 6, 12, 30, 60, 120, 300]
    page = out.with_suffix(".md").read_text()
    assert page.count("| flat |") == 5
    assert "Where HNSW's walk meets" in page


def test_a_pair_judged_as_a_whole_has_a_column_a_setting(benchmark: Any) -> None:
    rag = benchmark("rag")

    def share(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 1, "high": mean + 1, "of": 9}

    server = {"pair": "mini", "version": "4", "dtype": "float32", "min_relevance": 0.5,
              "documents": 1234, "passages": 5678}  # fmt: skip
    whole = {"questions": 9, "right": share(70), "ms": {"p50": 10.4, "p95": 20.6}}
    near = {"questions": 8, "answered": share(40), "ms": {"p50": 9.0, "p95": 19.0}}
    reports = {
        "one": {**ABOUT, "server": server, "settings": {"as_it_is": whole}},
        "two": {
            **ABOUT,
            "server": server,
            "settings": {"as_it_is": whole, "without_passage": near},
        },
    }
    page = rag.render(reports)
    assert "| right | 70.0 (69.0 to 71.0) | 70.0 (69.0 to 71.0) | – |" in page
    assert "| answered | – | – | 40.0 (39.0 to 41.0) |" in page
    assert "| ms, p50 / p95 | 10 / 21 | 10 / 21 | 9 / 19 |" in page
    assert "1,234 documents in 5,678 passages" in page
    assert FIRST_LINES in page
    assert "other processes used" in page


@pytest.mark.slow
def test_retrieval_keeps_each_query_of_every_set(tmp_path: Path) -> None:
    import gzip

    out = tmp_path / "retrieval.json"
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        texts = {"d0": "The mill stands beside the river.", "d1": "Bread is baked of corn."}
        asked = {"q0": "Where is the mill?", "q1": "What is bread made of?"}
        for file, rows in (("corpus", texts), ("queries", asked)):
            with gzip.open(folder / f"{file}.jsonl.gz", "wt") as lines:
                lines.writelines(
                    json.dumps({"_id": key, "text": text}) + "\n" for key, text in rows.items()
                )
        judged = "query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n"
        (folder / "qrels.test.tsv").write_text(judged)
        run("retrieval.py", "--data", str(folder), "--out", str(out))
    report = json.loads(out.read_text())
    assert report.keys() == {"one", "two"}
    for figures in report.values():
        assert_recorded(figures, "retrieval.py")
        assert figures["modes"].keys() == {"dense", "bm25", "hybrid"}
        assert figures["modes"]["dense"]["ndcg@10"] == 1
        assert {len(values) for values in figures["modes"]["hybrid"]["each"].values()} == {2}
    assert out.with_suffix(".md").read_text().count("| hybrid |") == 2


def test_the_measured_rows_of_reliability_are_made_from_what_loads_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = FOLDER.parent
    monkeypatch.syspath_prepend(str(root / "loadtests"))
    measured = importlib.import_module("measured")
    page = (root / "docs" / "reliability.md").read_text(encoding="utf-8")
    door = {
        "sent": 50,
        "accepted": 10,
        "refused": 40,
        "others": {},
        "milliseconds": {"p50": 9000, "p95": 9500, "p99": 9900},
    }
    exit_ = {"outcomes": {"right": 55}, "unready": {"REST": 0.1}, "seconds": 5.3, "status": 0}
    swaps = {
        "replies": 2000,
        "swaps": 6,
        "wrong": {},
        "seconds_a_swap": 0.5,
        "callers": 6,
        "flips_of_each_caller": [6, 6],
    }
    memory = {
        "model": "swapped",
        "model_mib": 43.0,
        "cycles": 50,
        "left_mib_a_cycle": 0.04,
        "after_first_mib": 933.0,
        "after_last_mib": 940.0,
    }
    part = {
        "outcomes": {"right": 469, "own fault": 25},
        "faults": {"nan": 14},
        "notes": ["others used 1.5 cores"],
        "broken": [],
    }
    kept: dict[str, Any] = {
        "fairness": {
            name: {"alone_p95": [13.3], "p95": [16.5], "ratio": 1.24, "queries": 700}
            for name in ("a REST list", "a gRPC list")
        },
        "faults": {"items": part, "hang": part, "death": part},
        "overload": {
            "REST": door,
            "gRPC": door,
            "unloaded": door,
            "after": door,
            "goodput": 8.0,
            "rate": 100.0,
            "capacity": 10.0,
            "memory_mib": [900.0, 950.0, 940.0],
        },
        "drain": {"once": [exit_], "twice": [{**exit_, "seconds": 0.8}]},
        "swapping": {"versions": swaps, "memory of an encoder": memory},
        "crashes": {
            "index": {"kills": 320, "amid a write": 314, "done": 5118, "seconds": 152},
            "server": {"kills": 12, "amid a write": 36, "done": 438, "seconds": 464},
        },
        "growth": {
            "readings": [
                {"requests": 0, "resident_mib": 494.8},
                {"requests": 1_010_444, "resident_mib": 505.0},
            ],
            "grew_mib": {"resident_mib": 0.25},
        },
    }
    assert kept.keys() == measured.MAKERS.keys()
    written = measured.rewrite(page, {name: {"run": ABOUT, **row} for name, row in kept.items()})
    before, after = page.splitlines(), written.splitlines()
    assert len(before) == len(after)
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 10
    for row in changed:
        assert FIRST_LINES in row
        assert "`python benchmarks/some.py` (" in row
        assert row.count("|") == 5
    joined = "\n".join(changed)
    for figure in ("a REST list 13.3 and 16.5 ms (1.24 times)",
                   "100 requests, 100 a second | 20 right, 80",
                   "469 right, 25 own fault; 0 failed, 0 lost", "by one SIGTERM after 5.3 s",
                   "swapped 933 and 940 MiB (0.04", "5,118 acknowledged",
                   "1,010,444 requests | resident 495 MiB at the start, 505"):  # fmt: skip
        assert figure in joined, figure
    assert measured.rewrite(written, {}) == written
