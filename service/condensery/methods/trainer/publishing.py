"""What comes of a run: its model's folder with a card, and its way into a store.

Each is written aside and appears whole or not at all.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from condensery.atomic_files import atomic_folder
from condensery.errors import InputError
from condensery.methods.trainer.method import TrainingSetup

if TYPE_CHECKING:  # the store needs pydantic, which is absent where runs are only trained
    from condensery.store.manifest import Manifest, StoredModel
    from condensery.store.store import ModelStore

MODEL, CARD_FIGURES = "model", "card.json"  # of a run's folder
LIBRARIES = ("condensery", "torch", "transformers")


def versions(*more: str) -> dict[str, str]:
    """Return the versions of the libraries that made a model."""
    return {name: version(name) for name in (*LIBRARIES, *more)}


def training_facts(recipe: Any, setup: TrainingSetup) -> dict[str, Any]:
    """Return what every card says of a training: recipe, batches a step, command, seed, versions.

    Args:
        recipe: A dataclass with ``accumulate`` and ``seed``.
        setup: Of the run.
    """
    return {
        "recipe": asdict(recipe),
        "batches_a_step": recipe.accumulate * setup.processes.count,
        "command": setup.command,
        "seed": recipe.seed,
        "versions": versions(),
    }


def recipe_identity(recipe: Any, *free: str) -> dict[str, Any]:
    """Return a recipe as a resumed run must share it: without ``accumulate`` and what is free."""
    return {name: v for name, v in asdict(recipe).items() if name not in ("accumulate", *free)}


def write_json(path: Path, value: Any) -> None:
    """Write a value as UTF-8 JSON that people can read.

    Raises:
        ValueError: It holds a number that is not finite.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def model_folder(out: Path, card: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder that becomes ``out/model``, with ``card.json``, in place of an earlier one."""
    with atomic_folder(out / MODEL) as folder:
        yield folder
        write_json(folder / CARD_FIGURES, card)


@dataclass(frozen=True, slots=True)
class Publication:
    """A model's files on their way into a store.

    Attributes:
        folder: Where new files are written.
        files: All of them, by the name to store them under.
    """

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)

    def add(self, name: str, content: str) -> None:
        """Add a text file."""
        (self.folder / name).write_text(content, encoding="utf-8")
        self.files[name] = self.folder / name

    def add_json(self, name: str, value: Any) -> None:
        """Add a value as JSON."""
        write_json(self.folder / name, value)
        self.files[name] = self.folder / name

    def add_written(self) -> None:
        """Add what others wrote into the folder."""
        self.files.update({path.name: path for path in self.folder.iterdir() if path.is_file()})

    def publish(self, store: "ModelStore", manifest: "Manifest", card: str | None) -> "StoredModel":
        """Publish it all with a card, Markdown, whole or not at all.

        Raises:
            StoreError: The store refused.
        """
        from condensery.store.manifest import CARD  # late: see above

        if card is not None:
            self.add(CARD, card)
        return store.publish(self.files, manifest)


@contextmanager
def publication(files: Mapping[str, Path] | None = None) -> Iterator[Publication]:
    """Gather a model's files, with those of ``files`` as they are; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="condensery-") as folder:
        yield Publication(Path(folder), dict(files or {}))


def check_finite(weights: Mapping[str, Tensor]) -> None:
    """Check weights before they are published.

    Raises:
        InputError: One is not finite; named.
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name}: holds values that are not finite", field=name)
