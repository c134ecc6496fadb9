"""What memory encoders are trained on: texts as the base reads them, and queries with passages."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import InputError, shorten
from condensery.methods.llm2comp.objectives import SplitTexts
from condensery.methods.llm2comp.recipe import (
    SPLIT,
    NetworkShape,
    PretextRecipe,
    StageRecipe,
    SupervisedRecipe,
)
from condensery.methods.retriever.batches import Batches, Example
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.method import Draw, Epochs
from condensery.networks.llm2comp_texts import begin_texts, start_token
from condensery.runtime.tokenizing import (
    CUT_CHARACTERS_PER_TOKEN,
    TYPICAL_CHARACTERS_PER_TOKEN,
    TextTokenizer,
)

log = logging.getLogger(__name__)
AT_ONCE = 256  # texts that are tokenised together
NO_START = "none"
LEAST = 2 * SPLIT  # tokens of a text that can be split


@dataclass(frozen=True, slots=True)
class Words:
    """A base's tokenizer, and what texts begin with.

    Attributes:
        tokenizer: Puts the start token before a text, and no other round it.
        start: The token's id; None: texts begin with none.
        positions: Most that the base has, tokens.
    """

    tokenizer: Tokenizer
    start: int | None
    positions: int

    @property
    def begins(self) -> int:
        """Tokens before a text."""
        return int(self.start is not None)


def open_words(tokenizer: Tokenizer, shape: NetworkShape, positions: int, name: str) -> Words:
    """Find what texts begin with.

    Args:
        tokenizer: The base's.
        shape: May name the token.
        positions: Most that the base has, tokens.
        name: The base's, for messages.

    Raises:
        InputError: The tokenizer puts no token before a text, and none is named; or it has no
            token of that name.
    """
    wanted = shape.start_token
    start = start_token(tokenizer) if not wanted else None
    if wanted not in ("", NO_START):
        start = tokenizer.token_to_id(wanted)
        if start is None:
            raise InputError(
                f"start_token={wanted!r}: is no token of {name}", field="start_token", value=wanted
            )
    elif not wanted and start is None:
        raise InputError(
            f"start_token: the tokenizer of {name} begins texts with none; name one of its tokens "
            f"that the model was trained with, or {NO_START!r}",
            field="start_token",
            value="",
        )
    return Words(begin_texts(tokenizer, start), start, positions)


def room(words: Words, shape: NetworkShape, recipe: StageRecipe, length: int, field: str) -> int:
    """Return how many tokens of a text there is room for, the start token included.

    Args:
        words: Of the base, whose positions bound a length.
        shape: Memory tokens need room too.
        recipe: Whose stage it is.
        length: That is to be trained at.
        field: Of the recipe, for messages.

    Raises:
        InputError: There is none left for a text; names memory tokens and length.
    """
    most = min(length, words.positions)
    if shape.pooling == "echo":
        most = (most + words.begins) // 2
    if isinstance(recipe, PretextRecipe):
        # A text is at least SPLIT longer than what is compressed of it.
        left, least = most - max(0, shape.k + words.begins - SPLIT), LEAST
    else:
        left, least = most - shape.k, words.begins + 1
    if left < least:
        raise InputError(
            f"memory_tokens={shape.k}: leave {left} of {field}={most} for a text, which needs "
            f"{least}",
            field="memory_tokens" if shape.k else field,
            value=shape.k or most,
        )
    return left


@dataclass(frozen=True, slots=True)
class TextRows:
    """Texts as tokens.

    Attributes:
        rows: Token ids of each, start token included, cut to the length.
        texts: What they are of.
        short: Texts that were left out for being too short.
        fingerprint: Of all of it.
    """

    rows: Sequence[NDArray[np.int32]]
    texts: Sequence[str]
    short: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mean_length(self) -> float:
        """Tokens of a text, the mean."""
        return sum(map(len, self.rows)) / len(self.rows)

    def ids(self, places: Iterable[int]) -> list[list[int]]:
        """Return the ids of some of the texts."""
        return [self.rows[place].tolist() for place in places]


def read_tokens(texts: Sequence[str], words: Words, *, least: int, most: int) -> TextRows:
    """Tokenise texts; what is longer is cut, and what is shorter left out and counted.

    Raises:
        InputError: None is long enough; says how long one has to be.
    """
    rows: list[NDArray[np.int32]] = []
    kept: list[str] = []
    digest = hashlib.sha256()
    for at in range(0, len(texts), AT_ONCE):
        # Prose has 4 to 5 characters a token: what is far longer would be thrown away.
        part = [text[: most * CUT_CHARACTERS_PER_TOKEN] for text in texts[at : at + AT_ONCE]]
        for text, encoded in zip(part, words.tokenizer.encode_batch(part), strict=True):
            if len(encoded.ids) >= least:
                rows.append(np.array(encoded.ids[:most], dtype=np.int32))
                kept.append(text)
                digest.update(rows[-1].tobytes())
    short = len(texts) - len(rows)
    if not rows:
        raise InputError(
            f"text: none of {len(texts)} texts has {least} tokens, start token included, which "
            f"is the fewest that can be trained on",
            field="text",
            value=len(texts),
        )
    if short:
        log.info("%d of %d texts are under %d tokens: left out", short, len(texts), least)
    return TextRows(rows, kept, short, digest.hexdigest())


def hold_out(texts: Sequence[str], count: int, seed: int) -> tuple[list[str], list[str]]:
    """Choose texts at random to measure on; returns those to train on, and those.

    At most a tenth is held out.
    """
    held = min(count, len(texts) // 10)
    order = np.random.default_rng((seed, len(texts))).permutation(len(texts))
    chosen = {int(place) for place in order[:held]}
    rest = [text for place, text in enumerate(texts) if place not in chosen]
    return rest, [texts[place] for place in sorted(chosen)]


class SplitBatches:
    """Every text once an epoch, in a new order and split elsewhere each time."""

    def __init__(self, texts: TextRows, batch: int) -> None:
        self._texts, self._batch = texts, batch
        self._order = Epochs(len(texts))

    def __call__(self, draw: Draw) -> SplitTexts:
        """Return the draw's texts; the first part has at least 10 tokens, and so has the rest."""
        first = (draw.step * draw.parts + draw.part) * self._batch
        places = [self._order(draw.seed, first + n) for n in range(self._batch)]
        rng = draw.rng()
        rows = self._texts.ids(places)
        splits = [rng.randint(SPLIT, len(row) - SPLIT) for row in rows]
        return SplitTexts(rows, splits, [shorten(self._texts.texts[place]) for place in places])


