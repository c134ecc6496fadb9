"""What a pair is trained and measured on, checked whole before the first step."""

import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from condensery.errors import InputError
from condensery.methods.lm.text import read_documents
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.items import Chunks, Questions, Source
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.questions import Rules, TrainingQuestion, Wrong, read_questions

log = logging.getLogger(__name__)
MEASURED = 256  # rows held out by share, at most: they are measured at every checkpoint

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Files:
    """Where the rows come from.

    Attributes:
        train: Questions with passages and labels (``trainer.questions``), or to pretrain, plain
            text (``lm.text``).
        held_out: The same, to measure on; if there are none, a share of the others.
        share: That share.
        licence: What the card says of the data's licence.
        wrong: Whether questions that something is wrong with are refused or left out.
    """

    train: Sequence[Path]
    held_out: Sequence[Path] = ()
    share: float = 0.02
    licence: str = "not stated"
    wrong: Wrong = "refuse"

    def __post_init__(self) -> None:
        """Refuse a share that leaves nothing.

        Raises:
            InputError: Names field and value.
        """
        if not 0 <= self.share < 1:
            raise InputError(
                f"share={self.share!r}: must be from 0 to below 1", field="share", value=self.share
            )


@dataclass(frozen=True, slots=True)
class Data:
    """Rows to train on, and to measure on.

    Attributes:
        train: To train on.
        held_out: To measure on; may be empty.
        scored: Of the first, how many have a teacher's scores.
        report: What the card says of them.
    """

    train: Source
    held_out: Source | None
    scored: int
    report: dict[str, Any] = field(default_factory=dict)


def load(files: Files, bases: Bases, recipe: CausalRecipe) -> Data:
    """Read and check the rows for the recipe's stage.

    Raises:
        InputError: Something is wrong with a row, named with its file and line; or no row is
            left; or scores are asked to be learnt and no row has any.
    """
    report: dict[str, Any] = {
        "files": [path.name for path in files.train],
        "held_out_files": [path.name for path in files.held_out]
        or f"{files.share:.1%} of the rows, by seed",
        "licence": files.licence,
    }
    if recipe.stage == "pretrain":
        train, held_out = (
            [text for text, _ in read_documents(paths)] for paths in (files.train, files.held_out)
        )
        train, held_out = _split(train, held_out, files, recipe.seed)
        chunks = Chunks(train, bases, recipe)
        measured = Chunks(held_out, bases, recipe) if held_out else None
        counts = {"documents": len(train), "pieces": len(chunks), "sha256": _digest(train)}
        return Data(chunks, measured, 0, report | counts)
    rules = Rules(answer_in_passages=False, label_tokens=recipe.label_tokens)
    labels = Questions([], bases, recipe)  # before there are any, to count their tokens

    def read(paths: Sequence[Path]) -> tuple[list[TrainingQuestion], dict[str, int]]:
        return read_questions(
            paths, rules, count=lambda text: len(labels.label(text)) - 1, wrong=files.wrong
        )

    rows, left_out = read(files.train)
    rows, kept = _split(rows, read(files.held_out)[0] if files.held_out else [], files, recipe.seed)
    scored = sum(row.scores is not None for row in rows)
    if recipe.rerank_weight and not (scored and bases.shape.compressor.rerank):
        why = "no row has scores" if not scored else "the compressor has no rerank token"
        raise InputError(
            f"rerank_weight={recipe.rerank_weight}: {why}",
            field="rerank_weight",
            value=recipe.rerank_weight,
        )
    if not scored:
        log.warning("no row has scores: the rerank head is not trained")
    questions = Questions(rows, bases, recipe)
    figures = {
        "questions": len(rows),
        "with_scores": scored,
        "left_out": left_out,
        "sha256": _digest([json.dumps(asdict(row) | {"where": ""}) for row in rows]),
    }
    measured_rows = Questions(kept, bases, recipe) if kept else None
    return Data(questions, measured_rows, scored, report | figures)


def _split(
    train: list[Row], held_out: list[Row], files: Files, seed: int
) -> tuple[list[Row], list[Row]]:
    """Hold a share of the rows out, where none were given for it.

    Raises:
        InputError: None is left to train on.
    """
    if not files.held_out and files.share:
        count = min(MEASURED, math.ceil(files.share * len(train)))
        order = np.random.default_rng(seed).permutation(len(train))
        chosen = set(order[:count].tolist())
        held_out = [train[i] for i in sorted(chosen)]
        train = [row for i, row in enumerate(train) if i not in chosen]
    if not train:
        raise InputError(
            f"data: no row is left to train on, {len(held_out)} are held out", field="data"
        )
    return train, held_out


def _digest(rows: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.encode())
        digest.update(b"\n")
    return digest.hexdigest()
