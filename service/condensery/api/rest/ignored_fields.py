"""Fields of a request's body that its route does not read, listed in the header of its reply.

The bodies of other families let unknown fields pass, as their own servers do. That nothing is
ignored silently, whatever reads a body into such a schema (``read_body``, ``read_as``) lists them
in ``x-ignored-fields``. A route that has a known field without effect, or reads its body in another
way, calls ``report_ignored_fields`` itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request

IGNORED_FIELDS_HEADER = "x-ignored-fields"

# The names are the caller's: a header holds so many, each cut to so many characters.
MAX_NAMES = 32
MAX_NAME_CHARS = 64


def find_ignored_fields(data: Any, schema: Any) -> list[str]:
    """Return the paths of a body's fields that its schema ignores, each once.

    Args:
        data: Parsed JSON that the schema takes. A null is no wish, and not listed.
        schema: A pydantic model or dataclass; what refuses unknown fields, or is neither, ignores
            none.
    """
    return list(dict.fromkeys(_walk(data, schema, "")))


def report_ignored_fields(request: Request, names: Sequence[str]) -> None:
    """List fields in the header ``x-ignored-fields`` of the reply, whatever that will be."""
    # Of a million names, or one of a million characters, no more is quoted than is listed.
    listed = [
        quote(name[:MAX_NAME_CHARS], safe="_.-[]")[:MAX_NAME_CHARS] for name in names[:MAX_NAMES]
    ]
    if len(names) > MAX_NAMES:
        listed.append(f"and {len(names) - MAX_NAMES} more")
    if listed:
        add_reply_header(request, IGNORED_FIELDS_HEADER, ", ".join(listed))


def add_reply_header(request: Request, name: str, value: str) -> None:
    """Add a header to the request's reply, be that whole, a stream or an error."""
    request.state.reply_headers.append((name.encode(), value.encode()))


def _walk(data: Any, schema: Any, path: str) -> Iterator[str]:
    if not (isinstance(data, dict) and _ignores_unknown_fields(schema)):
        return
    known = _fields_of(schema)
    for name, value in data.items():
        if name not in known:
            if value is not None:
                yield path + name
        elif (inner := known[name]) is None:
            continue
        elif isinstance(value, list):
            for item in value:
                yield from _walk(item, inner, f"{path}{name}[].")
        else:
            yield from _walk(value, inner, f"{path}{name}.")


@cache
def _ignores_unknown_fields(schema: Any) -> bool:
    if is_dataclass(schema):  # without a word, ours refuse them
        return getattr(schema, "__pydantic_config__", {}).get("extra") == "ignore"
    return issubclass(schema, BaseModel) and schema.model_config.get("extra", "ignore") == "ignore"


@cache
def _fields_of(schema: Any) -> Mapping[str, Any]:
    """Return the schema of each field by its name in JSON; None for what is no object."""
    if is_dataclass(schema):
        hints = get_type_hints(schema, include_extras=True)
        return {entry.name.rstrip("_"): _object_in(hints[entry.name]) for entry in fields(schema)}
    return {
        info.alias or name: _object_in(info.annotation)
        for name, info in schema.model_fields.items()
    }


def _object_in(hint: Any) -> Any:
    """Return the model or dataclass that a type is, or is made of; None if there is none."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
        return hint
    return next(filter(None, map(_object_in, get_args(hint))), None)
