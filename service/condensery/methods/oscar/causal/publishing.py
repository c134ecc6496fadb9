"""A trained pair of causal language models into the model store, adapters merged."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.oscar.card import measured
from condensery.methods.oscar.causal.building import PATHS, Bases
from condensery.methods.oscar.causal.network import merged, new_pair
from condensery.methods.oscar.causal.runs import Run, last_checkpoint, open_bases, read_run, restore
from condensery.methods.oscar.measured import check_report, read_report
from condensery.methods.oscar.reporting import add_report
from condensery.methods.trainer.progress import validation_curve
from condensery.methods.trainer.publishing import publication
from condensery.methods.trainer.reports import without_folders
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.parsers import Parser
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.published_pairs import PublishedPair, Written, write_pair
from condensery.store.store import ModelStore, check_name

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
FIGURES = {
    "label": "cross-entropy of held-out labels, nats a token",
    "rerank": "mean squared error of the relevance",
    "first": "questions whose best passage is the teacher's too",
    "em": "exact match with the given answers, %",
    "f1": "F1 with them, %",
}
UNTAUGHT = "Its rerank head was never taught: its scores mean nothing."


def publish(
    out: Path,
    store: ModelStore,
    *,
    name: str,
    licence: str = "unknown",
    dtype: torch.dtype = torch.bfloat16,
    report: dict[str, Any] | None = None,
    moved: dict[str, Path] | None = None,
) -> StoredModel:
    """Publish a run's last checkpoint, whole or not at all.

    A rerank head that was never taught is left out, with its token: under the causal rule the
    memory vectors are the same without it. Only a BERT's stays, and the card says so.

    Args:
        out: The run's folder.
        store: Its own root receives the pair.
        name: What it is called.
        licence: Of its weights.
        dtype: Of the stored weights; adapters are merged in fp32.
        report: The JSON that ``condensery eval oscar`` wrote of this pair.
        moved: Where the directories are that it was built from, if they have moved.

    Raises:
        InputError: The folder holds no such run, its directories are gone, or the report is of
            another pair.
        StoreError: The disk refused.
    """
    check_name(name)
    if report is not None:
        check_report(report)  # again below: this is before the work
    run = read_run(out, moved)
    checkpoint = last_checkpoint(out)
    if run.recipe.stage == "pretrain":
        raise InputError(
            f"run: {out} is pretraining's; fine-tune it first (--from)", field="run", value=str(out)
        )
    bases = open_bases(run)
    pair = new_pair(bases, run.recipe)
    restore(pair, checkpoint.weights(), out)
    shape, rerank = published_shape(bases, run)
    notes = () if rerank or isinstance(shape.compressor, CompressorShape) else (UNTAUGHT,)
    curve = validation_curve(out) or [{}]
    facts = provenance_facts(run, bases, checkpoint.step, curve[-1])
    with publication() as files:
        written = write_pair(_served(pair, bases, shape, dtype), files.folder)
        files.files.update(written.files)
        files.add_json("recipe.json", facts)
        manifest = _manifest(name, shape, facts, written, licence=licence, notes=notes)
        lines: list[str] = []
        if report is not None:
            added = add_report(report, manifest, files)
            manifest, lines = added.manifest, measured(added.report, added.plots, added.manifest)
        text = card(name, facts, shape, licence=licence, notes=notes, measured=lines)
        return files.publish(store, manifest, text)


def _served(
    pair: CausalPair, bases: Bases, shape: CausalShape, dtype: torch.dtype
) -> PublishedPair:
    """Return a pair in training as it is stored: adapters merged, in ``dtype``."""
    weights = merged(pair, rerank=shape.compressor.rerank)
    return PublishedPair(
        shape=shape,
        configs=(bases.configs[0].to_dict(), bases.configs[1].to_dict()),
        tokenizers=(bases.reading, bases.tokenizer),
        tensors=((name, tensor.to(dtype)) for name, tensor in weights),
    )


def _manifest(
    name: str,
    shape: CausalShape,
    facts: dict[str, Any],
    written: Written,
    *,
    licence: str,
    notes: tuple[str, ...],
) -> Manifest:
    return Manifest(
        dtype=written.dtype,
        cost={"parameters": written.parameters},
        name=name,
        kind="oscar-pair",
        method="oscar",
        max_tokens=shape.compressor.text_tokens,
        shape=shape.to_dict(),
        licence=licence,
        provenance=Provenance(
            command=facts["command"],
            data=data_of(facts),
            seed=facts["recipe"]["seed"],
            source=", ".join(f"{half} {base}" for half, base in facts["bases"].items()),
            notes=notes,
        ),
        quality={"in_training": facts["figures"]} if facts["figures"] else {},
    )


def published_shape(bases: Bases, run: Run) -> tuple[CausalShape, bool]:
    """Return the shape to publish, and whether relevance was taught."""
    own = bases.shape.compressor
    if run.reranks or not isinstance(own, CompressorShape):
        return bases.shape, run.reranks
    return CausalShape(replace(own, rerank=False), bases.shape.generator), False


def provenance_facts(run: Run, bases: Bases, steps: int, figures: dict[str, Any]) -> dict[str, Any]:
    """Return what a pair's card and ``recipe.json`` say of its making; no paths."""
    built = {k: v for k, v in run.built.to_dict().items() if k not in PATHS}
    names = {"generator": run.built.generator, "compressor": run.built.compressor or run.built.bert}
    licences = bases.licences
    return {
        "bases": {half: f"{path.name} ({licences[half]})" for half, path in names.items() if path},
        "fingerprints": run.bases,
        "built": built,
        "recipe": {f.name: getattr(run.recipe, f.name) for f in fields(run.recipe)},
        "steps_done": steps,
        "data": run.data,
        "begun": None if run.begun is None else _begun(run.begun),
        "command": without_folders(run.command),
        "versions": run.versions,
        "figures": {k: v for k, v in figures.items() if k not in ("samples", "step")},
    }


