"""The bodies of replies, for the description: endpoints write dictionaries, which is faster.

A test compares every route's reply with these.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from condensery.encodings import Encoding

Vector = list[float]
Vectors = list[Vector]


class Reply(BaseModel):
    """A reply has these fields, and no others."""

    model_config = ConfigDict(extra="forbid")


class TokenUsage(Reply):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    """One text's vector: numbers, or base64 of them, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: Vector | str


class Embeddings(Reply):
    """Vectors, as OpenAI gives them."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage
    embed_dtype: Encoding | None = Field(
        default=None, description="Where one is asked for: what a vector's numbers are."
    )
    dims: int | None = Field(default=None, description="And how many dimensions it has.")


class CohereUnits(Reply):
    """What Cohere would bill."""

    input_tokens: int


class CohereVersion(Reply):
    """Of Cohere's API."""

    version: Literal["1", "2"]


class CohereMeta(Reply):
    """What a request took."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereFloats(Reply):
    """Vectors, as Cohere's first version gives them where no types are named."""

    id: str
    response_type: Literal["embeddings_floats"]
    embeddings: Vectors
    texts: list[str]
    meta: CohereMeta


class CohereTypes(Reply):
    """Vectors in each of the types that were asked for."""

    float: Vectors | None = None
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereByType(Reply):
    """Vectors, as Cohere gives them by type."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereTypes
    texts: list[str]
    meta: CohereMeta


CohereEmbeddings = CohereFloats | CohereByType


class Prediction(Reply):
    """A label, and how likely it is."""

    score: float
    label: str


Predictions = list[Prediction] | list[list[Prediction]]


class TeiToken(Reply):
    """A token of a text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


TokenVectors = list[Vectors]
Cosines = list[float]
Tokenized = list[list[TeiToken]]
Decoded = list[str]


class TeiRank(Reply):
    """One passage's place, as TEI gives it."""

    index: int
    score: float
    text: str | None = Field(default=None, description="Only with `return_text`.")


class PassageText(Reply):
    """A passage, as Cohere and Jina wrap it."""

    text: str


class Rank(Reply):
    """One passage's place, as Cohere, Jina and Infinity give it."""

    index: int
    relevance_score: float
    document: PassageText | str | None = Field(
        default=None, description="Only with `return_documents`; of `/rerank` the plain string."
    )


class Ranking(Reply):
    """Passages, the most relevant first."""

    id: str
    object: Literal["rerank"]
    created: int
    model: str
    results: list[Rank]
    usage: TokenUsage
    meta: dict[str, JsonValue]


class NimRank(Reply):
    """One passage's place, as NIM gives it."""

    index: int
    logit: float


class NimRanking(Reply):
    """Passages, the most relevant first."""

    rankings: list[NimRank]


AnyRanking = list[TeiRank] | Ranking
Anything = Vectors | Cosines | list[TeiRank]


class IndexPrompts(Reply):
    """What an index puts before the texts that it embeds; "" is nothing."""

    query: str = Field(description="Before a text that is looked for.")
    passage: str = Field(description="Before each passage.")


class Index(Reply):
    """An index and what it holds."""

    name: str
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    options: dict[str, int]
    searched_as: str = Field(
        description="The kind; `flat` of an `ivf_pq` that waits for enough passages."
    )
    trains_at: int | None = Field(description="How many that is; null if it does not wait.")
    tombstones: int = Field(description="Deleted or replaced passages that searches pass over.")
    prompts: IndexPrompts | None = Field(
        description="Those that its passages were embedded with; null of an index that an older "
        "version made, while its encoder does not run."
    )
    prompts_outdated: bool = Field(
        description="Its encoder has others for an index that is made today; a rebuild takes them."
    )


class Indexes(Reply):
    """Every index."""

    object: Literal["list"]
    data: list[Index]


class Dropped(Reply):
    """An index that is no more."""

    name: str
    deleted: Literal[True]


class Written(Reply):
    """What was written, and is synced."""

    documents: int
    passages: int
    tokens: int


class StoredDocument(Reply):
    """A document as it was given."""

    id: str
    text: str
    metadata: dict[str, JsonValue]


class Documents(Reply):
    """Those found, in the order asked."""

    documents: list[StoredDocument]


class ReadPassage(Reply):
    """A passage, as the index holds it."""

    id: str
    start: int
    end: int
    vector: list[float]


class ReadDocument(Reply):
    """A document, as far as it was asked for; null is what was not."""

    id: str
    text: str | None
    metadata: dict[str, JsonValue] | None
    passages: list[ReadPassage] | None


class Page(Reply):
    """Documents by id. ``next`` is the ``after`` of the page to come; null if there is none."""

    next: str | None
    documents: list[ReadDocument]


class Deleted(Reply):
    """How many documents there were."""

    deleted: int


class Counts(Reply):
    """What an index holds."""

    documents: int
    passages: int


class Hit(Reply):
    """A passage found."""

    id: str
    document_id: str
    text: str
    start: int
    end: int
    metadata: dict[str, JsonValue]
    score: float


class Hits(Reply):
    """Passages, the nearest first."""

    index: str
    results: list[Hit]
