"""The bodies of REST requests and replies.

TEI's, Cohere's, Jina's and Infinity's clients send fields of their own: those bodies ignore what
they don't know. Ours refuse it, so that a misspelt option is not silently without effect.
Types are strict: "5" is not 5, and 1 is not true.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from condensery.encodings import Encoding
from condensery.errors import InputError, TokenIdsRefused, shorten
from condensery.questions import SearchMode
from condensery.schemas_filter import GivenFilter
from condensery.values import Side

TOKEN_IDS_HINT = (
    "token ids are not accepted, since another model's ids would give wrong vectors without a "
    "sign of it: send text. With LangChain's OpenAIEmbeddings set "
    "`check_embedding_ctx_length=False`."
)


# Of many wrong items the first is told; to find them all takes seconds where they are a million.
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
Texts = str | list[str]

# No body of ours has more; unknown ones are named, which takes seconds where they are a million.
MOST_FIELDS = 64


def one_or_many(value: Any, field: str) -> Any:
    """Make a list of one text; refuse token ids by name.

    Raises:
        TokenIdsRefused: ``[1, 2]`` or ``[[1, 2], ...]``.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        place = next((i for i, item in enumerate(value) if not isinstance(item, str)), None)
        if place is not None and _are_token_ids(value[place]):
            # [1, 2] is one text's ids, [[1, 2]] those of several.
            one = isinstance(value[place], int)
            where, ids = (field, value) if one else (f"{field}[{place}]", value[place])
            raise TokenIdsRefused(
                f"{where}: {shorten(ids)}: {TOKEN_IDS_HINT}", field=where, value=ids
            )
        return value
    raise InputError(
        f"{field}: {shorten(value)} is neither a string nor a list of strings.",
        field=field,
        value=value,
    )


def _are_token_ids(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(type(one) is int for one in item)
    return type(item) is int


def as_document(value: Any) -> Any:
    """Wrap a document that is given as its text alone."""
    return {"text": value} if isinstance(value, str) else value


class Lenient(BaseModel):
    """A body of a family that others defined."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Ours(BaseModel):
    """A body of our own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise InputError(
                f"body: an object of {len(data)} fields; none here has more than {MOST_FIELDS}.",
                field="body",
                value=len(data),
            )
        return data


def as_side(value: Any) -> Any:
    """Read TEI's ``Right`` and ``Left``, small too."""
    return value.lower() if isinstance(value, str) else value


TruncationSide = Annotated[
    Side,
    BeforeValidator(as_side, json_schema_input_type=Literal["Right", "Left"]),
    Field(description="Where too long a text is cut."),
]


class OpenAIEmbedRequest(Lenient):
    """``POST /v1/embeddings``."""

    input: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "input"), json_schema_input_type=Texts),
    ] = Field(description="A string, or a list of strings.", examples=["What is a near twin?"])
    model: str | None = Field(default=None, description="An encoder; by default the default one.")
    encoding_format: Literal["float", "base64", "bytes"] = Field(
        default="float", description="bytes: the reply is the vectors' bytes, row by row."
    )
    embed_dtype: Encoding | None = Field(
        default=None, description="What a vector's numbers are; null: float32."
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="One of the model's `dims` and `dimensions`."
    )
    user: str | None = None
    prompt_name: str | None = Field(default=None, description="One of the model's prompts.")
    input_type: str | None = Field(
        default=None,
        description="In place of a prompt's name: `search_query`, `search_document`, "
        "`classification` or `clustering`.",
    )
    normalize: bool | None = Field(default=None, description="null: as the model declares.")
    truncate: bool = Field(default=True, description="false: too long a text is an error.")
    truncation_direction: TruncationSide = "right"


class TeiEmbedRequest(Lenient):
    """``POST /embed``."""

    inputs: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "inputs"), json_schema_input_type=Texts),
    ] = Field(description="A string, or a list of strings.", examples=["What is a near twin?"])
    normalize: bool | None = True
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    prompt_name: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    model: str | None = None


class TeiEmbedAllRequest(Lenient):
    """``POST /embed_all``."""

    inputs: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "inputs"), json_schema_input_type=Texts),
    ]
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    prompt_name: str | None = None
    model: str | None = None


class TeiSentences(Lenient):
    """What ``POST /similarity`` compares."""

    source_sentence: str
    sentences: Many[str]


class TeiSimilarityOptions(Lenient):
    """How."""

    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    prompt_name: str | None = None


class TeiSimilarityRequest(Lenient):
    """``POST /similarity``."""

    inputs: TeiSentences
    parameters: TeiSimilarityOptions | None = None
    model: str | None = None


class TeiTokenizeRequest(Lenient):
    """``POST /tokenize``."""

    inputs: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "inputs"), json_schema_input_type=Texts),
    ]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class TeiDecodeRequest(Lenient):
    """``POST /decode``."""

    ids: Many[int] | Many[Many[int]] = Field(description="Of one text, or of several.")
    skip_special_tokens: bool = True
    model: str | None = None


