"""What is done on a terminal alone."""

import io
import sys
from typing import Any

import pytest

from condensery.cli import main
from condensery.commands.terminal import paint

PAINTED = "\x1b[1mtext\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "shown"),
    [
        (Terminal(), {"TERM": "xterm"}, PAINTED),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, PAINTED),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, "text"),
        (Terminal(), {"TERM": "dumb"}, "text"),
        (Terminal(), {}, "text"),
        (io.StringIO(), {"TERM": "xterm"}, "text"),
    ],
)
def test_a_terminal_gets_colours_unless_it_has_none_or_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch, stream: Any, environment: dict[str, str], shown: str
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert paint("text", "bold", stream) == shown


@pytest.mark.parametrize(
    ("stdin", "flags", "asks", "drops"),
    [
        (Terminal("y\n"), [], True, True),
        (Terminal("Yes\n"), [], True, True),
        (Terminal("n\n"), [], True, False),
        (Terminal("\n"), [], True, False),
        (Terminal(""), [], True, False),
        (Terminal("n\n"), ["--yes"], False, True),
        (io.StringIO("n\n"), [], False, True),
    ],
)
def test_an_index_is_dropped_on_a_terminal_only_after_a_yes(
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: Any,
    flags: list[str],
    asks: bool,
    drops: bool,
) -> None:
    stdin.seek(0)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["index", "drop", "notes", *flags]) == (0 if drops else 1)
    assert (("drop_index", ("notes",), {}) in client.asked) is drops
    assert ("[y/N]" in capsys.readouterr().err) is asks
