"""The bodies of requests for embeddings, labels and ranks, and what all bodies share.

TEI's, Cohere's, Jina's and Infinity's clients send fields of their own: those bodies ignore unknown
fields, as their servers do, and the reply lists them (``ignored_fields``). Ours refuse them, so
that a misspelt option is not silently without effect.
Types are strict: "5" is not 5, and 1 is not true.
"""

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from condensery.encodings import Encoding
from condensery.errors import InputError, TokenIdsRefused, shorten
from condensery.values import TruncationDirection

TOKEN_IDS_HINT = (
    "token ids are not accepted, since another model's ids would give wrong vectors without a "
    "sign of it: send text. With LangChain's OpenAIEmbeddings set "
    "`check_embedding_ctx_length=False`."
)


# Of many wrong items only the first is reported; to find all of a million takes seconds.
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
Texts = str | list[str]

# No body of ours has more fields; naming all unknown ones of a million takes seconds.
MAX_FIELDS = 64


def one_or_many(value: Any, field: str) -> Any:
    """Make a list of a single text; refuse token ids.

    Raises:
        TokenIdsRefused: ``[1, 2]`` or ``[[1, 2], ...]``.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        place = next((i for i, item in enumerate(value) if not isinstance(item, str)), None)
        if place is not None and _is_token_ids(value[place]):
            # [1, 2] is a single text's ids, [[1, 2]] those of several.
            is_flat = isinstance(value[place], int)
            path, ids = (field, value) if is_flat else (f"{field}[{place}]", value[place])
            raise TokenIdsRefused.at(path, f"{shorten(ids)}: {TOKEN_IDS_HINT}", ids)
        return value
    raise InputError.at(
        field, f"{shorten(value)} is neither a string nor a list of strings.", value
    )


def _is_token_ids(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(type(number) is int for number in item)
    return type(item) is int


def refuse_many_fields(data: Any) -> Any:
    """Return an object that has no more fields than any of ours.

    Raises:
        InputError: It has.
    """
    if isinstance(data, dict) and len(data) > MAX_FIELDS:
        raise InputError.at(
            "body",
            f"an object of {len(data)} fields; none here has more than {MAX_FIELDS}.",
            len(data),
        )
    return data


def given_once(body: BaseModel, *names: str) -> Any:
    """Return the value of the field that is given, of several that mean the same in other words.

    None where none is; null is as if it were left out.

    Raises:
        InputError: Several are given.
    """
    values = {name: getattr(body, name) for name in names if name in body.model_fields_set}
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) > 1:
        raise InputError.at(names[0], f"means the same as others: give one of {', '.join(given)}.")
    return next(iter(given.values()), None)


def as_document(value: Any) -> Any:
    """Wrap a document that is only its text."""
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
        return refuse_many_fields(data)


def lower_case(value: Any) -> Any:
    """Read TEI's ``Right`` and ``Left``, in lower case too."""
    return value.lower() if isinstance(value, str) else value


NimTruncate = Literal["NONE", "START", "END"]


def read_truncate(value: Any) -> Any:
    """Read whether too long a text is cut, or NIM's word for where.

    Raises:
        InputError: It is neither.
    """
    if value is None or isinstance(value, bool) or value in get_args(NimTruncate):
        return value
    words = ", ".join(get_args(NimTruncate))
    raise InputError.at("truncate", f"{shorten(value)} is neither true, false nor {words}.", value)


TruncationSide = Annotated[
    TruncationDirection,
    BeforeValidator(lower_case, json_schema_input_type=Literal["Right", "Left"]),
    Field(description="Where too long a text is cut."),
]


InputTexts = Annotated[
    Many[str],
    BeforeValidator(lambda value: one_or_many(value, "inputs"), json_schema_input_type=Texts),
]


class OpenAIEmbedRequest(Lenient):
    """``POST /v1/embeddings``."""

    input: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "input"), json_schema_input_type=Texts),
    ] = Field(description="A string, or a list of strings.", examples=["What is a near twin?"])
    model: str | None = Field(default=None, description="An encoder; by default the default one.")
    encoding_format: Literal["float", "base64", "bytes"] | None = Field(
        default=None,
        description="null: float. bytes: the reply is the vectors' bytes, row by row.",
    )
    embed_dtype: Encoding | None = Field(
        default=None, description="What a vector's numbers are; null: float32."
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="One of the model's `dims` and `dimensions`."
    )
    prompt_name: str | None = Field(default=None, description="One of the model's prompts.")
    input_type: str | None = Field(
        default=None,
        description="In place of a prompt's name: `search_query`, `search_document`, "
        "`classification` or `clustering`.",
    )
    instruction: str | None = Field(
        default=None,
        description="In place of either: what the texts are for, in your words. For models whose "
        "prompt `instruction` says how they read one.",
    )
    normalize: bool | None = Field(default=None, description="null: as the model declares.")
    truncate: Annotated[
        bool | NimTruncate | None,
        BeforeValidator(read_truncate, json_schema_input_type=bool | NimTruncate | None),
    ] = Field(
        default=True,
        description="false or NONE: too long a text is an error. START and END: where it is cut, "
        "as NIM says it.",
    )
    truncation_direction: TruncationSide = "right"
    embedding_type: Literal["float", "base64", "binary", "ubinary"] | None = Field(
        default=None, description="Jina's word for `encoding_format` and `embed_dtype`."
    )
    normalized: bool | None = Field(default=None, description="Jina's word for `normalize`.")
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        default=None, description="Voyage's word for `embed_dtype`."
    )
    output_dimension: int | None = Field(
        default=None, ge=1, description="Voyage's word for `dimensions`."
    )
    truncation: bool | None = Field(default=None, description="Voyage's word for `truncate`.")


