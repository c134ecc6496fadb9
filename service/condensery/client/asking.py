"""What clients take as keyword arguments, made into the one value that says it all."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack, cast

from condensery.answers import CompressionMode
from condensery.errors import InputError, shorten
from condensery.questions import Question, Sampling, SearchMode
from condensery.values import Document, Metadata

Passages = Sequence[str | Document]

SAMPLING = frozenset(entry.name for entry in fields(Sampling))


class Asking(TypedDict, total=False):
    """The keywords of a question: the fields of ``Question`` and ``Sampling``, said there."""

    documents: Passages | None
    index: str | None
    context: str | None
    model: str | None
    top_k: int
    search: SearchMode | None
    filter: Metadata | None
    top_n: int | None
    mode: CompressionMode
    rate: int | None
    max_context_vectors: int | None
    target_ms: float | None
    compress_timeout_ms: float | None
    min_relevance: float | None
    max_tokens: int
    stop: str | Sequence[str]
    temperature: float
    top_p: float
    seed: int | None
    logprobs: int | None


def ask(text: str, **how: Unpack[Asking]) -> Question:
    """Make a question of its text and keywords.

    Raises:
        InputError: A value is out of its range.
        TypeError: There is no such keyword.
    """
    given = cast(dict[str, Any], how)
    sampling = Sampling(**{name: given[name] for name in SAMPLING & given.keys()})
    others = {name: value for name, value in given.items() if name not in SAMPLING}
    if others.get("documents") is not None:
        others["documents"] = read_passages(others["documents"])
    if others.get("filter") is not None and others.get("index") is None:
        raise InputError("filter: there is no index to filter; give one", field="filter")
    if isinstance(others.get("stop"), str):
        others["stop"] = (others["stop"],)
    return Question(text, **others, sampling=sampling)


def read_passages(given: Passages) -> list[Document]:
    """Return passages as documents; a text's id is its place.

    Raises:
        InputError: It is one text, of which each letter would be a passage.
    """
    if isinstance(given, str):
        raise InputError(
            f"documents: {shorten(given)} is one text; give a list of them.",
            field="documents",
            value=given,
        )
    return [
        Document(str(place), one) if isinstance(one, str) else one
        for place, one in enumerate(given)
    ]
