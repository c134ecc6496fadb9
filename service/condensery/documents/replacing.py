"""Files in an index: which of their documents are there, and whether those are a file's as it is.

Each document of a file has ``file`` in its metadata: ``name``, ``folder`` and ``source`` (which
file), ``hash`` (of its bytes), ``at`` (which of its documents, from 0), ``last`` (of the last one).
A file is there as it is if all of its documents are of its hash and none is missing up to the last:
so one whose writing was cut short is not. New documents are written before old ones are deleted,
so that a search finds the one or the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from condensery.documents.files import FileName
from condensery.values import Document, StoredDocument

FIELD = "file"


@dataclass(slots=True)
class StoredFile:
    """A file's documents in an index."""

    folder: str = ""
    ids: set[str] = field(default_factory=set)
    hashes: set[str] = field(default_factory=set)
    last: int | None = None  # its place

    def is_current(self, hash: str) -> bool:
        """Tell whether the documents are those of the file with this hash, all of them."""
        return self.hashes == {hash} and self.last == len(self.ids) - 1


def mark_documents(
    documents: Iterable[tuple[Document, int]], name: FileName, hash: str
) -> Iterator[tuple[Document, int]]:
    """Yield a file's documents with what they keep of it."""
    about = {"name": name.whole, "folder": name.folder, "source": name.source, "hash": hash}
    before: tuple[Document, int] | None = None
    place = -1
    for place, item in enumerate(documents):
        if before is not None:
            yield _mark(before, {**about, "at": place - 1})
        before = item
    if before is not None:
        yield _mark(before, {**about, "at": place, "last": True})


def _mark(item: tuple[Document, int], about: dict[str, Any]) -> tuple[Document, int]:
    document, end = item
    return replace(document, metadata={**document.metadata, FIELD: about}), end


def collect_stored(documents: Iterable[StoredDocument], files: dict[str, StoredFile]) -> None:
    """Add documents to their files, by name; those of no file are passed over."""
    for document in documents:
        about = (document.metadata or {}).get(FIELD)
        if not isinstance(about, Mapping) or not isinstance(about.get("name"), str):
            continue
        file = files.setdefault(about["name"], StoredFile(str(about.get("folder", ""))))
        file.ids.add(document.id)
        file.hashes.add(str(about.get("hash")))
        if about.get("last") is True:
            file.last = int(about.get("at", -1))


def select_folder(folder: str) -> dict[str, Any]:
    """Return the filter that chooses the documents of a folder's files."""
    return {"must": [_match("folder", {"value": folder})]}


def select_files(names: Iterable[str]) -> dict[str, Any]:
    """Return the filter that chooses the documents of some files."""
    return {"must": [_match("name", {"any": list(names)})]}


def select_others(folder: str, source: str) -> dict[str, Any]:
    """Return the filter that chooses documents of other folders that have this one's name."""
    others = _match("source", {"except": [source]})
    return {"must": [_match("folder", {"value": folder}), others]}


def _match(name: str, match: dict[str, Any]) -> dict[str, Any]:
    return {"key": f"{FIELD}.{name}", "match": match}
