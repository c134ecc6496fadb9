"""Rows to train on: questions with passages found for them, a label and perhaps scores."""

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from condensery.errors import ModelFault
from condensery.methods.distil.corpus import Corpus, choose
from condensery.methods.distil.journal import Journal, Line
from condensery.methods.distil.summary import SILENT, UNFINISHED, UNREAD, Summary, left_out
from condensery.methods.distil.teacher import TeacherAnswer, TeacherInput
from condensery.methods.ranking.retrieval import Mode
from condensery.methods.rerank.sources import Answers
from condensery.methods.trainer.questions import TrainingQuestion

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 10.0  # seconds between two lines of progress
Gold = Literal["keep", "as-found"]
Unsupported = Literal["leave-out", "keep"]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows are made.

    Attributes:
        top: Passages of a row.
        mode: How they are found.
        gold: Whether the passage a question was asked of is among them even if it is not found.
        unsupported: What becomes of a given label that stands in none of the passages.
        label_tokens: Most tokens of a label.
    """

    top: int = 5
    mode: Mode = "bm25"
    gold: Gold = "keep"
    unsupported: Unsupported = "leave-out"
    label_tokens: int = 128


class PassageSearch(Protocol):
    """What finds passages: a ``Retriever``."""

    def search(self, queries: Sequence[str], k: int, mode: Mode) -> list[list[tuple[str, float]]]:
        """Return ids and scores for each query, best first."""


class LabelSource(Protocol):
    """What makes labels: a ``Teacher``."""

    def answer(self, inputs: Sequence[TeacherInput]) -> list[TeacherAnswer]:
        """Answer each question from its passages."""


class PassageScorer(Protocol):
    """What scores passages: a ``CrossEncoder``."""

    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return a raw logit for each passage."""


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Makes rows of questions.

    Attributes:
        corpus: What is searched, with the questions' gold.
        retriever: Finds places in the corpus.
        plan: How.
        labeller: Makes labels; None takes the questions' own.
        scorer: Makes scores; None makes none.
    """

    corpus: Corpus
    retriever: PassageSearch
    plan: RowPlan
    labeller: LabelSource | None = None
    scorer: PassageScorer | None = None

    def write(
        self,
        questions: Sequence[TrainingQuestion],
        journal: Journal,
        summary: Summary,
        *,
        block: int = 64,
    ) -> None:
        """Write a line for each question, after those that the journal has.

        Args:
            questions: All, in the corpus' order.
            journal: Where to.
            summary: Told of each line by the journal; stops for a teacher of no use.
            block: Questions searched and answered at once, and synced to the disk.

        Raises:
            InputError: The teacher makes no label of too many.
            TrainingStopped: The disk refused.
            ModelFault: A score is not a number.
        """
        answers = Answers([passage.text for passage in self.corpus.passages])
        began, first = time.monotonic(), journal.count
        logged = began
        summary.check()
        for start in range(first, len(questions), block):
            numbers = range(start, min(start + block, len(questions)))
            journal.append(self.lines([questions[i] for i in numbers], numbers, answers))
            summary.check()
            now = time.monotonic()
            if now - logged > PROGRESS_SECONDS or numbers.stop == len(questions):
                logged, speed = now, (numbers.stop - first) / max(now - began, 1e-9)
                log.info("%d of %d questions, %.1f a second", numbers.stop, len(questions), speed)

    def lines(
        self,
        questions: Sequence[TrainingQuestion],
        numbers: Sequence[int],
        answers: Answers,
    ) -> list[Line]:
        """Return a line for each question.

        Args:
            questions: A block of them.
            numbers: Their places in the corpus' ``gold``.
            answers: Of the corpus' passages.
        """
        plan = self.plan
        hits = self.retriever.search(
            [question.question for question in questions], plan.top, plan.mode
        )
        lines: list[Line] = []
        for question, number, hit in zip(questions, numbers, hits, strict=True):
            ranked = [int(name) for name, _ in hit]
            gold = self.corpus.gold[number]
            chosen = choose(ranked, gold if plan.gold == "keep" else (), plan.top)
            if not chosen:
                lines.append(left_out("no passage was found", question.where, question.question))
            elif (
                self.labeller is None
                and plan.unsupported == "leave-out"
                and not self._supported(question, chosen, gold, answers)
            ):
                lines.append(
                    left_out("no passage holds the answer", question.where, question.answers)
                )
            else:
                lines.append(
                    {
                        "question": question.question,
                        "passages": [self.corpus.passages[place].text for place in chosen],
                        "answers": list(question.answers),
                        "label": question.label,
                        **({"title": question.title} if question.title else {}),
                        **(_about_gold(gold, chosen, ranked) if gold else {}),
                    }
                )
        if self.labeller is not None:
            self._label(questions, lines, self.labeller)
        for line in _kept(lines):
            if self.scorer is not None:
                scores = self.scorer.scores(line["question"], line["passages"])
                if len(scores) != len(line["passages"]):
                    raise ModelFault(f"{len(scores)} scores of {len(line['passages'])} passages")
                line["scores"] = [round(score, 6) for score in scores]
        return lines

    def _supported(
        self,
        question: TrainingQuestion,
        chosen: Sequence[int],
        gold: Sequence[int],
        answers: Answers,
    ) -> bool:
        """Tell whether a passage holds an answer: as whole words, in gold ones as any part."""
        right = [text for text in (*question.answers, question.label) if text.strip()]
        if question.gold and not right:  # a passage is all that it asks for
            return True
        if any(answers.hold(place, right) for place in chosen):
            return True
        texts = [self.corpus.passages[place].text.casefold() for place in chosen if place in gold]
        return any(answer.casefold() in text for answer in right for text in texts)

    def _label(
        self, questions: Sequence[TrainingQuestion], lines: list[Line], labeller: LabelSource
    ) -> None:
        """Put the teacher's answers into lines, or leave those lines out."""
        kept = list(_kept(lines))
        replies = labeller.answer([(line["question"], line["passages"]) for line in kept])
        answers = {id(line): answer for line, answer in zip(kept, replies, strict=True)}
        for row, (question, line) in enumerate(zip(questions, lines, strict=True)):
            if (answer := answers.get(id(line))) is None:
                continue
            if not answer.fits:
                lines[row] = left_out(UNREAD, question.where, question.question)
            elif not answer.text:
                lines[row] = left_out(SILENT, question.where, question.question)
            elif not answer.finished:
                lines[row] = left_out(UNFINISHED, question.where, answer.text)
            else:
                line["label"] = answer.text


def _kept(lines: Sequence[Line]) -> Iterator[Line]:
    return (line for line in lines if "left_out" not in line)


def _about_gold(gold: Sequence[int], chosen: Sequence[int], ranked: Sequence[int]) -> Line:
    """Say which of a row's passages are gold, and whether the search found one itself."""
    return {
        "gold": [row for row, place in enumerate(chosen) if place in gold],
        "found": any(place in gold for place in ranked),
    }


def fingerprint(questions: Sequence[TrainingQuestion]) -> str:
    """Return the sha256 of questions: all of them that a row is made of, in their order."""
    digest = hashlib.sha256()
    for question in questions:
        content = [
            question.question,
            question.passages,
            question.answers,
            question.label,
            question.title,
            question.gold,
        ]
        digest.update(json.dumps(content).encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"
