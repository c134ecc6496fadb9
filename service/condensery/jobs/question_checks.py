"""What a question to a pair must be, told by field and value before anything is read."""

import math
from collections.abc import Sequence
from typing import get_args

from condensery.answers import CompressionMode
from condensery.errors import InputError, shorten
from condensery.index.filters import read_filter
from condensery.jobs.checks import check_choice, check_count, check_range, check_text
from condensery.jobs.ports import Reader
from condensery.jobs.services import Limits
from condensery.questions import MAX_STOP_CHARS, MAX_STOPS, Question, SearchMode
from condensery.values import Document, PairTraits

MODES: tuple[CompressionMode, ...] = ("auto", "required", "off")
SEARCHES: tuple[SearchMode, ...] = get_args(SearchMode)
SOURCES = ("documents", "index", "context")
FILTER = "index.filter"


def check_question(limits: Limits, reader: Reader, question: Question) -> None:
    """Refuse a question that can't be answered as it is asked.

    Raises:
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
    """
    check_choice(question.mode, "compression.mode", MODES)
    check_query(limits, reader, question.text)
    if question.documents is not None:
        check_documents(limits, reader, question.documents)
    if question.search is not None:
        check_choice(question.search, "index.mode", SEARCHES)
    if question.filter is not None and question.index is None:
        raise InputError(
            f"{FILTER}: there is no index to filter; give `index`, or no filter.", field=FILTER
        )
    read_filter(question.filter, FILTER)
    check_range(question.top_k, "index.top_k", 1, limits.max_answer_documents)
    if question.top_n is not None:
        check_range(question.top_n, "rerank.top_n", 0, limits.max_answer_documents)
    check_range(question.max_tokens, "max_tokens", 1, limits.max_answer_tokens)
    _check_stops(question.stop)
    _check_compression(reader, question)


def check_sources(question: Question) -> None:
    """Refuse a question with no passages, or with some of two kinds."""
    given = [name for name in SOURCES if getattr(question, name) is not None]
    if len(given) != 1:
        got = f"both {' and '.join(given)}" if given else "neither"
        raise InputError(
            f"documents: give `documents`, `index` or `context`, one of them; got {got}.",
            field="documents",
        )


def check_query(limits: Limits, reader: Reader, text: str) -> None:
    """Refuse a question that is blank, far too long, or no Unicode text."""
    check_text(text, "query", reader.info.max_tokens * limits.chars_per_token)
    if not text.strip():
        raise InputError("query: the question is empty.", field="query", value=text)


def check_documents(limits: Limits, reader: Reader, documents: Sequence[Document]) -> None:
    """Refuse documents that are none or too many, far too long, or of the same id.

    A blank one among others is no error: it is not read, and reported. All of them blank are.
    """
    check_count(documents, "documents", limits.max_answer_documents)
    most = reader.info.max_tokens * limits.chars_per_token
    places: dict[str, int] = {}
    for place, document in enumerate(documents):
        check_text(document.text, f"documents[{place}].text", most)
        if (first := places.setdefault(document.id, place)) != place:
            raise InputError(
                f"documents[{place}].id: {shorten(document.id)} is the id of documents[{first}] "
                "too.",
                field=f"documents[{place}].id",
                value=document.id,
            )
    if all(is_blank(document.text) for document in documents):
        raise InputError(
            "documents[0].text: it is blank, and so is every other.",
            field="documents[0].text",
            value=documents[0].text,
        )


def is_blank(text: str) -> bool:
    """Whether there is nothing to read."""
    return not text or text.isspace()


def vectors_for(
    traits: PairTraits, rate: int | None, *, field: str = "compression.ratio", held: int = 0
) -> tuple[int, ...]:
    """Return how many vectors a passage may become, the most first: one, if a rate is asked for.

    Args:
        traits: The pair's.
        rate: Tokens a vector; None leaves it open.
        field: Its name in messages.
        held: Vectors of each passage that a context holds: none finer can be had of it. 0 is none.

    Raises:
        InputError: The pair has no such rate, or the context none so fine.
    """
    there = {
        rate: count
        for rate, count in zip(traits.rates, traits.vectors, strict=True)
        if not held or count <= held
    }
    if rate is None:
        return tuple(there.values())
    if rate not in there:
        rates = ", ".join(map(str, there))
        what = "the context was compressed at" if held else "the pair has"
        raise InputError(
            f"{field}: {rate} is not a rate that {what}; there {'are' if len(there) > 1 else 'is'}"
            f": {rates} (tokens a vector).",
            field=field,
            value=rate,
        )
    return (there[rate],)


def check_number(value: float | None, field: str, low: float, high: float = math.inf) -> None:
    """Refuse a number out of ``low`` to ``high``, or one that is not finite; None is allowed."""
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        allowed = f"a number of {low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
        raise InputError(f"{field}: {value} is not {allowed}.", field=field, value=value)


def _check_compression(reader: Reader, question: Question) -> None:
    check_number(question.max_context_vectors, "compression.max_context_vectors", 1)
    check_number(question.target_ms, "compression.target_ms", 1)
    check_number(question.compress_timeout_ms, "compression.timeout_ms", 1)
    check_number(question.min_relevance, "min_relevance", 0, 1)
    vectors_for(reader.traits, question.rate)
    name = reader.info.name
    if question.mode == "off":
        if question.rate is not None:
            raise InputError(
                f"compression.ratio: {question.rate} is asked for, but with compression.mode off "
                "nothing is compressed.",
                field="compression.ratio",
                value=question.rate,
            )
        if question.min_relevance:
            raise _unscored(question.min_relevance, "with compression.mode off none are scored")
    elif question.min_relevance and not reader.traits.scores:
        raise _unscored(question.min_relevance, f"{name} does not score them")


def _unscored(value: float, why: str) -> InputError:
    return InputError(
        f"min_relevance: {value} needs the passages' scores, and {why}.",
        field="min_relevance",
        value=value,
    )


def _check_stops(stops: Sequence[str]) -> None:
    """As the generator would; it would tell only once the answer has begun."""
    if len(stops) > MAX_STOPS:
        raise InputError(
            f"stop: {len(stops)} strings, over the limit of {MAX_STOPS}.",
            field="stop",
            value=len(stops),
        )
    for place, stop in enumerate(stops):
        field = f"stop[{place}]"
        if not stop:
            raise InputError(f"{field}: the string is empty.", field=field, value=stop)
        check_text(stop, field, MAX_STOP_CHARS)
