"""Passages that do not answer a query, though a search finds them: what to learn to tell apart."""

import json
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.index.prompts import make_index_prompts
from condensery.methods.ranking.retrieval import CorpusPassage, Retriever, embed, running
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sets import RankingSets
from condensery.methods.rerank.sources import Answers, Query
from condensery.methods.trainer.trainer import differences
from condensery.runtime.encoder import Encoder
from condensery.store.importing import import_model
from condensery.store.store import ModelStore

log = logging.getLogger(__name__)
NAME = "negatives.jsonl"
BLOCK = 256  # queries searched at once
TRIES = 20  # random passages looked at for each that is missing


@dataclass(frozen=True, slots=True)
class Mined:
    """What was found for each query, by numbers of passages.

    Attributes:
        negatives: For each query to train on; none where there were too few.
        candidates: For each query to measure on: BM25's best passages in its order, then gold
            ones that are not among them.
        encoder: The candidates' similarities by the encoder; empty if there is none.
    """

    negatives: list[list[int]]
    candidates: list[list[int]]
    encoder: list[list[float]]


def load_or_mine(
    out: Path, sets: RankingSets, recipe: RerankRecipe, encoder: Encoder | None
) -> Mined:
    """Read the run's negatives, or mine them and write them for a run that goes on.

    Args:
        out: The run's folder.
        sets: What to mine for.
        recipe: Where to look, and how deep.
        encoder: For negatives by vectors, and to compare with.

    Raises:
        InputError: The folder holds those of other data or another recipe, or none were found.
    """
    path = out / NAME
    about = {
        "data": sets.fingerprint(),
        "encoder": encoder.info.fingerprint if encoder else None,
        **{name: getattr(recipe, name) for name in ("negatives", "search", "depth", "candidates")},
        "seed": recipe.seed,
    }
    if path.exists():
        return _read(path, about)
    index = out / "index"
    with Retriever.build(
        [CorpusPassage(str(i), text) for i, text in enumerate(sets.passages)],
        index,
        encoder=encoder if recipe.search != "bm25" else None,
    ) as retriever:
        mined = Mined(
            list(mine(sets, recipe, retriever)), *_candidates(sets, recipe, retriever, encoder)
        )
    if not any(mined.negatives):
        raise InputError(
            f"negatives={recipe.negatives}: no query has so many passages that do not answer it",
            field="negatives",
            value=recipe.negatives,
        )
    _write(path, about, mined)
    shutil.rmtree(index)  # nothing asks it again
    return mined


def mine(
    sets: RankingSets, recipe: RerankRecipe, retriever: Retriever, first: int = 0
) -> Iterator[list[int]]:
    """Yield each training query's negatives: those found first, BM25's and the vectors' in turn.

    Left out are passages that hold an answer, those that answer it, and those that answer a
    query that is measured on (to learn that they answer nothing would spoil the measure). Where
    fewer are left than a batch takes, random ones make up for it. ``first`` is the number of the
    first query among all, by which its chance is known.
    """
    modes = ("bm25", "dense") if recipe.search == "both" else (recipe.search,)
    closed = {g for query in sets.held_out for g in query.gold}
    answers = Answers(sets.passages)

    def wrong(query: Query, number: int) -> bool:
        return not (number in query.gold or number in closed or answers.hold(number, query.answers))

    for start in range(0, len(sets.train), BLOCK):
        block = sets.train[start : start + BLOCK]
        texts = [query.text for query in block]
        searched = [_search(retriever, texts, recipe.depth, mode) for mode in modes]
        for row, (query, *hits) in enumerate(
            zip(block, *searched, strict=True), start=first + start
        ):
            in_turn = dict.fromkeys(chain.from_iterable(zip_longest(*hits)))
            negatives = [n for n in in_turn if n is not None and wrong(query, n)]
            rng = random.Random(f"{recipe.seed} negatives {row}")
            for _ in range(TRIES * recipe.negatives):
                if len(negatives) >= recipe.negatives:
                    break
                number = rng.randrange(len(sets.passages))
                if number not in negatives and wrong(query, number):
                    negatives.append(number)
            yield negatives if len(negatives) >= recipe.negatives else []
        log.info("negatives of %d of %d queries", start + len(block), len(sets.train))


def _candidates(
    sets: RankingSets, recipe: RerankRecipe, retriever: Retriever, encoder: Encoder | None
) -> tuple[list[list[int]], list[list[float]]]:
    """Return what each query measured on is measured with, and the encoder's similarities."""
    texts = [query.text for query in sets.held_out]
    hits = _search(retriever, texts, recipe.candidates, "bm25")
    candidates = [
        list(dict.fromkeys([*numbers, *query.gold]))
        for numbers, query in zip(hits, sets.held_out, strict=True)
    ]
    if encoder is None:
        return candidates, []
    numbers = sorted(set(chain.from_iterable(candidates)))
    place = {number: row for row, number in enumerate(numbers)}
    prompts = make_index_prompts(encoder)
    wanted = embed(encoder, texts, prompts.query)
    read = embed(encoder, [sets.passages[n] for n in numbers], prompts.passage)
    return candidates, [
        (read[[place[n] for n in numbers_of]] @ vector).tolist()
        for vector, numbers_of in zip(wanted, candidates, strict=True)
    ]


def _search(retriever: Retriever, texts: Sequence[str], k: int, mode: Any) -> list[list[int]]:
    return [[int(name) for name, _ in hits] for hits in retriever.search(texts, k, mode)]


def _write(path: Path, about: Mapping[str, Any], mined: Mined) -> None:
    """Write all of it aside, sync and rename it: a file of that name is whole."""
    rows: list[Any] = [about, *({"negatives": numbers} for numbers in mined.negatives)]
    rows += [{"candidates": numbers} for numbers in mined.candidates]
    rows += [{"encoder": similarities} for similarities in mined.encoder]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def _read(path: Path, about: Mapping[str, Any]) -> Mined:
    """Read what ``_write`` wrote.

    Raises:
        InputError: It was mined for something else.
    """
    with path.open(encoding="utf-8") as file:
        made_of, *rows = map(json.loads, file)
    differing = differences(about, made_of)
    if differing:
        raise InputError(
            f"{path} was mined with other data or settings: {'; '.join(differing)}; go on with the"
            " same, or train into another folder",
            field="out",
            value=str(path),
        )
    return Mined(*([row[n] for row in rows if n in row] for n in Mined.__dataclass_fields__))


@contextmanager
def open_encoder(path: Path, device: torch.device, dtype: torch.dtype) -> Iterator[Encoder]:
    """Run the encoder of a sentence-transformers or Hugging Face directory while it is needed.

    Raises:
        StoreError: It is none; named.
    """
    count = torch.get_num_threads() if device.type == "cpu" else 1
    with tempfile.TemporaryDirectory() as folder:
        stored = import_model(ModelStore(None, Path(folder)), path, "encoder")
        with running(stored, count, device, dtype) as encoder:
            yield encoder
