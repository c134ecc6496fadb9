"""What an index accepts: each refusal names the field, the row and the value.

Values come from outside, so that parameters are typed ``object`` where their type is checked.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from condensery.errors import EmptyInput, InputError, shorten, shorten_name
from condensery.index.kinds import KINDS, check_options
from condensery.values import Document, Floats, IndexSpec, Passage

METRICS = ("ip", "l2")
MAX_ID_CHARS = 512
MAX_TEXT_CHARS = 10_000_000
MAX_METADATA_BYTES = 16 * 1024
MAX_METADATA_DEPTH = 32
MAX_DIMS = 65_536
MAX_TOP_K = 10_000
# Sums of MAX_DIMS products of such components stay finite in float32 (1e32 * 65,536 < 3.4e38).
MAX_COMPONENT = 1e16

# `/v1/indexes/aliases` is no index.
RESERVED = ("aliases",)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_name(name: object, field: str = "index") -> None:
    """Refuse an index name that can't be a directory's on every disk."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError.at(
            field,
            f"{shorten(name)} is not an index name; use 1 to 64 of a-z, 0-9, '.', '_', "
            "'-', starting with a letter or digit.",
            name,
        )


def check_new_name(name: object, field: str = "index") -> None:
    """Refuse a name that nothing new may have."""
    check_name(name, field)
    if name in RESERVED:
        raise InputError.at(field, f"{name!r} is taken by a route of the API.", name)


def check_spec(spec: IndexSpec) -> IndexSpec:
    """Refuse settings that no index can have; returns them with options, if without any."""
    check_id(spec.encoder, "encoder")
    check_id(spec.fingerprint, "fingerprint")
    dims: object = spec.dims
    if isinstance(dims, bool) or not isinstance(dims, int) or not 1 <= dims <= MAX_DIMS:
        raise InputError.at(
            "dims", f"{shorten(dims)} is not a whole number from 1 to {MAX_DIMS}.", dims
        )
    for field, value, allowed in (("metric", spec.metric, METRICS), ("kind", spec.kind, KINDS)):
        if value not in allowed:
            raise InputError.at(
                field, f"{shorten(value)} is not one of {', '.join(allowed)}.", value
            )
    return replace(spec, options=check_options(spec.kind, spec.options, spec.dims))


def check_ids(ids: Sequence[str]) -> None:
    """Refuse ids of documents that can't exist."""
    for row, identity in enumerate(ids):
        check_id(identity, f"ids[{row}]")


