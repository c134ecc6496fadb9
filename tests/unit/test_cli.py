import json
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.cli import main

COMMANDS = [
    ["serve"],
    ["settings"],
    ["keys", "new"],
    ["ask"],
    ["compress"],
    ["embed"],
    ["rerank"],
    ["cost", "oscar"],
    *(["index", a] for a in ("create", "add", "query", "count", "delete", "drop", "list")),
    *(["models", a] for a in ("list", "show", "verify", "import")),
    ["completion"],
    ["chat"],
    ["classify"],
    ["tokenize"],
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(arguments)
    except SystemExit as leaving:  # argparse's own way out
        status = int(leaving.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_every_command_explains_itself(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for command in ([], *COMMANDS):
        with subtests.test(" ".join(command)):
            status, out, err = run(capsys, *command, "--help")
            assert (status, err) == (0, "")
            assert " ".join(["usage: condensery", *command]) in out


def test_help_explains_a_command_as_its_flag_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["index", "drop"], ["serve"]):
        assert run(capsys, "help", *words) == run(capsys, *words, "--help")


def test_without_a_word_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys) == run(capsys, "--help")


def test_a_command_of_commands_alone_is_wrong_and_lists_them(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for words in (["index"], ["index", "alias"], ["models"], ["train"]):
        with subtests.test(" ".join(words)):
            _, listed, _ = run(capsys, *words, "--help")
            status, out, err = run(capsys, *words)
            assert (status, out) == (2, "")
            assert err.startswith(listed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["asking"],
        ["help", "nonsense"],
        ["ask"],
        ["ask", "a question", "--top-k", "many"],
        ["ask", "a question", "--nonsense"],
        ["ask", "a question", "--url", "http://a", "--grpc", "b:1"],
        ["ask", "a question", "--index", "a", "--context", "b"],
        ["ask", "a question", "--no-compress", "--compare"],
        ["ask", "a question", "--search", "fuzzy"],
        ["ask", "a question", "--filter", "{must: []}"],
        ["index", "query", "kb", "a question", "--filter", "[]"],
        ["compress", "a question"],
        ["index", "create"],
        ["train"],
        ["cost", "oscar"],
        ["serve", "--nonsense"],
        ["serve", "--api-key", "0123456789abcdef"],
        ["settings", "--nonsense"],
        ["keys", "new", "me"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "error: " in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["embed"], "no texts"),
        (["embed", "--file", "no/such/file"], "no/such/file: can't be read: No such file"),
        (["embed", "x", "--url", "ftp://here"], "'ftp://here' is not an http(s) address"),
        (["embed", "x", "--out", "no/such/x.npy"], "no/such/x.npy can't be written: No such file"),
        (["ask", "x", "--temperature", "3"], "temperature=3.0 is not 0 to 2"),
        (["compress", "x", "no/such/file"], "no/such/file: can't be read: No such file"),
        (["index", "add", "-"], "give NAME"),
        (["index", "add", "kb", "no/such/file"], "no/such/file: can't be read: No such file"),
        (["models", "show", "nobody"], "no model 'nobody'"),
        (["models", "import", "no/such/folder", "--name", "x"], "no/such/folder"),
        (["models", "list", "--store", __file__], "test_cli.py"),
        (["serve", "--port", "70000"], "--port: '70000' is not allowed"),
        (["settings", "--port", "70000"], "--port: '70000' is not allowed"),
        (["settings", "--keys-file", "no/file"], "keys_file: no/file: it can't be read"),
        (["keys", "new", "a b", "--scopes", "infer"], "NAME: 'a b' is not allowed"),
        (["keys", "new", "me", "--scopes", "all"], "--scopes: 'all' is not allowed: scopes are"),
        (["ask", "caf\udce9"], "is not UTF-8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_failure_is_1_and_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.setenv("CONDENSERY_DATA_DIR", str(tmp_path))
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("condensery: ")
    assert says in line


def test_where_nobody_listens_the_address_is_named_and_how_to_start_a_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for address in (["--url", "127.0.0.1:9"], ["--grpc", "127.0.0.1:9"]):
        status, _, err = run(capsys, "index", "list", *address)
        assert status == 1
        assert "127.0.0.1:9: " in err
        assert "`condensery serve`" in err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0
    assert out.startswith("condensery ")
    assert run(capsys, "-V") == run(capsys, "version") == (0, out, "")


def test_models_are_imported_listed_shown_and_verified(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store_with_pair: Path
) -> None:
    (source,) = (store_with_pair / "minilm-l6").iterdir()
    own = ["--store", str(tmp_path / "own")]
    status, out, _ = run(capsys, "models", "import", str(source), "--name", "mine", *own)
    assert status == 0
    assert out.startswith("mine version 1 (encoder): ")

    status, out, err = run(capsys, "models", "list", *own)
    assert (status, err) == (0, "")
    assert any(line.split()[:3] == ["mine", "1", "encoder"] for line in out.splitlines())

    status, out, _ = run(capsys, "models", "show", "mine", *own)
    manifest = json.loads(out)
    assert manifest["name"] == "mine"
    assert manifest["fingerprint"].startswith("sha256:")

    status, out, _ = run(capsys, "models", "verify", "mine", *own)
    assert (status, "as they should be" in out) == (0, True)


def test_a_model_that_was_altered_is_named_with_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store_with_pair: Path
) -> None:
    (source,) = (store_with_pair / "minilm-l6").iterdir()
    own = ["--store", str(tmp_path / "own")]
    run(capsys, "models", "import", str(source), "--name", "mine", *own)
    file = tmp_path / "own" / "mine" / "1" / "tokenizer.json"
    file.chmod(0o644)
    file.write_text(file.read_text().replace("river", "rivet"))

    status, out, err = run(capsys, "models", "list", *own)
    assert status == 0
    assert "mine: refused: " in err
    assert "tokenizer.json" in err
    status, out, _ = run(capsys, "models", "verify", *own)
    assert status == 1
    assert "mine: broken: " in out
    status, _, err = run(capsys, "models", "verify", "mine", *own)
    assert status == 1
    assert "tokenizer.json" in err


@pytest.mark.parametrize("command", ["train", "distil", "eval", "publish"])
def test_a_methods_own_arguments_reach_it(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = run(capsys, command, "oscar", "--help")
    assert status == 0
    assert out.startswith(f"usage: condensery {command} oscar")


def test_listing_methods_needs_no_torch_and_no_settings() -> None:
    code = (
        "import sys; from condensery.cli import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'pydantic' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "oscar" in done.stdout


def test_a_missing_package_is_said_with_the_extra_that_brings_it() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from condensery.cli import main; sys.exit(main(['serve']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert "pip install 'condensery[serve]'" in done.stderr
    assert "Traceback" not in done.stderr
