"""A filter as bodies hold it: described here, read by ``condensery.index.filters``."""

from typing import Annotated, Any

from pydantic import JsonValue, WithJsonSchema


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_SCALAR = {"type": ["string", "number", "boolean"]}
_KEY = {
    "type": "string",
    "description": "A path in metadata: `year`, `author.name`, `authors[].name`.",
}
_NUMBER = {"type": "number"}
_MATCH = _object(value=_SCALAR, any=_listed(_SCALAR), **{"except": _listed(_SCALAR)})
_RANGE = _object(gt=_NUMBER, gte=_NUMBER, lt=_NUMBER, lte=_NUMBER)
_GROUPS = ("must", "should", "must_not")
_NESTED = _object(**{name: {"type": ["array", "object"]} for name in _GROUPS})
_CONDITION = {
    "anyOf": [
        {**_object(key=_KEY, match=_MATCH), "required": ["key", "match"]},
        {**_object(key=_KEY, range=_RANGE), "required": ["key", "range"]},
        {**_object(has_id=_listed({"type": "string"})), "required": ["has_id"]},
        {**_NESTED, "description": "A filter within the filter."},
    ]
}
_FILTER = {
    **_object(**{name: {"anyOf": [_listed(_CONDITION), _CONDITION]} for name in _GROUPS}),
    "description": "Which documents: all of `must` hold, one of `should`, none of `must_not`.",
}

GivenFilter = Annotated[dict[str, JsonValue], WithJsonSchema(_FILTER)]
