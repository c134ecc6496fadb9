from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pair import sharpen, text_of

from condensery.errors import InputError
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.reader.span_reader import SpanReader, best_span, find_reader
from condensery.methods.reader.training import new_reader
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.oscar_interface import cut_windows

RECIPE = ReaderRecipe(passage_tokens=16, smallest=4, query_tokens=8, answer_tokens=4)


@pytest.fixture
def reader(base: Path) -> SpanReader:
    model = new_reader(base, RECIPE).eval()
    sharpen(model, 3)
    return SpanReader(model, open_tokenizer(base))


@pytest.mark.parametrize("longest", [1, 2, 5, 40])
def test_the_best_span_is_that_of_all_spans(longest: int) -> None:
    rng = np.random.default_rng(longest)
    for tokens in (1, 2, 7, 30):
        for _ in range(20):
            start, end = rng.normal(size=(2, tokens)).astype(np.float32)
            expected = max(
                (float(start[i] + end[j]), i, j)
                for i in range(tokens)
                for j in range(i, min(tokens, i + longest))
            )
            first, last, score = best_span(start, end, longest)
            assert (first, last) == expected[1:]
            assert score == pytest.approx(expected[0])


def alone(reader: SpanReader, base: Path, question: str, passages: list[str]) -> tuple[Any, ...]:
    """Read each window in a forward pass of its own, and try every span."""
    model, tokenizer = reader.model, open_tokenizer(base)
    asked = tokenizer.encode(question, add_special_tokens=False).ids[:8]
    best: tuple[Any, ...] = (-np.inf,)
    for which, text in enumerate(passages):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        for a, b in cut_windows(len(encoding.ids), 16):
            ids = [2, *asked, 3, *encoding.ids[a:b], 3]
            types = [0] * (len(asked) + 2) + [1] * (b - a + 1)
            with torch.no_grad():
                out = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
            start, end = out.start_logits[0], out.end_logits[0]
            none = float(start[0] + end[0])
            at = len(asked) + 2
            for i in range(b - a):
                for j in range(i, min(b - a, i + 4)):
                    score = float(start[at + i] + end[at + j]) - none
                    if score > best[0]:
                        span = text[encoding.offsets[a + i][0] : encoding.offsets[a + j][1]]
                        best = (score, span, which)
    return best


def test_the_best_span_over_passages_is_that_of_every_window_alone(
    reader: SpanReader, base: Path
) -> None:
    passages = [[text_of(n, seed=n + i) for n in (3, 40, 16, 75)] for i in range(6)]
    asked = [text_of(12, seed=i) for i in range(6)]  # cut to 8
    answers = reader.read(asked, passages)
    assert len({answer.passage for answer in answers}) > 1
    for question, texts, answer in zip(asked, passages, answers, strict=True):
        score, span, which = alone(reader, base, question, texts)
        assert (answer.text, answer.passage) == (span, which)
        assert answer.score == pytest.approx(score, abs=1e-3)


def test_no_passages_and_empty_ones_answer_nothing(reader: SpanReader) -> None:
    answers = reader.read(["what", "who"], [[], ["", " "]])
    assert [(answer.text, answer.passage) for answer in answers] == [("", -1), ("", -1)]
    assert all(answer.score == -np.inf for answer in answers)


def test_what_is_no_reader_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    cpu = {"device": torch.device("cpu"), "dtype": torch.float32}
    with pytest.raises(InputError, match="no span reader"):
        SpanReader.open(tmp_path, **cpu)
    with pytest.raises(InputError, match="has no passage_tokens"):
        SpanReader.open(base, **cpu)
    assert find_reader(tmp_path) == tmp_path
    (tmp_path / "model").mkdir()
    assert find_reader(tmp_path) == tmp_path / "model"
