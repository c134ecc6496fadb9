"""A question by its keywords, which are flat, as the ``Question`` that is sent."""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from condensery.errors import InputError, shorten
from condensery.question import (
    AnswerCompression,
    AnswerIndex,
    AnswerRerank,
    CompressionMode,
    Question,
)
from condensery.values import Document, Metadata, SearchMode

DocumentInputs = Sequence[str | Document]

# Where a question's field has another place, or name, than its keyword.
PATHS = {
    "index": "index.name",
    "top_k": "index.top_k",
    "search": "index.mode",
    "filter": "index.filter",
    "top_n": "rerank.top_n",
    "mode": "compression.mode",
    "rate": "compression.ratio",
    "max_context_vectors": "compression.max_context_vectors",
    "target_ms": "compression.target_ms",
    "compress_timeout_ms": "compression.timeout_ms",
}


class QuestionOptions(TypedDict, total=False):
    """The keywords of a question: the fields of ``Question``, by ``PATHS``, described there."""

    documents: DocumentInputs | None
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


def make_question(text: str, **how: Unpack[QuestionOptions]) -> Question:
    """Make a question of its text and keywords.

    Raises:
        InputError: A value is out of its range.
        TypeError: There is no such keyword.
    """
    if how.get("filter") is not None and how.get("index") is None:
        raise InputError.at("filter", "there is no index to filter; give one")
    options: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"index": {}, "rerank": {}, "compression": {}}
    for keyword, value in how.items():
        part, _, field = PATHS.get(keyword, keyword).rpartition(".")
        (parts[part] if part else options)[field] = value
    if options.get("documents") is not None:
        options["documents"] = make_documents(options["documents"])
    documents = options.get("documents")
    if documents is not None and not documents and (how.get("index") or how.get("context")):
        raise InputError.at(
            "documents", "there are none, and an index or a context; give one of the three."
        )
    if isinstance(options.get("stop"), str):
        options["stop"] = (options["stop"],)
    if parts["index"].get("name") is not None:
        options["index"] = AnswerIndex(**parts["index"])
    return Question(
        text,
        **options,
        rerank=AnswerRerank(**parts["rerank"]),
        compression=AnswerCompression(**parts["compression"]),
    )


def make_documents(documents: DocumentInputs) -> list[Document]:
    """Return texts as documents, whose ids are their places; documents stay as they are.

    Raises:
        InputError: ``documents`` is a single text, of which each letter would be a document.
    """
    if isinstance(documents, str):
        raise InputError.at(
            "documents", f"{shorten(documents)} is one text; give a list of them.", documents
        )
    return [
        Document(str(place), document) if isinstance(document, str) else document
        for place, document in enumerate(documents)
    ]
