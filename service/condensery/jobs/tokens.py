"""What single tokens are asked for: their vectors, their places in a text, the text they spell."""

import asyncio
from collections.abc import Sequence

from condensery.errors import InputError, PayloadTooLarge
from condensery.jobs.checks import check_count, check_texts
from condensery.jobs.prompts import find_prompt
from condensery.jobs.services import Services
from condensery.values import EmbeddedTokens, Piece, Side

MOST_ID = 2**32  # what tokenizers count in
# Vectors in one reply: 384 numbers each are some 70 MB of JSON.
MOST_VECTORS = 16_384
# Of all texts whose tokens are listed at once: a token can be one character, and is an object.
MOST_CHARACTERS = 250_000


async def embed_tokens(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    truncate: bool = True,
    side: Side = "right",
    field: str = "inputs",
) -> EmbeddedTokens:
    """Return the vector of every token of each text, special ones included, not scaled.

    Arguments and errors are those of ``embed``; there may be only so many texts as have no more
    than ``MOST_VECTORS`` tokens if they are as long as the model reads.
    """
    encoder = services.pool.encoder(model)
    most = max(1, MOST_VECTORS // encoder.info.max_tokens)
    check_count(texts, field, min(most, services.limits.max_items))
    check_texts(texts, field, encoder.info.max_tokens * services.limits.chars_per_token)
    return await encoder.embed_tokens(
        texts,
        prompt=find_prompt(encoder, prompt_name),
        truncate=truncate,
        side=side,
        field=field,
    )


async def tokenize(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    special: bool = True,
    field: str = "inputs",
) -> list[list[Piece]]:
    """Return the tokens of each text, with the prompt before it; nothing is cut.

    Args:
        services: The running parts.
        texts: One or many.
        model: An encoder's name; None takes the default.
        prompt_name: Which of the model's prompts to put before each text.
        special: With the special tokens.
        field: What the door calls ``texts``, for messages.

    Raises:
        ModelNotFound: No such encoder.
        InputError: As the message says; PayloadTooLarge among them.
    """
    encoder = services.pool.encoder(model)
    check_count(texts, field, services.limits.max_items)
    check_texts(texts, field, encoder.info.max_tokens * services.limits.chars_per_token)
    prompt = find_prompt(encoder, prompt_name)
    characters = sum(map(len, texts))
    if characters > MOST_CHARACTERS:
        raise PayloadTooLarge(
            f"{field}: {characters} characters, over the limit of {MOST_CHARACTERS} in all.",
            field=field,
            value=characters,
        )

    def all_of() -> list[list[Piece]]:
        return [encoder.pieces(prompt + text, special=special, field=field) for text in texts]

    return await asyncio.to_thread(all_of)


async def decode(
    services: Services,
    ids: Sequence[Sequence[int]],
    *,
    model: str | None = None,
    skip_special: bool = True,
) -> list[str]:
    """Return the text that each list of tokens spells.

    Args:
        services: The running parts.
        ids: Numbers of tokens.
        model: An encoder's name; None takes the default.
        skip_special: Without the special tokens.

    Raises:
        ModelNotFound: No such encoder.
        InputError: A number is none of a token.
    """
    encoder = services.pool.encoder(model)
    check_count(ids, "ids", services.limits.max_items)
    for place, row in enumerate(ids):
        for number in row:
            if not 0 <= number < MOST_ID:
                raise InputError(
                    f"ids[{place}]: {number} is the number of no token.",
                    field=f"ids[{place}]",
                    value=number,
                )
    return await asyncio.to_thread(
        lambda: [encoder.decode(row, skip_special=skip_special) for row in ids]
    )
