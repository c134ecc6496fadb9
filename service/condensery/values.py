"""What travels between layers: frozen, plain, no torch.

Texts and their vectors, models, documents and passages, and what belongs to an index: its prompts,
aliases, snapshots and rebuilds. Arrays are numpy float32 and are not written to after they are
made.

Those that REST replies with are its contract: orjson writes them as they are, and
``docs/openapi.json`` has their docstrings, that of a class and those below its fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray


class Described:
    """Marks a type that pydantic is to describe by another one, which is loaded only then.

    Args:
        load: Returns the other type.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        """Return the other type's schema."""
        return handler.generate_schema(self._load())


Floats = NDArray[np.float32]
# What a stored model is, and what made it smaller: what its manifest may say. Both are open:
# ``runtime.loader.register_kind`` registers how a kind runs, ``networks.building.register_method``
# which networks a method makes, and both add to these.
ModelKind = str
MODEL_KINDS: set[ModelKind] = {"encoder", "classifier", "reranker", "oscar-pair", "language-model"}
METHODS = {"none", "effir", "shrp", "llm2comp", "oscar"}
# What a running model is asked for. Roles are few, since each is an interface of the jobs; a model
# of any kind has one, or several.
ModelRole = Literal["encoder", "oscar-pair", "reranker", "classifier"]
ModelState = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
# The command line does without pydantic.
Metadata = Mapping[str, Annotated[Any, Described(lambda: import_module("pydantic").JsonValue)]]
TEXT_PLACE, INSTRUCTION_PLACE = "{text}", "{instruction}"  # in a prompt
TruncationDirection = Literal["right", "left"]  # of a text that is too long, which is cut
Input = str | tuple[str, str]  # what is classified: a text, or a pair of texts
AliasVerb = Literal["create", "delete", "rename"]
RebuildState = Literal["running", "done", "failed"]
# How an index is searched: by vectors, by words (BM25), or by both, their ranks fused.
SearchMode = Literal["dense", "bm25", "hybrid"]
SEARCH_MODES: tuple[SearchMode, ...] = get_args(SearchMode)
INDEX_OPTIONS = ("top_k", "mode")  # of the index that a model's name carries
ALIAS_VERBS: tuple[AliasVerb, ...] = get_args(AliasVerb)