def _begun(begun: dict[str, Any]) -> dict[str, Any]:
    earlier = begun["begun"]
    return {
        **begun,
        "command": without_folders(begun["command"]),
        "begun": None if earlier is None else _begun(earlier),
    }


def data_of(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the data of a run and of those it began from, the first first."""
    lines: list[str] = []
    stage: dict[str, Any] | None = facts
    while stage:
        data = stage["data"]
        lines.append(f"{', '.join(data['files'])} ({data['licence']})")
        stage = stage.get("begun")
    return tuple(reversed(lines))


def card(
    name: str,
    facts: dict[str, Any],
    shape: CausalShape,
    *,
    licence: str,
    notes: Sequence[str],
    measured: Sequence[str] = (),
) -> str:
    """Write the card as Markdown.

    Args:
        name: The pair's.
        facts: What ``provenance_facts`` gives.
        shape: As published.
        licence: Of its weights.
        notes: What else to say, one sentence each.
        measured: Lines of a report.
    """
    own, figures, data = shape.compressor, facts["figures"], facts["data"]
    scores = "and a relevance score " if own.rerank and not notes else ""
    rows = [f"| {label} | {figures[key]:.3f} |" for key, label in FIGURES.items() if key in figures]
    table = ["| held-out rows, at the last checkpoint | |", "|---|---|", *rows, ""] if rows else []
    counts = {k: v for k, v in data.items() if isinstance(v, int | dict)}
    before, begun = [], facts["begun"]
    if begun:
        data_before = f"{', '.join(begun['data']['files'])} ({begun['data']['licence']})"
        before = [f"- before that, {begun['stage']}: {data_before}, {begun['step']} steps"]
    return "\n".join(
        [
            f"# {name}",
            "",
            "An OSCAR pair (arXiv:2504.07109): a compressor turns a question with a passage into",
            f"{own.vectors[0]} vectors {scores}in one forward pass; a causal language model",
            "answers from the vectors.",
            "",
            *table,
            *(f"{note}\n" for note in notes),
            *measured,
            "## What it was made from",
            "",
            *(f"- {half}: {base}" for half, base in facts["bases"].items()),
            f"- data: {', '.join(data['files'])} ({data['licence']}); {json.dumps(counts)}",
            *before,
            "",
            f"{facts['steps_done']} steps, seed {facts['recipe']['seed']}:",
            "",
            f"    {facts['command']}",
            "",
            "## Licence",
            "",
            licence,
            "",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery publish oscar-causal``."""
    parser = Parser(prog="condensery publish oscar-causal", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the training run's folder")
    parser.add_argument("--name", required=True, help="what the pair is called")
    parser.add_argument("--store", type=Path, required=True, help="root to publish into")
    parser.add_argument("--licence", default="unknown", help="of the pair's weights")
    parser.add_argument("--report", type=Path, help="JSON of condensery eval oscar")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="(bfloat16)")
    for name in PATHS:
        parser.add_argument(f"--{name}", type=Path, help="its directory, if it has moved")
    args = parser.parse_args(argv)
    moved = {name: path for name in PATHS if (path := getattr(args, name)) is not None}
    stored = publish(
        args.run,
        ModelStore(None, args.store),
        name=args.name,
        licence=args.licence,
        dtype=DTYPES[args.dtype],
        report=None if args.report is None else read_report(args.report)[1],
        moved=moved,
    )
    print(f"{stored.name} version {stored.version} is in {stored.path}")  # noqa: T201


if __name__ == "__main__":
    main()
