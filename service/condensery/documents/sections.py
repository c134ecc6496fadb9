"""Sections of a file that people read, and the documents that are made of them.

A section is what stands under one heading. The headings above it are no passages of their own:
each document of a section begins with them, and has them as metadata.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from condensery.sentences import sentences
from condensery.values import Document

# Under a heading a document, heading and all, is about one passage of the server's (128 tokens), so
# that each passage says where it stands; elsewhere the server cuts, with an overlap, and this only
# keeps requests small.
HEADED_CHARS, LEAST_CHARS = 420, 200
PLAIN_CHARS = 20_000
BETWEEN_HEADINGS = " > "
MAX_ANCHOR_CHARS = 80
KEPT_HEADING_CHARS = 200


@dataclass(frozen=True, slots=True)
class Block:
    """What is not cut without need: a paragraph, a list, a table.

    Attributes:
        line: Its first line in the file, from 1; None where lines mean nothing.
    """

    text: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under one heading, up to the next.

    Attributes:
        heading: The headings that it is under, the outermost first; () is none.
        anchor: Of its documents' ids; None is made of the last heading.
        metadata: Beside the headings: a page's number, say.
    """

    heading: tuple[str, ...]
    blocks: list[Block] = field(default_factory=list)
    anchor: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Outline:
    """Collects blocks under the headings that come before them."""

    def __init__(self) -> None:
        self.sections = [Section(())]
        self._path: list[tuple[int, str]] = []  # level, heading

    def add_heading(self, level: int, text: str) -> None:
        """Begin a section: under the last heading of a smaller level."""
        heading = " ".join(text.split())[:KEPT_HEADING_CHARS]
        self._path = [(above, name) for above, name in self._path if above < level]
        if heading:
            self._path.append((level, heading))
        self.sections.append(Section(tuple(name for _, name in self._path)))

    def add(self, text: str, line: int | None = None) -> None:
        """Add a block."""
        if text.strip():
            self.sections[-1].blocks.append(Block(text, line))


def make_documents(name: str, sections: Iterable[Section]) -> Iterator[Document]:
    """Yield the documents of a file's sections, ``name#anchor``, each id once.

    A section without text is none: a heading alone says nothing.
    """
    taken: dict[str, int] = {}
    for section in sections:
        anchor = section.anchor or make_anchor(section.heading)
        prefix = f"{BETWEEN_HEADINGS.join(section.heading)}\n\n" if section.heading else ""
        limit = max(LEAST_CHARS, HEADED_CHARS - len(prefix)) if prefix else PLAIN_CHARS
        for piece in pack(section.blocks, limit):
            metadata = dict(section.metadata)
            if section.heading:
                metadata["heading"] = list(section.heading)
            if piece.line is not None:
                metadata["line"] = piece.line
            id = f"{name}#{take_anchor(anchor, taken)}"
            yield Document(id, prefix + piece.text, metadata)


def skip_heading(text: str, metadata: Mapping[str, Any] | None) -> int:
    """Return where a document's text, or a passage's, begins after the headings above it."""
    heading = (metadata or {}).get("heading")
    if not isinstance(heading, Sequence) or isinstance(heading, str):
        return 0
    prefix = f"{BETWEEN_HEADINGS.join(map(str, heading))}\n\n"
    return len(prefix) if text.startswith(prefix) else 0


def pack(blocks: Iterable[Block], limit: int) -> Iterator[Block]:
    """Join blocks up to about ``limit`` characters; longer ones are cut at ends of sentences."""
    texts: list[str] = []
    line, chars = None, 0
    for block in blocks:
        for piece in _cut(block, limit):
            if texts and chars + len(piece.text) > limit:
                yield Block("\n\n".join(texts), line)
                texts, chars = [], 0
            if not texts:
                line = piece.line
            texts.append(piece.text)
            chars += len(piece.text)
    if texts:
        yield Block("\n\n".join(texts), line)


def _cut(block: Block, limit: int) -> Iterator[Block]:
    text = block.text.strip("\n").rstrip()
    line, counted = block.line, 0
    for start, stop in _cut_places(text, limit):
        if line is not None:
            line, counted = line + text.count("\n", counted, start), start
        yield Block(text[start:stop], line)


def _cut_places(text: str, limit: int) -> Iterator[tuple[int, int]]:
    start = stop = 0
    if len(text) > limit:
        for first, end in sentences(text):
            if stop > start and end - start > limit:
                yield start, stop
                start = first
            stop = end
    yield start, len(text)


def make_anchor(heading: tuple[str, ...]) -> str:
    """Return a heading's anchor, as GitHub makes it of Markdown: ``how-it-works``."""
    text = unicodedata.normalize("NFC", heading[-1] if heading else "").lower()
    kept = re.sub(r"[^\w\s-]", "", text).strip()
    return re.sub(r"\s+", "-", kept)[:MAX_ANCHOR_CHARS] or "text"


def take_anchor(anchor: str, taken: dict[str, int]) -> str:
    """Return the anchor, with a number where it is taken, and take it.

    Args:
        taken: Of each anchor that is taken the next number to try: those before it are taken too.
    """
    number, free = taken.get(anchor, 2), anchor
    while free in taken:
        free = f"{anchor}-{number}"
        number += 1
    taken[anchor] = number
    taken.setdefault(free, 2)
    return free
