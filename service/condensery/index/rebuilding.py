"""An index made anew, for another encoder, while the old one serves and is written.

The new one is a generation of its own (``generations``). What is left to do is noted by SQLite in
the old one (``changes``): at first every document, then whatever is written. ``rebuild.json`` says
what is being made, so that it goes on after whatever ended the process. Each step can be done
twice: a document is written as the old index has it now, and its note is forgotten after that.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from condensery.atomic_files import sync_path, write_atomically
from condensery.errors import RebuildNotFound, RebuildRunning, TextsMissing, shorten
from condensery.index import changes, database, generations, passages
from condensery.index.database import storage_errors
from condensery.index.index import DATABASE, Index
from condensery.values import Document, Floats, Hit, IndexSpec, Passage, RebuildPlan

FORMAT = 1
PLAN = "rebuild.json"

Swap = Callable[[Index, Callable[[sqlite3.Connection], None]], None]


class _WrittenMeanwhile(Exception):
    """Something was written since. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class Step:
    """Documents to be made anew.

    Attributes:
        number: Of the last note that the step works off; 0 if there is none left.
        documents: As the index has them now.
        deleted: Ids of those that it has no more.
    """

    number: int
    documents: list[Document]
    deleted: list[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``rebuild.json`` holds."""

    generation: str
    spec: IndexSpec
    began: float
    documents: int

    def as_reply(self, index: str) -> RebuildPlan:
        """Return it for callers."""
        return RebuildPlan(
            index=index,
            encoder=self.spec.encoder,
            fingerprint=self.spec.fingerprint,
            kind=self.spec.kind,
            metric=self.spec.metric,
            options=self.spec.options or {},
            documents=self.documents,
            began=self.began,
            prompts=self.spec.prompts,
        )


def read_plan(folder: Path) -> Plan | None:
    """Return what is being made of an index; None if nothing is, or its plan can't be read."""
    try:
        content = json.loads((folder / PLAN).read_bytes())
        if content.pop("format") != FORMAT:
            return None
        return Plan(spec=database.from_record(content.pop("settings")), **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def unfinished(folder: Path) -> tuple[str, ...]:
    """Return the generation that is being made of an index, if there is one."""
    plan = read_plan(folder)
    return () if plan is None else (plan.generation,)


def cancelled_error(index: str) -> RebuildNotFound:
    """Return the error of a thread that still works on a rebuild which was cancelled."""
    return RebuildNotFound(
        f"The rebuild of index {index!r} was cancelled.", field="index", value=index
    )


def check_texts(connection: sqlite3.Connection) -> None:
    """Refuse an index that has documents of which only vectors are known.

    Raises:
        TextsMissing: The first of them is named.
    """
    row = connection.execute("SELECT id FROM documents WHERE text = '' LIMIT 1").fetchone()
    if row is not None:
        raise TextsMissing(
            f"The index has documents without a text, {shorten(row[0])} for one: there is "
            "nothing that another encoder could embed.",
            field="index",
            value=row[0],
        )


class Rebuilding:
    """A rebuild under way. Calls block on disk; one at a time is made.

    Attributes:
        old: The index that serves.
        fresh: The one that is made; whoever cancels the rebuild closes it.

    Args:
        folder: The index's.
        old: The index as it serves.
        spec: Of the new one. Where another was begun with the same, it goes on, with the
            prompts that it was begun with.
        swap: Lets an index take the old one's place, once what it is given finds nothing wrong,
            and forgets the plan.
        cache_every: As an index's.

    Raises:
        RebuildRunning: One with other settings was begun, and neither finished nor cancelled.
        TextsMissing: Of some documents only vectors are known.
        StorageFull, StorageReadOnly, StorageError: The disk refused; nothing has begun.
    """

    def __init__(
        self, folder: Path, old: Index, spec: IndexSpec, swap: Swap, *, cache_every: int
    ) -> None:
        self.old = old
        self._folder = folder
        self._swap = swap
        with storage_errors(folder):
            plan = read_plan(folder)
            if plan is not None and plan.spec != replace(spec, prompts=plan.spec.prompts):
                raise RebuildRunning(
                    f"Index {old.name!r} is being rebuilt for encoder {plan.spec.encoder!r} "
                    "with other settings; let it finish, or cancel it.",
                    field="index",
                    value=old.name,
                )
            with old.read_transaction() as connection:
                check_texts(connection)
            self._plan = plan or self._begin(spec)
            generation = folder / self._plan.generation
            try:
                self.fresh = Index(
                    old.name, generation, cache_every=cache_every, databases=old.databases
                )
                try:
                    with old.write_transaction() as connection:
                        if not changes.begun(connection):
                            changes.begin(connection)
                except BaseException:
                    self.fresh.close()
                    raise
            except BaseException:
                if plan is None:
                    self._undo(generation)
                raise

    @property
    def plan(self) -> RebuildPlan:
        """What is being made."""
        return self._plan.as_reply(self.old.name)

    def pending(self) -> int:
        """Count what is noted and not done."""
        with self.old.read_transaction() as connection:
            return changes.pending(connection)

    def next_step(self, max_documents: int) -> Step:
        """Return what is to be done next.

        Raises:
            TextsMissing: A document was written without its text meanwhile.
        """
        with self.old.read_transaction() as connection:
            number, ids = changes.oldest(connection, max_documents)
            documents = passages.fetch_documents(connection, ids)
            if any(not document.text for document in documents.values()):
                check_texts(connection)
        deleted = [identity for identity in ids if identity not in documents]
        return Step(number, list(documents.values()), deleted)

    def write(self, step: Step, pieces: Sequence[Passage], vectors: Floats) -> None:
        """Write a step's documents into the new index, with their passages; synced on return.

        Raises:
            InputError: They do not fit the new index.
            RebuildNotFound: It was cancelled meanwhile.
            StorageFull, StorageReadOnly, StorageError: The disk refused; the step is still to do.
        """
        if step.documents:
            fingerprint = self._plan.spec.fingerprint
            self.fresh.upsert(step.documents, pieces, vectors, fingerprint=fingerprint)
        if step.deleted:
            self.fresh.delete(step.deleted)
        with self.old.write_transaction() as connection:
            if self.fresh.closed:  # cancelled: the notes may be another rebuild's by now
                raise cancelled_error(self.old.name)
            changes.forget(connection, step.number)

    def sample(self, count: int) -> list[str]:
        """Return texts of some documents, drawn at random."""
        with self.old.read_transaction() as connection:
            rows = connection.execute(
                "SELECT text FROM documents ORDER BY random() LIMIT ?", (count,)
            )
            return [text for (text,) in rows]

    def overlap(self, old: Floats, new: Floats, top_k: int) -> float:
        """Return which share of the documents that the old index finds the new one finds too.

        Args:
            old: The vectors of some texts by the old encoder, (texts, dims).
            new: By the new one, (texts, new dims).
            top_k: Passages that each search finds.
        """
        shares = []
        for before, after in zip(old, new, strict=True):
            by_old = _documents(self.old.query(before, top_k=top_k))
            by_new = _documents(self.fresh.query(after, top_k=top_k))
            shares.append(len(by_old & by_new) / max(1, len(by_old)))
        return sum(shares) / max(1, len(shares))

    def finish(self) -> bool:
        """Let the new index take the old one's place, unless something was written since.

        Returns:
            Whether it did; else there is something to do first.

        Raises:
            RebuildNotFound: It was cancelled meanwhile.
            StorageFull, StorageReadOnly, StorageError: The disk refused; the old one goes on.
        """

        def check(connection: sqlite3.Connection) -> None:
            if changes.pending(connection):
                raise _WrittenMeanwhile

        with storage_errors(self._folder):
            try:
                self._swap(self.fresh, check)
            except _WrittenMeanwhile:
                return False
        return True

    def _begin(self, spec: IndexSpec) -> Plan:
        made = generations.new_path(self._folder)
        try:
            made.mkdir()
            database.create(made / DATABASE, spec)
            self.old.bind_like(made, spec)
            sync_path(made)
            documents = self.old.info.documents
            plan = Plan(made.name, spec, round(time.time(), 3), documents)
            record = {"format": FORMAT, **asdict(plan), "settings": database.to_record(spec)}
            del record["spec"]
            write_atomically(self._folder / PLAN, json.dumps(record))
        except BaseException:
            self._undo(made)
            raise
        return plan

    def _undo(self, made: Path) -> None:
        with contextlib.suppress(OSError):  # it is without notes then, and `clear` forgets it
            (self._folder / PLAN).unlink(missing_ok=True)
        self.old.databases.remove(made)


def cancel(folder: Path, index: Index) -> None:
    """Cancel an index's rebuild and delete what was made, whether or not it can be opened."""
    plan = read_plan(folder)
    # The notes go last: what is made without them lacks what is written from then on.
    forget_plan(folder)
    with index.write_transaction() as connection:
        changes.end(connection)
    if plan is not None and folder / plan.generation != index.directory:
        index.databases.remove(folder / plan.generation)


def forget_plan(folder: Path) -> None:
    """Let nothing go on with what is being made of an index; synced on return."""
    with storage_errors(folder):
        (folder / PLAN).unlink(missing_ok=True)
        sync_path(folder)


def clear(folder: Path, index: Index) -> None:
    """Forget a rebuild that was finished, or has no notes, no plan or no files to go on with."""
    plan = read_plan(folder)
    made = None if plan is None else folder / plan.generation
    noting = noted(index)
    if noting and made is not None and made != index.directory and (made / DATABASE).exists():
        return
    if noting or (folder / PLAN).exists():
        cancel(folder, index)


def noted(index: Index) -> bool:
    """Tell whether an index's changes are being noted; also after a cancel that was cut short."""
    with index.read_transaction() as connection:
        return changes.begun(connection)


def _documents(hits: Sequence[Hit]) -> set[str]:
    return {hit.passage.document_id for hit in hits}
