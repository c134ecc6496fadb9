"""Texts, or pairs of texts, with a label each: rows in GLUE's style, their loss and figures."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.errors import InputError, shorten
from condensery.methods.trainer.batching import (
    EVALUATED_TOKENS,
    LengthBuckets,
    Tokens,
    collate,
    in_batches,
)
from condensery.methods.trainer.method import Draw
from condensery.methods.trainer.rows import Row, read_rows
from condensery.runtime.classifier import TextPairTokenizer
from condensery.runtime.tokenizing import TOKENIZER
from condensery.store.manifest import StoredModel

# The names that GLUE's copies have for one text and for two.
SINGLE = ("text", "sentence")
PAIRS = (
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
)


@dataclass(frozen=True, slots=True)
class Example:
    """A text, or a pair, and its label's name."""

    texts: tuple[str, ...]
    label: str
    where: str


def read_examples(paths: Sequence[Path], labels: Sequence[str] | None = None) -> list[Example]:
    """Read labelled rows: JSONL files, folders of them, ``datasets`` folders.

    Args:
        paths: Files and folders.
        labels: Names that there are; None takes them as they come.

    Raises:
        InputError: A row has no text or no label, a label that there is not, a pair where the
            first row has one text (or the other way round), or there is no row; names file, line,
            field and value.
    """
    rows: list[Example] = []
    for path in paths:
        for row in read_rows(path):
            example = _example(row)
            if labels is not None and example.label not in labels:
                raise _wrong(row, "label", row.value["label"], f"is none of {', '.join(labels)}")
            if rows and len(example.texts) != len(rows[0].texts):
                kinds = {1: "one text", 2: "a pair of texts"}
                raise InputError(
                    f"{row.where}: has {kinds[len(example.texts)]}, and {rows[0].where} has "
                    f"{kinds[len(rows[0].texts)]}",
                    field="text2",
                )
            rows.append(example)
    if not rows:
        raise InputError(f"data: {', '.join(map(str, paths))} hold no row", field="data")
    return rows