def set_derived(value: Any, **derived: Any) -> None:
    """Set the fields of a frozen value that follow from its others, while it is made."""
    for name, content in derived.items():
        object.__setattr__(value, name, content)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        set_derived(self, total_tokens=self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class PairTraits:
    """What a pair can do, and what it does where nothing is asked for."""

    vectors: tuple[int, ...]
    """Memory vectors that a full window may become, the most first."""
    rates: tuple[int, ...]
    """Tokens a vector for each of them: a question's `ratio`."""
    scores: bool = True
    """Whether it scores passages."""
    top_n: int = 5
    """Passages that it reads best; 0 is all."""
    min_relevance: float = 0.0
    """Score under which it does not answer; 0 is none."""
    rank_weight: float = 0.0
    """How much its place in an index's search counts beside a passage's score, in choosing what is
    read: so many times the place's logarithm is taken off the logit; 0 is the score alone."""


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The index that a model's name carries: a chat needs to name no other."""

    name: str
    top_k: int | None = None
    """Passages to retrieve; null: as where an answer's `index` does not say."""
    mode: SearchMode | None = None
    """How it is searched; null: as the server is set."""

    def __str__(self) -> str:
        given = {key: getattr(self, key) for key in INDEX_OPTIONS}
        options = [f"{key}={value}" for key, value in given.items() if value is not None]
        return f"{self.name}?{'&'.join(options)}" if options else self.name


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A running model."""

    id: str
    object: Literal["model"] = field(init=False, default="model")
    owned_by: str = field(init=False, default="condensery")
    kind: str  # one of ModelKind
    method: str
    fingerprint: str
    dims: int | None
    max_tokens: int
    dtype: str
    device: str
    licence: str
    created: int
    pooling: str | None = None
    pair: PairTraits | None = None
    """Of a pair alone."""
    labels: tuple[str, ...] = ()
    """Of a classifier or cross-encoder alone."""
    independent: bool = False
    """Whether each label is likely or not by itself."""
    version: str = ""
    """In the store, a whole number."""
    alias_of: str | None = None
    """The model's own name, where `id` is an alias."""
    dimensions: tuple[int, ...] = ()
    """Of an encoder: lengths that its vectors may be cut to, beside `dims`."""
    index: ModelIndex | None = None
    """Of an alias that carries one: where its answers are found."""

    @property
    def name(self) -> str:
        """The model's name, which is its id."""
        return self.id


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model, and what it does, as KServe tells it."""

    name: str
    version: str
    state: ModelState
    reason: str = ""  # why it does not serve, where there is more to say than that


@dataclass(frozen=True, slots=True)
class Revision:
    """A version of a model."""

    version: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What serves since a model was loaded."""

    object: Literal["model.load"] = field(init=False, default="model.load")
    id: str = field(init=False, default="")
    model: ModelInfo
    previous: Revision | None
    """What served before by that name."""
    changed: bool
    """Whether it was loaded; else it served already."""
    seconds: float  # from the files to the first request
    memory_bytes: int
    """Of its weights."""
    stranded_indexes: tuple[str, ...] = ()
    """Indexes of its name and another fingerprint: they answer 409."""

    def __post_init__(self) -> None:
        set_derived(self, id=self.model.id)

    @property
    def info(self) -> ModelInfo:
        """What serves now: ``model``."""
        return self.model


@dataclass(frozen=True, slots=True)
class ModelUnload:
    """What served, and is gone."""

    object: Literal["model.unload"] = field(init=False, default="model.unload")
    id: str
    version: str
    fingerprint: str
    seconds: float  # that its last requests and the freeing of its memory took
    stranded_indexes: tuple[str, ...] = ()
    """Indexes that answer 409 without it."""

    @property
    def name(self) -> str:
        """The model's name, which is its id."""
        return self.id

    @property
    def revision(self) -> Revision:
        """What served."""
        return Revision(self.version, self.fingerprint)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a model was measured at when it was published."""

    model: str
    version: str
    """Of the stored model, a whole number."""
    fingerprint: str
    """The running model's."""
    report: Mapping[str, Any]
    """As `condensery eval` wrote it, format 2."""
    card: bool
    """Whether there is a card, in Markdown."""
    plots: tuple[str, ...]
    """Names of its plots."""


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
    """A token of a text."""

    id: int
    text: str
    """The text's own characters; of a special token its name."""
    special: bool
    """Whether the tokenizer put it there."""
    start: int | None
    """First of the text's characters; null of a special token."""
    stop: int | None
    """After the last."""


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
    """A label, and how likely it is."""

    score: float  # or its raw logit
    label: str


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
    """One passage's place: ``index`` in the request; the score is a raw logit or its sigmoid."""

    index: int
    relevance_score: float
    text: str = ""  # where the reply holds it

    @property
    def score(self) -> float:
        """The score, by a shorter name."""
        return self.relevance_score


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
    """A document as it was given."""

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document: ``text == document.text[start:end]`` (characters).

    Attributes:
        heading: What the document begins with and the passage stands under; "" where it begins
            there itself, or the document has none.
    """

    id: str
    document_id: str
    text: str
    start: int
    end: int
    metadata: Metadata = field(default_factory=dict)
    heading: str = ""

    @property
    def above(self) -> str:
        """What a model reads before its text (``put_above``)."""
        return put_above(self.heading)

    @property
    def headed_text(self) -> str:
        """Its text under its heading, as it is searched, embedded and read."""
        return self.above + self.text


def put_above(heading: str) -> str:
    """Return what of a heading stands above a passage's text: itself, and a blank line."""
    return f"{heading.lstrip()}\n\n" if heading else ""


@dataclass(frozen=True, slots=True)
class Hit(Passage):
    """A passage found.

    Its score is the better the higher. By vectors: the inner product of normalised ones, or minus
    the squared distance. By words: BM25. By both: the fusion of the two rankings.
    """

    score: float = field(kw_only=True)

    @property
    def passage(self) -> Passage:
        """The passage without its score."""
        return Passage(
            self.id,
            self.document_id,
            self.text,
            self.start,
            self.end,
            self.metadata,
            self.heading,
        )


def make_hit(passage: Passage, score: float) -> Hit:
    """Return a passage with its score."""
    return Hit(
        passage.id,
        passage.document_id,
        passage.text,
        passage.start,
        passage.end,
        passage.metadata,
        passage.heading,
        score=score,
    )


@dataclass(frozen=True, slots=True)
class IndexPrompts:
    """What an index puts before the texts that it embeds; "" is nothing."""

    query: str
    """Before a text that is looked for."""
    passage: str
    """Before each passage."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """What an index is made with, and keeps for life.

    Attributes:
        encoder: Name of the model whose vectors it takes.
        fingerprint: Of that model.
        dims: Features of a vector.
        metric: ``ip`` (inner product) or ``l2`` (minus squared distance).
        kind: ``flat`` (exact), ``hnsw`` or ``ivf_pq`` (approximate).
        options: The kind's; what is left out follows from the index's size.
        prompts: Put before its texts; None of an index from before they were kept.
    """

    encoder: str
    fingerprint: str
    dims: int
    metric: str
    kind: str
    options: Mapping[str, int] | None = None
    prompts: IndexPrompts | None = None


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index and what it holds."""

    name: str
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    options: Mapping[str, int] = field(default_factory=dict)  # its kind's, those that were set
    searched_as: str = ""
    """The kind; `flat` of an `ivf_pq` that waits for enough passages."""
    trains_at: int | None = None
    """How many that is; null if it does not wait."""
    tombstones: int = 0
    """Deleted or replaced passages that searches pass over."""
    prompts: IndexPrompts | None = None
    """Those that its passages were embedded with; null of an index that an older version made,
    while its encoder does not run."""
    prompts_outdated: bool = False
    """Its encoder has others for an index that is made today; a rebuild takes them."""


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A passage, as the index holds it."""

    id: str
    start: int
    end: int
    vector: Annotated[Floats, Described(lambda: list[float])]  # (dims,)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document, as far as it was asked for; null is what was not."""

    id: str
    text: str | None
    metadata: Metadata | None
    passages: tuple[StoredPassage, ...] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Documents by id. ``next`` is the ``after`` of the page to come; null if there is none."""

    next: str | None
    documents: tuple[StoredDocument, ...]


@dataclass(frozen=True, slots=True)
class Upserted:
    """What was written, and is synced."""

    documents: int
    passages: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class IndexCaps:
    """How many of each there may be; those that are there already stay, however many."""

    indexes: int = 1000
    aliases: int = 1000
    snapshots: int = 1000  # of all indexes together, those that are no more included


@dataclass(frozen=True, slots=True)
class Alias:
    """A second name of an index."""

    alias: str
    target: str
    """What it points at: an index, or another alias."""
    index: str | None
    """The index at the end; null if it is no more."""


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
    """A copy of an index, as it was at one moment."""

    id: str
    index: str
    created: float
    """Seconds since 1970."""
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    bytes: int  # on the disk


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """An index's snapshots, the newest first."""

    object: Literal["list"] = field(init=False, default="list")
    data: tuple[Snapshot, ...]
    refused: Mapping[str, str]
    """Why each other one can't be used, by id."""

    @property
    def found(self) -> tuple[Snapshot, ...]:
        """The snapshots: ``data``."""
        return self.data


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

    It is ``running``; ``done``: the new index serves; or ``failed``: the old one goes on, and so
    does the rebuild, from where it is, if it is asked for again.
    """

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    documents: int
    """How many there were when it began."""
    began: float
    """Seconds since 1970."""
    state: RebuildState
    pending: int
    """Documents, and writes since it began, still to be done."""
    ended: float | None = None
    reason: str | None = None
    """Why it failed."""
    overlap: float | None = None
    """Of the documents that the old index finds for some of its own texts, the share that the new
    one finds; null where the old encoder does not run."""


def fill_prompt(prompt: str, text: str) -> str:
    """Put a text into a prompt: where that has ``{text}``, else behind it."""
    if TEXT_PLACE in prompt:
        return prompt.replace(TEXT_PLACE, text, 1)
    return prompt + text
