"""What travels between layers: frozen, plain, no torch.

Texts and their vectors, models, documents and passages, and what belongs to an index: its prompts,
aliases, snapshots and rebuilds. Arrays are numpy float32 and are not written to after they are
made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ModelKind = Literal["encoder", "classifier", "reranker", "oscar-pair", "language-model"]
ModelState = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
Metadata = Mapping[str, Any]
TruncationDirection = Literal["right", "left"]  # of a text that is too long, which is cut
Input = str | tuple[str, str]  # what is classified: a text, or a pair of texts
AliasVerb = Literal["create", "delete", "rename"]
RebuildState = Literal["running", "done", "failed"]
ALIAS_VERBS: tuple[AliasVerb, ...] = get_args(AliasVerb)

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


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A running model, as ``/v1/models`` and ``/info`` show it; a pair's has ``pair``.

    Attributes:
        labels: A classifier's classes, in the order of its logits.
        independent: Whether each label is likely or not by itself; else one of them holds.
        version: In the store, a whole number.
        alias_of: The model's own name, where ``name`` is an alias of it.
        dimensions: Lengths that an encoder's vectors may be cut to (Matryoshka), beside ``dims``.
    """

    name: str
    kind: ModelKind
    method: str
    fingerprint: str
    dims: int | None
    max_tokens: int
    dtype: str
    device: str
    licence: str
    created: int
    pooling: str | None = None
    pair: "PairTraits | None" = None
    labels: tuple[str, ...] = ()
    independent: bool = False
    version: str = ""
    alias_of: str | None = None
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A stored version of a model, and whether it serves.

    Attributes:
        state: As KServe has it.
        reason: Why it does not serve, where there is more to say than that.
    """

    name: str
    version: str
    state: ModelState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """Which version of a model it is, and which numbers it gives."""

    version: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What came of loading a model.

    Attributes:
        info: What serves now.
        previous: What served before by that name, if something did.
        changed: Whether anything was loaded; else that version served already.
        seconds: That it took, from the files to the first request.
        memory_bytes: Of its weights and caches.
        stranded_indexes: Names of the indexes that this name's encoder made with another
            fingerprint: they refuse to be searched and written until that one serves again.
    """

    info: ModelInfo
    previous: Revision | None
    changed: bool
    seconds: float
    memory_bytes: int
    stranded_indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelUnload:
    """What came of unloading a model, whose last request is done.

    Attributes:
        name: The model's.
        revision: What served.
        seconds: That its last requests and the freeing of its memory took.
        stranded_indexes: As in ``ModelLoad``.
    """

    name: str
    revision: Revision
    seconds: float
    stranded_indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelReport:
    """How good a model was measured to be, as it was published.

    Attributes:
        model: Its name.
        version: In the store, a whole number.
        fingerprint: The stored model's.
        report: What ``condensery eval`` wrote, in JSON's types.
        card: Whether there is a card for people, in Markdown.
        plots: Names of its plots, which are PNG.
    """

    model: str
    version: str
    fingerprint: str
    report: Mapping[str, Any]
    card: bool
    plots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Row ``i`` of ``vectors`` (texts, dims) answers text ``i``."""

    model: str
    fingerprint: str
    vectors: Floats
    tokens: int
    truncated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddedTokens:
    """``vectors[i]`` (tokens, dims) are those of text ``i``'s tokens, special ones included."""

    model: str
    fingerprint: str
    vectors: tuple[Floats, ...]
    tokens: int
    truncated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a text.

    Attributes:
        id: Its number.
        text: The text's own characters; of a special token its name.
        special: Whether the tokenizer put it there.
        start: First of the text's characters; None of a special token.
        end: After the last.
    """

    id: int
    text: str
    special: bool
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class Scored:
    """``scores[i]`` is passage ``i``'s raw relevance score (a logit, unbounded).

    ``truncated`` holds the places of passages that were cut; the query has its own flag.
    """

    model: str
    scores: Floats
    tokens: int
    truncated: tuple[int, ...] = ()
    query_truncated: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Classified:
    """Row ``i`` of ``logits`` (inputs, labels), unbounded, is of input ``i``."""

    model: str
    logits: Floats
    tokens: int
    truncated: tuple[int, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label, and how likely it is (or its raw logit)."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of each input every label, the likeliest first."""

    model: str
    items: tuple[tuple[Prediction, ...], ...]
    tokens: int
    truncated: tuple[int, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One passage's place: ``index`` in the request, ``score`` (raw logit or its sigmoid)."""

    index: int
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Reranked:
    """Passages from the most to the least relevant."""

    model: str
    items: tuple[Ranked, ...]
    tokens: int
    truncated: tuple[int, ...] = ()
    query_truncated: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A text to index, as the user wrote it."""

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document: ``text == document.text[start:end]`` (characters)."""

    id: str
    document_id: str
    text: str
    start: int
    end: int
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage from a search, with its score; higher is better.

    By vectors: the inner product of normalised ones, or minus the squared distance. By words: BM25.
    By both: the fusion of the two rankings.
    """

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class IndexPrompts:
    """What an index puts before a text that is looked for, and before each of its passages."""

    query: str
    passage: str


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index and what it holds.

    Attributes:
        prompts: Those that its passages were embedded with; "" is none. None where nobody knows:
            of an index from before they were kept whose encoder does not run.
        prompts_outdated: Its encoder has others for an index that is made today, so that a rebuild
            would embed its passages otherwise.
        options: Its kind's, those that were set.
        searched_as: The kind; ``flat`` of one that waits for enough passages to be trained on.
        trains_at: How many that is; None if it does not wait.
        tombstones: Passages deleted or replaced that the search still passes over.
    """

    name: str
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    options: Mapping[str, int] = field(default_factory=dict)
    searched_as: str = ""
    trains_at: int | None = None
    tombstones: int = 0
    prompts: IndexPrompts | None = None
    prompts_outdated: bool = False


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A passage as an index holds it: characters of its document, and its vector (dims,)."""

    id: str
    start: int
    end: int
    vector: Floats


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as an index holds it; None is what was not asked for."""

    id: str
    text: str | None
    metadata: Metadata | None
    passages: tuple[StoredPassage, ...] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of an index's documents by id; those after the id ``next`` are to come, if it is set."""

    documents: tuple[StoredDocument, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an acknowledged (synced) upsert wrote."""

    documents: int
    passages: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class PairTraits:
    """What a pair can do, and what it does where nothing is asked for.

    Attributes:
        vectors: Memory vectors a full window may become, the most first.
        rates: Tokens a vector for each of them.
        scores: Whether it has a rerank head.
        top_n: Passages that it reads best; 0 is all.
        min_relevance: Score under which it should not answer; 0 is none.
    """

    vectors: tuple[int, ...]
    rates: tuple[int, ...]
    scores: bool = True
    top_n: int = 5
    min_relevance: float = 0.0


@dataclass(frozen=True, slots=True)
class IndexCaps:
    """How many of each there may be; those that are there already stay, however many."""

    indexes: int = 1000
    aliases: int = 1000
    snapshots: int = 1000  # of all indexes together, those that are no more included


@dataclass(frozen=True, slots=True)
class Alias:
    """A second name of an index.

    Attributes:
        alias: The name.
        target: What it points at: an index, or another alias.
        index: The index at the end; None if there is none any more.
    """

    alias: str
    target: str
    index: str | None


@dataclass(frozen=True, slots=True)
class AliasAction:
    """One change of many that are made together, or not at all.

    Attributes:
        verb: ``create`` (an alias that is there is moved), ``delete`` or ``rename``.
        alias: Which.
        target: The index (or alias) that it is to point at; of ``rename`` its new name.
    """

    verb: AliasVerb
    alias: str
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of an index, as it was at one moment.

    Attributes:
        id: Names it among those of its index.
        index: Whose copy it is.
        created: When, seconds since 1970.
        bytes: What it takes on the disk.
    """

    id: str
    index: str
    created: float
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """An index's snapshots.

    Attributes:
        found: The newest first.
        refused: Why each other one can't be used, by id.
    """

    found: tuple[Snapshot, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is being made of an index.

    Attributes:
        index: Its name.
        encoder: The new one, whose fingerprint, kind and metric follow.
        options: The kind's that were set.
        documents: How many there were when it began.
        began: When, seconds since 1970.
        prompts: That its passages are embedded with; None if it was begun before they were kept.
    """

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    options: Mapping[str, int]
    documents: int
    began: float
    prompts: IndexPrompts | None = None


@dataclass(frozen=True, slots=True)
class Rebuild:
    """How far a rebuild has come.

    Attributes:
        state: ``running``; ``done``: the new index serves; ``failed``: the old one goes on, and
            so does the rebuild, from where it is, if it is asked for again.
        pending: Documents, and writes since it began, that are still to be done.
        ended: When, seconds since 1970; None while it runs.
        reason: Why it failed.
        overlap: Of the documents that the old index finds, the share that the new one finds, on
            average over some of its own texts; None where the old encoder does not run.
    """

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    documents: int
    began: float
    state: RebuildState
    pending: int
    ended: float | None = None
    reason: str | None = None
    overlap: float | None = None


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
