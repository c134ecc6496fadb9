"""Which of a model's prompts goes before a text, by what the text is for: one table.

Every door that is told what texts are for, every index, and what is made offline read it here.
"""

from collections.abc import Mapping
from typing import Protocol

from condensery.values import IndexPrompts

# What texts are for, in the words of clients, and what models call their prompt for it; the first
# that a model has. One that has none of them takes its default, and without a default no prompt.
PURPOSES: dict[str, tuple[str, ...]] = {
    "search_query": ("query", "search_query"),
    "search_document": ("document", "passage", "corpus", "search_document"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
# What indexes looked for before they kept their prompts, defaults apart. Not to be changed: it is
# how the passages of those that are there were embedded.
OLDER_QUERY = ("query",)
OLDER_PASSAGE = ("document", "passage")


class Prompted(Protocol):
    """A model, or what is stored of it."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Text put before an input, by the prompt's name."""
        ...

    @property
    def default_prompt(self) -> str | None:
        """The name of the one that is taken where none is named, if there is one."""
        ...


def name_prompt(model: Prompted, purpose: str) -> str | None:
    """Return the name of a model's prompt for one of ``PURPOSES``; None if it has none."""
    there = (name for name in PURPOSES[purpose] if name in model.prompts)
    return next(there, model.default_prompt)


def index_prompts(model: Prompted) -> IndexPrompts:
    """Return what an index of a model's vectors that is made today puts before its texts."""
    names = (name_prompt(model, one) for one in ("search_query", "search_document"))
    return IndexPrompts(*("" if name is None else model.prompts[name] for name in names))


def older_index_prompts(model: Prompted) -> IndexPrompts:
    """Return what an index put before its texts that was made before indexes kept it.

    What a model calls otherwise than ``OLDER_QUERY`` and ``OLDER_PASSAGE`` was not found then. A
    model's fingerprint covers its prompts, so that they are those which it had.
    """
    has = model.prompts
    return IndexPrompts(
        *(
            next((has[name] for name in names if name in has), "")
            for names in (OLDER_QUERY, OLDER_PASSAGE)
        )
    )
