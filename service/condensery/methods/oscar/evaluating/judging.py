"""A judge of answers: a language model behind OpenAI's chat API, asked as in the paper."""

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from condensery.errors import CondenseryError, InputError, shorten
from condensery.methods.oscar.evaluating.asking import Outcome, run_concurrently
from condensery.methods.oscar.evaluating.placing import Row
from condensery.methods.oscar.evaluating.saving import Answers

log = logging.getLogger(__name__)

# OSCAR, arXiv:2504.07109, figure 13.
SYSTEM = (
    "You are an evaluation tool. Answer with one of 1: Correct, 0.5: Partially correct, 0: wrong."
)
USER = (
    "Here is a question, a golden answer, and an AI-generated answer. Can you judge whether the "
    "AI-generated answer is correct according to the question and golden answer? Simply answer "
    "with one of 1: correct, 0.5: partially correct, 0: wrong. Question: {question}. Golden "
    "answer: {answer}. Generated answer: {prediction}."
)
NUMBER = re.compile(r"[\s\"'*`(\[]*(\d+(?:\.\d+)?)(?![\w%/])")
WORD = re.compile(r"[\s\"'*`(\[]*(partially|correct|incorrect|wrong|yes|no)\b")
WORDS = {"partially": 0.5, "correct": 1.0, "yes": 1.0, "incorrect": 0.0, "wrong": 0.0, "no": 0.0}
TRIES = 3
PAUSE = 1.0  # seconds before the second try, twice that before the third
IN_A_ROW = 10  # failures after which the judge is taken for broken
REPLY_TOKENS = 16
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Judge:
    """Where the judge is.

    Attributes:
        url: Of the API (``http://HOST/v1``), or of its ``/chat/completions``.
        model: As that API calls it.
        key: Sent as a bearer token, if not empty.
        seconds: That a reply may take.
        pause: Seconds before a second try.
    """

    url: str
    model: str
    key: str = ""
    seconds: float = 60.0
    pause: float = PAUSE

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(
                f"judge: {shorten(self.url)} is no http or https URL", field="judge", value=self.url
            )

    @property
    def endpoint(self) -> str:
        """What is posted to."""
        url = self.url.rstrip("/")
        return url if url.endswith("/chat/completions") else f"{url}/chat/completions"


class NotJudged(Exception):
    """No judgement came; says why."""


def verdict(reply: str) -> float:
    """Read a judge's reply: 1, 0.5 or 0, or the words for them, which must begin it.

    Raises:
        NotJudged: It is none of these.
    """
    text = reply.strip().casefold()
    if match := NUMBER.match(text):
        if float(match[1]) in (0.0, 0.5, 1.0):
            return float(match[1])
    elif match := WORD.match(text):
        return WORDS[match[1]]
    raise NotJudged(f"the reply is none of 1, 0.5, 0: {shorten(reply)}")


async def judge_one(client: httpx.AsyncClient, judge: Judge, row: Row, prediction: str) -> float:
    """Return the judge's score of an answer: 1, 0.5 or 0.

    Of several gold answers the judge is told all, separated by commas.

    Raises:
        NotJudged: It can't be reached, refuses, or says something else; after several tries where
            another may help.
    """
    golds = ", ".join(dict.fromkeys(row["answers"]))
    user = USER.format(question=row["question"], answer=golds, prediction=prediction)
    body = {
        "model": judge.model,
        "temperature": 0,
        "max_tokens": REPLY_TOKENS,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
    }
    why = ""
    for tried in range(TRIES):
        if tried:
            await asyncio.sleep(judge.pause * tried)
        try:
            reply = await client.post(judge.endpoint, json=body)
        except httpx.HTTPError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if reply.status_code == 429 or reply.status_code >= 500:
            why = f"status {reply.status_code}: {shorten(reply.text)}"
            continue
        if reply.status_code != 200:
            raise NotJudged(f"status {reply.status_code}: {shorten(reply.text)}")
        try:
            content = reply.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            raise NotJudged(f"no chat completion: {shorten(reply.text)}") from error
        if not isinstance(content, str):
            raise NotJudged(f"no chat completion: {shorten(reply.text)}")
        return verdict(content)
    raise NotJudged(why)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge said.

    Attributes:
        scores: By the question's place and the answer.
        failed: Those without: question, answer and why.
    """

    scores: dict[tuple[int, str], float]
    failed: list[dict[str, str]]


async def judge_all(
    judge: Judge, answers: Answers, rows: Sequence[Row], outcomes: Sequence[Outcome]
) -> Judged:
    """Have every answer judged that was not before; equal answers to a question are judged once.

    Raises:
        CondenseryError: The judge fails time after time; what it judged stays.
    """
    scores = answers.judgements()
    wanted = {(outcome.place, outcome.answer) for outcome in outcomes}
    missing = sorted(wanted - scores.keys())
    failed: list[dict[str, str]] = []
    in_a_row = 0
    room = asyncio.Semaphore(AT_ONCE)
    headers = {"authorization": f"Bearer {judge.key}"} if judge.key else {}
    async with httpx.AsyncClient(headers=headers, timeout=judge.seconds) as client:
        with answers.judging() as add:

            async def judge_answer(place: int, answer: str) -> None:
                nonlocal in_a_row
                async with room:
                    try:
                        score = await judge_one(client, judge, rows[place], answer)
                    except NotJudged as error:
                        question = rows[place]["question"]
                        failed.append({"question": question, "answer": answer, "error": str(error)})
                        log.warning("not judged: %s: %s", shorten(question), error)
                        in_a_row += 1
                        if in_a_row == IN_A_ROW:
                            raise CondenseryError(
                                f"judge: {judge.endpoint} failed {IN_A_ROW} times in a row, the "
                                f"last: {error}; the same command goes on",
                                field="judge",
                            ) from error
                        return
                    in_a_row = 0
                    add(place, answer, score)
                    scores[place, answer] = score

            await run_concurrently(judge_answer(place, answer) for place, answer in missing)
    log.info("judged %d answers, %d failed", len(wanted) - len(failed), len(failed))
    return Judged(scores, failed)
