"""Vectors that an index takes: whose encoder made them, and whether they are whole."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from condensery.errors import EncoderMismatch, InputError, ModelNotFound, shorten
from condensery.jobs.ports import Encoder
from condensery.jobs.prompts import find_prompt
from condensery.jobs.services import Services
from condensery.values import Floats, IndexInfo


def encoder_of(services: Services, index: IndexInfo) -> Encoder:
    """Return the running encoder that made the index's vectors.

    Raises:
        EncoderMismatch: It does not run, or has changed since.
    """
    try:
        encoder = services.pool.encoder(index.encoder)
    except ModelNotFound as error:
        raise EncoderMismatch(
            f"Index {index.name!r} was made by encoder {index.encoder!r} "
            f"({index.fingerprint}), which does not run here.",
            field="index",
            value=index.name,
        ) from error
    if encoder.info.fingerprint != index.fingerprint:
        raise EncoderMismatch(
            f"Index {index.name!r} was made by encoder {index.encoder!r} with fingerprint "
            f"{index.fingerprint}; the one that runs has {encoder.info.fingerprint}.",
            field="index",
            value=index.name,
        )
    return encoder


def check_vectors(
    info: IndexInfo,
    vectors: Floats,
    fingerprint: str | None,
    field: Literal["documents", "vector"],
) -> str:
    """Check vectors that a caller made, (count, dims); returns their fingerprint."""
    if fingerprint is None:
        raise InputError(
            f"fingerprint: needed beside vectors, since index {info.name!r} takes those of encoder "
            f"{info.encoder!r} only, whose fingerprint is {info.fingerprint}.",
            field="fingerprint",
        )
    if fingerprint != info.fingerprint:
        raise EncoderMismatch(
            f"Index {info.name!r} holds vectors of encoder {info.encoder!r} with fingerprint "
            f"{info.fingerprint}, not {shorten(fingerprint)}.",
            field="fingerprint",
            value=fingerprint,
        )
    names = ["vector"] if field == "vector" else _vector_names(len(vectors))
    if vectors.ndim != 2 or vectors.shape[1] != info.dims:
        got = vectors.shape[-1]
        raise InputError(
            f"{names[0]}: {got} numbers, but index {info.name!r} has {info.dims} dimensions.",
            field=names[0],
            value=got,
        )
    finite = np.isfinite(vectors)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise InputError(
            f"{names[row]}[{column}]: {vectors[row, column]} is not a finite number.",
            field=f"{names[row]}[{column}]",
            value=float(vectors[row, column]),
        )
    return fingerprint


def _vector_names(rows: int) -> list[str]:
    return [f"documents[{row}].vector" for row in range(rows)]


def first_prompt(encoder: Encoder, names: Sequence[str]) -> str:
    """Return the first of the prompts that the model has, "" if it has none."""
    return next((find_prompt(encoder, name) for name in names if name in encoder.prompts), "")
