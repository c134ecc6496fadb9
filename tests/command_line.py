"""The command line, run in the tests' own process: a process for each command costs a second."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from condensery.cli import main


@dataclass(frozen=True)
class Ended:
    """What a command wrote."""

    stdout: str
    stderr: str


def run(*arguments: str, stdin: str | bytes = b"", status: int = 0) -> Ended:
    """Run a command in this process, with pipes for its streams; it must end with ``status``."""
    content = stdin.encode() if isinstance(stdin, str) else stdin
    pipes = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8")),
        redirect_stdout(pipes[0]),
        redirect_stderr(pipes[1]),
        patch.dict(os.environ, COLUMNS="100"),
    ):
        try:
            ended: Any = main(arguments)
        except SystemExit as left:
            ended = left.code
    out, err = (_written(pipe) for pipe in pipes)
    assert ended == status, err
    assert "Traceback" not in err
    return Ended(out, err)


def _written(pipe: io.TextIOWrapper) -> str:
    pipe.seek(0)
    return pipe.read()