def as_inputs(value: Any) -> Any:
    """Tell a text, a pair of texts and a list of either apart, as TEI does.

    Raises:
        InputError: An input is none of them; it is named by its place.
    """
    one = isinstance(value, str)
    if one or (isinstance(value, list) and value and all(isinstance(t, str) for t in value)):
        return as_input(value, "inputs")
    if not isinstance(value, list):
        raise InputError(f"inputs: {shorten(value)} is no text, pair or list.", field="inputs")
    return [as_input(item, f"inputs[{place}]") for place, item in enumerate(value)]


def as_input(value: Any, field: str) -> str | tuple[str, str]:
    """Read one text, or a list of one or two.

    Raises:
        InputError: It is something else.
    """
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        if len(texts) == 1:
            return str(texts[0])
        if len(texts) == 2:
            return texts[0], texts[1]
    raise InputError(
        f"{field}: {shorten(value)} is neither a text nor a pair of texts.",
        field=field,
        value=value,
    )


class TeiPredictRequest(Lenient):
    """``POST /predict``."""

    inputs: Annotated[
        str | tuple[str, str] | list[str | tuple[str, str]],
        BeforeValidator(as_inputs, json_schema_input_type=str | list[str] | list[list[str]]),
    ] = Field(
        description='A text, a pair `["a", "b"]`, or a list of lists of one text or two.',
        examples=["It rains.", ["It rains.", "It is wet."], [["It rains."], ["a", "b"]]],
    )
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    raw_scores: bool = Field(default=False, description="Logits; else what is likely.")
    model: str | None = None


class TeiRerankRequest(Lenient):
    """``POST /rerank`` with ``texts``."""

    query: str
    texts: Many[str]
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    raw_scores: bool = False
    return_text: bool = False
    model: str | None = None


class RerankDocument(Lenient):
    """A passage to rank, as Cohere and Jina wrap it."""

    text: str


class RerankRequest(Lenient):
    """``POST /v1/rerank``, and ``/rerank`` with ``documents``."""

    query: str
    documents: Many[
        Annotated[
            RerankDocument,
            BeforeValidator(as_document, json_schema_input_type=str | RerankDocument),
        ]
    ] = Field(description='Strings, or objects `{"text"}`.')
    model: str | None = None
    top_n: int | None = Field(default=None, ge=1)
    return_documents: bool | None = None
    raw_scores: bool = False
    truncate: bool = True


class RankedText(Lenient):
    """A text, as NIM wraps it."""

    text: str


class NimRankingRequest(Lenient):
    """``POST /v1/ranking``."""

    query: RankedText
    passages: Many[RankedText]
    model: str | None = None
    truncate: Literal["NONE", "END"] = Field(
        default="NONE", description="NONE: too long a text is an error."
    )


class CreateIndexRequest(Ours):
    """``PUT /v1/indexes/{name}``."""

    encoder: str | None = Field(default=None, description="By default the default encoder.")
    metric: str = Field(
        default="ip",
        description="`ip` (inner product) or `l2`.",
        json_schema_extra={"enum": ["ip", "l2"]},
    )
    kind: str = Field(
        default="flat",
        description="`flat` (exact), `hnsw` or `ivf_pq`.",
        json_schema_extra={"enum": ["flat", "hnsw", "ivf_pq"]},
    )
    options: dict[str, int] | None = Field(
        default=None,
        description="The kind's. hnsw: `m`, `ef_construction`, `ef_search`; ivf_pq: `nlist`, "
        "`nprobe`, `pq_m`, `pq_bits`. What is left out follows from the index's size.",
    )
    dims: int | None = Field(default=None, description="Refused unless it is the encoder's.")


class NewDocument(Ours):
    """A document to index."""

    id: str
    text: str = ""
    vector: Many[float] | None = Field(
        default=None, description="Of the whole text; else the text is split and embedded."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class UpsertRequest(Ours):
    """``POST /v1/indexes/{name}/documents``."""

    documents: Many[NewDocument]
    fingerprint: str | None = Field(
        default=None, description="Of the encoder that made the vectors, if vectors are given."
    )


class IdsRequest(Ours):
    """``POST /v1/indexes/{name}/documents/get``."""

    ids: Many[str]


class DeleteRequest(Ours):
    """``POST /v1/indexes/{name}/documents/delete``: by ``ids``, or by a ``filter``."""

    ids: Many[str] | None = None
    filter: GivenFilter | None = None


class CountRequest(Ours):
    """``POST /v1/indexes/{name}/documents/count``; the body may be left out."""

    filter: GivenFilter | None = None


class ScrollRequest(Ours):
    """``POST /v1/indexes/{name}/documents/scroll``; the body may be left out."""

    filter: GivenFilter | None = None
    limit: int | None = Field(
        default=None, description="Most documents of this page; null: 100, if so many may be asked."
    )
    after: str | None = Field(default=None, description="The `next` of the page before.")
    with_text: bool = True
    with_metadata: bool = True
    with_vectors: bool = Field(default=False, description="The passages too, with their vectors.")


class QueryRequest(Ours):
    """``POST /v1/indexes/{name}/query``: a text, or a vector with its encoder's fingerprint."""

    query: str | None = None
    vector: Many[float] | None = None
    fingerprint: str | None = None
    top_k: int = 10
    mode: SearchMode | None = Field(
        default=None,
        description="By vectors, by words (BM25), or by both, their ranks fused; words need "
        "`query`. null: as the server is set.",
    )
    filter: GivenFilter | None = None
