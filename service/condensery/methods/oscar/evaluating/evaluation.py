"""One evaluation: what is measured, how, and the figures that come of it."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.methods.oscar.evaluating.asking import ANSWER_TOKENS
from condensery.methods.oscar.evaluating.figures import Figures
from condensery.methods.oscar.evaluating.judging import Judge, Judged, judge_all
from condensery.methods.oscar.evaluating.measuring import QuestionRunner, choose_passages, measure
from condensery.methods.oscar.evaluating.questions import Questions
from condensery.methods.oscar.evaluating.saving import Answers, lock_folder
from condensery.methods.oscar.evaluating.settings import PASSAGES, Capabilities, Setting, choose
from condensery.methods.ranking.retrieval import MODES, Mode
from condensery.methods.ranking.sets import Corpus
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured, and how.

    Attributes:
        questions: The sample.
        corpus: To retrieve from, if there is one.
        mode: How passages are retrieved.
        names: Settings asked for; none is all that can be.
        passages: Numbers of passages retrieved.
        read: How many of them are read where the best are chosen; None is as many as the pair
            reads best.
        seed: All chance comes from it.
        at_once: Questions under way at the same time.
        max_tokens: Most tokens of an answer.
        judge: Who judges answers, if anybody does.
        depends: What else the answers depend on, for whoever goes on with them.
    """

    questions: Questions
    corpus: Corpus | None = None
    mode: Mode = "bm25"
    names: tuple[str, ...] = ()
    passages: tuple[int, ...] = PASSAGES
    read: int | None = None
    seed: int = 17
    at_once: int = 16
    max_tokens: int = ANSWER_TOKENS
    judge: Judge | None = None
    depends: tuple[tuple[str, str], ...] = ()

    def choose(self, model: OscarModel) -> list[Setting]:
        """Return the settings that the pair is measured in.

        Raises:
            InputError: One can't be; names it and says why.
        """
        passages = len(self.corpus.passages) if self.corpus else 0
        can = Capabilities(self.questions.with_gold, passages, model.traits.scores)
        # A pair that reads all passages best has no number of its own: five, as it was trained.
        read = (model.traits.top_n or 5) if self.read is None else self.read
        by_words = self.mode == "bm25"
        return choose(self.names, self.passages, read, can, by_words=by_words)

    def retrieve(
        self, settings: Sequence[Setting], encoder: Encoder | None
    ) -> dict[str, list[list[str]]]:
        """Find the passages of settings that want some, by source; blocks."""
        texts = [row["question"] for row in self.questions.rows]
        passages: dict[str, list[list[str]]] = {}
        if self.corpus is None:
            return passages
        modes: tuple[tuple[str, Mode], ...] = (("bm25", "bm25"), ("retrieved", self.mode))
        for source, mode in modes:
            counts = [setting.count for setting in settings if setting.source == source]
            if counts:
                passages[source] = self.corpus.search(texts, max(counts), mode, encoder)
        return passages

    def about(self, model: OscarModel, settings: Sequence[Setting]) -> dict[str, Any]:
        """Return what answers depend on beside the setting."""
        depth = {
            setting.source: setting.count
            for setting in sorted(settings, key=lambda setting: setting.count)
        }
        retrieved: dict[str, Any] = {}
        if self.corpus is not None and depth.keys() & {"bm25", "retrieved"}:
            retrieved["corpus"] = self.corpus.fingerprint
        if "retrieved" in depth:
            retrieved["retrieval"] = self.mode
            if self.mode == "hybrid":  # the first so many depend on how many are asked for
                retrieved["retrieved"] = depth["retrieved"]
        return {
            "model": model.info.name,
            "fingerprint": model.info.fingerprint,
            "questions": self.questions.sha256,
            "seed": self.seed,
            "at_once": self.at_once,
            "answer_tokens": self.max_tokens,
            **retrieved,
            **dict(self.depends),
        }

    def run(
        self, model: OscarModel, folder: Path, encoder: Encoder | None = None
    ) -> dict[str, Any]:
        """Ask everything that was not asked before; returns the report's figures.

        Args:
            model: The running pair.
            folder: Where answers are saved as they come.
            encoder: For retrieval by vectors.

        Raises:
            InputError: Something can't be measured as it is asked for; said before any question.
        """
        settings = self.choose(model)
        with lock_folder(folder):
            return self._run(model, settings, folder, encoder)

    def _run(
        self, model: OscarModel, settings: Sequence[Setting], folder: Path, encoder: Encoder | None
    ) -> dict[str, Any]:
        rows = self.questions.rows
        answers = Answers(folder, self.about(model, settings))
        chosen = choose_passages(rows, settings, self.seed, self.retrieve(settings, encoder))
        log.info("%d questions, %d settings", len(rows), len(settings))
        runner = QuestionRunner(model, answers, self.at_once, self.max_tokens)
        outcomes = asyncio.run(measure(runner, rows, settings, chosen))
        judged = None
        if self.judge is not None:
            to_judge = [
                outcome for key in outcomes if key != "replaced" for outcome in outcomes[key]
            ]
            judged = asyncio.run(judge_all(self.judge, answers, rows, to_judge))
        figures = Figures(rows, settings, chosen, outcomes, judged)
        return {
            "model": model.info.name,
            "fingerprint": model.info.fingerprint or None,
            "seed": self.seed,
            "measured_on": self._measured_on(settings),
            "settings": figures.settings(),
            "differences": figures.differences(),
            **figures.abstention(),
            **figures.replaced(),
            **figures.ranked_first(),
            **({"judge": self._judged_by(judged)} if judged is not None else {}),
            "examples": figures.examples(),
        }

    def _measured_on(self, settings: Sequence[Setting]) -> dict[str, Any]:
        sources: set[str] = {setting.source for setting in settings}
        ways = ["gold"] if sources & {"gold", "five", "others"} else []
        ways += [mode for mode in MODES if mode in self._modes(sources)]
        reads = [
            setting.keep for setting in settings if setting.key.startswith(("reranked_", "bm25_"))
        ]
        return {
            "questions": len(self.questions.rows),
            "file": self.questions.file,
            "questions_in_file": self.questions.total,
            "repeated": self.questions.repeated,
            "passages_in_corpus": len(self.corpus.passages) if self.corpus else None,
            "retrieval": "+".join(ways) or "none",
            "read": max(reads) if reads else None,
            "answer_tokens": self.max_tokens,
            "seconds": f"wall clock a question, {self.at_once} at once, retrieval left out",
        }

    def _modes(self, sources: set[str]) -> set[str]:
        used = {"bm25"} if "bm25" in sources else set()
        return used | ({self.mode} if "retrieved" in sources else set())

    def _judged_by(self, judged: Judged) -> dict[str, Any]:
        assert self.judge is not None
        return {"model": self.judge.model, "failed": judged.failed}
