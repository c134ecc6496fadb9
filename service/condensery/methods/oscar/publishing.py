"""A trained pair into the model store in one step: int8 weights, tokenizer, report, card, plots."""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.oscar.card import CardFacts, card
from condensery.methods.oscar.evaluating.parts import MADE, read_parts
from condensery.methods.oscar.measured import Report, check_report, read_report
from condensery.methods.oscar.reporting import add_report
from condensery.methods.oscar.sources import Source, licence_of, read_sources
from condensery.methods.oscar.starting import COMMAND, DATA
from condensery.methods.trainer.checkpoints import Checkpoint, latest
from condensery.methods.trainer.publishing import publication
from condensery.methods.trainer.reports import without_folders
from condensery.networks.oscar_shape import OscarShape
from condensery.parsers import Parser
from condensery.store.importing import import_minilm
from condensery.store.manifest import CARD, REPORT, Manifest, Provenance, StoredModel, plot_name
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore, check_name
from condensery.store.weights import save_state

ENDS = "compressor.pointer.span.bias"  # of where an answer starts, and of where it ends


@dataclass(frozen=True, slots=True)
class Run:
    """What a training run left, checked.

    Attributes:
        checkpoint: Its last.
        shape: The pair's.
        recipe: How it was trained.
        steps: Done.
        data: What ``data.json`` says.
        command: What trained it and what it goes on from, a line each, without folders.
        origin: Where its first weights come from, by what it is.
    """

    checkpoint: Checkpoint
    shape: OscarShape
    recipe: dict[str, Any]
    steps: int
    data: dict[str, Any]
    command: str
    origin: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run's folder.

        Raises:
            InputError: It holds no checkpoint, or one of another method; the message says which.
        """
        checkpoint = latest(folder)
        if checkpoint is None:
            raise _wrong(folder, "holds no checkpoint")
        state = checkpoint.state()
        shape, recipe = state.get("shape"), state.get("recipe")
        if not isinstance(shape, dict) or not isinstance(recipe, dict):
            raise _wrong(folder, f"{checkpoint.path.name} is not of condensery train oscar")
        try:
            dimensions = OscarShape.from_dict(shape)
        except (TypeError, ValueError) as error:
            raise _wrong(folder, f"its shape is not that of a small pair: {error}") from error
        try:
            data = json.loads((folder / DATA).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _wrong(folder, f"{DATA} can't be read: {error}") from error
        mix = state.get("mix", {})
        origin = dict(state.get("origin", {}))
        before = [without_folders(line) for line in origin.pop("commands", ())]
        return cls(
            checkpoint,
            dimensions,
            {**recipe, "mix": mix} if mix else recipe,
            int(state["step"]),
            data,
            _command(folder) or "\n".join((*before, command(recipe))),
            origin,
        )


def publish(
    run: Path,
    base: StoredModel,
    store: ModelStore,
    *,
    name: str,
    report: dict[str, Any] | None = None,
    licence: str | None = None,
    licences: dict[str, str] | None = None,
    sharp: bool = False,
    quote: bool = False,
    end_offset: float = 0.0,
    notes: Sequence[str] = (),
) -> StoredModel:
    """Publish the last checkpoint of a training run, whole or not at all.

    Matrices become int8 with a scale a row, all else bf16; the word embeddings stay with ``base``.
    With a report come ``report.json``, its card and its plots, the manifest's figures and the
    pair's defaults (``choosing.defaults``); none of them changes the fingerprint.

    Args:
        run: The run's folder.
        base: The encoder that the compressor started from.
        store: Its own root receives the pair.
        name: What the pair is called.
        report: The JSON that ``condensery eval oscar`` wrote of this pair.
        licence: The weights'; None takes what the data sets ask for.
        licences: Of data sets whose licences are not known here, by the names that the run has.
        sharp: Whether its pointer takes the likeliest walk alone, though it learnt with all.
        quote: Whether its answers are held to the words of what they read.
        end_offset: Added to the logit by which a pointer that walks ends an answer: learnt with all
            walks mixed, it ends too late or too early where it takes the likeliest alone.
        notes: What else to say of how it was made, a sentence each.

    Raises:
        InputError: The folder holds no checkpoint of such a pair, or the report is none of format
            2, or of another pair: its fingerprint is not that of what would be published.
        StoreError: The store refused.
    """
    check_name(name)
    if report is not None:
        check_report(report)  # again below: this is before the work
    trained = Run.read(run)
    shape = replace(trained.shape, sharp=sharp, quote=quote)
    sources, others = read_sources(trained.data, licences)
    tensors = trained.checkpoint.weights()
    if end_offset:
        if not shape.walk or not math.isfinite(end_offset):
            raise InputError(
                f"end_offset={end_offset:g}: needs a pointer that walks, and a finite number",
                field="end_offset",
                value=end_offset,
            )
        tensors[ENDS] = tensors[ENDS] + torch.tensor([0.0, end_offset])  # starts, ends
    matrices = [n for n, t in tensors.items() if t.ndim == 2 and min(t.shape) > shape.slots]
    tensors = {n: t if n in matrices else t.bfloat16() for n, t in tensors.items()}
    licence = licence or licence_of(sources)
    manifest = _manifest(name, licence, trained, base, shape, sources, tensors, notes)
    existing = {file: base.path / file for file in ("tokenizer.json", "config.json")}
    with publication(existing | {DATA: run / DATA}) as pair:
        save_state(pair.folder, tensors, int8_names=matrices)
        pair.add_written()
        served = {"end_offset": end_offset} if end_offset else {}
        pair.add_json("recipe.json", {**trained.recipe, **served, "steps_done": trained.steps})
        measured: Report | None = None
        plots: tuple[str, ...] = ()
        if report is not None:
            added = add_report(report, manifest, pair)
            manifest, measured, plots = added.manifest, added.report, added.plots
        facts = CardFacts(manifest, sources, others, trained.steps, base.manifest.licence)
        return pair.publish(store, manifest, card(facts, measured, plots))


def _manifest(
    name: str,
    licence: str,
    trained: Run,
    base: StoredModel,
    shape: OscarShape,
    sources: Sequence[Source],
    tensors: Mapping[str, Tensor],
    notes: Sequence[str],
) -> Manifest:
    return Manifest(
        name=name,
        kind="oscar-pair",
        method="oscar",
        base=base.name,
        base_fingerprint=base.manifest.fingerprint,
        max_tokens=shape.query_tokens + shape.passage_tokens + 3,
        dtype="int8",
        shape=shape.to_dict(),
        licence=licence,
        provenance=Provenance(
            command=trained.command,
            data=tuple(source.line for source in sources),
            seed=trained.recipe.get("seed"),
            source=base.name,
            notes=(*(f"{n.replace('_', ' ')}: {v}" for n, v in trained.origin.items()), *notes),
        ),
        cost={"parameters": sum(tensor.numel() for tensor in tensors.values())},
    )


def _with_parts(report: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with parts in the place of those it has; how each was made stays."""
    made = {**report.get(MADE, {}), **parts.get(MADE, {})}
    return {**report, **parts, **({MADE: made} if made else {})}


