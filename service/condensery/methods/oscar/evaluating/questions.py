"""The questions that a pair is measured on, checked whole before the first is asked."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from condensery.errors import EmptyInput, InputError, shorten
from condensery.methods.oscar.evaluating.placing import Row
from condensery.methods.trainer.questions import wrong_fields
from condensery.methods.trainer.rows import read_rows

SHOWN = 10  # problems that a message lists; it counts the rest


@dataclass(frozen=True, slots=True)
class Questions:
    """What was sampled of a file.

    Attributes:
        rows: Each {question, answers, context, title}; context is "" where there is none.
        file: The file's name.
        sha256: Of the questions sampled.
        total: Questions in the file.
        repeated: Questions of the sample that stood in it already, with the same passage; they
            are asked once, and every answer of either is right.
    """

    rows: list[Row]
    file: str
    sha256: str
    total: int
    repeated: int

    @property
    def with_gold(self) -> bool:
        """Whether every question has its passage."""
        return all(row["context"] for row in self.rows)


class _Row(BaseModel):
    """A row's form, as SQuAD's in one line; what else it holds is passed over."""

    model_config = ConfigDict(strict=True, frozen=True)

    question: str
    answers: list[str]
    context: str | None = None
    title: str | None = None


def sample_questions(path: Path, count: int, seed: int) -> Questions:
    """Choose questions of a JSONL file (.gz, .xz) or a ``datasets`` folder at random.

    A row is {question, answers, context, title}; ``context`` is the passage that holds the answer
    and may be missing, ``title`` its article.

    Args:
        path: The file.
        count: How many; all, if it has fewer.
        seed: Of the choice.

    Raises:
        InputError: A row is of another form, has an empty question, or no answer; it names all
            such rows by line, field and value. Or the count is less than 1.
        EmptyInput: There is no row.
    """
    if count < 1:
        raise InputError(f"count: {count} is less than 1", field="count", value=count)
    rows: list[Row] = []
    problems: list[str] = []
    for row in read_rows(path):
        wrong = list(_problems(row.value))
        problems += [f"{row.where}: {problem}" for problem in wrong]
        if not wrong:
            value = row.value
            rows.append(
                {
                    "question": value["question"],
                    "answers": [answer for answer in value["answers"] if answer.strip()],
                    "context": value.get("context") or "",
                    "title": value.get("title") or "",
                }
            )
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise InputError("\n".join([*problems[:SHOWN], *more]), field="questions", value=str(path))
    if not rows:
        raise EmptyInput(f"questions: {path} holds none", field="questions", value=str(path))
    chosen = random.Random(seed).sample(rows, min(count, len(rows)))
    merged = _merged(chosen)
    digest = hashlib.sha256(repr(merged).encode()).hexdigest()
    return Questions(merged, path.name, digest, len(rows), len(chosen) - len(merged))


def _problems(value: dict[str, object]) -> Iterator[str]:
    """Say all that is wrong with a row."""
    try:
        row = _Row.model_validate(value)
    except ValidationError as error:
        yield from (f"{field}: {message}" for field, message in wrong_fields(error))
        return
    if not row.question.strip():
        yield f"question: {row.question!r} is empty"
    if not any(answer.strip() for answer in row.answers):
        yield f"answers: {shorten(row.answers)} holds no answer"


def _merged(rows: list[Row]) -> list[Row]:
    """Make one of questions that are asked twice of the same passage; SQuAD's dev set has 39."""
    merged: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (" ".join(row["question"].split()).casefold(), row["context"])
        first = merged.setdefault(key, row)
        if first is not row:
            merged[key] = {
                **first,
                "answers": list(dict.fromkeys(first["answers"] + row["answers"])),
            }
    return list(merged.values())
