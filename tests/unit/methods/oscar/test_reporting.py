import hashlib
import json
from pathlib import Path

import pytest
from tiny_report import tiny_report

from condensery.errors import InputError
from condensery.methods.oscar.reporting import add_report
from condensery.networks.oscar_shape import OscarShape
from condensery.store.manifest import Manifest

MANIFEST = Manifest(
    name="pair",
    kind="oscar-pair",
    method="oscar",
    max_tokens=195,
    shape=OscarShape().to_dict(),
    quality={"own": {"loss": 1.5}},
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    return {"model.safetensors": path}


def fingerprint_of(files: dict[str, Path]) -> str:
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return MANIFEST.model_copy(update={"files": hashes}).fingerprint


def test_any_pair_is_told_what_was_measured(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    content = tiny_report(fingerprint=fingerprint_of(files), training=[])
    told = add_report(content, MANIFEST, files, folder)
    assert told.plots == ("cost", "passages", "abstention")
    assert set(told.files) == {"report.json", *(f"plots/{name}.png" for name in told.plots)}
    assert json.loads(told.files["report.json"].read_text()) == content
    assert told.files["plots/cost.png"].read_bytes().startswith(b"\x89PNG")
    assert told.manifest.quality["gold"] == {"em": 32.24, "f1": 49.6}
    assert told.manifest.quality["own"] == {"loss": 1.5}
    assert told.manifest.defaults.top_n == 1
    assert told.manifest.fingerprint == MANIFEST.fingerprint


def test_a_report_of_other_weights_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    content = tiny_report(fingerprint=fingerprint_of(files))
    files["model.safetensors"].write_bytes(b"others")
    with pytest.raises(InputError, match="measure what is published"):
        add_report(content, MANIFEST, files, tmp_path)
    assert not (tmp_path / "report.json").exists()
