"""Parsed JSON as the body that a route takes; what does not fit is refused by its path and value.

A body is a pydantic model, or a frozen dataclass, which pydantic reads as strictly: a field of
another type or one that is unknown is refused.
"""

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from condensery.api.rest.schemas.inference import refuse_many_fields
from condensery.errors import InputError, shorten

Body = TypeVar("Body")

MAX_NAME_CHARS = 64  # of a field's name, which may be the caller's, in a message

# Where pydantic's message names what a body's writer can't know.
PLAIN_MESSAGES = {
    "dataclass_type": "Input should be an object",
    "tuple_type": "Input should be a valid list",
}


def validate_body(data: Any, schema: type[Body]) -> Body:
    """Check parsed JSON against a schema.

    Raises:
        InputError: A field is missing, of a wrong type or value, or (in our own bodies) unknown.
    """
    if not isinstance(data, dict):
        raise InputError.at("body", f"{shorten(data)} is not a JSON object.", data)
    try:
        body: Body = _make_validator(cast(Any, schema)).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _explain_validation_error(first, schema) from error
    return body


@cache
def _make_validator(schema: Hashable) -> Any:
    if is_dataclass(schema):
        return SchemaValidator(_take_json(TypeAdapter(schema).core_schema))
    return cast(Any, schema).__pydantic_validator__


def _take_json(schema: Any) -> Any:
    """Return a core schema whose dataclasses take objects, its tuples lists, and nothing more.

    Strict ones, which the types of fields are to be, take no dictionary for a dataclass, and no
    list for a tuple; so these two are not, and what they hold is.
    """
    if isinstance(schema, list):
        return [_take_json(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _take_json(value) for key, value in schema.items()}
    if schema.get("type") == "tuple":
        # Of many wrong items only the first is reported; to find all of a million takes seconds.
        return {**schema, "strict": False, "fail_fast": True}
    if schema.get("type") != "dataclass":
        return schema
    extra = getattr(schema["cls"], "__pydantic_config__", {}).get("extra", "forbid")
    rules = {**schema["config"], "strict": True, "extra_fields_behavior": extra}
    reference = {"ref": schema.pop("ref")} if "ref" in schema else {}
    return {
        "type": "function-before",
        "function": {"type": "no-info", "function": refuse_many_fields},
        "schema": {**schema, "strict": False, "config": rules},
        **reference,
    }


def _explain_validation_error(first: Any, schema: Any) -> InputError:
    field, value, kind = _dotted_path(first["loc"]), first["input"], first["type"]
    if kind == "missing":
        return InputError.at(field, "this field is missing.")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = f"; known: {', '.join(field_names(schema))}" if len(first["loc"]) == 1 else ""
        return InputError.at(field, f"unknown field, with value {shorten(value)}{known}.", value)
    message = PLAIN_MESSAGES.get(kind, first["msg"])
    return InputError.at(field, f"{shorten(value)}: {message}.", value)


@cache
def field_names(schema: Any) -> tuple[str, ...]:
    """Return the names that a schema's fields have in JSON."""
    if issubclass(schema, BaseModel):
        return tuple(info.alias or name for name, info in schema.model_fields.items())
    return tuple(field.name.rstrip("_") for field in fields(schema))


def _dotted_path(path: tuple[int | str, ...]) -> str:
    dotted = ""
    for step in path:
        dotted += f"[{step}]" if isinstance(step, int) else f".{step[:MAX_NAME_CHARS]}"
    return dotted.removeprefix(".") or "body"
