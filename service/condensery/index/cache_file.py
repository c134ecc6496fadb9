"""The file of an index's vectors as FAISS holds them: written aside, read or mapped at a start.

A line of JSON, ``Header``, filled up to 4,096 bytes; the rows (int64); those of them that are
tombstones; ``structure``, what FAISS wrote of a graph or of codes, without the vectors; and, but
for codes, the vectors (float32), as FAISS's own file of a flat index, whose numbers begin at a
multiple of 64 bytes. Little-endian.
"""

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.atomic_files import sync_path
from condensery.index.flat_vectors import file_start, look_at
from condensery.index.passages import Rows, Stamp
from condensery.values import Floats

FORMAT = 2
_HEADER_BYTES = 4096
_ALIGNED = 64
# Written between two syncs: a write to SQLite that comes meanwhile waits for so much at most.
_SYNCED = 64 * 2**20


class CacheUnusable(Exception):
    """A cache file can't serve; the message says why. Never leaves the index layer."""


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a cache file.

    ``rows``, ``dead`` and ``structure`` are the lengths of those parts, ``structure``'s in bytes;
    ``checksum`` is the CRC-32 of the three, and ``vectors_checksum`` that of the vectors' numbers.
    """

    format: int
    faiss: str
    kind: str
    metric: str
    dims: int
    sequence: int
    stamp: int
    rows: int
    dead: int
    structure: int
    has_vectors: bool
    checksum: int
    vectors_checksum: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a cache is made of.

    ``structure`` is empty for a flat one; ``vectors`` is a FAISS index that looks at the file's own
    bytes, to which nothing can be added, or None where there are codes alone.
    """

    stamp: Stamp
    rows: Rows
    dead: Rows
    structure: NDArray[np.uint8]
    vectors: Any
    vectors_checksum: int


def write(
    path: Path,
    *,
    kind: str,
    metric: str,
    dims: int,
    stamp: Stamp,
    parts: Sequence[NDArray[Any]],
    vectors: Iterable[Floats] | None,
) -> None:
    """Write a cache file aside, sync it, and rename it into place.

    Args:
        path: Of the file; the one that is there stays as it is until the new one is whole.
        kind: As the index's, like ``metric`` and ``dims``.
        metric: ``ip`` or ``l2``.
        dims: Features of a vector.
        stamp: Of the state that it holds.
        parts: Rows, tombstones, structure.
        vectors: Blocks, (n, dims), of as many vectors as rows; None if there are codes alone.

    Raises:
        OSError: The disk refused; also what ``vectors`` raises. Nothing is left of the new file.
    """
    rows, dead, structure = parts
    aside = path.with_suffix(".new")
    try:
        with aside.open("wb") as file:
            file.seek(_HEADER_BYTES)
            checksum = 0
            for part in parts:
                step = _SYNCED // part.itemsize
                pieces = (part[at : at + step] for at in range(0, len(part), step))
                checksum = _write_synced(file, pieces, checksum)
            vectors_checksum = 0
            if vectors is not None:
                start = file_start(metric, dims, len(rows))
                file.seek(_flat_offset(file.tell(), len(start)))
                file.write(start)
                vectors_checksum = _write_synced(file, vectors, 0)
            header = Header(
                format=FORMAT,
                faiss=faiss.__version__,
                kind=kind,
                metric=metric,
                dims=dims,
                sequence=stamp.sequence,
                stamp=stamp.value,
                rows=len(rows),
                dead=len(dead),
                structure=structure.nbytes,
                has_vectors=vectors is not None,
                checksum=checksum,
                vectors_checksum=vectors_checksum,
            )
            line = json.dumps(asdict(header)).encode()
            file.seek(0)
            file.write(line.ljust(_HEADER_BYTES - 1) + b"\n")
            _sync(file)  # or a power cut may leave holes, which no start would look for
        aside.replace(path)
        sync_path(path.parent)  # before SQLite forgets the write that the old file holds
    except BaseException:
        if aside.is_file():
            aside.unlink()
        raise


def read(path: Path, kind: str, metric: str, dims: int) -> Contents:
    """Look into a cache file: everything but the vectors is checked, which are mapped.

    Raises:
        CacheUnusable: It is missing, damaged, or of another index or format.
    """
    try:
        with path.open("rb") as file:
            header = _header(file.readline(_HEADER_BYTES), os.fstat(file.fileno()).st_size)
            body = np.memmap(file, dtype=np.uint8, mode="r")
    except FileNotFoundError as error:
        raise CacheUnusable("missing") from error
    except OSError as error:
        raise CacheUnusable(f"unreadable: {error.strerror}") from error
    if (header.kind, header.metric, header.dims) != (kind, metric, dims):
        raise CacheUnusable("of another format or another index")
    ends = np.cumsum([_HEADER_BYTES, 8 * header.rows, 8 * header.dead, header.structure])
    start = file_start(metric, dims, header.rows) if header.has_vectors else b""
    flat = _flat_offset(int(ends[-1]), len(start)) if header.has_vectors else int(ends[-1])
    numbers = 4 * dims * header.rows if header.has_vectors else 0
    # before FAISS sees it: a damaged size makes it ask for any amount of memory
    whole = len(body) == flat + len(start) + numbers
    if not whole or body[flat : flat + len(start)].tobytes() != start:
        raise CacheUnusable("damaged")
    if zlib.crc32(body[_HEADER_BYTES : ends[-1]].data) != header.checksum:
        raise CacheUnusable("damaged")
    try:
        # no copy; it keeps no reference to the bytes, so that it gets one
        vectors = look_at(body[flat:]) if header.has_vectors else None
    except RuntimeError as error:
        raise CacheUnusable(f"refused by FAISS {faiss.__version__}") from error
    if vectors is not None:
        vectors.referenced_objects = [body]
    rows, dead = (body[ends[at] : ends[at + 1]].view(np.int64).copy() for at in (0, 1))
    return Contents(
        stamp=Stamp(header.sequence, header.stamp),
        rows=rows,
        dead=dead,
        structure=np.asarray(body[ends[2] : ends[3]]),
        vectors=vectors,
        vectors_checksum=header.vectors_checksum,
    )


def _header(line: bytes, size: int) -> Header:
    try:
        held = json.loads(line)
        if held["format"] != FORMAT:
            raise CacheUnusable("of another format or another index")
        header = Header(**held)
        lengths = (header.rows, header.dead, header.structure)
        if not all(type(length) is int and 0 <= length <= size for length in lengths):
            raise ValueError("a part is longer than the file")
    except (ValueError, TypeError, KeyError) as error:
        raise CacheUnusable("no header") from error
    return header


def _flat_offset(end: int, start: int) -> int:
    """Return where it begins behind ``end``, so that the numbers, ``start`` later, are aligned."""
    return -(-(end + start) // _ALIGNED) * _ALIGNED - start


def _write_synced(file: Any, blocks: Iterable[NDArray[Any]], checksum: int) -> int:
    """Write blocks, and sync now and then; returns the checksum, continued over them."""
    unsynced = 0
    for block in blocks:
        file.write(block.data)
        checksum = zlib.crc32(block.data, checksum)
        unsynced += block.nbytes
        if unsynced >= _SYNCED:
            _sync(file)
            unsynced = 0
    return checksum


def _sync(file: Any) -> None:
    file.flush()
    os.fdatasync(file.fileno())
