"""Questions that a running service is judged by, and what it replied to them.

A question has answers, or is known to have none in the collection; it may name the documents that
hold the answer. What else its row has is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from condensery.agreement import exact_match, f1_score, normalise_answer
from condensery.errors import InputError, shorten
from condensery.methods.trainer.rows import Row, read_rows

SHOWN = 10  # problems that a message lists; it counts the rest
PASSAGE_FIELD = "passage_id"

# as_it_is: the whole collection is searched. without_passage: all but the question's own documents.
Setting = Literal["as_it_is", "without_passage"]
SETTINGS: tuple[Setting, ...] = ("as_it_is", "without_passage")


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A question, and how a reply to it is judged.

    Attributes:
        place: Which row of the file, from 0.
        question: Its text.
        answers: Those that count as right; none where the collection holds no answer.
        documents: Ids of those that hold the answer; none if the row names none.
        row: As it stands in the file.
    """

    place: int
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    row: Mapping[str, Any]

    @property
    def answerable(self) -> bool:
        """Whether the collection holds an answer."""
        return bool(self.answers)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of asking a question once; a failure is a reply, too.

    Attributes:
        place: The question's.
        setting: What was searched.
        answered: Whether there was an answer: no failure, and not "not found".
        answer: Its text, "" without one.
        relevance: The best passage's score, 0 to 1; None where nothing was scored.
        cited: Documents of the passages read, best first.
        verbatim: Whether the answer stands in a passage read, to the letter.
        grounded: Whether the service says that its words stand in one; None where it says nothing.
        holding: Documents in which they stand, by the places that the service gives.
        ms: Milliseconds until the reply was here, as the caller saw it.
        server_ms: As the server counted them.
        below: The answer that a question which was not answered gets with ``min_relevance`` 0;
            None if it was not asked for.
        error: Why the question failed; None if it did not.
    """

    place: int
    setting: Setting
    answered: bool
    answer: str = ""
    relevance: float | None = None
    cited: tuple[str, ...] = ()
    verbatim: bool = False
    grounded: bool | None = None
    holding: tuple[str, ...] = ()
    ms: float = 0.0
    server_ms: float = 0.0
    below: str | None = None
    error: str | None = None

    @property
    def text(self) -> str | None:
        """The answer, or that which there would have been without a threshold."""
        return self.answer if self.answered else self.below


def is_right(answer: str, golds: Sequence[str]) -> bool:
    """Tell whether a gold answer's words stand together in the answer, normalised as SQuAD's are.

    Whole words, unlike OSCAR's accuracy (``match``), for which 10 holds the answer 1.
    """
    words = f" {normalise_answer(answer)} "
    return any(f" {normalise_answer(gold)} " in words for gold in golds)


def scores(answer: str, golds: Sequence[str]) -> tuple[float, float, float]:
    """Return whether an answer is right, its exact match and its word-overlap F1, each 0 to 1."""
    return float(is_right(answer, golds)), exact_match(answer, golds), f1_score(answer, golds)


def read_judged_questions(
    path: Path, passage_field: str = PASSAGE_FIELD
) -> tuple[JudgedQuestion, ...]:
    """Read and check a file of questions.

    Args:
        path: JSONL, plain, .gz or .xz, of ``question``, ``answers`` (strings), perhaps
            ``answerable`` (false where the collection holds no answer).
        passage_field: Which field names the documents that hold the answer: one id, or several.

    Raises:
        InputError: Something is wrong, naming file, line, field and value; or no row is there.
    """
    questions: list[JudgedQuestion] = []
    problems: list[str] = []
    for place, row in enumerate(read_rows(path)):
        wrong = list(_problems(row, passage_field))
        problems += [f"{row.where}: {problem}" for problem in wrong]
        if not wrong:
            value = row.value
            ids = value.get(passage_field) or ()
            documents = (ids,) if isinstance(ids, str) else tuple(ids)
            answers = tuple(value.get("answers", ()))
            questions.append(JudgedQuestion(place, value["question"], answers, documents, value))
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise InputError("\n".join([*problems[:SHOWN], *more]), field="questions", value=str(path))
    if not questions:
        raise InputError(f"{path}: holds no questions", field="questions", value=str(path))
    return tuple(questions)


def _problems(row: Row, passage_field: str) -> Iterator[str]:
    """Yield what is wrong with a row, each with its field and value."""
    value = row.value
    question, answers = value.get("question"), value.get("answers", [])
    if not isinstance(question, str) or not question.strip():
        yield f"question: {shorten(question)} is no text"
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        yield f"answers: {shorten(answers)} is no list of texts"
        return
    for answer in answers:
        if not normalise_answer(answer):
            yield (
                f"answers: of {shorten(answer)} nothing is left to compare but case, articles"
                " and punctuation"
            )
    answerable = value.get("answerable", True)
    if not isinstance(answerable, bool):
        yield f"answerable: {shorten(answerable)} is neither true nor false"
    elif answerable and not answers:
        yield 'answers: there are none; where the collection holds none, say "answerable": false'
    elif answers and not answerable:
        yield f"answerable: false, but answers has {shorten(answers)}"
    ids = value.get(passage_field)
    listed = [ids] if isinstance(ids, str) else ids
    if ids is not None and not (
        isinstance(listed, list) and all(isinstance(name, str) and name for name in listed)
    ):
        yield f"{passage_field}: {shorten(ids)} is neither a document's id nor a list of ids"
