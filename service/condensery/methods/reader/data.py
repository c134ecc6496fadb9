"""Questions whose answer is a stretch of a passage: read, held out, their answers found."""

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from condensery.errors import InputError
from condensery.methods.reader.batches import SpanQuestion, SpanQuestions
from condensery.methods.trainer.questions import Rules, TrainingQuestion, read_questions
from condensery.methods.trainer.texts import HeldOutText


@dataclass(frozen=True, slots=True)
class ReaderData:
    """What a span reader is trained on.

    Attributes:
        sources: The questions of each file.
        validation: Questions of articles that are held out.
        report: Questions of each file that are trained on, and why others are not.
        sha256: Of all that is trained on.
    """

    sources: list[SpanQuestions]
    validation: list[TrainingQuestion]
    report: dict[str, dict[str, int]]
    sha256: str


def load_data(
    questions: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    not_like: Sequence[Path] = (),
    held_articles: int = 4,
    seed: int,
) -> ReaderData:
    """Read and check all questions; what is evaluated on is kept out.

    Left out and counted are rows that something is wrong with, no answer in a passage among it,
    and those with a passage that shares ten words in a row with held-out text or is of a
    held-out article. The same rules as for pairs (``methods/oscar/sets.py``). A question that its
    passages do not answer teaches to point at nothing.

    Args:
        questions: Files or folders, as the trainer reads them.
        tokenizer: The encoder's, without truncation or padding.
        not_like: Questions that are evaluated on.
        held_articles: Articles of the first of ``questions`` that are kept for validation.
        seed: Which these are.

    Raises:
        InputError: A file can't be read, or nothing of one is left.
    """
    rules = Rules(answer_in_passages=True, unanswerable=True)
    read = [read_questions([path], rules, wrong="leave_out") for path in questions]
    evaluated = (
        read_questions(not_like, Rules(answers=False), wrong="leave_out")[0] if not_like else []
    )
    titles = sorted({row.title for row in read[0][0] if row.title})
    chosen = set(random.Random(seed).sample(titles, min(held_articles, len(titles))))
    validation = [row for row in read[0][0] if row.title in chosen]
    unlike = [*evaluated, *validation]
    held_out = HeldOutText({text for row in unlike for text in row.passages})
    closed = {_plain(row.title) for row in unlike if row.title}
    sources, report = [], {}
    for path, (rows, left_out) in zip(questions, read, strict=True):
        shares = {text: held_out.shares(text) for row in rows for text in row.passages}
        kept = [
            row
            for row in rows
            if _plain(row.title) not in closed and not any(shares[text] for text in row.passages)
        ]
        spots = find_spans(kept, tokenizer)
        if not spots.examples:
            raise InputError(
                f"{path}: of {len(rows)} questions none is left: {len(rows) - len(kept)} are like "
                "what is held out",
                field="questions",
                value=str(path),
            )
        sources.append(spots)
        report["/".join(path.parts[-2:])] = {
            "questions": len(spots.examples),
            "unanswerable": sum(spot.end == spot.start for spot in spots.examples),
            **left_out,
            "like what is held out": len(rows) - len(kept),
            "answer not found": len(kept) - len(spots.examples),
        }
    return ReaderData(sources, validation, report, _digest(sources))


def _digest(sources: Iterable[SpanQuestions]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for ids in source.passages:
            digest.update(len(ids).to_bytes(4, "big") + ids.tobytes())
        for spot in source.examples:
            digest.update(f"{spot.passage} {spot.start} {spot.end} {spot.others} ".encode())
            digest.update(spot.question.tobytes())
    return digest.hexdigest()


def _plain(title: str) -> str:
    return title.replace("_", " ").strip().casefold()


def find_spans(rows: Iterable[TrainingQuestion], tokenizer: Tokenizer) -> SpanQuestions:
    """Tokenise questions and passages, and find the answers; those without tokens are left out."""
    rows = list(rows)
    texts = list(dict.fromkeys(text for row in rows for text in row.passages))
    index = {text: place for place, text in enumerate(texts)}
    folded = [text.casefold() for text in texts]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    articles: dict[str, dict[int, None]] = defaultdict(dict)  # ordered, each passage once
    for row in rows:
        articles[row.title].update((index[text], None) for text in row.passages)
    examples = []
    for row in rows:
        question = np.array(
            tokenizer.encode(row.question, add_special_tokens=False).ids, dtype=np.int32
        )
        if not row.answerable:
            near = [index[text] for text in row.passages if encoded[index[text]].ids]
            examples += [SpanQuestion(question, at, 0, 0, ()) for at in near[:1]]
            continue
        span = find_answer(row)
        if span is None:
            continue
        which, start, end = span
        passage = index[row.passages[which]]
        tokens = [
            i
            for i, (a, b) in enumerate(encoded[passage].offsets)
            if a < end and b > start and b > a
        ]
        if not tokens:
            continue
        golds = [answer.casefold() for answer in row.answers or (row.label,)]
        near = [index[text] for text in row.passages]
        near += articles[row.title] if row.title else []
        others = tuple(
            place
            for place in dict.fromkeys(near)
            if place != passage and not any(gold in folded[place] for gold in golds if gold)
        )
        examples.append(SpanQuestion(question, passage, tokens[0], tokens[-1] + 1, others[:64]))
    return SpanQuestions(examples, [np.array(encoding.ids, dtype=np.int32) for encoding in encoded])


def find_answer(row: TrainingQuestion) -> tuple[int, int, int] | None:
    """Return which passage holds an answer and its characters there, None if none does.

    Whole words go before parts of words, and the case as given before any case.
    """
    for flags, edge in ((0, r"\b"), (re.IGNORECASE, r"\b"), (re.IGNORECASE, "")):
        for answer in filter(str.strip, row.answers or (row.label,)):
            # "\b" holds beside letters and digits only: an answer may begin with "$".
            left = edge if re.match(r"\w", answer) else ""
            right = edge if re.search(r"\w\Z", answer) else ""
            pattern = re.compile(left + re.escape(answer) + right, flags)
            for place, text in enumerate(row.passages):
                if match := pattern.search(text):
                    return place, *match.span()
    return None
