"""Names of models and indexes: those that stand for another, and a model's with an index.

An alias leads to a name, which may be an alias too; ``pair@index?top_k=5`` is a pair that answers
from an index.
"""

import re
from collections.abc import Mapping

from condensery.errors import InputError, shorten
from condensery.values import INDEX_OPTIONS, SEARCH_MODES, ModelIndex

INDEX_SEPARATOR = "@"  # in a model's name, before the index that it carries


def alias_chain(targets: Mapping[str, str], name: str) -> list[str]:
    """Return a name and what it leads to, step by step; a circle ends with a name seen before."""
    chain, seen = [name], set[str]()
    while name not in seen and name in targets:
        seen.add(name)
        name = targets[name]
        chain.append(name)
    return chain


def is_circle(chain: list[str]) -> bool:
    """Whether a chain of aliases leads back to itself."""
    return chain[-1] in chain[:-1]


def resolve_alias(targets: Mapping[str, str], name: str) -> str:
    """Return the name that a name leads to in the end; itself if it is no alias."""
    return alias_chain(targets, name)[-1]


def split_model_name(name: str, field: str = "model") -> tuple[str, ModelIndex | None]:
    """Return the model of a name, and the index that it carries: ``pair@index?top_k=5&mode=bm25``.

    Neither need be there.

    Raises:
        InputError: The index has no name, or an option is unknown, given twice or has no such
            value.
    """
    model, separator, rest = name.partition(INDEX_SEPARATOR)
    if not separator:
        return name, None
    index, _, query = rest.partition("?")
    if not (model and index):
        raise InputError.at(field, f"{shorten(name)} is not MODEL@INDEX.", name)
    options: dict[str, str] = {}
    for option in query.split("&") if query else ():
        key, _, value = option.partition("=")
        if key not in INDEX_OPTIONS or key in options:
            wrong = "is given twice" if key in options else "is unknown"
            known = ", ".join(INDEX_OPTIONS)
            raise InputError.at(
                field, f"{shorten(name)}: the option {shorten(key)} {wrong}; known: {known}.", name
            )
        options[key] = value
    top_k, mode = options.get("top_k"), options.get("mode")
    if top_k is not None and not re.fullmatch("[1-9][0-9]{0,8}", top_k):
        raise InputError.at(
            field,
            f"{shorten(name)}: top_k {shorten(top_k)} is not a whole number of 1 or more.",
            name,
        )
    searched = next((known for known in SEARCH_MODES if known == mode), None)
    if mode is not None and searched is None:
        modes = ", ".join(SEARCH_MODES)
        raise InputError.at(
            field, f"{shorten(name)}: mode {shorten(mode)} is not one of {modes}.", name
        )
    return model, ModelIndex(index, None if top_k is None else int(top_k), searched)
