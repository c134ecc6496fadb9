"""Replies with long lists, written and sent piece by piece.

orjson holds the interpreter while it writes, in a thread too: 2,000 vectors in one go keep every
other request waiting for 30 ms. And what is handed to the connection in one piece lies in memory
until its client has taken it, long after the request has left.
"""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from condensery.api.rest.doors import reply

# Numbers in one piece: about a millisecond.
NUMBERS = 25_000
# Texts in one piece, where they are long.
TEXTS = 64


class Pieces(Response):
    """A JSON reply whose body is sent piece by piece, each once there is room for it."""

    def __init__(self, pieces: list[bytes], headers: dict[str, str]) -> None:
        length = str(sum(map(len, pieces)))
        super().__init__(
            headers={**headers, "content-length": length}, media_type="application/json"
        )
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        last = len(self._pieces) - 1
        for place, piece in enumerate(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": place < last})


async def reply_list(
    items: Iterable[Any],
    each: int,
    *,
    within: Mapping[str, Any] | None = None,
    field: str = "",
    headers: dict[str, str] | None = None,
) -> Response:
    """Return a list as JSON; numpy arrays in it are written as they are.

    Args:
        items: Taken as they are written.
        each: Items in one piece.
        within: An object that the list is a field of; None gives the list alone.
        field: The field's name, which ``within`` has for its place.
        headers: The reply's.
    """
    source = iter(items)
    part = list(islice(source, each))
    if len(part) < each:  # most often it is all of it
        return reply(part if within is None else {**within, field: part}, headers=headers)
    before, after = b"[", b"]"
    if within is not None:
        empty = orjson.dumps({field: []})[1:-1]
        before, _, after = orjson.dumps({**within, field: []}).partition(empty)
        before, after = before + empty[:-1], b"]" + after
    pieces = await _written(chain(part, source), each)
    return Pieces([before, *pieces, after], headers or {})


async def reply_lists(
    within: Mapping[str, Any],
    lists: Mapping[tuple[str, ...], tuple[Iterable[Any], int]],
    *,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return an object with several lists as JSON, written piece by piece.

    Args:
        within: Its other fields; one at least.
        lists: Items, and how many make a piece, by where they are: a field, or a field and one of
            the object in it. Lists of one field's object follow each other.
        headers: The reply's.
    """
    pieces = [orjson.dumps(within)[:-1]]
    inside = ""
    for (field, *rest), (items, each) in lists.items():
        opening = b""
        if inside and (not rest or field != inside):
            opening, inside = b"}", ""
        if rest:
            opening += b"," if inside else b"," + orjson.dumps(field) + b":{"
            opening += orjson.dumps(rest[0]) + b":["
            inside = field
        else:
            opening += b"," + orjson.dumps(field) + b":["
        pieces.append(opening)
        pieces += await _written(items, each)
        pieces.append(b"]")
    return Pieces([*pieces, b"}}" if inside else b"}"], headers or {})


async def _written(items: Iterable[Any], each: int) -> list[bytes]:
    """Write a list's items, without the brackets, some in a piece."""
    source = iter(items)
    pieces: list[bytes] = []
    while part := list(islice(source, each)):
        if pieces:
            await asyncio.sleep(0)  # the others' turn
        written = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        pieces.append(b"," + written if pieces else written)
    return pieces
