"""How alike texts are."""

from collections.abc import Sequence
from dataclasses import dataclass

from condensery.jobs.checks import check_count, check_texts
from condensery.jobs.embed import embed
from condensery.jobs.services import Services
from condensery.values import Floats, Side


@dataclass(frozen=True, slots=True)
class Alike:
    """``cosines[i]`` (sentences,) is between the source and sentence ``i``."""

    model: str
    fingerprint: str
    cosines: Floats
    tokens: int
    truncated: tuple[int, ...] = ()


async def similarity(
    services: Services,
    source: str,
    sentences: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    truncate: bool = True,
    side: Side = "right",
) -> Alike:
    """Return the cosine between a text and each of others, by the default encoder's vectors.

    Args:
        services: The running parts.
        source: The text.
        sentences: The others.
        model: An encoder's name.
        prompt_name: Which of the model's prompts to put before each text.
        truncate: Cut texts that are too long; if false, refuse them.
        side: Where to cut.

    Raises:
        As ``embed``; a text is named as ``inputs.source_sentence`` or ``inputs.sentences[i]``.
    """
    most = services.pool.encoder(model).info.max_tokens * services.limits.chars_per_token
    check_count(sentences, "inputs.sentences", services.limits.max_items - 1)
    check_texts(sentences, "inputs.sentences", most)
    check_texts([source], "inputs.source_sentence", most)
    found = await embed(
        services,
        [*sentences, source],  # the source last, so that places are those of the sentences
        model=model,
        prompt_name=prompt_name,
        normalize=True,
        truncate=truncate,
        side=side,
        field="inputs.sentences",
    )
    cosines: Floats = found.vectors[:-1] @ found.vectors[-1]
    return Alike(found.model, found.fingerprint, cosines, found.tokens, found.truncated)
