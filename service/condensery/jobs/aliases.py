"""Aliases: second names of indexes, moved in one go."""

import asyncio
from collections.abc import Sequence

from condensery.jobs.checks import check_count
from condensery.jobs.services import Services
from condensery.upkeep import Alias, AliasAction


async def list_aliases(services: Services) -> list[Alias]:
    """List every alias, by name."""
    return services.indexes.aliases()


async def update_aliases(services: Services, actions: Sequence[AliasAction]) -> list[Alias]:
    """Make all of these changes, synced on return, or none; returns the aliases then.

    Args:
        services: The running parts.
        actions: Made in this order. A query sees the names of before all of them, or of after.

    Raises:
        InputError: A malformed action; EmptyInput if there is none.
        AliasNotFound: What is to be deleted or renamed is not there.
        AliasToNothing: An alias would point at no index and no alias.
        AliasCircle: Aliases would lead in a circle.
        NameTaken: An alias would have the name of an index, or be renamed to another alias's.
        LimitReached: There would be more than there may be.
        StorageFull, StorageReadOnly: The disk refused; nothing is changed.
    """
    check_count(actions, "actions", services.limits.max_items)
    return await asyncio.to_thread(services.indexes.update_aliases, actions)
