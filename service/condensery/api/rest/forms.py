"""Multipart forms whose files go to the disk as they come (RFC 7578)."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from condensery.errors import InputError, shorten
from condensery.jobs.files import Spool
from condensery.jobs.services import Services

MAX_FILES = 10_000
MAX_FIELDS = 100
MAX_FIELD_BYTES = 4096
PIECE_BYTES = 2**20  # that are written at once, in a thread

# What browsers write for what a quoted name can't hold (WHATWG's encoding of forms).
_ESCAPES = {"%0A": "\n", "%0D": "\r", "%22": '"'}


@dataclass(frozen=True, slots=True)
class FormFile:
    """A part of a form that is a file; where it lies in the spool."""

    field: str
    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Form:
    """A form's texts by their fields, and its files, which lie in ``spool``."""

    spool: Spool
    texts: list[tuple[str, str]]
    files: list[FormFile]


@asynccontextmanager
async def open_form(request: Request, services: Services) -> AsyncIterator[Form]:
    """Read a request's form; its files are gone after the block.

    Raises:
        InputError: It is no such form, broke off, or is over a limit.
        PayloadTooLarge: It is over the limit of bytes.
        StorageFull, StorageReadOnly: The disk refused.
    """
    media, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if media != b"multipart/form-data" or not boundary:
        got = shorten(request.headers.get("content-type", ""))
        raise InputError.at(
            "content-type", f"{got} is not multipart/form-data with a boundary.", got
        )
    spool = await asyncio.to_thread(Spool, services.uploads.folder)
    try:
        reader = _FormReader(boundary)
        more = True
        while more:
            message = await request.receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            more = message.get("more_body", False)
            reader.feed(message.get("body", b""))
            if len(reader.pending) >= PIECE_BYTES or (reader.pending and not more):
                await asyncio.to_thread(spool.write, reader.take_pending())
        if not reader.complete:
            raise InputError.at("body", "the form breaks off before its last boundary.")
        yield Form(spool, reader.texts, reader.files)
    finally:
        spool.close()


class _FormReader:
    """Parses a form piece by piece.

    Attributes:
        pending: Bytes of files that are not taken yet.
        complete: Whether the last boundary has come.
    """

    def __init__(self, boundary: bytes) -> None:
        self.texts: list[tuple[str, str]] = []
        self.files: list[FormFile] = []
        self.pending = bytearray()
        self.complete = False
        self._taken = 0
        self._header, self._value = bytearray(), bytearray()
        self._disposition = ""
        self._field, self._name = "", ""
        self._text: bytearray | None = None  # None in a file
        self._start = 0
        callbacks: Any = {
            name: getattr(self, f"_{name}")
            for name in (
                "on_part_begin",
                "on_header_field",
                "on_header_value",
                "on_header_end",
                "on_headers_finished",
                "on_part_data",
                "on_part_end",
                "on_end",
            )
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise InputError.at("content-type", f"{error}.") from error

    def feed(self, data: bytes) -> None:
        """Parse a piece of the body.

        Raises:
            InputError: It is no such form, or over a limit.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InputError.at("body", f"not a multipart form: {error}.") from error

    def take_pending(self) -> bytes:
        """Return what is pending, which the caller writes."""
        taken, self.pending = bytes(self.pending), bytearray()
        self._taken += len(taken)
        return taken

    def _on_part_begin(self) -> None:
        self._disposition = ""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value.decode("latin-1")
        self._header, self._value = bytearray(), bytearray()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise InputError.at("body", "a part of the form has no name.")
        self._field = options[b"name"].decode("utf-8", "backslashreplace")  # for messages
        self._text = None
        if b"filename" not in options:
            if len(self.texts) >= MAX_FIELDS:
                raise InputError.at("body", f"over {MAX_FIELDS} fields that are no files.")
            self._text = bytearray()
            return
        if len(self.files) >= MAX_FILES:
            raise InputError.at(
                self._field,
                f"over {MAX_FILES} files in one request; send the others in another one.",
            )
        self._name = _decode(options[b"filename"])
        self._start = self._taken + len(self.pending)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self.pending += memoryview(data)[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise InputError.at(
                self._field,
                f"over {MAX_FIELD_BYTES} bytes of text; a file's part has a filename.",
            )

    def _on_part_end(self) -> None:
        if self._text is None:
            size = self._taken + len(self.pending) - self._start
            self.files.append(FormFile(self._field, self._name, self._start, size))
        else:
            try:
                self.texts.append((self._field, self._text.decode()))
            except UnicodeDecodeError as error:
                raise InputError.at(self._field, "its text is not UTF-8.") from error

    def _on_end(self) -> None:
        self.complete = True


def _decode(text: bytes) -> str:
    """Return a filename as it was before it was quoted; what is no UTF-8 stays known."""
    decoded = text.decode("utf-8", "surrogateescape")
    return re.sub("%0A|%0D|%22", lambda match: _ESCAPES[match[0]], decoded)
