"""Texts to vectors: one a text or one a token, cosines between texts, and the tokens alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from condensery.encodings import INT8_ENCODINGS, Encoded, Encoding, encode
from condensery.errors import InputError, ModelCannot, PayloadTooLarge, shorten
from condensery.index.prompts import PROMPT_PURPOSES, prompt_name_for
from condensery.jobs.interfaces import Encoder
from condensery.jobs.services import Services
from condensery.jobs.validation import (
    check_count,
    check_inputs,
    check_text,
    check_texts,
    max_chars_of,
)
from condensery.values import (
    INSTRUCTION_PLACE,
    TEXT_PLACE,
    Embedded,
    EmbeddedTokens,
    Floats,
    ModelInfo,
    TextToken,
    TruncationDirection,
    fill_prompt,
)

INPUT_TYPE_SYNONYMS = {
    "query": "search_query",
    "document": "search_document",
    "passage": "search_document",
}
INSTRUCTION = "instruction"  # the prompt of models that read one: it has ``{instruction}`` in it
INPUT_TYPES = (*PROMPT_PURPOSES, *INPUT_TYPE_SYNONYMS)

INLINE_NUMBERS = 200_000  # some 2 ms of encoding; more is done in a thread
# Vectors in one reply: 384 numbers each are some 70 MB of JSON.
MAX_TOKEN_VECTORS = 16_384
# Of all texts whose tokens are listed at once: a token can be one character, and is an object.
MAX_TOKENIZED_CHARACTERS = 250_000


async def embed(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    input_type: str | None = None,
    instruction: str | None = None,
    normalize: bool | None = None,
    truncate: bool = True,
    side: TruncationDirection = "right",
    dimensions: int | None = None,
    field: str = "input",
) -> Embedded:
    """Embed each text; row ``i`` of the vectors answers text ``i``.

    Args:
        texts: One or many; ``""`` embeds as the empty text.
        model: An encoder's name; None takes the default.
        prompt_name: Which of the model's prompts to put before each text; None takes the model's
            own default.
        input_type: What the texts are for (``INPUT_TYPES``), in place of a prompt's name.
        instruction: What to do with the texts, in the caller's words, in place of either; for
            models that say how they read one (the prompt ``INSTRUCTION``).
        normalize: Scale vectors to length 1; None does as the model declares.
        truncate: Cut texts that are too long; if false, refuse them.
        dimensions: How many of each vector's first numbers to give, of those lengths that the
            model declares; None is all.
        field: What the request calls ``texts``, for messages.

    Raises:
        ModelNotFound: No such encoder.
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
        ModelFault: A vector came out non-finite.
        Overloaded: The queue is full.
    """
    encoder = services.registry.encoder(model)
    info = encoder.info
    check_inputs(services.limits, info, texts, field)
    check_dimensions(info, dimensions)
    return await encoder.embed(
        texts,
        prompt=choose_prompt(services, encoder, prompt_name, input_type, instruction),
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
        raise InputError.at(
            "dimensions",
            f"{dimensions}, but {info.name} gives vectors of "
            f"{', '.join(map(str, lengths))} dimensions only.",
            dimensions,
        )


async def encode_vectors(
    embedded: Embedded, encoding: Encoding, *, field: str = "embed_dtype"
) -> Encoded:
    """Return the vectors in an encoding, (texts, numbers); messages call that ``field``.

    Raises:
        InputError: int8 or uint8 of vectors that were not scaled to length 1.
    """
    vectors: Floats = embedded.vectors
    if vectors.size <= INLINE_NUMBERS:
        return encode(vectors, encoding, field=field)
    return await asyncio.to_thread(encode, vectors, encoding, field=field)


def check_scaled(normalize: bool | None, encoding: Encoding, *, field: str = "embed_dtype") -> None:
    """Refuse, before any work, int8 and uint8 of vectors that are asked for as they come.

    Raises:
        InputError: Names the encoding.
    """
    if normalize is False and encoding in INT8_ENCODINGS:
        raise InputError.at(
            field, f"{encoding} is for vectors of length 1, and normalize is false.", encoding
        )


def choose_prompt(
    services: Services,
    encoder: Encoder,
    name: str | None,
    input_type: str | None,
    instruction: str | None,
) -> str:
    """Return the text to put before each input, or round it.

    Args:
        name: Of one of its prompts; None takes its default, if it has one.
        input_type: One of ``INPUT_TYPES``, in place of a name.
        instruction: In the caller's words, in place of both.

    Raises:
        InputError: The model has no such prompt, there is no such input type, the model takes no
            instructions, or several are given.
    """
    given = {"prompt_name": name, "input_type": input_type, "instruction": instruction}
    chosen = [field for field, value in given.items() if value is not None]
    if len(chosen) > 1:
        both = "both" if len(chosen) == 2 else "all of them"
        raise InputError.at(chosen[0], f"give it or {' or '.join(chosen[1:])}; got {both}.")
    if instruction is not None:
        return put_instruction(services, encoder, instruction)
    if input_type is None:
        return find_prompt(encoder, name)
    if input_type not in INPUT_TYPES:
        raise InputError.at(
            "input_type",
            f"{shorten(input_type)} is not one of {', '.join(INPUT_TYPES)}.",
            input_type,
        )
    return find_prompt(
        encoder, prompt_name_for(encoder, INPUT_TYPE_SYNONYMS.get(input_type, input_type))
    )


def put_instruction(services: Services, encoder: Encoder, instruction: str) -> str:
    """Return the encoder's prompt for instructions with this one in it.

    Raises:
        InputError: The model takes none, or it is empty, too long, no valid Unicode or has the
            place of a text in it.
    """
    prompt, info = encoder.prompts.get(INSTRUCTION, ""), encoder.info
    if INSTRUCTION_PLACE not in prompt:
        raise InputError.at("instruction", f"{info.name} takes no instructions.", instruction)
    if not instruction.strip() or TEXT_PLACE in instruction:
        wrong = f"{shorten(instruction)} is empty, or has {TEXT_PLACE} in it."
        raise InputError.at("instruction", wrong, instruction)
    check_text(instruction, "instruction", max_chars_of(services.limits, info))
    return prompt.replace(INSTRUCTION_PLACE, instruction, 1)


def find_prompt(encoder: Encoder, name: str | None) -> str:
    """Return the text of the encoder's prompt ``name``; None is its default, "" if it has none.

    Raises:
        InputError: The model has no such prompt, or it needs an instruction.
    """
    name = encoder.default_prompt if name is None else name
    if name is None:
        return ""
    prompt = encoder.prompts.get(name)
    if prompt is None:
        names = ", ".join(sorted(encoder.prompts)) or "none"
        raise InputError.at(
            "prompt_name",
            f"{encoder.info.name} has no prompt {shorten(name)}; it has: {names}.",
            name,
        )
    if INSTRUCTION_PLACE in prompt:
        raise InputError.at(
            "prompt_name",
            f"the prompt {shorten(name)} of {encoder.info.name} needs an instruction.",
            name,
        )
    return prompt


async def embed_tokens(
    services: Services,
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    truncate: bool = True,
    side: TruncationDirection = "right",
    field: str = "inputs",
) -> EmbeddedTokens:
    """Return the vector of every token of each text, special ones included, not scaled.

    Arguments and errors are those of ``embed``; there may be only so many texts as have no more
    than ``MAX_TOKEN_VECTORS`` tokens if they are as long as the model reads.
    """
    encoder = services.registry.encoder(model)
    max_texts = max(1, MAX_TOKEN_VECTORS // encoder.info.max_tokens)
    limits = services.limits
    check_inputs(limits, encoder.info, texts, field, min(max_texts, limits.max_items))
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
) -> list[list[TextToken]]:
    """Return the tokens of each text, with the prompt before it; nothing is cut.

    Arguments and errors are those of ``embed``; special tokens are left out unless ``special``.
    """
    encoder = services.registry.encoder(model)
    check_inputs(services.limits, encoder.info, texts, field)
    prompt = find_prompt(encoder, prompt_name)
    characters = sum(map(len, texts))
    if characters > MAX_TOKENIZED_CHARACTERS:
        raise PayloadTooLarge.at(
            field,
            f"{characters} characters, over the limit of {MAX_TOKENIZED_CHARACTERS} in all.",
            characters,
        )

    wholes = [fill_prompt(prompt, text) for text in texts]
    return await asyncio.to_thread(
        lambda: [encoder.pieces(whole, special=special, field=field) for whole in wholes]
    )


async def decode_tokens(
    services: Services,
    ids: Sequence[Sequence[int]],
    *,
    model: str | None = None,
    skip_special: bool = True,
) -> list[str]:
    """Return the text of each list of tokens, without the special ones if ``skip_special``.

    Raises:
        ModelNotFound: No such encoder.
        InputError: An id is no token's of the model.
    """
    encoder = services.registry.encoder(model)
    check_count(ids, "ids", services.limits.max_items)
    return await asyncio.to_thread(
        lambda: [
            encoder.decode(row, skip_special=skip_special, field=f"ids[{place}]")
            for place, row in enumerate(ids)
        ]
    )


@dataclass(frozen=True, slots=True)
class TextSimilarities:
    """``cosines[i]`` (sentences,) is between the source and sentence ``i``."""

    model: str
    fingerprint: str
    cosines: Floats
    tokens: int
    truncated: tuple[int, ...] = ()


async def compare_texts(
    services: Services,
    source: str,
    sentences: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    truncate: bool = True,
    side: TruncationDirection = "right",
) -> TextSimilarities:
    """Return the cosine between a text and each of others.

    Arguments and errors are those of ``embed``; a text is named as ``inputs.source_sentence`` or
    ``inputs.sentences[i]``.
    """
    limits, info = services.limits, services.registry.encoder(model).info
    check_inputs(limits, info, sentences, "inputs.sentences", limits.max_items - 1)
    check_texts([source], "inputs.source_sentence", max_chars_of(limits, info))
    embedded = await embed(
        services,
        [*sentences, source],  # the source last, so that places are those of the sentences
        model=model,
        prompt_name=prompt_name,
        normalize=True,
        truncate=truncate,
        side=side,
        field="inputs.sentences",
    )
    cosines: Floats = embedded.vectors[:-1] @ embedded.vectors[-1]
    return TextSimilarities(
        embedded.model, embedded.fingerprint, cosines, embedded.tokens, embedded.truncated
    )


async def embed_sparse(
    services: Services, texts: Sequence[str], *, model: str | None = None
) -> NoReturn:
    """Refuse the sparse vectors of texts: no kind of model here gives weights by token.

    Raises:
        ModelNotFound: No such model.
        ModelCannot: It gives none.
    """
    name = services.registry.encoder(model).info.name
    raise ModelCannot(
        f"model {name!r} gives dense vectors only; no model here gives sparse ones.",
        field="model",
        value=name,
    )
