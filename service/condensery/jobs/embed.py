"""Texts to vectors."""

from collections.abc import Sequence

from condensery.errors import InputError, shorten
from condensery.jobs.checks import check_count, check_texts
from condensery.jobs.ports import Encoder
from condensery.jobs.services import Services
from condensery.values import Embedded, Side


async def embed(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
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
        normalize: Scale vectors to length 1; None does as the model declares.
        truncate: Cut texts that are too long; if false, refuse them.
        side: Where to cut.
        dimensions: Refused unless it is what the model gives.
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
    if dimensions is not None and dimensions != info.dims:
        raise InputError(
            f"dimensions: {dimensions}, but {info.name} gives vectors of {info.dims} dimensions "
            "only.",
            field="dimensions",
            value=dimensions,
        )
    return await encoder.embed(
        texts,
        prompt=find_prompt(encoder, prompt_name),
        normalize=normalize,
        truncate=truncate,
        side=side,
        field=field,
    )


def find_prompt(encoder: Encoder, name: str | None) -> str:
    """Return the text of the encoder's prompt ``name``, "" for None.

    Raises:
        InputError: The model has no such prompt.
    """
    if name is None:
        return ""
    found = encoder.prompts.get(name)
    if found is None:
        there = ", ".join(sorted(encoder.prompts)) or "none"
        raise InputError(
            f"prompt_name: {encoder.info.name} has no prompt {shorten(name)}; it has: {there}.",
            field="prompt_name",
            value=name,
        )
    return found
