"""What holds of the command line of every method."""

import argparse
from typing import Any

import pytest

from condensery.commands.methods import METHOD_MODULES, run_method
from condensery.parsers import Parser


class _Parsing(Exception):
    pass


def test_a_method_does_nothing_before_it_parses_so_that_a_tab_key_can_begin_it(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    def stop(*_: Any) -> None:
        raise _Parsing

    monkeypatch.setattr(Parser, "parse_args", stop)
    for command, (module, _) in METHOD_MODULES.items():
        with subtests.test(" ".join(command)), pytest.raises(_Parsing):
            run_method(argparse.Namespace(rest=[], module=module))
