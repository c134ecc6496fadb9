"""Every way to fail, drawn once; each class says below what it is.

CondenseryError
├── InputError
│   ├── EmptyInput, TokenIdsRefused, ContextTooLong
│   └── PayloadTooLarge ── HeadersTooLarge
├── Unauthenticated
├── Forbidden
├── NotFound
│   ├── ModelNotFound ── ModelCannot, ModelAliasToNothing
│   ├── IndexNotFound ── IndexClosed
│   ├── ContextNotFound ── ContextExpired, ContextLost
│   └── ReportNotFound, AliasNotFound, AliasToNothing, SnapshotNotFound, RebuildNotFound
├── Conflict
│   ├── IndexExists, NameTaken, AliasCircle, IndexAliased, LimitReached, EncoderMismatch
│   ├── SnapshotDamaged, SnapshotTooNew, RebuildRunning, TextsMissing, ContextMismatch
│   └── ModelInUse, ModelNotLoaded, ModelAliasTaken, ModelAliasCircle
├── Overloaded
├── Unavailable ── AnswerServerUnavailable, VectorDatabaseUnavailable
├── DeadlineExceeded ── ExpiredInQueue
├── ModelFault ── CompressionFailed
├── AnswerServerFault ── AnswerServerSlow
├── VectorDatabaseFault
├── StoreError ── CorruptModel
├── StorageError ── StorageFull, StorageReadOnly
└── StartError ── PortTaken, DataDirTaken, SettingError

Errors know no transport: each transport has one table, and a test that no error is left out.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self


class CondenseryError(Exception):
    """Base of all our errors.

    Args:
        message: What is wrong, naming the field and the value; safe to show to the caller.
        field: Name of the request's field at fault, dotted, if there is one.
        value: The offending value, shortened; already part of the message.
        retry_after_seconds: When it is worth coming back, if that is known.
    """

    retry_after_seconds: float | None = None

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: Any = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    @classmethod
    def at(cls, field: str, problem: str, value: Any = None) -> Self:
        """Make the error of a field: its message is the field's name, and what is wrong."""
        return cls(f"{field}: {problem}", field=field, value=value)


class InputError(CondenseryError):
    """A field of the request is wrong."""


class EmptyInput(InputError):
    """A list that must hold something is empty."""


class PayloadTooLarge(InputError):
    """The body, or the request as a whole, is over a limit."""


class HeadersTooLarge(PayloadTooLarge):
    """The request's headers, or its metadata, are over a limit."""


class TokenIdsRefused(InputError):
    """Token ids came where text is expected."""


class ContextTooLong(InputError):
    """Passages, question and answer are more than the generator reads."""


class Unauthenticated(CondenseryError):
    """No key came with the request, or one that is not known."""


class Forbidden(CondenseryError):
    """The key is known, and lacks the scope that is needed; or a page of a foreign origin asks."""


class NotFound(CondenseryError):
    """The named thing does not exist."""


class ModelNotFound(NotFound):
    """No model of that name serves, or none of the kind asked for."""


class ModelCannot(ModelNotFound):
    """The model, or every one that serves, is of another kind than is asked for."""


class ModelAliasToNothing(ModelNotFound):
    """What an alias of models should name is neither a running model nor an alias."""


class ReportNotFound(NotFound):
    """The model was never measured, or its report has no such part."""


class IndexNotFound(NotFound):
    """No index of that name."""


class IndexClosed(IndexNotFound):
    """The index was dropped, or replaced by another of its name, while it was asked."""


class AliasNotFound(NotFound):
    """No alias of that name."""


class AliasToNothing(NotFound):
    """What an alias should point at is neither an index nor an alias."""


class SnapshotNotFound(NotFound):
    """The index has no snapshot of that id."""


class RebuildNotFound(NotFound):
    """The index is not being rebuilt, and was not since the server started."""


class ContextNotFound(NotFound):
    """No context of that handle, or none of this caller's."""


class ContextExpired(ContextNotFound):
    """The context's time is over."""


class ContextLost(ContextNotFound):
    """The pair that made the context was unloaded, or replaced by one that can't read it."""


class Conflict(CondenseryError):
    """The request contradicts what is stored."""


class IndexExists(Conflict):
    """The name is taken by an index with other settings."""


class NameTaken(Conflict):
    """An alias would have an index's (or another alias's) name, or an index an alias's."""


class AliasCircle(Conflict):
    """Aliases would lead in a circle."""


class IndexAliased(Conflict):
    """The index can't be deleted, since an alias points at it."""


class LimitReached(Conflict):
    """There are as many indexes, aliases or snapshots as there may be; one must go first."""


class SnapshotDamaged(Conflict):
    """The snapshot is cut short, or was altered."""


