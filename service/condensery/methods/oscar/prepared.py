"""Sets that are checked and tokenised: what training itself needs of the data, and its files.

Making them needs pydantic and all of the text; training with them doesn't, so they can be made
on one machine and carried to another.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from condensery.errors import InputError
from condensery.methods.oscar.data import Example, Ids, QaData, RetrievedPassage

TENSORS, TEXTS = "sets.safetensors", "sets.json"
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TrainingSets:
    """Sets with their shares of the steps, validation questions, and what was left out.

    The last set is the cloze questions.
    """

    sets: list[tuple[QaData, float]]
    validation: list[dict[str, Any]]
    report: dict[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of all that is trained on."""
        digest = hashlib.sha256()
        for (data, share), number in zip(self.sets, range(len(self.sets)), strict=True):
            digest.update(f"{number} {share}".encode())
            for name, array in _arrays(data).items():
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def save_sets(folder: Path, sets: TrainingSets) -> None:
    """Write sets to a folder."""
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(array)
        for number, (data, _) in enumerate(sets.sets)
        for name, array in _arrays(data).items()
    }
    save_file(arrays, folder / TENSORS)
    texts = {
        "shares": [share for _, share in sets.sets],
        "validation": sets.validation,
        "report": sets.report,
    }
    (folder / TEXTS).write_text(json.dumps(texts, ensure_ascii=False) + "\n")


def open_sets(folder: Path) -> TrainingSets:
    """Read what ``save_sets`` wrote.

    Raises:
        InputError: A file is missing or damaged.
    """
    try:
        texts = json.loads((folder / TEXTS).read_text())
        arrays = load_file(folder / TENSORS)
        sets = [
            (
                _data(
                    {n.removeprefix(f"{i}."): a for n, a in arrays.items() if n.startswith(f"{i}.")}
                ),
                share,
            )
            for i, share in enumerate(texts["shares"])
        ]
        return TrainingSets(sets, texts["validation"], texts["report"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(
            f"packed: {folder} holds no sets that can be read: {error}",
            field="packed",
            value=str(folder),
        ) from error


def _arrays(data: QaData) -> Arrays:
    examples = data.examples
    empty = np.zeros(0, np.int32)
    beside = [(e.passage, e.start, e.end) for x in examples for e in x.beside]
    firsts = {id(group): number for number, group in reversed(list(enumerate(data.group)))}
    return {
        **_flat("passages", data.passages),
        **_flat("questions", [x.question for x in examples]),
        **_flat("labels", [empty if x.label is None else x.label for x in examples]),
        "labelled": np.array([x.label is not None for x in examples], np.uint8),
        "places": np.array([(x.passage, x.start, x.end) for x in examples], np.int32).reshape(
            -1, 3
        ),
        "scores": np.array([x.score for x in examples], np.float32),
        "beside": np.array(beside, np.int32).reshape(-1, 3),
        "beside_scores": np.array([e.score for x in examples for e in x.beside], np.float32),
        "beside_counts": np.array([len(x.beside) for x in examples], np.int32),
        "articles": np.array([firsts[id(group)] for group in data.group], np.int32),
    }


def _data(arrays: Arrays) -> QaData:
    beside = [
        RetrievedPassage(passage, start, end, score)
        for (passage, start, end), score in zip(
            arrays["beside"].tolist(), arrays["beside_scores"].tolist(), strict=True
        )
    ]
    counts = arrays["beside_counts"]
    ends = np.cumsum(counts)
    questions, labels = _split("questions", arrays), _split("labels", arrays)
    examples = []
    for i, (passage, start, end) in enumerate(arrays["places"].tolist()):
        label = labels[i] if arrays["labelled"][i] else None
        others = tuple(beside[ends[i] - counts[i] : ends[i]])
        score = float(arrays["scores"][i])
        examples.append(Example(questions[i], passage, start, end, label, score, others))
    articles: dict[int, list[int]] = {}
    for passage, article in enumerate(arrays["articles"].tolist()):
        articles.setdefault(article, []).append(passage)
    group = [articles[article] for article in arrays["articles"].tolist()]
    return QaData(examples, _split("passages", arrays), group)


def _flat(name: str, rows: Sequence[Ids]) -> Arrays:
    joined = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return {name: joined, f"{name}_lengths": np.array([len(row) for row in rows], np.int32)}


def _split(name: str, arrays: Arrays) -> list[Ids]:
    ends = np.cumsum(arrays[f"{name}_lengths"])
    return np.split(arrays[name], ends[:-1]) if len(ends) else []
