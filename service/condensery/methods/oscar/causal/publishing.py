"""A trained pair of causal language models into the model store, adapters merged."""

import argparse
import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.oscar.card import measured
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.built import PATHS
from condensery.methods.oscar.causal.card import card
from condensery.methods.oscar.causal.network import merged, new_pair
from condensery.methods.oscar.causal.runs import (
    Run,
    last_checkpoint,
    open_bases,
    read_run,
    restore,
)
from condensery.methods.oscar.measured import check_report, read_report
from condensery.methods.oscar.reporting import add_report
from condensery.methods.trainer.commands import without_folders
from condensery.methods.trainer.progress import read_log
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.store.manifest import CARD, Manifest, Provenance, StoredModel
from condensery.store.published_pairs import PublishedPair, write_pair
from condensery.store.store import ModelStore, check_name

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
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
    found = [row["validation"] for row in read_log(out) if "validation" in row]
    notes = () if rerank or isinstance(shape.compressor, CompressorShape) else (UNTAUGHT,)
    with tempfile.TemporaryDirectory(prefix="condensery-") as folder:
        aside = Path(folder)
        written = write_pair(
            PublishedPair(
                shape=shape,
                configs=(bases.configs[0].to_dict(), bases.configs[1].to_dict()),
                tokenizers=(bases.reading, bases.tokenizer),
                tensors=((n, t.to(dtype)) for n, t in merged(pair, rerank=shape.compressor.rerank)),
            ),
            aside,
        )
        told = provenance_facts(run, bases, checkpoint.step, found[-1] if found else {})
        (aside / "recipe.json").write_text(
            json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        manifest = Manifest(
            name=name,
            kind="oscar-pair",
            method="oscar",
            max_tokens=shape.compressor.text_tokens,
            dtype=written.dtype,
            shape=shape.to_dict(),
            licence=licence,
            provenance=Provenance(
                command=told["command"],
                data=data_of(told),
                seed=run.recipe.seed,
                source=", ".join(f"{k} {v}" for k, v in told["bases"].items()),
                notes=notes,
            ),
            quality={"in_training": told["figures"]} if told["figures"] else {},
            cost={"parameters": written.parameters},
        )
        files = written.files | {"recipe.json": aside / "recipe.json"}
        lines: list[str] = []
        if report is not None:
            added = add_report(report, manifest, files, aside)
            manifest, files = added.manifest, files | dict(added.files)
            lines = measured(added.report, added.plots, manifest)
        files[CARD] = aside / CARD
        files[CARD].write_text(
            card(name, told, shape, licence=licence, notes=notes, measured=lines), encoding="utf-8"
        )
        return store.publish(files, manifest)


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
        "figures": {k: v for k, v in figures.items() if k != "samples"},
    }


def _begun(begun: dict[str, Any]) -> dict[str, Any]:
    earlier = begun["begun"]
    return {
        **begun,
        "command": without_folders(begun["command"]),
        "begun": None if earlier is None else _begun(earlier),
    }


def data_of(told: dict[str, Any]) -> tuple[str, ...]:
    """Return the data of a run and of those it began from, the first first."""
    said: list[str] = []
    stage: dict[str, Any] | None = told
    while stage:
        data = stage["data"]
        said.append(f"{', '.join(data['files'])} ({data['licence']})")
        stage = stage.get("begun")
    return tuple(reversed(said))


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery publish oscar-causal``."""
    parser = argparse.ArgumentParser(prog="condensery publish oscar-causal", description=__doc__)
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
