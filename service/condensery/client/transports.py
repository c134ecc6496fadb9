"""What both transports share: how an operation becomes a method, the key, certificates, retries.

An operation is described once, by a method that makes a ``Call`` and does nothing else. Its row
(``Operation`` or ``Stream``) is a descriptor: on a client whose methods block it is a method that
returns the result, on an asynchronous one a method to await, with the same signature and docstring.
A client's ``send`` and ``stream`` do the rest. A refusal becomes the error that the server raised,
or another try.
"""

import functools
import inspect
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from condensery import errors
from condensery.errors import (
    CondenseryError,
    InputError,
    Overloaded,
    Unavailable,
    code_of,
)

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"  # REST's


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What an operation sends, made of its arguments, and how its reply is read.

    Attributes:
        fields: By REST's names; or a dataclass of them.
        rest: Over REST beside them, or in their place.
        rpc: Over gRPC likewise, where ``fields`` is a mapping.
        known: Fields of the reply that a transport may leave out.
        read_rest: Reads the reply's bytes, where its JSON is not a value by its fields' names.
        read_rpc: Reads the message, where it is not.
        finish: Makes of what was read what the caller gets.
    """

    fields: Any
    rest: Mapping[str, Any] = field(default_factory=dict)
    rpc: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)
    read_rest: Callable[[bytes], T] | None = None
    read_rpc: Callable[[Any], T] | None = None
    finish: Callable[[T], T] | None = None

    def over_rest(self, **fields: Any) -> "Call[T]":
        """Return a copy that sends these too, over REST alone."""
        return replace(self, rest=fields)

    def over_rpc(self, **fields: Any) -> "Call[T]":
        """Return a copy that sends these too, over gRPC alone."""
        return replace(self, rpc=fields)

    def read_by(self, *, rest: Callable[[bytes], T], rpc: Callable[[Any], T]) -> "Call[T]":
        """Return a copy whose reply these read."""
        return replace(self, read_rest=rest, read_rpc=rpc)

    def then(self, finish: Callable[[T], T]) -> "Call[T]":
        """Return a copy whose result ``finish`` completes."""
        return replace(self, finish=finish)

    def complete(self, result: T) -> T:
        """Return what the caller gets, of what was read."""
        return result if self.finish is None else self.finish(result)


def call(**fields: Any) -> Call[Any]:
    """Make a call that sends what is not None, so that the server's defaults hold."""
    return Call({name: value for name, value in fields.items() if value is not None})


class Blocking(ABC):
    """A client whose methods block, and which ``with`` closes."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Asynchronous(ABC):
    """A client whose methods are awaited, and which ``async with`` closes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Row(Generic[P, T]):
    """An operation: where it is, and what makes a call of its arguments.

    Attributes:
        make: The method that describes it.
        verb: Of its REST route.
        path: Of its REST route; names in braces are fields.
        path_fields: These.
        rpc: ``Service/Method`` of condensery.v1.
        within: The reply's field, by REST's name, that holds the result, or the fields of a tuple;
            None is the reply itself.
    """

    sent_by = "send"  # which of a client's methods sends it

    def __init__(
        self,
        make: Callable[Concatenate[Any, P], Call[T]],
        rest: str,
        rpc: str,
        within: str | tuple[str, ...] | None,
    ) -> None:
        self.make, self.rpc, self.within = make, rpc, within
        self.verb, _, self.path = rest.partition(" ")
        self.path_fields = tuple(re.findall(r"{(\w+)}", self.path))
        self._method = self._make_method()

    @functools.cached_property
    def result_type(self) -> Any:
        """What a reply is read as: ``T`` of the ``Call[T]`` that the operation makes."""
        return get_args(get_type_hints(self.make)["return"])[0]

    def _bind(self, client: Any) -> Any:
        return self._method if client is None else MethodType(self._method, client)

    def _make_method(self) -> Callable[..., Any]:
        def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return getattr(client, self.sent_by)(self, *args, **kwargs)

        functools.update_wrapper(method, self.make)
        vars(method)["__signature__"] = inspect.Signature([*_list_parameters(self.make)])
        return method


class Operation(Row[P, T]):
    """An operation of one reply."""

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._bind(client)


class Stream(Row[P, T]):
    """An operation whose reply comes as events."""

    sent_by = "stream"

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._bind(client)


