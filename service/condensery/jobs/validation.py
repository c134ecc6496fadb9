"""What jobs refuse, by field and value, before anything is tokenised."""

import math
from collections.abc import Collection, Sequence

from condensery.errors import EmptyInput, InputError, PayloadTooLarge, shorten
from condensery.index.filters import read_filter
from condensery.jobs.interfaces import OscarModel
from condensery.jobs.services import RequestLimits
from condensery.jobs.text_form import fold_character
from condensery.question import MAX_STOP_CHARS, MAX_STOPS, AnswerIndex, CompressionMode, Question
from condensery.values import SEARCH_MODES, Document, ModelInfo, PairTraits

COMPRESSION_MODES: tuple[CompressionMode, ...] = ("auto", "required", "off")
PASSAGE_SOURCES = ("documents", "index", "context")
FILTER_FIELD = "index.filter"


def check_count(items: Sequence[object], field: str, limit: int) -> None:
    """Refuse a list that is empty or has over ``limit`` items."""
    if not items:
        raise EmptyInput.at(field, f"the list is empty; it must hold 1 to {limit}.")
    if len(items) > limit:
        raise PayloadTooLarge.at(
            field, f"{len(items)} items, over the limit of {limit} in one request.", len(items)
        )


def check_text(text: str, field: str, max_chars: int) -> None:
    """Refuse a text that is far too long, or is not Unicode text.

    Args:
        text: May be empty.
        max_chars: Characters over which it is not worth tokenising, only to be cut.
    """
    if len(text) > max_chars:
        raise InputError.at(
            field,
            f"{len(text)} characters, over the limit of {max_chars}; it begins "
            f"{shorten(text, 40)}.",
            len(text),
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError.at(
                field,
                f"the character at {error.start} is half of a surrogate pair: "
                f"{shorten(text[error.start])}.",
                text[error.start],
            ) from error


def check_texts(texts: Sequence[str], field: str, max_chars: int) -> None:
    """Check each text of a list; a wrong one is named by its place."""
    for place, text in enumerate(texts):
        if len(text) > max_chars or not text.isascii():
            check_text(text, f"{field}[{place}]", max_chars)


def check_inputs(
    limits: RequestLimits,
    info: ModelInfo,
    texts: Sequence[str],
    field: str,
    max_items: int | None = None,
) -> None:
    """Refuse texts that are too many for a request, or far too long for a model.

    ``max_items`` is a limit in place of every request's.
    """
    check_count(texts, field, limits.max_items if max_items is None else max_items)
    check_texts(texts, field, max_chars_of(limits, info))


def max_chars_of(limits: RequestLimits, info: ModelInfo) -> int:
    """Return the characters over which a text is refused for a model, and not cut."""
    return info.max_tokens * limits.chars_per_token


def check_range(value: int, field: str, low: int, high: int) -> None:
    """Refuse a whole number out of ``low`` to ``high``, both allowed."""
    if not low <= value <= high:
        raise InputError.at(field, f"{value} is not a whole number from {low} to {high}.", value)


def check_number(value: float | None, field: str, low: float, high: float = math.inf) -> None:
    """Refuse a number out of ``low`` to ``high``, or one that is not finite; None is allowed."""
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        allowed = f"a number of {low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
        raise InputError.at(field, f"{value} is not {allowed}.", value)


def check_choice(value: str, field: str, allowed: Collection[str]) -> None:
    """Refuse a word that is not among ``allowed``."""
    if value not in allowed:
        raise InputError.at(field, f"{shorten(value)} is not one of {', '.join(allowed)}.", value)


def check_question(limits: RequestLimits, oscar: OscarModel, question: Question) -> None:
    """Refuse a question that can't be answered as it is asked.

    Raises:
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
    """
    check_choice(question.compression.mode, "compression.mode", COMPRESSION_MODES)
    check_query(limits, oscar, question.query)
    if question.documents is not None:
        check_documents(limits, oscar, question.documents)
    if question.index is not None:
        _check_index(limits, question.index)
    if question.rerank.top_n is not None:
        check_range(question.rerank.top_n, "rerank.top_n", 0, limits.max_answer_documents)
    check_range(question.max_tokens, "max_tokens", 1, limits.max_answer_tokens)
    _check_stops(question.stop)
    _check_compression(oscar, question)


def check_server_question(question: Question) -> None:
    """Refuse what another server that writes the answer can't be asked for.

    Raises:
        InputError: Names the field.
    """
    if question.logprobs is not None:
        raise InputError.at(
            "logprobs",
            f"{question.logprobs} is asked for, but another server writes the answers "
            "(answer_with), and its tokens are not reported.",
            question.logprobs,
        )


def _check_index(limits: RequestLimits, index: AnswerIndex) -> None:
    if index.mode is not None:
        check_choice(index.mode, "index.mode", SEARCH_MODES)
    read_filter(index.filter, FILTER_FIELD)
    check_range(index.top_k, "index.top_k", 1, limits.max_answer_documents)


def check_sources(question: Question) -> None:
    """Refuse a question with no passages, or with some of two kinds."""
    sources = [name for name in PASSAGE_SOURCES if getattr(question, name) is not None]
    if len(sources) != 1:
        got = f"both {' and '.join(sources)}" if sources else "neither"
        raise InputError.at(
            "documents",
            f"give `documents`, `index` or `context`, one of them, or a model with an index "
            f"(`pair@index`); got {got}.",
        )


def check_query(limits: RequestLimits, oscar: OscarModel, text: str) -> None:
    """Refuse a question in which nothing can be seen, far too long, or no Unicode text."""
    check_text(text, "query", max_chars_of(limits, oscar.info))
    # Control characters, zero-width ones and marks without a letter are no token of any model's.
    if not any(fold_character(character)[0] for character in text):
        raise InputError.at("query", "the question is empty.", text)


def check_documents(
    limits: RequestLimits, oscar: OscarModel, documents: Sequence[Document]
) -> None:
    """Refuse documents that are none or too many, far too long, or of the same id.

    A blank one among others is no error: it is not read, and reported. All of them blank are.
    """
    check_count(documents, "documents", limits.max_answer_documents)
    max_chars = max_chars_of(limits, oscar.info)
    places: dict[str, int] = {}
    for place, document in enumerate(documents):
        check_text(document.text, f"documents[{place}].text", max_chars)
        if (first := places.setdefault(document.id, place)) != place:
            raise InputError.at(
                f"documents[{place}].id",
                f"{shorten(document.id)} is the id of documents[{first}] too.",
                document.id,
            )
    if all(is_blank(document.text) for document in documents):
        raise InputError.at(
            "documents[0].text", "it is blank, and so is every other.", documents[0].text
        )


def is_blank(text: str) -> bool:
    """Whether there is nothing to read."""
    return not text or text.isspace()


def choose_vector_counts(
    traits: PairTraits, ratio: int | None, *, field: str = "compression.ratio", held: int = 0
) -> tuple[int, ...]:
    """Return how many vectors a passage may become, the most first; of a rate asked for, its own.

    Args:
        ratio: Tokens a vector; None leaves it open.
        held: Vectors of each passage that a context holds, which bound the ratio. 0 is no context.

    Raises:
        InputError: The model has no such rate, or the context none so fine.
    """
    offered = {
        rate: count
        for rate, count in zip(traits.rates, traits.vectors, strict=True)
        if not held or count <= held
    }
    if ratio is None:
        return tuple(offered.values())
    if ratio not in offered:
        rates = ", ".join(map(str, offered))
        what = "the context was compressed at" if held else "the pair has"
        verb = "are" if len(offered) > 1 else "is"
        raise InputError.at(
            field,
            f"{ratio} is not a rate that {what}; there {verb}: {rates} (tokens a vector).",
            ratio,
        )
    return (offered[ratio],)


def _check_compression(oscar: OscarModel, question: Question) -> None:
    compression = question.compression
    check_number(compression.max_context_vectors, "compression.max_context_vectors", 1)
    check_number(compression.target_ms, "compression.target_ms", 1)
    check_number(compression.timeout_ms, "compression.timeout_ms", 1)
    check_number(question.min_relevance, "min_relevance", 0, 1)
    choose_vector_counts(oscar.traits, compression.ratio)
    name = oscar.info.name
    if compression.mode == "off":
        if compression.ratio is not None:
            raise InputError.at(
                "compression.ratio",
                f"{compression.ratio} is asked for, but with compression.mode "
                "off nothing is compressed.",
                compression.ratio,
            )
        if question.min_relevance:
            raise _unscored_error(
                question.min_relevance, "with compression.mode off none are scored"
            )
    elif question.min_relevance and not oscar.traits.scores:
        raise _unscored_error(question.min_relevance, f"{name} does not score them")


def _unscored_error(value: float, reason: str) -> InputError:
    return InputError.at(
        "min_relevance", f"{value} needs the passages' scores, and {reason}.", value
    )


def _check_stops(stops: Sequence[str]) -> None:
    """Check what the generator would refuse, but only once the answer has begun."""
    if len(stops) > MAX_STOPS:
        raise InputError.at(
            "stop", f"{len(stops)} strings, over the limit of {MAX_STOPS}.", len(stops)
        )
    for place, stop in enumerate(stops):
        field = f"stop[{place}]"
        if not stop:
            raise InputError.at(field, "the string is empty.", stop)
        check_text(stop, field, MAX_STOP_CHARS)