def check_id(value: object, field: str) -> None:
    """Refuse an id that is empty, too long or not text."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS or "\0" in value:
        raise InputError.at(
            field, f"{shorten(value)} is not an id of 1 to {MAX_ID_CHARS} characters.", value
        )
    _check_utf8(value, field)


def check_documents(documents: Sequence[Document], passages: Sequence[Passage]) -> None:
    """Refuse documents or passages that are malformed or do not fit each other."""
    if not documents:
        raise EmptyInput.at("documents", "the list is empty.")
    texts: dict[str, str] = {}
    for row, document in enumerate(documents):
        field = f"documents[{row}]"
        check_id(document.id, f"{field}.id")
        if document.id in texts:
            raise _twice(f"{field}.id", document.id)
        _check_text(document.text, f"{field}.text")
        texts[document.id] = document.text
    seen: set[str] = set()
    whole: set[str] = set()
    for row, passage in enumerate(passages):
        field = f"passages[{row}]"
        check_id(passage.id, f"{field}.id")
        if passage.id in seen:
            raise _twice(f"{field}.id", passage.id)
        seen.add(passage.id)
        _check_span(passage, texts, field)
        whole.add(passage.document_id)
    for row, document in enumerate(documents):
        if document.id not in whole:
            raise InputError.at(
                f"documents[{row}]",
                f"{shorten(document.id)} has no passages, so that no query could find it.",
                document.id,
            )


def check_vectors(vectors: Floats, rows: int, dims: int) -> None:
    """Refuse anything but ``rows`` finite float32 vectors of ``dims`` features."""
    _check_array(vectors, "vectors")
    if vectors.shape != (rows, dims):
        raise InputError.at(
            "vectors",
            f"shape {vectors.shape}, but {rows} passages of {dims} dimensions are "
            f"({rows}, {dims}).",
            vectors.shape,
        )
    good = np.isfinite(vectors).all(axis=1) & (np.abs(vectors) <= MAX_COMPONENT).all(axis=1)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise _bad_number(f"vectors[{row}]", vectors[row])


def check_query(vector: Floats, dims: int, top_k: object) -> None:
    """Refuse anything but one finite float32 vector and a sensible ``top_k``."""
    _check_array(vector, "vector")
    if vector.shape != (dims,):
        raise InputError.at(
            "vector", f"shape {vector.shape}, but the index has {dims} dimensions.", vector.shape
        )
    if not np.isfinite(vector).all() or np.abs(vector).max() > MAX_COMPONENT:
        raise _bad_number("vector", vector)
    _check_top_k(top_k)


def check_match(text: object, top_k: object) -> None:
    """Refuse anything but a text to look for and a sensible ``top_k``."""
    _check_text(text, "words")
    _check_top_k(top_k)


def encode_metadata(metadata: object, field: str) -> str:
    """Return ``metadata`` as JSON that reads back equal, or refuse it."""
    if not isinstance(metadata, Mapping):
        raise InputError.at(field, f"{shorten(metadata)} is not a JSON object.", metadata)
    encoded = json.dumps(
        _plain(metadata, field, MAX_METADATA_DEPTH), ensure_ascii=False, allow_nan=False
    )
    size = len(_check_utf8(encoded, field))
    if size > MAX_METADATA_BYTES:
        raise InputError.at(
            field, f"{size} bytes of JSON, over the limit of {MAX_METADATA_BYTES}.", size
        )
    return encoded


def _plain(value: Any, field: str, depth: int) -> Any:
    """Return ``value`` built of dict, list and scalars; json.dumps would quietly change others."""
    if depth == 0:
        raise InputError.at(field, f"nested deeper than {MAX_METADATA_DEPTH} levels.", None)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError.at(field, f"the key {shorten(key)} is not a string.", key)
        return {
            key: _plain(item, f"{field}.{shorten_name(key)}", depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{field}[{row}]", depth - 1) for row, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError.at(field, f"{value} is not a JSON number.", value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InputError.at(
        field, f"{shorten(value)} is not a JSON value ({type(value).__name__}).", value
    )


def _check_top_k(top_k: object) -> None:
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= MAX_TOP_K:
        raise InputError.at(
            "top_k", f"{shorten(top_k)} is not a whole number from 1 to {MAX_TOP_K}.", top_k
        )


def _check_text(text: object, field: str) -> None:
    if not isinstance(text, str):
        raise InputError.at(field, f"{shorten(text)} is not a string.", text)
    if len(text) > MAX_TEXT_CHARS:
        raise InputError.at(
            field, f"{len(text)} characters, over the limit of {MAX_TEXT_CHARS}.", len(text)
        )
    _check_utf8(text, field)


def _check_span(passage: Passage, texts: Mapping[str, str], field: str) -> None:
    text = texts.get(passage.document_id)
    if text is None:
        raise InputError.at(
            f"{field}.document_id",
            f"{shorten(passage.document_id)} is not among the documents.",
            passage.document_id,
        )
    start, end = passage.start, passage.end
    if not 0 <= start <= end <= len(text) or text[start:end] != passage.text:
        raise InputError.at(
            field,
            f"its text is not characters {start} to {end} of document "
            f"{shorten(passage.document_id)}.",
            (start, end),
        )
    if not text.startswith(passage.heading) or len(passage.heading) > start:
        raise InputError.at(
            f"{field}.heading",
            f"{shorten(passage.heading)} is not what document {shorten(passage.document_id)} "
            "begins with before the passage.",
            passage.heading,
        )


def _check_utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError.at(
            field, f"the character at {error.start} is half of a surrogate pair.", text[error.start]
        ) from error


def _check_array(vectors: object, field: str) -> None:
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32:
        got = vectors.dtype if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise InputError.at(field, f"expected a float32 array, got {got}.", str(got))


def _bad_number(field: str, vector: Floats) -> InputError:
    at = int(np.flatnonzero(~(np.abs(vector) <= MAX_COMPONENT))[0])
    return InputError.at(
        f"{field}[{at}]",
        f"{vector[at]} is not a finite number up to {MAX_COMPONENT:g}.",
        float(vector[at]),
    )


def _twice(field: str, value: str) -> InputError:
    return InputError.at(field, f"the id {shorten(value)} comes twice.", value)