def operation(
    rest: str, rpc: str, *, within: str | tuple[str, ...] | None = None
) -> Callable[[Callable[Concatenate[Any, P], Call[T]]], Operation[P, T]]:
    """Make a method that describes an operation its row; arguments as ``Row`` has them.

    Args:
        rest: Verb and path, a space between them.
        rpc: Service and method.
        within: Where the result is in the reply.
    """
    return lambda make: Operation(make, rest, rpc, within)


def stream(rest: str, rpc: str) -> Callable[[Callable[Concatenate[Any, P], Call[T]]], Stream[P, T]]:
    """Make a method that describes an operation its row, where the reply comes as events."""
    return lambda make: Stream(make, rest, rpc, None)


def _list_parameters(make: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield an operation's parameters, those that a ``TypedDict`` holds one by one."""
    client, *parameters = inspect.signature(make).parameters.values()
    yield client.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    for parameter in parameters:
        if get_origin(parameter.annotation) is not Unpack:
            yield parameter
            continue
        (keywords,) = get_args(parameter.annotation)
        for name, kind in get_type_hints(keywords).items():
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind
            )


# The key, trusted certificates, the timeout, refusals and retries

# How long the caller waits, in whole milliseconds: the server drops requests after that.
TIMEOUT_HEADER = "x-request-timeout-ms"


def make_auth_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers, or metadata, that show the key; none without one.

    Raises:
        InputError: The key has characters that no header carries.
    """
    if api_key is None:
        return {}
    if not (api_key.isascii() and api_key.isprintable()) or not api_key.strip():
        raise InputError.at("api_key", "a key is printable ASCII, and not empty.")
    return {"authorization": f"Bearer {api_key}"}


def read_ca(ca: str | Path) -> bytes:
    """Read the PEM file of the certificates that may sign a server's.

    Raises:
        InputError: It holds none, or can't be read.
    """
    try:
        content = Path(ca).read_bytes()
        make_ssl_context(content)
    except (ssl.SSLError, ValueError) as error:
        raise InputError.at("ca", f"{str(ca)!r} holds no certificate in PEM.", str(ca)) from error
    except OSError as error:
        raise InputError.at(
            "ca", f"{str(ca)!r} can't be read: {error.strerror}.", str(ca)
        ) from error
    return content


def make_ssl_context(ca: bytes) -> ssl.SSLContext:
    """Make the context that checks a server's certificate against those of ``ca`` only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
    return context


def format_milliseconds(seconds: float) -> str:
    """Write seconds as the value of ``TIMEOUT_HEADER``."""
    return str(max(1, round(min(seconds * 1000, 1e15))))


# Clients that may retry at once spread over this time, so that they don't come all together.
LEAST_SPREAD_SECONDS = 0.1

# By their names on the wire: a code over REST, the class's name over gRPC.
ERRORS_BY_NAME = {
    name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CondenseryError)
    for name in (code_of(kind), kind.__name__)
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error to raise, and the seconds after which the server asks to try again."""

    error: CondenseryError
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How a client retries where the server is full or not ready, and says when to retry.

    It waits as long as the server says, and a random time of up to as long again: clients that were
    refused together would else come back together.

    Attributes:
        attempts: Tries in all; 1 never retries.
        longest_pause_seconds: The refusal is raised where the server asks for a longer wait.
        chance: Draws the random time; with a seed, the same each time.
    """

    attempts: int = 3
    longest_pause_seconds: float = 30.0
    chance: Random = field(default_factory=Random, compare=False, repr=False)

    @classmethod
    def of(cls, retries: "int | Retries") -> "Retries":
        """Return ``retries``, or those that try so many times again."""
        return retries if isinstance(retries, Retries) else cls(attempts=1 + retries)

    def pause(self, attempt: int, refusal: Refusal) -> float:
        """Return the seconds to wait after try number ``attempt``, or raise the refusal's error."""
        after = refusal.retry_after_seconds
        if (
            attempt >= self.attempts
            or after is None
            or not 0 <= after <= self.longest_pause_seconds
            or not isinstance(refusal.error, (Overloaded, Unavailable))
        ):
            raise refusal.error
        return after + self.chance.uniform(0.0, max(after, LEAST_SPREAD_SECONDS))


def make_refusal(
    name: str | None,
    nearest: type[CondenseryError],
    message: str,
    *,
    field: str | None = None,
    retry_after_seconds: float | None = None,
) -> Refusal:
    """Make the error called ``name``, or of class ``nearest``, known from the status."""
    kind = ERRORS_BY_NAME.get(name or "", nearest)
    error = kind(message, field=field, retry_after_seconds=retry_after_seconds)
    return Refusal(error, retry_after_seconds)
