"""What is kept beside indexes, as values: aliases, snapshots, rebuilds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from condensery.values import IndexPrompts

AliasVerb = Literal["create", "delete", "rename"]
RebuildState = Literal["running", "done", "failed"]
ALIAS_VERBS: tuple[AliasVerb, ...] = get_args(AliasVerb)


@dataclass(frozen=True, slots=True)
class Caps:
    """How many of each there may be; those that are there already stay, however many."""

    indexes: int = 1000
    aliases: int = 1000
    snapshots: int = 1000  # of all indexes together, those that are no more included


@dataclass(frozen=True, slots=True)
class Alias:
    """A second name of an index.

    Attributes:
        alias: The name.
        target: What it points at: an index, or another alias.
        index: The index at the end; None if there is none any more.
    """

    alias: str
    target: str
    index: str | None


@dataclass(frozen=True, slots=True)
class AliasAction:
    """One change of many that are made together, or not at all.

    Attributes:
        verb: ``create`` (an alias that is there is moved), ``delete`` or ``rename``.
        alias: Which.
        target: The index (or alias) that it is to point at; of ``rename`` its new name.
    """

    verb: AliasVerb
    alias: str
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of an index, as it was at one moment.

    Attributes:
        id: Names it among those of its index.
        index: Whose copy it is.
        created: When, seconds since 1970.
        bytes: What it takes on the disk.
    """

    id: str
    index: str
    created: float
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """An index's snapshots.

    Attributes:
        found: The newest first.
        refused: Why each other one can't be used, by id.
    """

    found: tuple[Snapshot, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is being made of an index.

    Attributes:
        index: Its name.
        encoder: The new one, whose fingerprint, kind and metric follow.
        options: The kind's that were given.
        documents: How many there were when it began.
        began: When, seconds since 1970.
        prompts: That its passages are embedded with; None if it was begun before they were kept.
    """

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    options: Mapping[str, int]
    documents: int
    began: float
    prompts: IndexPrompts | None = None


@dataclass(frozen=True, slots=True)
class Rebuild:
    """How far a rebuild has come.

    Attributes:
        state: ``running``; ``done``: the new index serves; ``failed``: the old one goes on, and
            so does the rebuild, from where it is, if it is asked for again.
        pending: Documents, and writes since it began, that are still to be done.
        ended: When, seconds since 1970; None while it runs.
        reason: Why it failed.
        overlap: Of the documents that the old index finds, the share that the new one finds, on
            average over some of its own texts; None where the old encoder does not run.
    """

    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    documents: int
    began: float
    state: RebuildState
    pending: int
    ended: float | None = None
    reason: str | None = None
    overlap: float | None = None
