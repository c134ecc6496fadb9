"""A trained pair into the model store: int8 weights, tokenizer, card."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from condensery.methods.oscar.checkpoint import NAME
from condensery.networks.oscar_shape import OscarShape
from condensery.store.manifest import Manifest, Provenance, StoredModel
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


def publish(run: Path, base: StoredModel, store: ModelStore, *, name: str) -> StoredModel:
    """Publish the checkpoint of a training run.

    Matrices become int8 with a scale a row; the word embeddings stay with ``base``.

    Args:
        run: The run's folder.
        base: The encoder that the compressor started from.
        store: Its own root receives the pair.
        name: What the pair is called.
    """
    state = json.loads((run / NAME / "state.json").read_text())
    shape = OscarShape.from_dict(state["shape"])
    tensors = load_file(run / NAME / "pair.safetensors")
    matrices = [n for n, t in tensors.items() if t.ndim == 2 and min(t.shape) > shape.slots]
    recipe = {**state["recipe"], "steps_done": state["step"]}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        save_state(files, tensors, int8_names=matrices)
        shutil.copy(base.path / "tokenizer.json", files)
        shutil.copy(base.path / "config.json", files)
        (files / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
        shutil.copy(run / "data.json", files)
        manifest = Manifest(
            name=name,
            kind="oscar-pair",
            method="oscar",
            base=base.name,
            max_tokens=shape.query_tokens + shape.passage_tokens + 3,
            dtype="int8",
            shape=shape.to_dict(),
            licence=LICENCE,
            provenance=Provenance(
                command=command(recipe), data=DATA, seed=recipe["seed"], source=base.name
            ),
            cost={"parameters": sum(t.numel() for t in tensors.values())},
        )
        return store.publish(files, manifest)


def command(recipe: dict[str, Any]) -> str:
    """Return the command line that trains with ``recipe``."""
    flags = " ".join(
        f"--{key.replace('_', '-')} {value}" for key, value in recipe.items() if key != "steps_done"
    )
    return f"condensery train oscar --base MINILM --data DATA --out RUN {flags}"
