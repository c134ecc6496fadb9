"""Qdrant as the place of indexes' vectors: a collection an index, a point a passage's row.

Filters are put to Qdrant as filters. Its own paths and types differ from ours in corners (ours is
what ``filters`` says, and what SQLite answers), so that a point's payload holds metadata as SQLite
has it: each value as text, under its path's hash.

    document   the document's id                                (indexed)
    terms      "<path's hash> <value>", for each value          (indexed)
    values     the values, by path's hash: for ``except``
    numbers    those that are numbers, by path's hash: for ``range``
"""

import contextlib
import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import httpx
import pydantic
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from condensery.errors import (
    InputError,
    StorageFull,
    VectorDatabaseFault,
    VectorDatabaseUnavailable,
    shorten,
)
from condensery.index import fields
from condensery.index.filters import Condition, Filter, HasId, Match, Range
from condensery.index.passages import Rows
from condensery.index.vector_database import (
    MAX_REQUEST_BYTES,
    SETTLED_ROW,
    Backend,
    CollectionMissing,
    DatabaseConfig,
    Point,
    Settled,
    Shape,
)
from condensery.values import Floats, IndexSpec

P = ParamSpec("P")
Result = TypeVar("Result")

_DISTANCES = {"ip": models.Distance.DOT, "l2": models.Distance.EUCLID}
_KINDS = ("flat", "hnsw")
_PAGE = 10_000
_EXACT = 2**53  # from which doubles leave whole numbers out
_MAX_NUMBER = 1.7976931348623157e308
_TOO_BUSY = (408, 429, 502, 503, 504)
_FULL = ("no space", "disk is full", "out of disk", "not enough space", "quota")


