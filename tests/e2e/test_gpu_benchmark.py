"""The GPU's benchmarks, small and on a CPU; they run where there is little but torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = ("oscar_gpu.py", "effir_gpu.py")
# What a machine with a GPU may not have.
ABSENT = ("fastapi", "pydantic", "faiss", "grpc", "prometheus_client", "uvicorn")
RUN = """
import runpy, sys
for name in {absent!r}:
    sys.modules[name] = None
sys.argv = {argv!r}
sys.path.insert(0, {folder!r})
runpy.run_path({script!r}, run_name={name!r})
"""


def run(script: str, *argv: str, name: str = "__main__") -> subprocess.CompletedProcess[str]:
    code = RUN.format(
        absent=ABSENT,
        argv=[script, *argv],
        folder=str(FOLDER),
        script=str(FOLDER / script),
        name=name,
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_needs_nothing_that_a_gpu_machine_may_lack(script: str) -> None:
    found = run(script, name="imported")
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_it_measures_each_compressor_and_writes_what_it_found(tmp_path: Path) -> None:
    found = run("oscar_gpu.py", "--tiny", "--rounds", "1", "--batches", "2", "--out", str(tmp_path))
    assert found.returncode == 0, found.stderr
    report = json.loads((tmp_path / "oscar_gpu.json").read_text())
    cells = {(one["name"], one["question"], one["batch"]) for one in report["cells"]}
    compressors = ("OSCAR-llama", "OSCAR-5-Layers", "OSCAR-8-Layers")
    assert cells == {("plain", True, batch) for batch in (2, 32)} | {
        (name, asked, batch) for name in compressors for asked in (True, False) for batch in (2, 32)
    }
    assert all(one["total_ms"] > 0 for one in report["cells"])
    assert "| OSCAR-llama | read |" in (tmp_path / "oscar_gpu.md").read_text()


@pytest.mark.slow
def test_it_times_every_share_of_layers_each_way(tmp_path: Path) -> None:
    # compiling takes minutes on a CPU: one way here
    flags = ("--tiny", "--rounds", "1", "--texts", "8", "--ways", "packed")
    found = run("effir_gpu.py", *flags, "--out", str(tmp_path))
    assert found.returncode == 0, found.stderr
    report = json.loads((tmp_path / "effir_gpu.json").read_text())
    shapes = {"whole", "16M", "20M", "16M, -30% width"}
    for kind in ("queries", "passages"):
        timed = report["seconds"]["packed"][kind]
        assert timed.keys() == report["flops"][kind].keys() == shapes
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in timed.values())
        assert report["flops"][kind]["whole"] > report["flops"][kind]["16M"]
    assert "## Passages, packed" in (tmp_path / "effir_gpu.md").read_text()
