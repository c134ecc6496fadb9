"""What a route is, and how a request finds its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.routing import compile_path

from condensery import errors
from condensery.api.rest.doors import Endpoint
from condensery.api.rest.errors import Family
from condensery.errors import CondenseryError
from condensery.keys import Scope
from condensery.metrics import Task

Access = Scope | Literal["any", "open"]
Errors = tuple[type[CondenseryError], ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a method.

    Attributes:
        method: HTTP's.
        path: Starlette's pattern.
        endpoint: What answers.
        task: What it is for, in the metrics; None is not counted.
        access: The scope that a key needs, once there are keys; ``any`` takes every key, ``open``
            needs none.
        family: How its errors look.
        other_family: And how they look if the body is of this other family.
        body: The request's schema; ``optional`` bodies may be left out.
        reply: The reply's type; ``media`` is its content type, and where it ``streams``, it can be
            server-sent events instead: ours, or OpenAI's chunks.
        other_media: Another content type that the reply can have, as text.
        parameters: Those of its own in path and query, as OpenAPI has them; ``name`` is known.
        fails: The errors that it has beside those of all routes, for the description.
        hot: Whether requests skip FastAPI, which takes 0.2 ms each: the short ones, many a second.
        vital: Whether it answers when the house is full or about to close: health and metrics.
    """

    method: str
    path: str
    endpoint: Endpoint
    task: Task | None = None
    access: Access = "infer"
    family: Family = "openai"
    other_family: Family | None = None
    body: Any = None
    optional: bool = False
    reply: Any = None
    media: str = "application/json"
    streams: Literal["events", "chunks"] | None = None
    other_media: str | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    fails: Errors = ()
    hot: bool = False
    vital: bool = False

    @property
    def template(self) -> str:
        """The path as it is described, and logged."""
        return self.path.replace(":path}", "}")


ENCODES: Errors = (errors.EmptyInput, errors.ModelNotFound, errors.ModelFault)
FINDS: Errors = (errors.IndexNotFound,)
SEARCHES: Errors = (*FINDS, errors.EncoderMismatch, errors.ModelFault)
WRITES: Errors = (*FINDS, errors.StorageError, errors.StorageFull)
UNREADY: Errors = (errors.Unavailable,)


class Table:
    """Finds the routes of a path, before anything else is known of a request.

    Args:
        table: As FastAPI has it: of two that match, the first.

    Attributes:
        methods: That some route takes.
    """

    def __init__(self, table: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        patterns: dict[str, dict[str, Route]] = {}
        for route in table:
            into = patterns if "{" in route.path else self._exact
            into.setdefault(route.path, {})[route.method] = route
        self.methods = sorted({route.method for route in table})
        self._patterns = [(compile_path(path)[0], found) for path, found in patterns.items()]

    def find(self, path: str) -> dict[str, Route]:
        """Return the routes by method; none where there is nothing at that path."""
        found = self._exact.get(path)
        if found is not None:
            return found
        return next((found for regex, found in self._patterns if regex.match(path)), {})
