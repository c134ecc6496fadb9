"""Which of a model's prompts an index puts before its texts."""

from collections.abc import Mapping
from typing import Protocol

from condensery.values import IndexPrompts

# Which of a model's prompts goes before a text, for requests, indexes and offline methods. Keys:
# what a text is for, as clients name it. Values: what models call their prompt for it; the first
# that a model has counts, else its default prompt, else none.
PROMPT_PURPOSES: dict[str, tuple[str, ...]] = {
    "search_query": ("query", "search_query"),
    "search_document": ("document", "passage", "corpus", "search_document"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
# What indexes looked for before they kept their prompts, defaults apart. Not to be changed: it is
# how the passages of those that are there were embedded.
OLDER_QUERY_PROMPTS = ("query",)
OLDER_PASSAGE_PROMPTS = ("document", "passage")


class HasPrompts(Protocol):
    """A model, or what is stored of it."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Text put before an input, by the prompt's name."""
        ...

    @property
    def default_prompt(self) -> str | None:
        """The name of the one that is taken where none is named, if there is one."""
        ...


def prompt_name_for(model: HasPrompts, purpose: str) -> str | None:
    """Return the name of a model's prompt for one of ``PROMPT_PURPOSES``; None if it has none."""
    names = (name for name in PROMPT_PURPOSES[purpose] if name in model.prompts)
    return next(names, model.default_prompt)


def make_index_prompts(model: HasPrompts) -> IndexPrompts:
    """Return what an index of a model's vectors that is made today puts before its texts."""
    names = (prompt_name_for(model, purpose) for purpose in ("search_query", "search_document"))
    query, passage = ("" if name is None else model.prompts[name] for name in names)
    return IndexPrompts(query, passage)


def make_older_index_prompts(model: HasPrompts) -> IndexPrompts:
    """Return what an index put before its texts that was made before indexes kept it.

    Prompts not named in ``OLDER_QUERY_PROMPTS`` and ``OLDER_PASSAGE_PROMPTS`` were not used then. A
    model's fingerprint covers its prompts, so that they are those which it had.
    """
    prompts = model.prompts
    query, passage = (
        next((prompts[name] for name in names if name in prompts), "")
        for names in (OLDER_QUERY_PROMPTS, OLDER_PASSAGE_PROMPTS)
    )
    return IndexPrompts(query, passage)
