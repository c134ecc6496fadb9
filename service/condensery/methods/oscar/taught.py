"""A teacher of pairs: an extractive reader that says how likely each span is, and none."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.oscar.batches import Row
from condensery.methods.reader.batches import Ids, PairForm, collate
from condensery.methods.reader.batches import Row as ReaderRow
from condensery.methods.reader.span_reader import SpanReader, find_reader
from condensery.networks.pointers import Spans, bounded_spans

UNSAID = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")  # of a pair's tokens those that no text has


class Teacher:
    """Reads what a pair in training reads, token by token.

    Args:
        model: A trained reader, as transformers has it.
        form: How it reads a question and a passage.
        words: Its id of each of the pair's word pieces, (vocabulary,).
        sha256: Of its weights.
    """

    def __init__(self, model: Any, form: PairForm, words: Ids, sha256: str) -> None:
        self._model, self._form, self._words, self.sha256 = model, form, words, sha256

    @classmethod
    def open(
        cls, path: Path, tokenizer: Tokenizer, *, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Open what ``train extractive-reader`` made.

        Args:
            path: Its folder, or the run's.
            tokenizer: The pair's.
            device: Where it reads.
            dtype: What it computes in.

        Raises:
            InputError: There is no reader, or it has other word pieces than the pair.
        """
        reader = SpanReader.open(path, device=device, dtype=dtype)
        theirs = reader.tokenizer.get_vocab()
        own = tokenizer.get_vocab()
        if missing := [word for word in own if word not in theirs and word not in UNSAID]:
            raise InputError(
                f"teacher: {path} lacks {len(missing)} of the pair's {len(own)} word pieces, such "
                f"as {missing[0]!r}",
                field="teacher",
                value=str(path),
            )
        words = np.zeros(max(own.values()) + 1, dtype=np.int32)
        for word, at in own.items():
            words[at] = theirs.get(word, 0)
        with (find_reader(path) / "model.safetensors").open("rb") as weights:
            sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
        return cls(reader.model, reader.form, words, sha256)

    @torch.no_grad()
    def __call__(self, rows: Sequence[Row], longest: int) -> Spans:
        """Say how likely each span of some passages is the answer, and that there is none.

        Args:
            rows: Questions and passages, in the pair's word pieces.
            longest: Places of a passage in the result, at least its tokens and one.
        """
        read = [ReaderRow(self._words[row.question], self._words[row.passage]) for row in rows]
        batch = collate(read, self._form)
        device = self._model.device
        out = self._model(**{name: values.to(device) for name, values in batch.inputs.items()})
        # "None" is told by the first token; it goes where a pair's own [SEP] stands.
        places: Tensor = torch.zeros(len(rows), longest, dtype=torch.long)
        real = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, (row, first) in enumerate(zip(read, batch.first, strict=True)):
            places[i, : len(row.passage)] = torch.arange(first, first + len(row.passage))
            real[i, : len(row.passage) + 1] = True
        places, real = places.to(device), real.to(device)
        starts, ends = (
            logits.float().gather(1, places) for logits in (out.start_logits, out.end_logits)
        )
        return bounded_spans(starts, ends, real)
