"""What is made of a language model by ``condensery llm2comp build``, and with what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from condensery.methods.llm2comp.recipe import NetworkShape, Stage, StageRecipe
from condensery.methods.llm2comp.training import HELD_OUT
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.ranking.similarities import Similarities
from condensery.methods.retriever.batches import Example
from condensery.methods.retriever.publishing import StoredDType


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is made of a language model.

    Attributes:
        shape: How it reads; with memory tokens.
        recipes: Of each stage, in the order of ``STAGES``; at least one.
        max_tokens: Longest input, memory tokens included; 0: the language model's.
        merge_above: How alike memory tokens are of which one alone counts; 0: all count.
        stored: What trained weights are stored in.
        whole: Store a directory that needs no base.
        normalize: Whether vectors are scaled to length 1.
    """

    shape: NetworkShape = field(default_factory=NetworkShape)
    recipes: Mapping[Stage, StageRecipe] = field(default_factory=dict)
    max_tokens: int = 0
    merge_above: float = 0.0
    stored: StoredDType = "bfloat16"
    whole: bool = False
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What it is made with.

    Attributes:
        texts: To compress.
        views: Texts to tell from others.
        examples: Queries with passages.
        instruction: Of queries that have none of their own, and the prompt ``query``.
        held: How many of the texts are kept to look at embeddings of.
        similarities: Scored pairs to measure on.
        sets: Retrieval sets to measure on.
        licence: Of the weights; the language model's, if empty.
        data: What the card calls the data.
        notes: More for the card: what the data is, and its licences.
        command: For the card.
    """

    texts: Sequence[str] = ()
    views: Sequence[str] = ()
    examples: Sequence[Example] = ()
    instruction: str = ""
    held: int = HELD_OUT
    similarities: Sequence[Similarities] = ()
    sets: Sequence[RankingSet] = ()
    licence: str = ""
    data: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
