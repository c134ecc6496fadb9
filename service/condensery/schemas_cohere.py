"""The bodies of Cohere's routes that have no like in another family."""

from typing import Annotated, Any, Literal

from pydantic import Field

from condensery.schemas import Lenient, Many

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CohereEmbedRequest(Lenient):
    """``POST /v1/embed`` and ``/v2/embed``."""

    texts: Many[str] | None = Field(default=None, examples=[["What is a near twin?"]])
    model: str | None = Field(default=None, description="An encoder; by default the default one.")
    input_type: str | None = Field(
        default=None,
        description="`search_query`, `search_document`, `classification` or `clustering`: the "
        "model's prompt for it goes before each text, if it has one.",
    )
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = Field(
        default=None, description="null: float; of `/v1/embed` then one list."
    )
    output_dimension: int | None = Field(
        default=None, ge=1, description="One of the model's `dims` and `dimensions`."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        default=None,
        description="Which end of too long a text is cut; NONE: it is an error; null: END.",
    )
    images: list[Any] | None = Field(default=None, description="Refused: no model reads pictures.")
    inputs: list[Any] | None = Field(default=None, description="Refused, as `images`.")