class OllamaEmbedRequest(Lenient):
    """``POST /api/embed``."""

    input: Annotated[
        Many[str],
        BeforeValidator(lambda value: one_or_many(value, "input"), json_schema_input_type=Texts),
    ] = Field(description="A string, or a list of strings.", examples=["What is a near twin?"])
    model: str | None = Field(default=None, description="An encoder; `:latest` may end its name.")
    truncate: bool | None = Field(default=None, description="false: too long a text is an error.")
    dimensions: int | None = Field(
        default=None, ge=1, description="One of the model's `dims` and `dimensions`."
    )


class TeiEmbedRequest(Lenient):
    """``POST /embed``."""

    inputs: InputTexts = Field(
        description="A string, or a list of strings.", examples=["What is a near twin?"]
    )
    normalize: bool | None = True
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    prompt_name: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    model: str | None = None


class TeiEmbedAllRequest(Lenient):
    """``POST /embed_all``."""

    inputs: InputTexts
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

    inputs: InputTexts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class TeiDecodeRequest(Lenient):
    """``POST /decode``."""

    ids: Many[int] | Many[Many[int]] = Field(description="Of one text, or of several.")
    skip_special_tokens: bool = True
    model: str | None = None


def read_inputs(value: Any) -> Any:
    """Tell a text, a pair of texts and a list of either apart, as TEI does.

    Raises:
        InputError: An input is none of them; it is named by its place.
    """
    is_text = isinstance(value, str)
    if is_text or (isinstance(value, list) and value and all(isinstance(t, str) for t in value)):
        return read_input(value, "inputs")
    if not isinstance(value, list):
        raise InputError.at("inputs", f"{shorten(value)} is no text, pair or list.")
    return [read_input(item, f"inputs[{place}]") for place, item in enumerate(value)]


def read_input(value: Any, field: str) -> str | tuple[str, str]:
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
    raise InputError.at(field, f"{shorten(value)} is neither a text nor a pair of texts.", value)


class TeiPredictRequest(Lenient):
    """``POST /predict``."""

    inputs: Annotated[
        str | tuple[str, str] | list[str | tuple[str, str]],
        BeforeValidator(read_inputs, json_schema_input_type=str | list[str] | list[list[str]]),
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
    top_k: int | None = Field(
        default=None, ge=1, description="Voyage's word for `top_n`: the reply has its `data` too."
    )
    truncation: bool | None = Field(
        default=None, description="Voyage's word for `truncate`; as for `top_k`."
    )


class RankedText(Lenient):
    """A text, as NIM wraps it."""

    text: str


class NimRankingRequest(Lenient):
    """``POST /v1/ranking``."""

    query: RankedText
    passages: Many[RankedText]
    model: str | None = None
    top_k: int | None = Field(default=None, ge=1, description="Return so many of the best.")
    truncate: Literal["NONE", "END"] = Field(
        default="NONE", description="NONE: too long a text is an error."
    )


class KServeInput(Lenient):
    """A tensor that KServe's and Triton's clients send."""

    name: str
    datatype: str = Field(description="BYTES: models here take texts.")
    shape: list[int]
    data: list[Any] | None = Field(
        default=None, description="The texts; null where they follow the JSON as bytes."
    )
    parameters: dict[str, Any] | None = Field(
        default=None, description="`binary_data_size`, where they do."
    )


class KServeOutput(Lenient):
    """A tensor that the reply is to have."""

    name: str
    parameters: dict[str, Any] | None = Field(
        default=None, description="`binary_data`: whether its numbers follow the JSON as bytes."
    )


class KServeInferRequest(Lenient):
    """``POST /v2/models/{name}/infer``."""

    inputs: Many[KServeInput] = Field(description="Those of the model's metadata.")
    outputs: Many[KServeOutput] | None = Field(default=None, description="null: all.")
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="`binary_data_output`, and the options of what the model does, such as "
        "`truncate`, `input_type` and `raw_scores`.",
    )
    id: str | None = Field(default=None, description="Comes back in the reply.")
