"""Milvus as the place of indexes' vectors: a collection an index, an entity a passage's row.

What a filter chooses SQLite finds, and Milvus is asked by rows: of what our filters mean its
expressions lack ``except`` and ``range`` over lists. So many rows at most are named in one search.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import MilvusException

from condensery.errors import (
    InputError,
    PayloadTooLarge,
    StorageFull,
    VectorDatabaseFault,
    VectorDatabaseUnavailable,
    shorten,
)
from condensery.index.filters import Filter
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

_METRICS = {"ip": "IP", "l2": "L2"}
_TYPES = {"flat": "FLAT", "hnsw": "HNSW"}
_MAX_DIMS = 32_768
_MAX_HITS = 16_384  # Milvus' own limit
_PAGE = 10_000
MAX_ROWS = 10_000  # that a filter may choose, named one by one
_MISSING = 100  # Milvus' code of a collection that is not there
_RATE_LIMIT, _DENIED = 8, 9  # of Milvus' codes: the second where disk or memory is at its quota
_UNREACHED_SIGNS = ("unavailable", "deadline", "timeout", "fail connecting", "retry run out")
_FULL = ("no space", "disk full", "disk quota", "memory quota")


class Milvus:
    """A ``VectorDatabase``: a Milvus server, or Milvus Lite.

    Args:
        config: Where it is.

    Raises:
        VectorDatabaseFault: The files of Milvus Lite can't be opened.
    """

    backend: Backend = "milvus"

    def __init__(self, config: DatabaseConfig) -> None:
        self._config = config
        self.where = f"Milvus at {config.url}"
        # it logs each error that it raises, with a traceback and what was asked
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self._connected: MilvusClient | None = None
        self._mutex = threading.Lock()  # over what connects
        self._dims: dict[str, int] = {}
        if config.path is not None:
            try:
                self._client()
            except VectorDatabaseUnavailable as error:
                raise VectorDatabaseFault(error.message) from error

    def check_spec(self, spec: IndexSpec) -> None:
        """Refuse what Milvus can't do of an index."""
        if spec.kind not in _TYPES:
            raise InputError.at(
                "kind",
                f"{spec.kind!r} is not one that index_backend milvus has: {', '.join(_TYPES)}.",
                spec.kind,
            )
        if not 2 <= spec.dims <= _MAX_DIMS:
            raise InputError.at(
                "dims", f"{spec.dims} is not from 2 to {_MAX_DIMS}, as Milvus has them.", spec.dims
            )

    def can_filter(self, filter: Filter) -> bool:
        """Return False: rows are asked for."""
        return False

    def describe(self, collection: str) -> Shape | None:
        """Return what a collection is made for, and load it; None where there is none."""
        try:
            about = self._ask("describe_collection", collection)
            index = self._ask("describe_index", collection, "vector")
        except CollectionMissing:
            return None
        dims = [own["params"]["dim"] for own in about["fields"] if own["name"] == "vector"]
        if not dims or not index:
            raise VectorDatabaseFault(
                f"{self.where}: collection {collection!r} has no field or index 'vector': it is "
                "none of ours."
            )
        # searched only when loaded, which a server that was started again may not have done
        self._ask("load_collection", collection)
        metrics = {theirs: ours for ours, theirs in _METRICS.items()}
        return Shape(int(dims[0]), metrics.get(index["metric_type"], index["metric_type"]))

    def create(self, collection: str, spec: IndexSpec) -> None:
        """Make a collection, empty."""
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=spec.dims)
        schema.add_field("payload", DataType.JSON)
        options = spec.options or {}
        params = {}
        if spec.kind == "hnsw":
            params = {
                "M": options.get("m", 32),
                "efConstruction": options.get("ef_construction", 128),
            }
        index = MilvusClient.prepare_index_params()
        index.add_index(
            "vector",
            index_type=_TYPES[spec.kind],
            metric_type=_METRICS[spec.metric],
            params=params,
        )
        self._ask(
            "create_collection",
            collection,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
        )

    def drop(self, collection: str) -> None:
        """Delete a collection, if there is one."""
        with contextlib.suppress(CollectionMissing):
            self._ask("drop_collection", collection)

    def upsert(
        self,
        collection: str,
        points: Sequence[Point],
        vectors: Floats,
        settled: Settled | None = None,
    ) -> None:
        """Write entities with their vectors (points, dims), in requests of a limited size each."""
        if settled is not None:
            self.settle(collection, settled)
        block = max(1, min(512, MAX_REQUEST_BYTES // (4 * vectors.shape[1])))
        for start in range(0, len(points), block):
            entities = [
                {"row": point.row, "vector": vector, "payload": {"document": point.document}}
                for point, vector in zip(
                    points[start : start + block],
                    vectors[start : start + block].tolist(),
                    strict=True,
                )
            ]
            self._write(collection, entities)

    def delete(self, collection: str, rows: Sequence[int]) -> None:
        """Delete entities, those that are there."""
        for start in range(0, len(rows), MAX_ROWS):
            some = list(rows[start : start + MAX_ROWS])
            self._ask("delete", collection, ids=some)

    def search(
        self,
        collection: str,
        spec: IndexSpec,
        vector: Floats,
        k: int,
        chosen: Filter | Rows | None,
    ) -> tuple[list[int], list[float]]:
        """Return the ``k`` nearest rows, best first, and their scores: more is nearer.

        Raises:
            PayloadTooLarge: A filter chooses over ``MAX_ROWS``.
        """
        where = f"row > {SETTLED_ROW}"
        if chosen is not None and not isinstance(chosen, Filter):
            if len(chosen) > MAX_ROWS:
                raise PayloadTooLarge.at(
                    "filter",
                    f"it chooses {len(chosen)} passages; index_backend milvus filters up to "
                    f"{MAX_ROWS}.",
                    len(chosen),
                )
            where = f"row in {chosen.tolist()}"
        k = min(k, _MAX_HITS)
        params = {}
        if spec.kind == "hnsw":
            params = {"ef": max((spec.options or {}).get("ef_search", 64), 2 * k)}
        (found,) = self._ask(
            "search",
            collection,
            data=[vector.tolist()],
            limit=k,
            filter=where,
            output_fields=["row"],
            search_params={"metric_type": _METRICS[spec.metric], "params": params},
            consistency_level="Strong",
        )
        scores = [float(hit["distance"]) for hit in found]
        rows = [int(hit["row"]) for hit in found]
        return rows, scores if spec.metric == "ip" else [-score for score in scores]

    def scroll(self, collection: str) -> Iterator[list[int]]:
        """Yield every row, in blocks."""
        pages = self._ask(
            "query_iterator",
            collection,
            batch_size=_PAGE,
            filter=f"row > {SETTLED_ROW}",
            output_fields=["row"],
            consistency_level="Strong",
        )
        try:
            while page := self._next(pages):
                yield [int(entity["row"]) for entity in page]
        finally:
            pages.close()

    def count(self, collection: str) -> int:
        """Return how many entities there are, row 0 left out."""
        found = self._query(collection, f"row > {SETTLED_ROW}", "count(*)")
        return int(found[0]["count(*)"])

    def settled(self, collection: str) -> Settled | None:
        """Return what row 0 says."""
        found = self._query(collection, f"row == {SETTLED_ROW}", "payload")
        return Settled.from_record((found[0]["payload"] or {}).get("settled")) if found else None

    def settle(self, collection: str, settled: Settled) -> None:
        """Write row 0, with a vector of zeros, which searches leave out."""
        shape = self._dims.get(collection)
        if shape is None:
            found = self.describe(collection)
            if found is None:
                raise CollectionMissing(collection)
            shape = self._dims[collection] = found.dims
        payload = {"settled": settled.to_record()}
        self._write(collection, [{"row": SETTLED_ROW, "vector": [0.0] * shape, "payload": payload}])

    def close(self) -> None:
        """Close the connection."""
        with self._mutex:
            if self._connected is not None:
                self._connected.close()
                self._connected = None

    def _write(self, collection: str, entities: list[dict[str, Any]]) -> None:
        self._ask("upsert", collection, entities)

    def _client(self) -> MilvusClient:
        """Return the client, which connects when it is made, or in its first call after a fault."""
        with self._mutex:
            if self._connected is None:
                path = self._config.path
                with self._errors():
                    self._connected = MilvusClient(
                        uri=self._config.url if path is None else str(path),
                        token=self._config.key or "",
                        timeout=self._config.timeout_seconds,
                    )
            return self._connected

    def _query(self, collection: str, where: str, field: str) -> Any:
        return self._ask(
            "query",
            collection,
            filter=where,
            output_fields=[field],
            consistency_level="Strong",
        )

    def _next(self, pages: Any) -> Any:
        with self._errors():
            return pages.next()

    def _ask(self, method: str, *args: Any, **how: Any) -> Any:
        client = self._client()
        with self._errors():
            return getattr(client, method)(*args, timeout=self._config.timeout_seconds, **how)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what the client raises into our errors."""
        try:
            yield
        except MilvusException as error:
            raise self._failed(error) from error
        except grpc.FutureTimeoutError as error:
            raise self._slow() from error
        except (grpc.RpcError, ConnectionError) as error:
            if getattr(error, "code", lambda: None)() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._slow() from error
            raise VectorDatabaseUnavailable(f"{self.where} can't be reached: {_say(error)}") from (
                error
            )
        except OSError as error:
            raise StorageFull(f"{self.where} can't write: {error}") from error
        except (ValueError, TypeError, RuntimeError) as error:
            raise VectorDatabaseFault(f"{self.where}: {_say(error)}") from error

    def _slow(self) -> VectorDatabaseUnavailable:
        seconds = self._config.timeout_seconds
        return VectorDatabaseUnavailable(f"{self.where} did not answer within {seconds:g} s.")

    def _failed(self, error: MilvusException) -> Exception:
        text = str(error.message).lower()
        if error.code == _MISSING or "can't find collection" in text:
            return CollectionMissing(str(error.message))
        if error.code == _DENIED or any(sign in text for sign in _FULL):
            return StorageFull(f"{self.where} is full: {_say(error)}")
        # what gRPC could not do, the client wraps, and waits for as long as it was told
        if "deadline" in text:
            return self._slow()
        if error.code == _RATE_LIMIT or any(sign in text for sign in _UNREACHED_SIGNS):
            return VectorDatabaseUnavailable(f"{self.where} can't be reached: {_say(error)}")
        return VectorDatabaseFault(f"{self.where} refused ({error.code}): {_say(error)}")


def _say(error: Exception) -> str:
    if isinstance(error, grpc.Call):  # of a call that failed
        return shorten(str(error.details()), 200)
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return shorten(str(message), 200)
