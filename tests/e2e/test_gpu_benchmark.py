"""The GPU's benchmark, small and on a CPU; it runs where there is little but torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "oscar_gpu.py"
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


def run(*argv: str, name: str = "__main__") -> subprocess.CompletedProcess[str]:
    code = RUN.format(
        absent=ABSENT,
        argv=[str(SCRIPT), *argv],
        folder=str(SCRIPT.parent),
        script=str(SCRIPT),
        name=name,
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False
    )


def test_it_needs_nothing_that_a_gpu_machine_may_lack() -> None:
    found = run(name="imported")
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_it_measures_each_compressor_and_writes_what_it_found(tmp_path: Path) -> None:
    found = run("--tiny", "--rounds", "1", "--batches", "2", "--out", str(tmp_path))
    assert found.returncode == 0, found.stderr
    report = json.loads((tmp_path / "oscar_gpu.json").read_text())
    cells = {(one["name"], one["question"], one["batch"]) for one in report["cells"]}
    compressors = ("OSCAR-llama", "OSCAR-5-Layers", "OSCAR-8-Layers")
    assert cells == {("plain", True, batch) for batch in (2, 32)} | {
        (name, asked, batch) for name in compressors for asked in (True, False) for batch in (2, 32)
    }
    assert all(one["total_ms"] > 0 for one in report["cells"])
    assert "| OSCAR-llama | read |" in (tmp_path / "oscar_gpu.md").read_text()
