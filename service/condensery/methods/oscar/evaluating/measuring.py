"""Every question asked in every setting, saved as it goes."""

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError
from condensery.methods.oscar.evaluating.asking import ANSWER_TOKENS, Outcome, ask, run_concurrently
from condensery.methods.oscar.evaluating.placing import (
    Row,
    other_passages,
    place_among_others,
    replaced,
)
from condensery.methods.oscar.evaluating.saving import Answers
from condensery.methods.oscar.evaluating.settings import FIVE, Setting
from condensery.runtime.oscar import OscarModel

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 10.0  # seconds between two lines of progress
REPLACED = Setting("replaced", "gold", 1, scored=True)


@dataclass(frozen=True, slots=True)
class ChosenPassages:
    """The passages of each question, by where they are from.

    Attributes:
        passages: For each source (``Setting.source``) those of each question.
        gold_at: Where the gold one stands among five; empty without.
        chance: What is to come after them is drawn from it.
    """

    passages: dict[str, list[list[str]]]
    gold_at: list[int]
    chance: random.Random


def choose_passages(
    rows: Sequence[Row],
    settings: Sequence[Setting],
    seed: int,
    retrieved: Mapping[str, list[list[str]]],
) -> ChosenPassages:
    """Choose the passages of each question.

    The draws are made in the same order whatever settings are asked for, so that the same seed
    gives the same passages.

    Args:
        rows: The questions.
        settings: In which they are asked.
        seed: Of the draws.
        retrieved: Passages that were retrieved, by source.

    Raises:
        InputError: Too few passages to choose from.
    """
    rng = random.Random(seed)
    wanted = {setting.source for setting in settings}
    passages: dict[str, list[list[str]]] = {"none": [[] for _ in rows], **retrieved}
    gold_at: list[int] = []
    if wanted & {"gold", "five", "others"}:
        passages["gold"] = [[row["context"]] for row in rows]
        try:
            placed = place_among_others(rows, FIVE, rng)
            passages["five"] = [texts for texts, _ in placed]
            gold_at = [at for _, at in placed]
            passages["others"] = other_passages(rows, FIVE, rng)
        except ValueError as error:
            if wanted & ({"five", "others"} - passages.keys()):
                raise InputError(f"questions: {error}; ask more of them (--count)") from error
    return ChosenPassages(passages, gold_at, rng)


@dataclass(frozen=True, slots=True)
class QuestionRunner:
    """How questions are asked.

    Attributes:
        model: The running pair.
        answers: Where answers are saved.
        at_once: Questions under way at the same time.
        max_tokens: Most tokens of an answer.
    """

    model: OscarModel
    answers: Answers
    at_once: int = 16
    max_tokens: int = ANSWER_TOKENS

    async def ask_all(
        self, rows: Sequence[Row], passages: Sequence[Sequence[str]], setting: Setting, name: str
    ) -> list[Outcome]:
        """Ask every question that was not asked before; returns all outcomes, in order.

        Raises:
            CondenseryError: One could not be answered; those answered stay.
        """
        done = self.answers.outcomes(name)
        missing = [place for place in range(len(rows)) if place not in done]
        before = max((outcome.elapsed for outcome in done.values()), default=0.0)
        room = asyncio.Semaphore(self.at_once)
        started = logged = time.perf_counter()
        ems = [
            exact_match(outcome.answer, rows[place]["answers"]) for place, outcome in done.items()
        ]
        f1s = [f1_score(outcome.answer, rows[place]["answers"]) for place, outcome in done.items()]
        with self.answers.adding(name) as add:

            async def answer(place: int) -> None:
                nonlocal logged
                async with room:
                    outcome = await ask(
                        self.model,
                        rows[place]["question"],
                        passages[place][: setting.count],
                        keep=setting.keep,
                        plain=setting.plain,
                        scored=setting.scored,
                        max_tokens=self.max_tokens,
                    )
                now = time.perf_counter()
                done[place] = replace(outcome, place=place, elapsed=before + now - started)
                add(done[place])
                golds = rows[place]["answers"]
                ems.append(exact_match(outcome.answer, golds))
                f1s.append(f1_score(outcome.answer, golds))
                if now - logged > PROGRESS_SECONDS:
                    logged = now
                    self._log_progress(setting.key, ems, f1s, len(rows), now - started)

            await run_concurrently(map(answer, missing))
        self._log_progress(setting.key, ems, f1s, len(rows), before + time.perf_counter() - started)
        return [done[place] for place in range(len(rows))]

    @staticmethod
    def _log_progress(
        key: str, ems: list[float], f1s: list[float], total: int, seconds: float
    ) -> None:
        em, part = (100 * fmean(scores) if scores else 0.0 for scores in (ems, f1s))
        log.info("%s %d/%d · em %.1f · f1 %.1f · %.0f s", key, len(ems), total, em, part, seconds)


async def measure(
    runner: QuestionRunner, rows: Sequence[Row], settings: Sequence[Setting], chosen: ChosenPassages
) -> dict[str, list[Outcome]]:
    """Ask all questions in all settings, one setting after the other; outcomes by key.

    Settings that ask the same share their answers. ``replaced`` comes last, where there is
    ``gold``: of its outcomes, ``place`` is the question's among those that ``swapped`` returns.
    """
    if any(len(runner.answers.outcomes(setting.asks)) < len(rows) for setting in settings):
        await runner.model.warm_up()
    outcomes: dict[str, list[Outcome]] = {}
    for setting in settings:
        passages = chosen.passages[setting.source]
        outcomes[setting.key] = await runner.ask_all(rows, passages, setting, setting.asks)
    if "gold" in outcomes:
        rewritten = swapped(rows, outcomes["gold"], chosen)
        texts = [[row["context"]] for row in rewritten]
        name = f"replaced-{hashlib.sha256(repr(rewritten).encode()).hexdigest()[:8]}"
        outcomes["replaced"] = await runner.ask_all(rewritten, texts, REPLACED, name)
    return outcomes


def swapped(rows: Sequence[Row], gold: Sequence[Outcome], chosen: ChosenPassages) -> list[Row]:
    """Return the questions answered right, each answer swapped for another in its passage."""
    right = [
        row
        for row, outcome in zip(rows, gold, strict=True)
        if exact_match(outcome.answer, row["answers"])
    ]
    rng = random.Random()
    rng.setstate(chosen.chance.getstate())  # the same draws however often this is asked
    return replaced(right, rng)
