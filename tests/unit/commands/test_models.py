import json
import re
import shlex
import stat
from pathlib import Path

import pytest
from tiny_published import Cocom, Pisco, write_base

from condensery.atomic_files import umask
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
    options = ["--no-questions", "--max-length", "128", "--rounded-rope"]
    capsys.readouterr()
    assert main(["models", "import", str(published), "--name", "pair", *options, *own]) == 0
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


def test_in_the_data_directory_an_import_is_its_owners_alone_and_elsewhere_as_the_umask_says(
    tmp_path: Path, published: Path
) -> None:
    for flags, mode in ((["--data-dir"], 0o700), (["--store"], 0o755)):
        root = tmp_path / flags[0].strip("-")
        with umask(0o022):
            command = ["models", "import", str(published), "--name", "pair", *flags, str(root)]
            assert main(command) == 0
        made = [root, *root.rglob("*")]
        assert len(made) > 4
        for item in made:
            expected = mode if item.is_dir() else mode & 0o666
            assert stat.S_IMODE(item.stat().st_mode) == expected, item


def test_a_missing_base_is_one_line_that_names_the_flag(
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
    for path, layout, flags in (
        (published, "a published pair", ["--pooling", "last"]),
        (published, "a published pair", ["--no-add-eos"]),
        (encoder, "a plain encoder", ["--questions"]),
        (encoder, "a plain encoder", ["--rounded-rope"]),
        (encoder, "a plain encoder", ["--base", "somewhere"]),
    ):
        assert main(["models", "import", str(path), *own, *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{' '.join(flags)} does not apply: {path.name} is {layout}" in line
    assert not (tmp_path / "own").exists()


DOCS = Path(__file__).parents[3] / "docs/models.md"


def test_the_commands_of_the_page_import_each_published_kind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    qwen2 = write_base(tmp_path / "Qwen2-7B-Instruct", "qwen2")
    llama = write_base(tmp_path / "Llama-3.2-1B-Instruct", "llama")
    mistral = write_base(tmp_path / "Mistral-7B-Instruct-v0.2", "mistral")
    made = {
        "oscar-qwen2-7B": Cocom(tmp_path / "oscar-qwen2-7B", (qwen2, llama), "small"),
        "oscar-5-layers": Cocom(tmp_path / "oscar-5-layers", (mistral, mistral), "trimmed"),
        "pisco-mistral": Cocom(tmp_path / "pisco-mistral", (mistral, mistral), "shared"),
        "pisco-2026": Pisco(tmp_path / "pisco-2026", mistral, llama),
    }
    for pair in made.values():  # as published, they name their bases by a hub's names
        content = json.loads((pair.path / "config.json").read_text())
        for key, value in content.items():
            if str(value).startswith(str(tmp_path)):
                content[key] = f"their-maker/{Path(value).name}"
        (pair.path / "config.json").write_text(json.dumps(content))
    section = DOCS.read_text().partition("## Importing published pairs")[2]
    commands = re.findall(r"condensery (models import .+)", section.replace("\\\n", ""))
    assert {shlex.split(command)[2] for command in commands} == set(made)
    for command in commands:
        assert main([*shlex.split(command), "--store", str(tmp_path / "own")]) == 0, command
        assert " version 1 (oscar-pair): " in capsys.readouterr().out