def label_names(examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the labels of training rows, numbers by value and names by the alphabet.

    Raises:
        InputError: There is one label only.
    """
    names = {example.label for example in examples}
    if len(names) < 2:
        raise InputError(
            f"{examples[0].where} and the rows after it: label: all are {names.pop()!r}, and a "
            "classifier tells at least two apart",
            field="label",
        )
    if all(name.lstrip("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _example(row: Row) -> Example:
    value = row.value
    choices: tuple[tuple[str, ...], ...] = (*PAIRS, *((name,) for name in SINGLE))
    fields = next((names for names in choices if all(name in value for name in names)), ())
    if not fields:
        known = ", ".join(" and ".join(names) for names in choices)
        raise InputError(f"{row.where}: has no text: none of {known}", field="text")
    texts = []
    for name in fields:
        text = value[name]
        if not isinstance(text, str) or not text.strip():
            raise _wrong(row, name, text, "is no text")
        texts.append(text)
    label = value.get("label")
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise _wrong(row, "label", label, "is no label: a name or a whole number")
    return Example(tuple(texts), str(label), row.where)


def _wrong(row: Row, name: str, value: object, why: str) -> InputError:
    return InputError(
        f"{row.where}: {name}: {shorten(value)} {why}", field=name, value=shorten(value)
    )


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Padded texts with the numbers of their labels."""

    inputs: Mapping[str, Tensor]
    labels: Tensor
    names: Sequence[str]


class ClassificationTask:
    """Sequence and pair classification: cross-entropy, accuracy.

    Args:
        parent: A stored encoder or classifier, whose tokenizer reads the texts.
        train: Rows to learn from.
        validation: Rows to count experts on, and to measure on meanwhile.
        labels: Names, in the order of the network's outputs.
        length: Most tokens of a text, or pair.
        batch: Rows of a step.
        epoch_steps: Steps of an epoch; 0: all rows.
        padding: The token that fills up.
    """

    kind = "classifier"

    def __init__(
        self,
        parent: StoredModel,
        train: Sequence[Example],
        validation: Sequence[Example],
        labels: Sequence[str],
        *,
        length: int,
        batch: int,
        epoch_steps: int = 0,
        padding: int = 0,
    ) -> None:
        if len(train[0].texts) != len(validation[0].texts):
            raise InputError(
                f"validation: {validation[0].where} has {len(validation[0].texts)} texts a row, "
                f"and {train[0].where} {len(train[0].texts)}",
                field="validation",
            )
        self._parent, self._length, self._padding = parent, length, padding
        self._numbers = {name: number for number, name in enumerate(labels)}
        self._train, self.validation = train, validation
        self._tokens = self.tokenise(train)
        self._validated = self.tokenise(validation)
        self._draw = LengthBuckets([len(row.ids) for row in self._tokens], batch, epoch_steps)
        self.epoch_steps = self._draw.epoch_steps
        content = [[e.texts, e.label] for e in (*train, *validation)]
        self.fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def tokenise(self, examples: Sequence[Example]) -> list[Tokens]:
        """Return the tokens of rows, as the service reads them."""
        with ThreadPoolExecutor(1) as threads:
            most = min(self._length, self._parent.manifest.max_tokens)
            tokenizer = TextPairTokenizer.load(self._parent.file(TOKENIZER).parent, most, threads)
            inputs: list[Any] = [e.texts if len(e.texts) == 2 else e.texts[0] for e in examples]
            read = tokenizer.tokenise(inputs, truncate=True, field="text")
            return [Tokens(row.ids, row.types) for row in asyncio.run(read)]

    def numbers(self, examples: Sequence[Example]) -> NDArray[np.int64]:
        """Return the numbers of rows' labels, (rows,)."""
        return np.array([self._numbers[example.label] for example in examples])

    def batch(self, draw: Draw, device: torch.device) -> LabelledBatch:
        """Return the batch of a draw."""
        rows = self._draw(draw)
        examples = [self._train[row] for row in rows]
        inputs = collate([self._tokens[row] for row in rows], self._padding, device)
        labels = torch.from_numpy(self.numbers(examples)).to(device)
        return LabelledBatch(inputs, labels, [example.where for example in examples])

    def loss(self, network: nn.Module, batch: LabelledBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy, and the share that is right."""
        logits = network(**batch.inputs).logits.float()
        right = (logits.argmax(-1) == batch.labels).float().mean()
        return F.cross_entropy(logits, batch.labels), {"right": right}

    @torch.no_grad()
    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return figures on the validation rows."""
        device = next(network.parameters()).device
        logits = in_batches(
            self._validated,
            EVALUATED_TOKENS,
            lambda rows: network(**collate(rows, self._padding, device)).logits,
        )
        chosen = logits.argmax(-1).cpu().numpy()
        return classification_figures(chosen, self.numbers(self.validation), len(self._numbers))


def classification_figures(
    chosen: NDArray[np.int64], labels: NDArray[np.int64], count: int
) -> dict[str, float]:
    """Return accuracy and, of two labels, the second one's F1 and Matthews' correlation.

    Args:
        chosen: Numbers of the labels that came out, (rows,).
        labels: Those that are right, (rows,).
        count: Of labels.
    """
    figures = {"accuracy": float((chosen == labels).mean())}
    if count == 2:
        cells = Counter(zip(chosen.tolist(), labels.tolist(), strict=True))
        hit, false, missed, rest = cells[1, 1], cells[1, 0], cells[0, 1], cells[0, 0]
        figures["f1"] = 2 * hit / max(1, 2 * hit + false + missed)
        spread = (hit + false) * (hit + missed) * (rest + false) * (rest + missed)
        figures["matthews"] = (hit * rest - false * missed) / max(1, spread) ** 0.5
    return figures
