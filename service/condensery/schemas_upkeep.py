"""The bodies of requests about aliases, snapshots and rebuilds of indexes."""

from pydantic import Field

from condensery.schemas import Many, Ours


class CreateAlias(Ours):
    """Point an alias at an index; one that is there is moved."""

    alias: str
    index: str = Field(description="An index, or another alias.")


class DeleteAlias(Ours):
    """Take an alias away."""

    alias: str


class RenameAlias(Ours):
    """Give an alias another name; aliases that point at it follow."""

    alias: str
    to: str


class AliasChange(Ours):
    """One of the three."""

    create_alias: CreateAlias | None = None
    delete_alias: DeleteAlias | None = None
    rename_alias: RenameAlias | None = None


class AliasesRequest(Ours):
    """``POST /v1/indexes/aliases``: all of these, or none."""

    actions: Many[AliasChange]


class RestoreRequest(Ours):
    """``POST /v1/indexes/{name}/snapshots/{snapshot}/restore``; the body may be left out."""

    into: str | None = Field(
        default=None, description="The index to make; null: the one whose snapshot it is."
    )


class RebuildRequest(Ours):
    """``POST /v1/indexes/{name}/rebuild``; the body may be left out."""

    encoder: str | None = Field(
        default=None, description="null: that of the index, as it runs today."
    )
    metric: str | None = Field(default=None, description="As of a new index; null: as it is.")
    kind: str | None = Field(default=None, description="As of a new index; null: as it is.")
    options: dict[str, int] | None = Field(
        default=None,
        description="The kind's, as of a new index; null: as they are, if the kind is.",
    )
