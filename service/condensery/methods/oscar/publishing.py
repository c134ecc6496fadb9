"""A trained pair into the model store: int8 weights, tokenizer, card."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.oscar.card import card, quality
from condensery.methods.trainer.checkpoints import latest
from condensery.networks.oscar_shape import OscarShape
from condensery.store.importing import import_minilm
from condensery.store.manifest import Defaults, Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import save_state

LICENCE = "cc-by-sa-4.0"  # what SQuAD's text asks of work based on it
DATA = (
    "SQuAD v1.1, a part of train (CC BY-SA 4.0)",
    "QAMR dev (MIT; Wikipedia CC BY-SA, Wikinews CC BY)",
    "FairytaleQA train (Apache-2.0; stories in the public domain)",
    "Wikipedia passages from 2WikiMultihopQA and SQuAD train (CC BY-SA), cloze questions",
    "OpenStax textbooks (CC BY 4.0; OpenStax, Rice University), cloze questions",
)


def publish(
    run: Path,
    base: StoredModel,
    store: ModelStore,
    *,
    name: str,
    report: dict[str, Any] | None = None,
) -> StoredModel:
    """Publish the checkpoint of a training run.

    Matrices become int8 with a scale a row; the word embeddings stay with ``base``.

    Args:
        run: The run's folder.
        base: The encoder that the compressor started from.
        store: Its own root receives the pair.
        name: What the pair is called.
        report: Its measured report, for the card and the manifest.

    Raises:
        InputError: The folder holds no checkpoint.
    """
    checkpoint = latest(run)
    if checkpoint is None:
        raise InputError(f"run: {str(run)!r} holds no checkpoint", field="run", value=str(run))
    state = checkpoint.state()
    shape = OscarShape.from_dict(state["shape"])
    tensors = checkpoint.weights()
    matrices = [n for n, t in tensors.items() if t.ndim == 2 and min(t.shape) > shape.slots]
    recipe = {**state["recipe"], "steps_done": state["step"]}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        save_state(files, tensors, int8_names=matrices)
        shutil.copy(base.path / "tokenizer.json", files)
        shutil.copy(base.path / "config.json", files)
        (files / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
        shutil.copy(run / "data.json", files)
        parameters = sum(tensor.numel() for tensor in tensors.values())
        if report is not None:
            counts = json.loads((run / "data.json").read_text())
            text = card(name, report, command=command(recipe), data=DATA, counts=counts)
            (files / "card.md").write_text(text)
        manifest = Manifest(
            name=name,
            kind="oscar-pair",
            method="oscar",
            base=base.name,
            max_tokens=shape.query_tokens + shape.passage_tokens + 3,
            dtype="int8",
            shape=shape.to_dict(),
            defaults=defaults(report),
            licence=LICENCE,
            provenance=Provenance(
                command=command(recipe), data=DATA, seed=recipe["seed"], source=base.name
            ),
            quality=quality(report) if report is not None else {},
            cost={"parameters": parameters},
        )
        return store.publish(files, manifest)


def defaults(report: dict[str, Any] | None) -> Defaults:
    """Read the best passage alone, if that was measured to answer better than reading five."""
    if report is None:
        return Defaults()
    f1 = {name: setting["f1"] for name, setting in report["settings"].items()}
    best_one = f1["gold_among_five_best_one"] > f1["gold_among_five"]
    return Defaults(top_n=1 if best_one else None)


def command(recipe: dict[str, Any]) -> str:
    """Return the command line that trains with ``recipe``."""
    flags = " ".join(
        f"--{key.replace('_', '-')} {value}" for key, value in recipe.items() if key != "steps_done"
    )
    return f"condensery train oscar --base MINILM --data DATA --out RUN {flags}"


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery publish oscar``."""
    parser = argparse.ArgumentParser(prog="condensery publish oscar", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the training run's folder")
    parser.add_argument("--name", required=True, help="what the pair is called")
    parser.add_argument("--store", type=Path, required=True, help="root to publish into")
    parser.add_argument("--base-store", type=Path, help="root of minilm-l6 (default: --store)")
    parser.add_argument("--report", type=Path, help="JSON of condensery eval oscar")
    args = parser.parse_args(argv)
    base = import_minilm(ModelStore(None, args.base_store or args.store))
    report = json.loads(args.report.read_text()) if args.report else None
    store = ModelStore(base.root, args.store)
    publish(args.run, base, store, name=args.name, report=report)


if __name__ == "__main__":
    main()
