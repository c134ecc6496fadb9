"""A trained span reader: the best span over several passages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForQuestionAnswering

from condensery.errors import InputError
from condensery.methods.reader.batches import FORMS, PairForm, Row, collate
from condensery.methods.trainer.publishing import MODEL
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.oscar_interface import cut_windows

Scores = NDArray[np.float32]
BATCH_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class BestSpan:
    """The best span of all passages.

    Attributes:
        text: Its characters, as they stand in the passage.
        passage: Which passage; -1 where none has any token.
        score: Of the span over "no answer", both sums of two logits; below 0 it has none.
    """

    text: str
    passage: int
    score: float


def best_span(start: Scores, end: Scores, longest: int) -> tuple[int, int, float]:
    """Return the best span of 1 to ``longest`` tokens: its first and last, and its score.

    Args:
        start: A logit a token, (tokens,).
        end: A logit a token, (tokens,).
        longest: Most tokens.
    """
    room = np.full(longest - 1, -np.inf, dtype=np.float32)
    ends = np.lib.stride_tricks.sliding_window_view(np.concatenate([end, room]), longest)
    sums = start[:, None] + ends  # (tokens, longest): token i to token i + j
    first, more = divmod(int(sums.argmax()), longest)
    return first, first + more, float(sums[first, more])


class SpanReader:
    """An encoder with a span head as transformers saves it, and its tokenizer.

    Args:
        model: Its config has ``passage_tokens``, ``query_tokens`` and ``answer_tokens``.
        tokenizer: Of its word pieces.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        config = model.config
        self.model, self.tokenizer = model, tokenizer
        self._passage: int = config.passage_tokens
        self._question: int = config.query_tokens
        self._answer: int = config.answer_tokens
        self.form = PairForm.of(tokenizer, config.model_type)

    @classmethod
    def open(cls, path: Path, *, device: torch.device, dtype: torch.dtype) -> Self:
        """Open a trained reader, or the run that made it.

        Raises:
            InputError: There is none.
        """
        path = find_reader(path)
        try:
            model = AutoModelForQuestionAnswering.from_pretrained(
                path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: no span reader ({error})", field="run", value=str(path)
            ) from error
        if model.config.model_type not in FORMS or not is_reader(model.config):
            raise InputError(
                f"{path}: its config.json has no passage_tokens: not made by train "
                "extractive-reader",
                field="run",
                value=str(path),
            )
        nn.Module.to(model, device)
        return cls(model.eval(), open_tokenizer(path))

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[BestSpan]:
        """Answer each question from its passages; long passages are read in windows."""
        rows: list[Row] = []
        places: list[tuple[int, int, int]] = []  # question, passage, first token of the window
        encoded = [self.tokenizer.encode_batch(list(q), add_special_tokens=False) for q in passages]
        for number, (question, encoding) in enumerate(zip(questions, encoded, strict=True)):
            ids = self.tokenizer.encode(question, add_special_tokens=False).ids[: self._question]
            for which, passage in enumerate(encoding):
                for a, b in cut_windows(len(passage.ids), self._passage):
                    if b > a:
                        rows.append(Row(np.array(ids), np.array(passage.ids[a:b])))
                        places.append((number, which, a))
        best = [BestSpan("", -1, -np.inf) for _ in questions]
        for (number, which, a), (first, last, score) in zip(places, self._spans(rows), strict=True):
            if score > best[number].score:
                offsets = encoded[number][which].offsets
                begin, end = offsets[a + first][0], offsets[a + last][1]
                best[number] = BestSpan(passages[number][which][begin:end], which, score)
        return best

    @torch.inference_mode()
    def _spans(self, rows: Sequence[Row]) -> list[tuple[int, int, float]]:
        """Return each row's best span and its score over "no answer"."""
        best: list[tuple[int, int, float]] = [(0, 0, 0.0)] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].passage) + len(rows[i].question))
        while order:
            width = len(rows[order[-1]].passage) + len(rows[order[-1]].question) + 3
            chosen = [order.pop() for _ in range(min(len(order), max(1, BATCH_TOKENS // width)))]
            batch = collate([rows[i] for i in chosen], self.form)
            inputs = {name: values.to(self.model.device) for name, values in batch.inputs.items()}
            out = self.model(**inputs)
            starts, ends = (x.float().cpu().numpy() for x in (out.start_logits, out.end_logits))
            for i, first, start, end in zip(chosen, batch.first, starts, ends, strict=True):
                last = first + len(rows[i].passage)
                a, b, score = best_span(start[first:last], end[first:last], self._answer)
                best[i] = a, b, score - float(start[0] + end[0])
        return best


def is_reader(config: Any) -> bool:
    """Say whether a network was made by ``train extractive-reader``: its sizes are there."""
    return hasattr(config, "passage_tokens")


def find_reader(path: Path) -> Path:
    """Return the reader's folder of a training run; another folder is one itself."""
    return path / MODEL if (path / MODEL).is_dir() else path
