"""The least that a vector store must be: brute force in memory, no files, nothing to maintain."""

from operator import ge, gt, le, lt
from typing import Any

from condensery.errors import EncoderMismatch, IndexExists, IndexNotFound, InputError
from condensery.index.filters import Condition, Filter, HasId, Match, entries
from condensery.index.selecting import PageQuery
from condensery.values import (
    Document,
    Floats,
    Hit,
    IndexInfo,
    IndexSpec,
    Page,
    Passage,
    StoredDocument,
    StoredPassage,
    make_hit,
)

Row = tuple[Document, list[tuple[Passage, Floats]]]  # a document, its passages, their vectors
BOUNDS: dict[str, Any] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


class ToyStore:
    """Indexes in memory, a dictionary of documents each; see ``jobs.interfaces.VectorStore``."""

    maintenance = None

    def __init__(self) -> None:
        self.specs: dict[str, IndexSpec] = {}
        self.rows: dict[str, dict[str, Row]] = {}

    def create(self, name: str, spec: IndexSpec) -> IndexInfo:
        if self.specs.setdefault(name, spec) != spec:
            raise IndexExists(f"Index {name!r} exists with other settings.", field="index")
        self.rows.setdefault(name, {})
        return self.info(name)

    def info(self, name: str) -> IndexInfo:
        if name not in self.specs:
            raise IndexNotFound(f"There is no index {name!r}.", field="index", value=name)
        spec, (documents, passages) = self.specs[name], self.count(name)
        own = {key: getattr(spec, key) for key in ("encoder", "fingerprint", "dims", "prompts")}
        counts = {"documents": documents, "passages": passages}
        return IndexInfo(name, kind=spec.kind, metric=spec.metric, **own, **counts)

    def drop(self, name: str) -> None:
        self.info(name)
        del self.specs[name], self.rows[name]

    def upsert(
        self, name: str, documents: Any, passages: Any, vectors: Floats, **made: Any
    ) -> None:
        self._check_encoder(name, **made)
        self.rows[name].update({document.id: (document, []) for document in documents})
        for passage, vector in zip(passages, vectors, strict=True):
            self.rows[name][passage.document_id][1].append((passage, vector))

    def delete(self, name: str, documents: Any) -> int:
        if isinstance(documents, Filter):
            documents = [document.id for document, _ in self._select(name, documents)]
        return sum(self.rows[name].pop(id, None) is not None for id in set(documents))

    def query(
        self, name: str, query: Floats | str, *, top_k: int, filter: Any = None, **made: Any
    ) -> "list[Hit]":
        self._check_encoder(name, **made)
        hits = [
            make_hit(passage, self._score(name, query, passage, vector))
            for _, passages in self._select(name, filter)
            for passage, vector in passages
        ]
        hits = [hit for hit in hits if hit.score > 0 or not isinstance(query, str)]
        return sorted(hits, key=lambda hit: -hit.score)[:top_k]

    def get(self, name: str, ids: Any) -> "list[Document]":
        return [self.rows[name][id][0] for id in ids if id in self.rows[name]]

    def scroll(self, name: str, page: PageQuery) -> Page:
        rows = [row for row in self._select(name, page.filter) if row[0].id > page.after]
        documents = tuple(
            StoredDocument(
                document.id,
                document.text if page.text else None,
                document.metadata if page.metadata else None,
                tuple(StoredPassage(p.id, p.start, p.end, vector) for p, vector in passages)
                if page.vectors
                else None,
            )
            for document, passages in rows[: page.limit]
        )
        return Page(documents[-1].id if len(rows) > page.limit else None, documents)

    def count(self, name: str, filter: Filter | None = None) -> tuple[int, int]:
        rows = self._select(name, filter)
        return len(rows), sum(len(passages) for _, passages in rows)

    def snapshot(self, name: str) -> Any:
        raise InputError("snapshot: what is in memory alone can't be copied.", field="snapshot")

    def _select(self, name: str, filter: Filter | None) -> "list[Row]":
        rows = sorted(self.rows[name].items(), key=lambda row: row[0].encode())
        return [row for _, row in rows if filter is None or holds(filter, row[0])]

    def _score(self, name: str, query: Floats | str, passage: Passage, vector: Floats) -> float:
        if isinstance(query, str):
            return len({*query.lower().split()} & {*passage.text.lower().split()})
        ip = self.specs[name].metric == "ip"
        return float(vector @ query if ip else -((vector - query) ** 2).sum())

    def _check_encoder(self, name: str, fingerprint: Any = None, embedded_for: Any = None) -> None:
        now = self.info(name)
        prompts = now.prompts if embedded_for is None else embedded_for.prompts
        if fingerprint not in (None, now.fingerprint) or prompts != now.prompts:
            raise EncoderMismatch(f"Index {name!r} is of another encoder.", field="index")

    def list(self) -> "list[IndexInfo]":
        return [self.info(name) for name in sorted(self.specs)]


def holds(condition: Condition, document: Document) -> bool:
    """Whether a document is chosen, as ``index.filters`` says."""
    if isinstance(condition, Filter):
        must, should, must_not = (
            [holds(part, document) for part in group]
            for group in (condition.must, condition.should, condition.must_not)
        )
        return all(must) and (not should or any(should)) and not any(must_not)
    if isinstance(condition, HasId):
        return document.id in condition.ids
    values = [value for path, value in entries(document.metadata) if path == condition.path]
    if isinstance(condition, Match):
        accepted = {(isinstance(value, bool), value) for value in condition.values}
        return any(((isinstance(v, bool), v) in accepted) != condition.negated for v in values)
    numbers = [value for value in values if not isinstance(value, bool | str)]
    return any(all(BOUNDS[name](n, bound) for name, bound in condition.bounds) for n in numbers)
