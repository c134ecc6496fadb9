"""A filter as bodies hold it: described here, read by ``condensery.index.filters``.

The models only describe. What is wrong with a filter is said by who reads it, in the same words for
every door; so a body takes any object.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

Scalar = str | bool | int | float


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FilterMatch(_Described):
    """One of the three: a value at the key is this one, one of these, none of these."""

    value: Scalar | None = None
    any: list[Scalar] | None = None
    none_of: list[Scalar] | None = Field(default=None, alias="except")


class FilterRange(_Described):
    """A number at the key is within all of the bounds."""

    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None


class FilterKey(_Described):
    """A condition on the values at ``key``: ``match`` or ``range``."""

    key: str = Field(description="A path in metadata: `year`, `author.name`, `authors[].name`.")
    match: FilterMatch | None = None
    range: FilterRange | None = None


class FilterId(_Described):
    """The document's id is one of these."""

    has_id: list[str]


class Filter(_Described):
    """Which documents: all of ``must`` hold, one of ``should`` (if any), none of ``must_not``."""

    must: "FilterConditions" = None
    should: "FilterConditions" = None
    must_not: "FilterConditions" = None


FilterCondition = FilterKey | FilterId | Filter
FilterConditions = list[FilterCondition] | FilterCondition | None

GivenFilter = Annotated[
    dict[str, JsonValue], BeforeValidator(lambda given: given, json_schema_input_type=Filter)
]
