"""Which indexes there are, open or broken, and where their aliases lead.

Any thread reads; what changes them holds the store's lock. A look-up holds none, so
it allows for an index that is restored, dropped or replaced meanwhile.
"""

from collections.abc import Set
from pathlib import Path

from condensery.errors import (
    AliasToNothing,
    IndexAliased,
    IndexExists,
    IndexNotFound,
    LimitReached,
    NameTaken,
    NotFound,
    StorageError,
)
from condensery.index import checks
from condensery.index.aliases import IndexAliases
from condensery.index.index import Index
from condensery.values import IndexCaps


class IndexNames:
    """The indexes of a store by name.

    Args:
        aliases: Path of the file that keeps the aliases.
        caps: How many indexes and aliases there may be.
    """

    def __init__(self, aliases: Path, caps: IndexCaps) -> None:
        self.open: dict[str, Index] = {}
        self.broken: dict[str, str] = {}  # why each can't be used
        self.aliases = IndexAliases(aliases, caps.aliases)
        self._max_indexes = caps.indexes

    def find(self, name: str) -> Index:
        """Return an open index by its name or an alias.

        Raises:
            InputError: A malformed name.
            IndexNotFound, AliasToNothing: There is none.
            StorageError: It is broken.
        """
        index = self.open.get(name)
        if index is not None:
            return index
        checks.check_name(name)
        while True:
            end = self.resolve(name)
            reason = self.broken.get(end)  # first: a restore moves it from one to the other
            index = self.open.get(end)
            if index is not None:
                return index
            if reason is not None:
                raise StorageError(
                    f"Index {end!r} can't be used: {reason}", field="index", value=end
                )
            if self.resolve(name) == end:  # else the alias was moved before its index was dropped
                raise self._missing(name, end)

    def holds(self, name: str) -> bool:
        """Tell whether there is an index of this very name, usable or broken."""
        # in this order: a restore moves it from one to the other
        return name in self.broken or name in self.open

    def resolve(self, name: str) -> str:
        """Return the name that an alias leads to; any other name is its own."""
        return name if self.holds(name) else self.aliases.resolve(name)

    def all(self) -> Set[str]:
        """Return the names of all indexes, usable or broken."""
        broken = self.broken.copy()  # first: a restore moves one to the others
        return {*broken, *self.open.copy()}

    def check_free(self, name: str) -> None:
        """Refuse a new index's name that is taken, and any name if there are too many indexes.

        Raises:
            IndexExists, NameTaken: It has one.
            LimitReached: There are as many as there may be.
        """
        if self.holds(name):
            raise IndexExists(f"Index {name!r} exists.", field="index", value=name)
        if name in self.aliases:
            raise NameTaken.at(
                "index", f"{name!r} is an alias, of index {self.aliases.resolve(name)!r}.", name
            )
        if (count := len(self.all())) >= self._max_indexes:
            raise LimitReached.at(
                "index",
                f"{name!r} can't be made: there are {count} indexes, and there may be "
                f"{self._max_indexes} (max_indexes); delete one first.",
                name,
            )

    def check_no_aliases(self, name: str) -> None:
        """Refuse to drop what aliases point at.

        Raises:
            IndexAliased: Some do.
        """
        if aliases := self.aliases.of(name):
            raise IndexAliased(
                f"Index {name!r} can't be deleted while it has aliases: {', '.join(aliases)}.",
                field="index",
                value=name,
            )

    def _missing(self, name: str, end: str) -> NotFound:
        if name in self.aliases:
            return AliasToNothing(
                f"Alias {name!r} points at index {end!r}, which does not exist any more.",
                field="index",
                value=name,
            )
        names = ", ".join(sorted(self.open.copy())) or "none yet"
        return IndexNotFound(
            f"There is no index {name!r}; there are: {names}.", field="index", value=name
        )