@dataclass(frozen=True, slots=True)
class ContrastBatch:
    """Queries, or first views, and what they are to find.

    Attributes:
        queries: Token ids of each.
        passages: Query by query: the positive, then its hard negatives.
        keys: What tells passages' texts apart, (passages,).
        answers: Of each query, the keys of all that answers it, (queries, most).
        names: What to call each query.
    """

    queries: Sequence[Sequence[int]]
    passages: Sequence[Sequence[int]]
    keys: Tensor
    answers: Tensor
    names: Sequence[str]


class ViewBatches:
    """Texts, each twice; every one once an epoch, in a new order each.

    Raises:
        InputError: There are fewer texts than a batch has.
    """

    def __init__(self, texts: TextRows, batch: int) -> None:
        if len(texts) < batch:
            raise InputError(
                f"text: {len(texts)} texts for batches of {batch}: each is to be told from others",
                field="text",
                value=len(texts),
            )
        self._texts, self._batch = texts, batch
        self._order = Epochs(len(texts))

    def __call__(self, draw: Draw) -> ContrastBatch:
        """Return the draw's texts; dropout makes two views of each."""
        first = (draw.step * draw.parts + draw.part) * self._batch
        places = [self._order(draw.seed, first + n) for n in range(self._batch)]
        rows = self._texts.ids(places)
        # Where an epoch ends within a batch a text may come twice.
        keys = torch.tensor(places)
        names = [shorten(self._texts.texts[place]) for place in places]
        return ContrastBatch(rows, rows, keys, keys[:, None], names)


def with_instructions(examples: Sequence[Example], form: str, default: str = "") -> list[Example]:
    """Return rows whose queries are as they are read: each with its own instruction, or this.

    Args:
        examples: Rows.
        form: With ``{instruction}`` and ``{query}``; a query without instruction stays as it is.
        default: Of rows that have none.
    """
    form = form.replace("\\n", "\n")  # as a command line has it
    asked = []
    for example in examples:
        instruction = example.instruction or default
        query = form.format(instruction=instruction, query=example.query)
        asked.append(replace(example, query=query) if instruction else example)
    return asked


class RankedBatches:
    """Queries with a positive and hard negatives each; see ``retriever.batches.Batches``.

    Args:
        examples: Rows, their queries as they are read.
        words: Of the base.
        shape: Of the network.
        recipe: How many of each, and how long.

    Attributes:
        fingerprint: Of the rows.
        work: Tokens that are read in a step, forward or back, about.

    Raises:
        InputError: A row has no negative where the recipe wants some; or nothing has room.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        words: Words,
        shape: NetworkShape,
        recipe: SupervisedRecipe,
    ) -> None:
        self._query = room(words, shape, recipe, recipe.length, "length")
        passage = room(words, shape, recipe, recipe.passage_length, "passage_length")
        longest = max(self._query, passage)
        self._passage = passage
        tokenizer = TextTokenizer(words.tokenizer, longest)
        counts = RetrieverRecipe(queries=recipe.batch, negatives=recipe.negatives)
        self._batches = Batches(examples, tokenizer, counts)
        characters = sum(
            len(e.query) + (1 + recipe.negatives) * len(e.positives[0]) for e in examples
        )
        per_token = TYPICAL_CHARACTERS_PER_TOKEN
        self.work = 3 * recipe.batch * (characters / len(examples) / per_token + 3 * shape.k)
        content = "\n".join(f"{e.query}\t{e.positives}\t{e.negatives}" for e in examples)
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, draw: Draw) -> ContrastBatch:
        """Return the draw's queries and passages."""
        batch = self._batches(draw)
        return ContrastBatch(
            [row[: self._query] for row in batch.queries],
            [row[: self._passage] for row in batch.passages],
            batch.keys,
            batch.answers,
            batch.names,
        )


def data_names(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return what a card calls files: without the folders from the root."""
    return tuple(f"{path.parent.name}/{path.name}" for path in paths)
