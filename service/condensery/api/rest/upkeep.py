"""Aliases, snapshots and rebuilds of indexes: `/v1/indexes/**`."""

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import reply
from condensery.errors import InputError
from condensery.jobs import aliases, rebuild, snapshots
from condensery.jobs.accounting import account
from condensery.jobs.services import Services
from condensery.schemas_upkeep import (
    AliasChange,
    AliasesRequest,
    RebuildRequest,
    RestoreRequest,
)
from condensery.upkeep import AliasAction


async def list_aliases(request: Request, services: Services) -> Response:
    """List the aliases, and where they lead."""
    del request
    with account(services, None, "index", "rest"):
        return reply({"object": "list", "data": await aliases.list_aliases(services)})


async def update_aliases(request: Request, services: Services) -> Response:
    """Create, move, rename and delete aliases: all that is asked, at one moment, or nothing."""
    body = await read_body(request, services, AliasesRequest)
    with account(services, None, "index", "rest"):
        actions = [_action(one, f"actions[{place}]") for place, one in enumerate(body.actions)]
        found = await aliases.update_aliases(services, actions)
        return reply({"object": "list", "data": found})


async def make_snapshot(request: Request, services: Services) -> Response:
    """Copy an index as it is now, while it goes on; synced when this returns."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        return reply(await snapshots.make_snapshot(services, name))


async def list_snapshots(request: Request, services: Services) -> Response:
    """List an index's snapshots, also of one that is no more."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        found = await snapshots.list_snapshots(services, name)
        return reply({"object": "list", "data": found.found, "refused": found.refused})


async def show_snapshot(request: Request, services: Services) -> Response:
    """Tell what a snapshot is."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        return reply(await snapshots.show_snapshot(services, name, _snapshot(request)))


async def delete_snapshot(request: Request, services: Services) -> Response:
    """Delete a snapshot."""
    name, snapshot = _name(request), _snapshot(request)
    with account(services, None, "index", "rest", index=name):
        await snapshots.delete_snapshot(services, name, snapshot)
        return reply({"id": snapshot, "deleted": True})


async def restore_snapshot(request: Request, services: Services) -> Response:
    """Make an index of a snapshot: over its own, which serves until then, or under a new name."""
    name = _name(request)
    body = await read_body(request, services, RestoreRequest, optional=True)
    with account(services, None, "index", "rest", index=name):
        return reply(
            await snapshots.restore_snapshot(services, name, _snapshot(request), into=body.into)
        )


async def rebuild_index(request: Request, services: Services) -> Response:
    """Begin to make an index anew for another encoder, while it serves; or go on with that."""
    name = _name(request)
    body = await read_body(request, services, RebuildRequest, optional=True)
    with account(services, None, "index", "rest", index=name):
        return reply(
            await rebuild.rebuild_index(
                services,
                name,
                encoder=body.encoder,
                metric=body.metric,
                kind=body.kind,
                options=body.options,
            )
        )


async def show_rebuild(request: Request, services: Services) -> Response:
    """Tell how far an index's rebuild has come, or how the last one ended."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        return reply(await rebuild.rebuild_status(services, name))


async def cancel_rebuild(request: Request, services: Services) -> Response:
    """Give up an index's rebuild; the index goes on as it was."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        await rebuild.cancel_rebuild(services, name)
        return reply({"index": name, "cancelled": True})


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _snapshot(request: Request) -> str:
    snapshot: str = request.path_params["snapshot"]
    return snapshot


def _action(given: AliasChange, field: str) -> AliasAction:
    named = [name for name in AliasChange.model_fields if getattr(given, name) is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        raise InputError(
            f"{field}: give one of {', '.join(AliasChange.model_fields)}; got {got}.", field=field
        )
    if given.create_alias is not None:
        return AliasAction("create", given.create_alias.alias, given.create_alias.index)
    if given.rename_alias is not None:
        return AliasAction("rename", given.rename_alias.alias, given.rename_alias.to)
    assert given.delete_alias is not None  # counted above
    return AliasAction("delete", given.delete_alias.alias)
