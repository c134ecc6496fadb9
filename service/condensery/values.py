"""What travels between layers: frozen, plain, no torch.

Arrays are numpy float32 and are not written to after they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Kind = Literal["encoder", "classifier", "reranker", "oscar-pair", "language-model"]
ModelState = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
Metadata = Mapping[str, Any]
Side = Literal["right", "left"]  # of a text that is too long, which is cut
Input = str | tuple[str, str]  # what is classified: a text, or a pair of texts


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A running model, as ``/v1/models`` and ``/info`` show it; the doors add ``pair``.

    Attributes:
        labels: What a classifier tells apart, in the order of its logits.
        independent: Whether each label is likely or not by itself; else one of them holds.
        version: In the store, a whole number.
        alias_of: The model's own name, where ``name`` is an alias of it.
        dimensions: Lengths that an encoder's vectors may be cut to (Matryoshka), beside ``dims``.
    """

    name: str
    kind: Kind
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
class Piece:
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

    Passages that were cut are told by their places in ``truncated``, the query by its own flag.
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
    """A text to index, as the user gave it."""

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
    """A passage found, with its score; more is better.

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
        options: Its kind's, those that were given.
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
