"""What every command line does with a word that it does not know, and at the tab key."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.cli import main
from condensery.parsers import Parser


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("embd text", "embed"),
        ("index drpo notes", "drop"),
        ("train oscr", "oscar"),
        ("help indx", "index"),
        ("index create notes --kind hnws", "hnsw"),
        ("embed text --modle x", "--model"),
        ("index query notes text --topk=3", "--top-k"),
        ("serve --prot 9090", "--port"),
        ("settings --hots here", "--host"),
        ("eval rag --index a --questions b --out c --pasage-field d", "--passage-field"),
    ],
)
def test_a_word_that_is_not_known_gets_the_nearest_one(
    capsys: pytest.CaptureFixture[str], line: str, meant: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


def test_a_word_that_is_near_to_nothing_gets_no_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in (["quux"], ["embed", "text", "--quux"], ["classify", "text", "--grpc", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main(line)
        assert "did you mean" not in capsys.readouterr().err


def test_what_a_command_reads_itself_is_passed_on() -> None:
    parser = Parser()
    parser.set_defaults(takes_rest=True)
    assert parser.parse_known_args(["--unknown", "1"])[1] == ["--unknown", "1"]


def complete(line: str, file: Path) -> list[str]:
    """Ask as the shell's script does: by the environment, without arguments."""
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "_ARGCOMPLETE_IFS": " ",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    code = "from condensery.cli import main; main([])"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, check=True)
    return file.read_text().split()


@pytest.mark.parametrize(
    ("line", "goes_on"),
    [
        ("condensery em", ["embed"]),
        ("condensery index d", ["delete", "drop"]),
        ("condensery index create notes --kind ", ["flat", "hnsw", "ivf_pq"]),
        ("condensery serve --grpc-p", ["--grpc-port"]),  # a parser of its own
        ("condensery help index re", ["restore", "rebuild"]),
    ],
)
def test_a_line_is_completed_by_commands_actions_values_and_flags(
    tmp_path: Path, line: str, goes_on: list[str]
) -> None:
    assert complete(line, tmp_path / "answer") == goes_on


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_for_a_shell_completes_condensery(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in (script := capsys.readouterr().out)
    assert "condensery" in script