class SnapshotTooNew(Conflict):
    """The snapshot is of a format that only a newer version reads."""


class RebuildRunning(Conflict):
    """The index is being rebuilt with other settings, or would be restored over meanwhile."""


class TextsMissing(Conflict):
    """Documents have no text, so that nothing but the vectors that are there can be had of them."""


class EncoderMismatch(Conflict):
    """Vectors, or an index, made by another encoder."""


class ContextMismatch(Conflict):
    """The context was compressed for another question, or by another pair."""


class ModelInUse(Conflict):
    """The model is not unloaded: it is a default, an index's encoder, or what an alias names."""


class ModelNotLoaded(Conflict):
    """A model could not be loaded; what served before serves on."""


class ModelAliasTaken(Conflict):
    """An alias would have a model's name, or a model an alias's."""


class ModelAliasCircle(Conflict):
    """Aliases of models would lead nowhere but to each other."""


class Overloaded(CondenseryError):
    """The queue is full."""

    retry_after_seconds: float = 1.0


class Unavailable(CondenseryError):
    """Not ready yet, or shutting down."""


class AnswerServerUnavailable(Unavailable):
    """The server that writes answers (``--answer-with``) is down, or too busy to be asked."""

    retry_after_seconds: float = 1.0


class VectorDatabaseUnavailable(Unavailable):
    """The database of an index's vectors is down or slow, or is being brought up to date."""

    retry_after_seconds: float = 1.0


class DeadlineExceeded(CondenseryError):
    """The caller's time ran out while it was being served."""


class ExpiredInQueue(DeadlineExceeded):
    """The caller's time ran out before any work on it had begun; trying again costs nothing."""


class ModelFault(CondenseryError):
    """The model failed on this item (a non-finite output, a fault in the forward pass)."""


class CompressionFailed(ModelFault):
    """A passage could not be compressed in time, and compression was required."""


class AnswerServerFault(CondenseryError):
    """The server that writes answers refused us, or sent what is no answer, or half of one."""


class AnswerServerSlow(AnswerServerFault):
    """The server that writes answers took too long for its next words."""


class VectorDatabaseFault(CondenseryError):
    """The database of an index's vectors refused us, or holds something else than it should."""


class StoreError(CondenseryError):
    """A model store, or a stored model, can't be read or written."""


class CorruptModel(StoreError):
    """A stored model's files are missing, half-written or altered."""


class StorageError(CondenseryError):
    """The disk under the index refused."""


class StorageFull(StorageError):
    """No space left on the disk under the index."""


class StorageReadOnly(StorageError):
    """The disk under the index can't be written."""


class StartError(CondenseryError):
    """The server can't start."""


class PortTaken(StartError):
    """Another process listens on the port."""


class DataDirTaken(StartError):
    """Another server holds the data directory, or it can't be used."""


class SettingError(StartError):
    """A setting holds a value that is not allowed."""


def shorten(value: object, limit: int = 80) -> str:
    """Return ``repr(value)`` cut to ``limit`` characters, for use in a message."""
    text = _represent(value, limit)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _represent(value: object, limit: int) -> str:
    """Return ``repr(value)``, of a long one little more than ``limit`` characters.

    All of a request's would take a second, in which no other thread runs.
    """
    if isinstance(value, str | bytes):
        return repr(value[:limit])
    if isinstance(value, dict):
        opening, closing = "{}"
    elif isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
    else:
        return repr(value)
    parts: list[str] = []
    left = limit
    for item in value:
        if left < 0:
            parts.append("…")
            break
        part = _represent(item, left)
        if isinstance(value, dict):
            part += f": {_represent(value[item], max(0, left - len(part)))}"
        parts.append(part)
        left -= len(part) + len(", ")
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    return f"{opening}{', '.join(parts)}{comma}{closing}"


def list_some(values: Collection[object], most: int = 8) -> str:
    """Return values as a message lists them: of many the first, and how many others there are."""
    listed = [shorten(value) for value in islice(values, most)]
    more = len(values) - len(listed)
    return ", ".join([*listed, f"and {more} more"] if more else listed)


def shorten_name(name: object, limit: int = 80) -> str:
    """Return a name as a dotted field holds it: as it is, but cut to ``limit`` characters."""
    text = str(name)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def code_of(kind: type[CondenseryError]) -> str:
    """Return a class's code on the wire: ``model_not_found`` for ModelNotFound."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


@contextmanager
def rename_field(field: str, request_name: str) -> Iterator[None]:
    """Let an error about what the jobs call ``field`` name it as the request does."""
    try:
        yield
    except InputError as error:
        if error.field != field:
            raise
        message = error.message.replace(field, request_name, 1)
        raise type(error)(message, field=request_name, value=error.value) from error
