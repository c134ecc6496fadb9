"""The GPU's benchmarks, small and on a CPU; they run where there is little but torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = (
    *("oscar_gpu.py", "effir_gpu.py", "shrp_service.py", "llm2comp_gpu.py"),
    "encoders_gpu.py",
)
# What a machine with a GPU may not have.
ABSENT = ("fastapi", "pydantic", "faiss", "grpc", "prometheus_client", "uvicorn")
RUN = """
import runpy, sys
for name in {absent!r}:
    sys.modules[name] = None
sys.argv = {argv!r}
sys.path.insert(0, {folder!r})
for script in {scripts!r}:
    runpy.run_path(script, run_name={name!r})
"""


def run(*argv: str, scripts: tuple[str, ...], name: str) -> subprocess.CompletedProcess[str]:
    code = RUN.format(
        absent=ABSENT,
        argv=[scripts[0], *argv],
        folder=str(FOLDER),
        scripts=[str(FOLDER / script) for script in scripts],
        name=name,
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False
    )


def test_they_need_nothing_that_a_gpu_machine_may_lack() -> None:
    result = run(scripts=SCRIPTS, name="imported")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_it_measures_each_compressor_and_writes_the_figures(tmp_path: Path) -> None:
    result = run(
        "--tiny",
        "--rounds",
        "1",
        "--batches",
        "2",
        "--out",
        str(tmp_path),
        scripts=("oscar_gpu.py",),
        name="__main__",
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "oscar_gpu.json").read_text())
    cells = {(cell["name"], cell["question"], cell["batch"]) for cell in report["cells"]}
    compressors = ("OSCAR-llama", "OSCAR-5-Layers", "OSCAR-8-Layers")
    assert cells == {("plain", True, batch) for batch in (2, 32)} | {
        (name, asked, batch) for name in compressors for asked in (True, False) for batch in (2, 32)
    }
    assert all(cell["total_ms"] > 0 for cell in report["cells"])
    assert "| OSCAR-llama | read |" in (tmp_path / "oscar_gpu.md").read_text()


@pytest.mark.slow
def test_it_times_every_share_of_layers_each_way(tmp_path: Path) -> None:
    # compiling takes minutes on a CPU: one way here
    flags = ("--tiny", "--rounds", "1", "--texts", "8", "--ways", "packed")
    result = run(*flags, "--out", str(tmp_path), scripts=("effir_gpu.py",), name="__main__")
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "effir_gpu.json").read_text())
    shapes = {"whole", "16M", "20M", "16M, -30% width"}
    for kind in ("queries", "passages"):
        timed = report["seconds"]["packed"][kind]
        assert timed.keys() == report["flops"][kind].keys() == shapes
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in timed.values())
        assert report["flops"][kind]["whole"] > report["flops"][kind]["16M"]
    assert "## Passages, packed" in (tmp_path / "effir_gpu.md").read_text()


@pytest.mark.slow
def test_it_measures_networks_of_experts_beside_what_flops_allow(tmp_path: Path) -> None:
    flags = ("--size", "tiny", "--device", "cpu", "--no-service", "--rounds", "1")
    ended = run(*flags, "--out", str(tmp_path), scripts=("shrp_service.py",), name="__main__")
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "shrp-tiny.json").read_text())
    packed = report["in_process"]["packed"]
    assert set(packed["seconds"]) == {"batch", "one", "query"}
    assert set(packed["seconds"]["batch"]) == set(packed["agreement"]) == set("0123")
    assert min(packed["agreement"].values()) > 0.99
    assert report["may"]["0"] == 1.0
    assert "| 3 of 4 |" in (tmp_path / "shrp-tiny.md").read_text()


@pytest.mark.slow
def test_it_trains_every_stage_of_memory_encoders(tmp_path: Path) -> None:
    flags = ("--size", "tiny", "--device", "cpu", "--steps", "4", "--batch", "4")
    result = run(*flags, "--out", str(tmp_path), scripts=("llm2comp_gpu.py",), name="__main__")
    assert result.returncode == 0, result.stderr
    stages = json.loads((tmp_path / "llm2comp_gpu.json").read_text())["stages"]
    assert [row["stage"] for row in stages] == ["pretext", "unsupervised", "supervised"]
    assert all(row["tokens_per_second"] > 0 and row["peak_bytes"] > 0 for row in stages)
    assert "| supervised | 4 |" in (tmp_path / "llm2comp_gpu.md").read_text()


@pytest.mark.slow
def test_encoders_are_measured_alone_and_in_processes(tmp_path: Path) -> None:
    result = run(
        *("--tiny", "--rounds", "1", "--texts", "40", "--seconds", "0.3", "--processes", "2"),
        *("--engines", "MiniLM-L6", "--out", str(tmp_path)),
        scripts=("encoders_gpu.py",),
        name="__main__",
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "encoders_gpu.json").read_text())
    sizes = ("MiniLM-L6", "BERT-base", "Mistral-7B")
    rows = [(row["model"], row["kind"]) for row in report["forward"]]
    assert rows == [(name, kind) for name in sizes for kind in ("passages", "queries")]
    assert all(row["flops"] > 0 and min(row["seconds"]) > 0 for row in report["forward"])
    engine = {(row["kind"], row["callers"], row["processes"]) for row in report["engine"]}
    assert {("queries", 512, 1), ("queries", 512, 2), ("queries", 1, 1)} <= engine
    assert all(row["texts_per_second"] > 0 for row in report["engine"])
    page = (tmp_path / "encoders_gpu.md").read_text()
    assert "| BERT-base | passages |" in page
    assert "10,000 sequences/s" in page
