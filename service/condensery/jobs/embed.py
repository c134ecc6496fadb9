"""Texts to vectors."""

import asyncio
from collections.abc import Sequence

from condensery.encodings import SCALED, Encoded, Encoding, encode
from condensery.errors import InputError
from condensery.jobs.checks import check_count, check_texts
from condensery.jobs.prompts import choose_prompt
from condensery.jobs.services import Services
from condensery.values import Embedded, Floats, ModelInfo, Side

INLINE_NUMBERS = 200_000  # some 2 ms of encoding; more is done in a thread


async def embed(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    input_type: str | None = None,
    normalize: bool | None = None,
    truncate: bool = True,
    side: Side = "right",
    dimensions: int | None = None,
    field: str = "input",
) -> Embedded:
    """Embed each text; row ``i`` of the vectors answers text ``i``.

    Args:
        services: The running parts.
        texts: One or many; ``""`` embeds as the empty text.
        model: An encoder's name; None takes the default.
        prompt_name: Which of the model's prompts to put before each text; None takes the model's
            own default.
        input_type: What the texts are for (``prompts.INPUT_TYPES``), in place of a prompt's name.
        normalize: Scale vectors to length 1; None does as the model declares.
        truncate: Cut texts that are too long; if false, refuse them.
        side: Where to cut.
        dimensions: How many of each vector's first numbers to give, of those lengths that the
            model declares; None is all.
        field: What the door calls ``texts``, for messages.

    Raises:
        ModelNotFound: No such encoder.
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
        ModelFault: A vector came out non-finite.
        Overloaded: The queue is full.
    """
    encoder = services.pool.encoder(model)
    info = encoder.info
    check_count(texts, field, services.limits.max_items)
    check_texts(texts, field, info.max_tokens * services.limits.chars_per_token)
    check_dimensions(info, dimensions)
    return await encoder.embed(
        texts,
        prompt=choose_prompt(encoder, prompt_name, input_type),
        normalize=normalize,
        truncate=truncate,
        side=side,
        dimensions=dimensions,
        field=field,
    )


def check_dimensions(info: ModelInfo, dimensions: int | None) -> None:
    """Refuse a length that the model does not declare: cut anywhere else, vectors find nothing.

    Raises:
        InputError: Names the length, and those that there are.
    """
    lengths = sorted({*info.dimensions, info.dims or 0})
    if dimensions is not None and dimensions not in lengths:
        raise InputError(
            f"dimensions: {dimensions}, but {info.name} gives vectors of "
            f"{', '.join(map(str, lengths))} dimensions only.",
            field="dimensions",
            value=dimensions,
        )


async def encoded(found: Embedded, encoding: Encoding, *, field: str = "embed_dtype") -> Encoded:
    """Return the vectors in an encoding, (texts, numbers).

    Args:
        found: The vectors.
        encoding: Which.
        field: What the request calls it, for messages.

    Raises:
        InputError: int8 or uint8 of vectors that were not scaled to length 1.
    """
    vectors: Floats = found.vectors
    if vectors.size <= INLINE_NUMBERS:
        return encode(vectors, encoding, field=field)
    return await asyncio.to_thread(encode, vectors, encoding, field=field)


def check_scaled(normalize: bool | None, encoding: Encoding, *, field: str = "embed_dtype") -> None:
    """Refuse, before any work, int8 and uint8 of vectors that are asked for as they come.

    Raises:
        InputError: Names the encoding.
    """
    if normalize is False and encoding in SCALED:
        raise InputError(
            f"{field}: {encoding} is for vectors of length 1, and normalize is false.",
            field=field,
            value=encoding,
        )
