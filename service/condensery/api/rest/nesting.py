"""How deep JSON goes and how much it holds, seen before it is parsed.

Nothing here works bracket by bracket: most bodies have too few brackets to be looked at, and the
rest is done by whole passes over bytes.
"""

import re
import time

from condensery.errors import InputError

# Objects and lists in one body. Parsing a million of them takes the whole process 0.3 s; 2048
# documents, each with metadata nested a dozen times over, are far from this.
MAX_CONTAINERS = 100_000

# Bytes in one pass: passes are short, since nothing else runs beside one.
SLICE = 2**20

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NO_BACKSLASH = re.compile(rb"[^\\]")

# Both kinds of brackets made one, and the rest taken out.
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(sorted(set(range(256)) - set(b"[]{}")))


def check_nesting(data: bytes, max_depth: int) -> None:
    """Refuse JSON that would be deeper, or hold more objects and lists, than any request does.

    What is no JSON may pass: the parser refuses that.

    Raises:
        InputError: It would.
    """
    count = 0  # those in strings too
    for bracket in (b"[", b"{"):
        count += data.count(bracket)
        yield_after(data)
    if count <= max_depth:
        return
    brackets = _outside_strings(data)
    count = brackets.count(b"[")
    if count > MAX_CONTAINERS:
        raise InputError(
            f"body: {count} objects and lists, over the limit of {MAX_CONTAINERS}.",
            field="body",
            value=count,
        )
    for _ in range(max_depth):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    if b"[]" in brackets:
        raise InputError(f"body: nested deeper than {max_depth} (max_json_depth).", field="body")


def yield_after(data: bytes) -> None:
    """Let the event loop's thread have its turn now, after a pass over long ``data`` in another.

    By itself it would wait 5 ms for that, the interpreter's interval.
    """
    if len(data) > SLICE:
        time.sleep(0)


def _outside_strings(data: bytes) -> bytes:
    """Return the brackets that are no part of a string, both kinds as ``[]``."""
    found = []
    start, in_string = 0, 0
    while start < len(data):
        end = start + SLICE
        if data[end - 1 : end] == b"\\":  # what follows belongs to it
            after = _NO_BACKSLASH.search(data, end)
            end = after.end() if after else len(data)
        parts = _ESCAPED.sub(b"", data[start:end]).split(b'"')
        found.append(b"".join(parts[in_string::2]).translate(_ONE_KIND, _NO_BRACKET))
        in_string = (in_string + len(parts) - 1) % 2
        start = end
        yield_after(data)
    return b"".join(found)
