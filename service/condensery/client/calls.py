"""How one description of an operation becomes a method of each client.

An operation is a function that makes a call: a value that says what to send and how to read the
reply, and does nothing by itself. A client only knows how to ``send`` a call, or to ``stream``
one; the functions here turn an operation into its method, keeping its signature and docstring.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

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

    return _dress(method, operation)


def awaiting(
    operation: Callable[P, Call[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make the method of a client whose ``send`` is a coroutine."""

    async def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        reply: T = await client.send(operation(*args, **kwargs))
        return reply

    return _dress(method, operation)


def streaming(
    operation: Callable[P, Call[Iterable[T]]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make the method of a client whose ``stream`` is a generator."""

    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        events: Iterator[T] = client.stream(operation(*args, **kwargs))
        return events

    return _dress(method, operation)


def streaming_async(
    operation: Callable[P, Call[Iterable[T]]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Make the method of a client whose ``stream`` is an async generator."""

    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        events: AsyncIterator[T] = client.stream(operation(*args, **kwargs))
        return events

    return _dress(method, operation)


Method = TypeVar("Method", bound=Callable[..., Any])


def _dress(method: Method, operation: Callable[..., Any]) -> Method:
    """Give ``method`` the name, docstring and parameters of ``operation``, after its client."""
    functools.update_wrapper(method, operation)
    client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    vars(method)["__signature__"] = inspect.Signature([client, *_parameters(operation)])
    return method


def _parameters(operation: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield an operation's parameters, those that a ``TypedDict`` holds one by one."""
    for one in inspect.signature(operation).parameters.values():
        if get_origin(one.annotation) is not Unpack:
            yield one
            continue
        (keywords,) = get_args(one.annotation)
        for name, kind in get_type_hints(keywords).items():
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind
            )
