"""Which of a model's prompts goes before a text: by its name, or by what the text is for."""

from condensery.errors import InputError, shorten
from condensery.jobs.ports import Encoder
from condensery.prompts import PURPOSES, name_prompt

OTHER_WORDS = {
    "query": "search_query",
    "document": "search_document",
    "passage": "search_document",
}
INPUT_TYPES = (*PURPOSES, *OTHER_WORDS)


def choose_prompt(encoder: Encoder, name: str | None, input_type: str | None) -> str:
    """Return the text to put before each input.

    Args:
        encoder: The model.
        name: Of one of its prompts; None takes its default, if it has one.
        input_type: One of ``INPUT_TYPES``, in place of a name.

    Raises:
        InputError: The model has no such prompt, there is no such input type, or both are given.
    """
    if input_type is None:
        return find_prompt(encoder, name)
    if name is not None:
        raise InputError("prompt_name: give it or input_type; got both.", field="prompt_name")
    if input_type not in INPUT_TYPES:
        raise InputError(
            f"input_type: {shorten(input_type)} is not one of {', '.join(INPUT_TYPES)}.",
            field="input_type",
            value=input_type,
        )
    return find_prompt(encoder, name_prompt(encoder, OTHER_WORDS.get(input_type, input_type)))


def find_prompt(encoder: Encoder, name: str | None) -> str:
    """Return the text of the encoder's prompt ``name``; None is its default, "" if it has none.

    Raises:
        InputError: The model has no such prompt.
    """
    name = encoder.default_prompt if name is None else name
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