class Qdrant:
    """A ``VectorDatabase``: a Qdrant server, or its client's local mode.

    Args:
        config: Where it is.

    Raises:
        VectorDatabaseFault: The files of the local mode are in use, or can't be read.
    """

    backend: Backend = "qdrant"

    def __init__(self, config: DatabaseConfig) -> None:
        self._config = config
        self.where = f"Qdrant at {config.url}"
        # The local mode is Python over plain arrays: one call at a time.
        self._mutex = threading.Lock() if config.path is not None else None
        try:
            if config.path is not None:
                self._client = QdrantClient(
                    path=str(config.path), force_disable_check_same_thread=True
                )
            else:
                with warnings.catch_warnings():  # of a key without TLS: the server says so itself
                    warnings.simplefilter("ignore")
                    self._client = QdrantClient(
                        url=config.url,
                        api_key=config.key,
                        timeout=config.timeout_seconds,  # type: ignore[arg-type]  # httpx takes parts
                        check_compatibility=False,  # asks at once, and only warns
                    )
        except (RuntimeError, OSError, ValueError) as error:
            raise VectorDatabaseFault(f"{self.where} can't be opened: {error}") from error

    def check_spec(self, spec: IndexSpec) -> None:
        """Refuse what Qdrant can't do of an index."""
        if spec.kind not in _KINDS:
            raise InputError.at(
                "kind",
                f"{spec.kind!r} is not one that index_backend qdrant has: {', '.join(_KINDS)}.",
                spec.kind,
            )

    def can_filter(self, filter: Filter) -> bool:
        """Return whether all bounds are exact as doubles, which is what Qdrant compares."""
        return all(
            abs(_finite(bound)) < _EXACT
            for leaf in filter.leaves
            if isinstance(leaf, Range)
            for _, bound in leaf.bounds
        )

    def describe(self, collection: str) -> Shape | None:
        """Return what a collection is made for; None where there is none."""
        try:
            info = self._ask(self._client.get_collection, collection)
        except CollectionMissing:
            return None
        vectors = info.config.params.vectors
        if not isinstance(vectors, models.VectorParams):
            raise VectorDatabaseFault(
                f"{self.where}: collection {collection!r} has named vectors: it is none of ours."
            )
        metrics = {distance: metric for metric, distance in _DISTANCES.items()}
        return Shape(vectors.size, metrics.get(vectors.distance, vectors.distance.value))

    def create(self, collection: str, spec: IndexSpec) -> None:
        """Make a collection, empty."""
        options = spec.options or {}
        # without a graph a search is a scan; with m = 0 none is built
        links = options.get("m") if spec.kind == "hnsw" else 0
        self._ask(
            self._client.create_collection,
            collection,
            vectors_config=models.VectorParams(size=spec.dims, distance=_DISTANCES[spec.metric]),
            hnsw_config=models.HnswConfigDiff(m=links, ef_construct=options.get("ef_construction")),
        )
        if self._config.path is None:  # the local mode has none, and warns
            for field in ("document", "terms"):
                schema = models.PayloadSchemaType.KEYWORD
                self._ask(self._client.create_payload_index, collection, field, schema, wait=True)

    def drop(self, collection: str) -> None:
        """Delete a collection, if there is one."""
        self._ask(self._client.delete_collection, collection)

    def upsert(
        self,
        collection: str,
        points: Sequence[Point],
        vectors: Floats,
        settled: Settled | None = None,
    ) -> None:
        """Write points with their vectors (points, dims), in requests of a limited size each."""
        if settled is not None:
            self.settle(collection, settled)
        block = max(1, min(512, MAX_REQUEST_BYTES // (12 * vectors.shape[1])))
        for start in range(0, len(points), block):
            some = points[start : start + block]
            batch = models.Batch(
                ids=[point.row for point in some],
                vectors=vectors[start : start + block].tolist(),
                payloads=[make_payload(point) for point in some],
            )
            self._ask(self._client.upsert, collection, batch, wait=True)

    def delete(self, collection: str, rows: Sequence[int]) -> None:
        """Delete points, those that are there."""
        for start in range(0, len(rows), 10_000):
            some = models.PointIdsList(points=list(rows[start : start + 10_000]))
            self._ask(self._client.delete, collection, some, wait=True)

    def search(
        self,
        collection: str,
        spec: IndexSpec,
        vector: Floats,
        k: int,
        chosen: Filter | Rows | None,
    ) -> tuple[list[int], list[float]]:
        """Return the ``k`` nearest rows, best first, and their scores: more is nearer."""
        asked = None
        if isinstance(chosen, Filter):
            asked = compile_filter(chosen)
        elif chosen is not None:
            asked = models.Filter(must=[models.HasIdCondition(has_id=chosen.tolist())])
        breadth = (spec.options or {}).get("ef_search")
        how = None  # of the local mode, which is always exact, and warns
        if self._config.path is None:
            how = models.SearchParams(exact=spec.kind == "flat", hnsw_ef=breadth)
        reply = self._ask(
            self._client.query_points,
            collection,
            query=vector.tolist(),
            limit=k,
            query_filter=asked,
            search_params=how,
            with_payload=False,
        )
        rows = [int(point.id) for point in reply.points]
        scores = [float(point.score) for point in reply.points]
        # of l2 Qdrant says the distance
        return rows, scores if spec.metric == "ip" else [-(score * score) for score in scores]

    def scroll(self, collection: str) -> Iterator[list[int]]:
        """Yield every row, in blocks."""
        after: Any = SETTLED_ROW + 1
        while after is not None:
            records, after = self._ask(
                self._client.scroll, collection, limit=_PAGE, offset=after, with_payload=False
            )
            yield [int(record.id) for record in records]

    def count(self, collection: str) -> int:
        """Return how many points there are, row 0 left out."""
        others = models.Filter(must_not=[models.HasIdCondition(has_id=[SETTLED_ROW])])
        held = self._ask(self._client.count, collection, count_filter=others, exact=True)
        return held.count

    def settled(self, collection: str) -> Settled | None:
        """Return what row 0 says."""
        records = self._ask(self._client.retrieve, collection, ids=[SETTLED_ROW])
        return Settled.from_record((records[0].payload or {}).get("settled")) if records else None

    def settle(self, collection: str, settled: Settled) -> None:
        """Write row 0, a point without a vector: no search finds it."""
        point = models.PointStruct(
            id=SETTLED_ROW, vector={}, payload={"settled": settled.to_record()}
        )
        self._ask(self._client.upsert, collection, [point], wait=True)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, call: Callable[P, Result], *args: P.args, **how: P.kwargs) -> Result:
        with self._errors(), self._mutex or contextlib.nullcontext():
            return call(*args, **how)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what the client raises into our errors."""
        try:
            yield
        except ResourceExhaustedResponse as error:
            raise VectorDatabaseUnavailable(
                f"{self.where} is too busy.", retry_after_seconds=float(error.retry_after_s)
            ) from error
        except UnexpectedResponse as error:
            raise self._refused(error) from error
        except ResponseHandlingException as error:
            raise self._unreached(error.source) from error
        except httpx.HTTPError as error:
            raise self._unreached(error) from error
        except (ValueError, RuntimeError) as error:  # the local mode's
            if "not found" in str(error):
                raise CollectionMissing(str(error)) from error
            raise VectorDatabaseFault(f"{self.where}: {shorten(str(error), 200)}") from error
        except OSError as error:
            raise StorageFull(f"{self.where} can't write: {error}") from error

    def _unreached(self, cause: Exception) -> Exception:
        if isinstance(cause, httpx.TimeoutException):
            seconds = self._config.timeout_seconds
            return VectorDatabaseUnavailable(f"{self.where} did not answer within {seconds:g} s.")
        if isinstance(cause, pydantic.ValidationError | ValueError):
            return VectorDatabaseFault(f"{self.where} replied what is not Qdrant's.")
        return VectorDatabaseUnavailable(
            f"{self.where} can't be reached: {str(cause) or type(cause).__name__}"
        )

    def _refused(self, error: UnexpectedResponse) -> Exception:
        status, text = error.status_code, error.content.decode(errors="replace")
        said = shorten(text, 200)
        if any(sign in text.lower() for sign in _FULL):
            return StorageFull(f"{self.where} is full: {said}")
        if status in _TOO_BUSY:
            return VectorDatabaseUnavailable(f"{self.where} is too busy ({status}): {said}")
        if status is not None and status >= 500:
            return VectorDatabaseUnavailable(f"{self.where} failed ({status}): {said}")
        if status == 404:
            return CollectionMissing(f"{self.where}: {said}")
        return VectorDatabaseFault(f"{self.where} refused ({status}): {said}")


# Filters


def make_payload(point: Point) -> dict[str, Any]:
    """Return what a point holds beside its vector."""
    values: dict[str, list[str]] = {}
    numbers: dict[str, list[float]] = {}
    terms: set[str] = set()
    for path, value in point.values:
        key, text = _key(path), encode(value)
        values.setdefault(key, []).append(text)
        terms.add(f"{key} {text}")
        if isinstance(value, int | float):
            numbers.setdefault(key, []).append(_finite(value))
    return {
        "document": point.document,
        "terms": sorted(terms),
        "values": values,
        "numbers": numbers,
    }


def compile_filter(condition: Filter) -> models.Filter:
    """Return one of our filters as Qdrant's, over payloads as ``make_payload`` has them."""
    # Qdrant reads an empty list of `should` as one that nothing meets
    groups = {
        name: [_compile(inner) for inner in conditions] or None
        for name, conditions in (
            ("must", condition.must),
            ("should", condition.should),
            ("must_not", condition.must_not),
        )
    }
    return models.Filter(**groups)


def _compile(condition: Condition) -> models.Condition:
    if isinstance(condition, Filter):
        return compile_filter(condition)
    if isinstance(condition, HasId):
        return _field("document", match=models.MatchAny(any=list(condition.ids)))
    key = _key(condition.path)
    if isinstance(condition, Range):
        bounds = {name: _finite(bound) for name, bound in condition.bounds}
        return _field(f"numbers.{key}", range=models.Range(**bounds))
    return _compile_match(condition, key)


def _compile_match(condition: Match, key: str) -> models.Condition:
    texts = [encode(fields.store(value)) for value in condition.values]
    if not condition.negated:
        terms = [f"{key} {text}" for text in texts]
        return _field("terms", match=models.MatchAny(any=terms))
    if not texts:  # any value is another than none
        return models.Filter(must_not=[models.IsEmptyCondition(is_empty=_payload(f"values.{key}"))])
    return _field(f"values.{key}", match=models.MatchExcept(**{"except": texts}))


def _field(key: str, **what: Any) -> models.FieldCondition:
    return models.FieldCondition(key=key, **what)


def _payload(key: str) -> models.PayloadField:
    return models.PayloadField(key=key)


def _key(path: str) -> str:
    return "p" + hashlib.sha256(path.encode()).hexdigest()[:24]


def encode(value: int | float | str | bytes) -> str:
    """Return a value, as ``fields.store`` has it, as text: equal ones, and no others, are equal."""
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    if isinstance(value, str):
        return f"s{value}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    return f"n{value!r}"


def _finite(value: float) -> float:
    """Return a number that JSON can hold: whole ones past the doubles are stored as infinite."""
    return max(-_MAX_NUMBER, min(_MAX_NUMBER, float(fields.store(value))))
