"""How one description of an operation becomes a method of each client.

An operation is a function that makes a call: a value that says what to send and how to read the
reply, and does nothing by itself. A client only knows how to ``send`` a call, or to ``stream``
one; the functions here turn an operation into its method, keeping its signature and docstring.
Here are also the keywords of a question, which are many and the same for four operations.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from condensery.errors import InputError, shorten
from condensery.question import (
    AnswerCompression,
    AnswerIndex,
    AnswerRerank,
    CompressionMode,
    Question,
    SearchMode,
)
from condensery.values import Document, Metadata

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """``read`` turns a reply into what the caller gets; of a stream, each message into a list."""

    read: Callable[[Any], T]


def blocking(operation: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the method of a client whose ``send`` blocks."""

    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        reply: T = client.send(operation(*args, **kwargs))
        return reply

    return _copy_signature(method, operation)


def awaiting(
    operation: Callable[P, Call[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make the method of a client whose ``send`` is a coroutine."""

    async def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        reply: T = await client.send(operation(*args, **kwargs))
        return reply

    return _copy_signature(method, operation)


def streaming(
    operation: Callable[P, Call[Iterable[T]]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make the method of a client whose ``stream`` is a generator."""

    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        events: Iterator[T] = client.stream(operation(*args, **kwargs))
        return events

    return _copy_signature(method, operation)


def streaming_async(
    operation: Callable[P, Call[Iterable[T]]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Make the method of a client whose ``stream`` is an async generator."""

    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        events: AsyncIterator[T] = client.stream(operation(*args, **kwargs))
        return events

    return _copy_signature(method, operation)


Method = TypeVar("Method", bound=Callable[..., Any])


def _copy_signature(method: Method, operation: Callable[..., Any]) -> Method:
    """Give ``method`` the name, docstring and parameters of ``operation``, after its client."""
    functools.update_wrapper(method, operation)
    client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    vars(method)["__signature__"] = inspect.Signature([client, *_parameters(operation)])
    return method


def _parameters(operation: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield an operation's parameters, those that a ``TypedDict`` holds one by one."""
    for parameter in inspect.signature(operation).parameters.values():
        if get_origin(parameter.annotation) is not Unpack:
            yield parameter
            continue
        (keywords,) = get_args(parameter.annotation)
        for name, kind in get_type_hints(keywords).items():
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind
            )


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
        raise InputError("filter: there is no index to filter; give one", field="filter")
    options: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"index": {}, "rerank": {}, "compression": {}}
    for keyword, value in how.items():
        part, _, field = PATHS.get(keyword, keyword).rpartition(".")
        (parts[part] if part else options)[field] = value
    if options.get("documents") is not None:
        options["documents"] = make_documents(options["documents"])
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
        raise InputError(
            f"documents: {shorten(documents)} is one text; give a list of them.",
            field="documents",
            value=documents,
        )
    return [
        Document(str(place), document) if isinstance(document, str) else document
        for place, document in enumerate(documents)
    ]
