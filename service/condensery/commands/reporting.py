"""``condensery models report``: what a model was measured at, from a store or from a server."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from condensery.commands.connecting import add_server, connect
from condensery.commands.printing import extra, say
from condensery.errors import CondenseryError, InputError
from condensery.values import ModelReport


class Source(Protocol):
    """Where a report is read: a client has these methods."""

    def report(self, name: str, /) -> ModelReport:
        """Return the report."""
        ...

    def report_card(self, name: str, /) -> str:
        """Return the card."""
        ...

    def report_plot(self, name: str, plot: str, /) -> bytes:
        """Return a plot."""
        ...


class Stored:
    """Reads reports of the stores that ``args`` name, as a client does of a server."""

    def __init__(self, args: argparse.Namespace) -> None:
        from condensery.commands.models import open_store

        with extra("serve"):
            from condensery.store.reports import StoredReport
        self._stored = StoredReport(open_store(args).open(args.name, check=False))

    def report(self, name: str, /) -> ModelReport:
        """Return the report."""
        del name
        return self._stored.report()

    def report_card(self, name: str, /) -> str:
        """Return the card."""
        del name
        return self._stored.card()

    def report_plot(self, name: str, plot: str, /) -> bytes:
        """Return a plot."""
        del name
        return self._stored.plot(plot)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments; those of the store are added for all of ``models``."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--format", choices=("json", "markdown"), default="json")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write the plots there, as PNG")
    add_server(parser, needed=False)
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    """Print a report or a card."""
    if args.url is None and args.grpc is None:
        _print(args, Stored(args))
        return 0
    for flag in ("store", "data_dir"):
        if getattr(args, flag) is not None:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: it can't be given with --url or --grpc", field=flag)
    with connect(args) as client:
        _print(args, client)
    return 0


def _print(args: argparse.Namespace, source: Source) -> None:
    found = source.report(args.name)
    if args.format == "markdown":
        print(source.report_card(args.name), end="")
    else:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    if args.plots is not None:
        _write(args.plots, {name: source.report_plot(args.name, name) for name in found.plots})


def _write(folder: Path, plots: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in plots.items():
            (folder / f"{name}.png").write_bytes(content)
    except OSError as error:
        raise CondenseryError(f"--plots: {folder} can't be written: {error.strerror}") from error
    say(f"{len(plots)} plots in {folder}")
