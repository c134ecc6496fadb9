import hashlib
import json
from pathlib import Path

import pytest
from tiny_report import tiny_report

from condensery.errors import InputError
from condensery.methods.oscar.reporting import add_report
from condensery.methods.trainer.publishing import Publication
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


def test_a_pairs_manifest_says_what_was_measured(files: dict[str, Path], tmp_path: Path) -> None:
    content = tiny_report(fingerprint=fingerprint_of(files), training=[])
    pair = Publication(tmp_path, files)
    added = add_report(content, MANIFEST, pair)
    assert added.plots == ("cost", "passages", "abstention")
    own = {"model.safetensors", "report.json"}
    assert set(pair.files) == {*own, *(f"plots/{name}.png" for name in added.plots)}
    assert json.loads(pair.files["report.json"].read_text()) == content
    assert pair.files["plots/cost.png"].read_bytes().startswith(b"\x89PNG")
    assert added.manifest.quality["gold"] == {"em": 32.24, "f1": 49.6}
    assert added.manifest.quality["own"] == {"loss": 1.5}
    assert added.manifest.defaults.top_n == 1
    assert added.manifest.fingerprint == MANIFEST.fingerprint


def test_a_report_of_other_weights_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    content = tiny_report(fingerprint=fingerprint_of(files))
    files["model.safetensors"].write_bytes(b"others")
    with pytest.raises(InputError, match="measure what is published"):
        add_report(content, MANIFEST, Publication(tmp_path, files))
    assert not (tmp_path / "report.json").exists()
