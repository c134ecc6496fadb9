"""What replies about aliases, snapshots and rebuilds look like, for the description."""

from typing import Literal

from pydantic import Field

from condensery.api.rest.replies import Reply


class Alias(Reply):
    """A second name of an index."""

    alias: str
    target: str = Field(description="What it points at: an index, or another alias.")
    index: str | None = Field(description="The index at the end; null if it is no more.")


class Aliases(Reply):
    """Every alias, by name."""

    object: Literal["list"]
    data: list[Alias]


class Snapshot(Reply):
    """A copy of an index, as it was at one moment."""

    id: str
    index: str
    created: float = Field(description="Seconds since 1970.")
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    bytes: int


class Snapshots(Reply):
    """An index's snapshots, the newest first."""

    object: Literal["list"]
    data: list[Snapshot]
    refused: dict[str, str] = Field(description="Why each other one can't be used, by id.")


class SnapshotDeleted(Reply):
    """A snapshot that is no more."""

    id: str
    deleted: Literal[True]


class Rebuild(Reply):
    """How far a rebuild has come."""

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    documents: int = Field(description="How many there were when it began.")
    began: float = Field(description="Seconds since 1970.")
    state: Literal["running", "done", "failed"]
    pending: int = Field(description="Documents, and writes since it began, still to be done.")
    ended: float | None
    reason: str | None = Field(description="Why it failed.")
    overlap: float | None = Field(
        description="Of the documents that the old index finds for some of its own texts, the "
        "share that the new one finds; null where the old encoder does not run."
    )


class RebuildCancelled(Reply):
    """A rebuild that was given up."""

    index: str
    cancelled: Literal[True]
