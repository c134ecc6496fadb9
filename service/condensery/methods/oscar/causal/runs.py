"""What a run says of itself in ``run.json``: enough to publish it, or to begin another from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.checkpoints import Checkpoint, latest
from condensery.methods.trainer.method import learning_state
from condensery.networks.oscar_causal import CausalPair

NAME = "run.json"


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
        built: What its pair is built from.
        recipe: How it is trained.
        bases: Fingerprints of the directories it is built from.
        data: What it is trained on.
        reranks: Whether its rerank head learnt, in this run or the one it began from.
        begun: The run it began from, as this says it; None for none.
        command: Its command line.
    """

    built: PairSources
    recipe: CausalRecipe
    bases: dict[str, str]
    data: dict[str, Any]
    reranks: bool
    begun: dict[str, Any] | None = None
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, out: Path) -> None:
        """Write it into the run's folder, whole or not at all."""
        values = {name.name: getattr(self, name.name) for name in fields(self)}
        values["built"] = self.built.to_dict()
        values["recipe"] = {f.name: getattr(self.recipe, f.name) for f in fields(self.recipe)}
        write_atomically(out / NAME, json.dumps(values, indent=1, ensure_ascii=False) + "\n")

    def summary(self, step: int) -> dict[str, Any]:
        """Return what a run that begins with this one's weights of ``step`` says of it."""
        return {
            "stage": self.recipe.stage,
            "step": step,
            "data": self.data,
            "command": self.command,
            "begun": self.begun,
        }


def read_run(out: Path, moved: Mapping[str, Path] | None = None) -> Run:
    """Read a run's folder.

    Args:
        out: The folder.
        moved: Where directories are now that have moved since, by ``built.PATHS``.

    Raises:
        InputError: It holds no such run, or a directory is named that it is not built from.
    """
    try:
        values = json.loads((out / NAME).read_text(encoding="utf-8"))
        built = PairSources.from_dict(values.pop("built"))
        run = Run(built=built, recipe=CausalRecipe(**values.pop("recipe")), **values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"run: {out} holds no run of a pair: {NAME}: {error}", field="run", value=str(out)
        ) from error
    for name, path in (moved or {}).items():
        if not getattr(built, name):
            raise InputError(
                f"{name}: the pair of {out} is not built from one", field=name, value=str(path)
            )
    paths: dict[str, Any] = dict(moved or {})
    return replace(run, built=replace(built, **paths))


def last_checkpoint(out: Path) -> Checkpoint:
    """Return a run's last checkpoint.

    Raises:
        InputError: There is none.
    """
    checkpoint = latest(out)
    if checkpoint is None:
        raise InputError(f"run: {out} holds no checkpoint", field="run", value=str(out))
    return checkpoint


def open_bases(run: Run) -> Bases:
    """Open the directories that a run was built from.

    Raises:
        InputError: One is missing, or another than it was.
    """
    bases = Bases(run.built)
    for name, sha256 in bases.fingerprints.items():
        if sha256 != run.bases.get(name):
            raise InputError(
                f"{name}: the directory holds another model than the run was built from",
                field=name,
                value=sha256,
            )
    return bases


def restore(pair: CausalPair, weights: Mapping[str, Tensor], out: Path) -> None:
    """Give a pair the weights that a run learnt.

    Raises:
        InputError: They are not what learns in this pair.
    """
    own = learning_state(pair)
    odd = sorted(weights.keys() ^ own.keys())
    odd += sorted(n for n in weights.keys() & own.keys() if weights[n].shape != own[n].shape)
    if odd:
        raise InputError(
            f"run: in {out} other weights learn than here: {', '.join(odd[:5])}; "
            "generator_tuning and lora_rank must be those of the run",
            field="run",
            value=str(out),
        )
    pair.load_state_dict(dict(weights), strict=False)
