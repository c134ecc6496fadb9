"""What the jobs need of indexes, and of their keeping. The index satisfies it by shape."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from condensery.index.filters import Filter
from condensery.index.selecting import Wanted
from condensery.upkeep import Alias, AliasAction, RebuildPlan, Snapshot, SnapshotList
from condensery.values import Document, Floats, Hit, IndexInfo, IndexPrompts, Page, Passage

JsonObject = Mapping[str, Any]

# named here, since within the class `list` is the method
Hits = list[Hit]
Documents = list[Document]
AliasList = list[Alias]


class RebuildStep(Protocol):
    """Documents to be made anew."""

    @property
    def number(self) -> int:
        """0 if there is nothing left to do."""
        ...

    @property
    def documents(self) -> Documents:
        """As the index has them now."""
        ...


class Rebuilding(Protocol):
    """A rebuild under way. Calls block on disk; one at a time is made."""

    @property
    def plan(self) -> RebuildPlan:
        """What is being made."""
        ...

    def pending(self) -> int:
        """Count the documents and writes that are still to be done."""
        ...

    def step(self, most: int) -> Any:
        """Return a ``RebuildStep``; raises TextsMissing."""
        ...

    def done(self, step: Any, pieces: Sequence[Passage], vectors: Floats) -> None:
        """Write a step's documents, with their passages; synced on return."""
        ...

    def sample(self, most: int) -> list[str]:
        """Return texts of some documents."""
        ...

    def overlap(self, old: Floats, new: Floats, top_k: int) -> float:
        """Return which share of what the old index finds the new one finds."""
        ...

    def finish(self) -> bool:
        """Let the new index serve; False if something was written since."""
        ...


class Keeping(Protocol):
    """What is done to whole indexes while they serve. Calls block on disk."""

    def snapshot(self, name: str) -> Snapshot:
        """Copy an index as it is now, while it goes on; synced on return."""
        ...

    def snapshots(self, name: str) -> SnapshotList:
        """List an index's snapshots, also of one that is no more or is broken."""
        ...

    def get_snapshot(self, name: str, snapshot: str) -> Snapshot:
        """Return what a snapshot is; SnapshotNotFound, SnapshotDamaged, SnapshotTooNew."""
        ...

    def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Delete a snapshot; synced on return."""
        ...

    def restore(self, name: str, snapshot: str, into: str | None = None) -> IndexInfo:
        """Make an index of a snapshot, over the one that is there or anew; synced on return."""
        ...

    def rebuild(
        self,
        name: str,
        *,
        encoder: str,
        fingerprint: str,
        dims: int,
        metric: str,
        kind: str,
        options: Mapping[str, int] | None = None,
        prompts: IndexPrompts | None = None,
    ) -> Rebuilding:
        """Begin to make an index anew, or go on; RebuildRunning, TextsMissing."""
        ...

    def unfinished_rebuilds(self) -> list[RebuildPlan]:
        """Return what was begun and is neither done nor cancelled."""
        ...

    def cancel_rebuild(self, name: str) -> None:
        """Give up what is being made of an index; RebuildNotFound if nothing is."""
        ...


class Indexes(Protocol):
    """The indexes of a data directory.

    Calls block on disk, but for ``info`` and ``list``, which answer from memory: jobs run the
    others in a thread. An alias does wherever a name is asked for.
    """

    @property
    def keeping(self) -> Keeping:
        """Snapshots and restores."""
        ...

    def create(
        self,
        name: str,
        *,
        encoder: str,
        fingerprint: str,
        dims: int,
        metric: str,
        kind: str,
        options: Mapping[str, int] | None = None,
        prompts: IndexPrompts | None = None,
    ) -> IndexInfo:
        """Create an index; the same settings again return it as it is (IndexExists else)."""
        ...

    def info(self, name: str) -> IndexInfo:
        """Return what the index is and holds."""
        ...

    def list(self) -> list[IndexInfo]:
        """Return every index."""
        ...

    def drop(self, name: str) -> None:
        """Delete the index with all it holds; IndexAliased if an alias points at it."""
        ...

    def aliases(self) -> AliasList:
        """Return every alias; from memory."""
        ...

    def update_aliases(self, actions: Sequence[AliasAction]) -> AliasList:
        """Make all of these changes or none, synced on return; returns the aliases then."""
        ...

    def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        passages: Sequence[Passage],
        vectors: Floats,
        *,
        fingerprint: str,
        embedded_for: IndexInfo | None = None,
    ) -> None:
        """Write documents with their passages and vectors, replacing those ids. Synced on return.

        Args:
            name: The index.
            documents: They replace those of the same ids.
            passages: Theirs.
            vectors: Theirs, (passages, dims).
            fingerprint: Of the encoder that made them.
            embedded_for: What ``info`` said when the prompts of the passages were chosen; None
                where the vectors are a caller's own.

        Raises:
            IndexNotFound, EncoderMismatch, InputError (dims, NaN), StorageFull, StorageReadOnly.
        """
        ...

    def delete(self, name: str, ids: Sequence[str]) -> int:
        """Delete documents by id; returns how many were there. Synced on return."""
        ...

    def query(
        self,
        name: str,
        vector: Floats,
        *,
        top_k: int,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
        chosen: Filter | None = None,
    ) -> Hits:
        """Return the nearest passages of the documents chosen, best first.

        ``embedded_for`` is as of ``upsert``; EncoderMismatch if the index has other prompts now.
        """
        ...

    def match(self, name: str, words: str, *, top_k: int, chosen: Filter | None = None) -> Hits:
        """Return the passages that share most words with a text, by BM25, best first."""
        ...

    def delete_chosen(self, name: str, chosen: Filter) -> int:
        """Delete the documents that a filter chooses; returns how many. Synced on return."""
        ...

    def count(self, name: str, chosen: Filter | None = None) -> tuple[int, int]:
        """Return the (documents, passages) that there are, or that a filter chooses."""
        ...

    def read_page(self, name: str, wanted: Wanted) -> Page:
        """Return documents by id, as far as one page goes."""
        ...

    def get(self, name: str, ids: Sequence[str]) -> Documents:
        """Return the documents found, in the order asked."""
        ...
