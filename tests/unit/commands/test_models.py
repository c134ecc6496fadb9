import json
from pathlib import Path

import pytest
from tiny_published import Cocom, write_base

from condensery.cli import main


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    base = write_base(root / "base", "mistral")
    return Cocom(root / "naver", (base, base), "trimmed").path


def test_a_published_pair_is_imported_by_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, published: Path
) -> None:
    own = ["--store", str(tmp_path / "own")]
    told = ["--no-questions", "--max-length", "128", "--rounded-rope"]
    capsys.readouterr()
    assert main(["models", "import", str(published), "--name", "pair", *told, *own]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("pair version 1 (oscar-pair): ")
    assert "note: The generator's base was read from" in err
    assert main(["models", "show", "pair", *own]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["licence"] == "cc-by-nc-4.0"
    compressor = shown["shape"]["compressor"]
    assert (compressor["question"], compressor["rounded_rope"]) == (False, True)
    assert compressor["text_tokens"] == 130
    assert main(["models", "verify", "pair", *own]) == 0


def test_a_missing_base_is_said_in_one_line_with_the_flag(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, published: Path
) -> None:
    own = ["--store", str(tmp_path / "own"), "--name", "pair"]
    wrong = ["--generator-base", str(tmp_path / "nowhere")]
    assert main(["models", "import", str(published), *own, *wrong]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "generator_base: " in line
    assert "nowhere is not a directory" in line
    assert main(["models", "import", str(published), *own, "--max-length", "3"]) == 1
    assert "--max-length: 3 is not allowed" in capsys.readouterr().err


def test_a_flag_that_means_nothing_for_a_directory_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, published: Path
) -> None:
    own = ["--store", str(tmp_path / "own"), "--name", "pair"]
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text('{"model_type": "bert"}')
    for path, found, flags in (
        (published, "a published pair", ["--pooling", "last"]),
        (published, "a published pair", ["--no-add-eos"]),
        (encoder, "a plain encoder", ["--questions"]),
        (encoder, "a plain encoder", ["--rounded-rope"]),
        (encoder, "a plain encoder", ["--base", "somewhere"]),
    ):
        assert main(["models", "import", str(path), *own, *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{' '.join(flags)} does not apply: {path.name} is {found}" in line
    assert not (tmp_path / "own").exists()