def publish_again(
    name: str,
    store: ModelStore,
    *,
    parts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> StoredModel:
    """Publish a stored pair's next version: the same weights, and what is said of them anew.

    Card, plots and the manifest's figures are made again from its report and ``data.json``.

    Args:
        name: The stored pair's.
        store: Has it, in either root; its own root receives the version.
        parts: Parts of a report, or a whole one: they take the place of those it has.
        notes: What else to say of how it was made, a sentence each.

    Raises:
        ReportNotFound: It was never measured.
        InputError: It was not published by ``publish``, or a part is of another pair.
        CorruptModel: A file is not the one that was published.
        StoreError: The store refused.
    """
    stored = store.open(name)
    if DATA not in stored.manifest.files:
        raise InputError(
            f"again: {name!r} has no {DATA}: condensery publish oscar did not make it",
            field="again",
            value=name,
        )
    report = _with_parts(StoredReport(stored).report().report, parts or {})
    _check_ranked(report, stored.manifest.fingerprint)
    data = json.loads((stored.path / DATA).read_text(encoding="utf-8"))
    own = stored.manifest.provenance
    sources, others = read_sources(data, _licences(data, own.data))
    provenance = own.model_copy(update={"notes": (*own.notes, *notes)})
    manifest = stored.manifest.model_copy(update={"provenance": provenance})
    kept = {
        file: stored.path / file
        for file in manifest.files
        if file not in (CARD, REPORT) and plot_name(file) is None
    }
    base = store.open(manifest.base) if manifest.base else None
    steps = json.loads((stored.path / "recipe.json").read_text()).get("steps_done")
    with publication(kept) as pair:
        added = add_report(report, manifest, pair)
        licence = base.manifest.licence if base else ""
        facts = CardFacts(added.manifest, sources, others, steps, licence)
        return pair.publish(store, added.manifest, card(facts, added.report, added.plots))


def _check_ranked(report: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse rankings by another pair."""
    for name, ranking in report.get("rerank", {}).items():
        by = ranking.get("pair", {}).get("fingerprint", fingerprint)
        if by != fingerprint:
            raise InputError(
                f"part: rerank.{name} was ranked by {by}, and this pair is {fingerprint}",
                field="part",
                value=by,
            )


def _licences(data: Mapping[str, Any], lines: Sequence[str]) -> dict[str, str]:
    """Return the licences that provenance tells of sets that are not known here."""
    unknown = {source.name: source for source in read_sources(data)[0] if not source.is_known}
    return {
        name: line.removeprefix(f"{source.title} (").removesuffix(")")
        for name, source in unknown.items()
        for line in lines
        if line.startswith(f"{source.title} (")
    }


def _wrong(folder: Path, why: str) -> InputError:
    return InputError(f"run: {str(folder)!r} {why}", field="run", value=str(folder))


def _command(run: Path) -> str:
    """Return the command lines that the run wrote down, one each; "" if it wrote none."""
    try:
        lines = (run / COMMAND).read_text(encoding="utf-8").splitlines()
        return "\n".join(without_folders(line) for line in lines if line.strip())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise _wrong(run, f"{COMMAND} can't be read: {error}") from error


def command(recipe: dict[str, Any]) -> str:
    """Return the command line that trains with ``recipe``, where a run wrote none down."""
    flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in recipe.items())
    return f"condensery train oscar --base MINILM --data DATA --out RUN {flags}"


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = Parser(prog="condensery publish oscar", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="the training run's folder")
    source.add_argument(
        "--again",
        metavar="NAME",
        help="a stored pair: its weights as they are, what is said of them anew (--part, --note)",
    )
    parser.add_argument("--name", help="what the pair is called; with --run")
    parser.add_argument("--store", type=Path, required=True, help="root to publish into")
    parser.add_argument(
        "--part",
        type=Path,
        action="append",
        default=[],
        help="with --again: JSON of condensery eval rerank or extractive-reader; its part of the "
        "report takes the stored one's place; may be given again",
    )
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        help="what else to say of how it was made; may be given again",
    )
    parser.add_argument("--base-store", type=Path, help="root of minilm-l6 (default: --store)")
    parser.add_argument(
        "--report",
        type=Path,
        help="JSON of condensery eval oscar; with --again the stored one has what it lacks",
    )
    parser.add_argument("--licence", help="of the weights (default: what the data sets ask for)")
    parser.add_argument(
        "--data-licence",
        action="append",
        default=[],
        metavar="SET=LICENCE",
        help="of a data set that data.json names and we don't know; may be given again",
    )
    parser.add_argument(
        "--sharp",
        action="store_true",
        help="let a pointer that walks take the likeliest walk alone (all of them, mixed)",
    )
    parser.add_argument(
        "--end-offset",
        type=float,
        default=0.0,
        help="add to the logit by which a pointer that walks ends an answer (0)",
    )
    parser.add_argument(
        "--quote",
        action="store_true",
        help="hold answers to the words of the passages read, one stretch of them",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery publish oscar``."""
    parser = make_parser()
    args = parser.parse_args(argv)
    report = read_report(args.report)[1] if args.report else None
    if args.again is not None:
        _refuse_others(
            parser,
            args,
            "--again",
            ("name", "licence", "data_licence", "sharp", "quote", "end_offset"),
        )
        stored = publish_again(
            args.again,
            ModelStore(args.base_store, args.store),
            parts={**(report or {}), **read_parts(args.part)},
            notes=args.note,
        )
        _print_published(stored)
        return
    _refuse_others(parser, args, "--run", ("part",))
    if args.name is None:
        parser.error("--run needs --name")
    licences = dict(_pair(text) for text in args.data_licence)
    base = import_minilm(ModelStore(None, args.base_store or args.store))
    store = ModelStore(base.root, args.store)
    stored = publish(
        args.run,
        base,
        store,
        name=args.name,
        report=report,
        licence=args.licence,
        licences=licences,
        sharp=args.sharp,
        quote=args.quote,
        end_offset=args.end_offset,
        notes=args.note,
    )
    _print_published(stored)


def _refuse_others(
    parser: argparse.ArgumentParser, args: argparse.Namespace, source: str, names: Sequence[str]
) -> None:
    for name in names:
        if getattr(args, name):
            parser.error(f"--{name.replace('_', '-')} does not apply to {source}")


def _print_published(stored: StoredModel) -> None:
    line = f"{stored.name} version {stored.version}: {stored.path}\n{stored.manifest.fingerprint}\n"
    sys.stdout.write(line)


def _pair(text: str) -> tuple[str, str]:
    name, _, licence = text.partition("=")
    if not name or not licence.strip():
        raise InputError(
            f"data-licence: {text!r} is not SET=LICENCE", field="data-licence", value=text
        )
    return name, licence.strip()


if __name__ == "__main__":
    main()
