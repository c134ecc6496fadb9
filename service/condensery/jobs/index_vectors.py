"""Vectors that an index takes: whose encoder made them, with which prompts, and are they whole."""

import logging
from dataclasses import replace
from typing import Literal

import numpy as np

from condensery.errors import EncoderMismatch, InputError, ModelNotFound, shorten
from condensery.jobs.ports import Encoder
from condensery.jobs.services import Services
from condensery.prompts import index_prompts, older_index_prompts
from condensery.upkeep import RebuildPlan
from condensery.values import Floats, IndexInfo, IndexPrompts

_log = logging.getLogger(__name__)


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


def prompts_of(encoder: Encoder, index: IndexInfo | RebuildPlan) -> IndexPrompts:
    """Return what goes before an index's texts: what went before its passages, and their queries.

    Args:
        encoder: The index's, as ``encoder_of`` returns it.
        index: An index, or what is being made of one.
    """
    return older_index_prompts(encoder) if index.prompts is None else index.prompts


def describe(services: Services, index: IndexInfo) -> IndexInfo:
    """Return an index's description with its prompts, as far as its encoder runs."""
    try:
        encoder = encoder_of(services, index)
    except EncoderMismatch:
        return index
    own = prompts_of(encoder, index)
    return replace(index, prompts=own, prompts_outdated=own != index_prompts(encoder))


def report_prompts(
    services: Services, *, encoder: str | None = None, index: str | None = None
) -> None:
    """Log which indexes were embedded without prompts that their encoder has.

    Args:
        services: The running parts.
        encoder: Only the indexes of this one; None is of all.
        index: Only this one.
    """
    for one in services.indexes.list():
        asked = encoder in (None, one.encoder) and index in (None, one.name)
        if asked and describe(services, one).prompts_outdated:
            _log.warning(
                "index_prompts_outdated",
                extra={
                    "index": one.name,
                    "model": one.encoder,
                    "reason": "an older version made it without all of its encoder's prompts, and "
                    "it is asked and written without them; a rebuild takes them",
                },
            )


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
