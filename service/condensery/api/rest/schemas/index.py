"""The bodies of requests about indexes.

A filter is only described here: ``condensery.index.filters`` checks it, with the same messages for
every API; so a body takes any object.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from condensery.api.rest.schemas.inference import Many, Ours
from condensery.documents.files import FileKind
from condensery.values import SearchMode

Scalar = str | bool | int | float


class _FilterPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FilterMatch(_FilterPart):
    """One of the three: a value at the key is this one, one of these, none of these."""

    value: Scalar | None = None
    any: list[Scalar] | None = None
    none_of: list[Scalar] | None = Field(default=None, alias="except")


class FilterRange(_FilterPart):
    """A number at the key is within all of the bounds."""

    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None


class FilterKey(_FilterPart):
    """A condition on the values at ``key``: ``match`` or ``range``."""

    key: str = Field(description="A path in metadata: `year`, `author.name`, `authors[].name`.")
    match: FilterMatch | None = None
    range: FilterRange | None = None


class FilterId(_FilterPart):
    """The document's id is one of these."""

    has_id: list[str]


class Filter(_FilterPart):
    """Which documents: all of ``must`` hold, one of ``should`` (if any), none of ``must_not``."""

    must: "FilterConditions" = None
    should: "FilterConditions" = None
    must_not: "FilterConditions" = None


FilterCondition = FilterKey | FilterId | Filter
FilterConditions = list[FilterCondition] | FilterCondition | None

FilterObject = Annotated[
    dict[str, JsonValue], BeforeValidator(lambda value: value, json_schema_input_type=Filter)
]


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
    filter: FilterObject | None = None


class CountRequest(Ours):
    """``POST /v1/indexes/{name}/documents/count``; the body may be left out."""

    filter: FilterObject | None = None


class ScrollRequest(Ours):
    """``POST /v1/indexes/{name}/documents/scroll``; the body may be left out."""

    filter: FilterObject | None = None
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
    filter: FilterObject | None = None


class CreateAlias(Ours):
    """Point an alias at an index; one that is there is moved."""

    alias: str
    index: str = Field(description="An index, or another alias.")


class DeleteAlias(Ours):
    """Take an alias away."""

    alias: str


class RenameAlias(Ours):
    """Give an alias another name; aliases that point at it follow."""

    alias: str
    to: str


class AliasChange(Ours):
    """One of the three."""

    create_alias: CreateAlias | None = None
    delete_alias: DeleteAlias | None = None
    rename_alias: RenameAlias | None = None


class AliasesRequest(Ours):
    """``POST /v1/indexes/aliases``: all of these, or none."""

    actions: Many[AliasChange]


class RestoreRequest(Ours):
    """``POST /v1/indexes/{name}/snapshots/{snapshot}/restore``; the body may be left out."""

    into: str | None = Field(
        default=None, description="The index to make; null: the one whose snapshot it is."
    )


class RebuildRequest(Ours):
    """``POST /v1/indexes/{name}/rebuild``; the body may be left out."""

    encoder: str | None = Field(
        default=None, description="null: that of the index, as it runs today."
    )
    metric: str | None = Field(default=None, description="As of a new index; null: as it is.")
    kind: str | None = Field(default=None, description="As of a new index; null: as it is.")
    options: dict[str, int] | None = Field(
        default=None,
        description="The kind's, as of a new index; null: as they are, if the kind is.",
    )


class FilesForm(Ours):
    """A form of files, and how they are read: the flags of `condensery index add`."""

    model_config = ConfigDict(json_schema_extra={"required": ["files"]})

    files: list[Annotated[str, Field(json_schema_extra={"format": "binary"})]] = Field(
        default_factory=list,
        min_length=1,
        description="Each with a filename, of which the suffix says what it is, and which may be "
        "a path in a folder. One file may come as `file`.",
    )
    format: FileKind | None = Field(default=None, description="Of all files, whatever the suffix.")
    encoding: str = Field(default="utf-8", description="Of text, where a file does not say.")
    id_column: str | None = Field(
        default=None, description="Of tables and records, the id; by default `id`, or `_id`."
    )
    text_column: list[str] = Field(
        default_factory=list,
        description="Of tables and records, the text, by default `text`; several are joined.",
    )
    prefix: str | None = Field(default=None, description="A folder to put before all names.")
    again: Literal["true", "false"] = Field(
        default="false", description="Whether to write also what is there already, as it is."
    )
