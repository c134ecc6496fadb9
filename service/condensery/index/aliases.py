"""Second names of a data directory's indexes, in one small file that is replaced whole.

So a change of many aliases is there or not, whatever ends the process meanwhile, and a reader
sees the names of before or those of after.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from condensery.atomic_files import replace_atomically
from condensery.errors import (
    AliasCircle,
    AliasNotFound,
    AliasToNothing,
    EmptyInput,
    InputError,
    LimitReached,
    NameTaken,
    StorageError,
    shorten,
)
from condensery.index import checks
from condensery.index.database import where
from condensery.names import alias_chain, is_circle, resolve_alias
from condensery.values import ALIAS_VERBS, Alias, AliasAction

FORMAT = 1

_log = logging.getLogger(__name__)


class IndexAliases:
    """What each alias points at. The caller makes one change at a time.

    A file that can't be read (damaged, of a newer format) keeps nobody from using indexes by
    their own names; all else raises a StorageError which says why, and the file stays as it is.

    Args:
        path: The file; there is none before the first alias.
        max_aliases: How many there may be.
    """

    def __init__(self, path: Path, max_aliases: int) -> None:
        self.path = path
        self._max_aliases = max_aliases
        self._broken = ""
        self._targets: Mapping[str, str] = {}
        try:
            self._targets = _read(path)
        except (OSError, StorageError) as error:
            self._broken = f"{where(path)} can't be used: {error}"
            _log.error("aliases_broken", extra={"reason": self._broken})

    def entries(self, names: Callable[[], Collection[str]]) -> list[Alias]:
        """Return every alias, by name; ``names`` returns those of all indexes."""
        self._check_readable()
        targets, indexes = self._targets, names()
        while targets is not self._targets:  # changed meanwhile: the two must be of one moment
            targets, indexes = self._targets, names()
        ends = {alias: resolve_alias(targets, alias) for alias in sorted(targets)}
        return [
            Alias(alias, targets[alias], end if end in indexes else None)
            for alias, end in ends.items()
        ]

    def resolve(self, name: str) -> str:
        """Return the name that an alias leads to; any other name is its own."""
        self._check_readable()
        return resolve_alias(self._targets, name)

    def of(self, index: str) -> list[str]:
        """Return the aliases that lead to an index."""
        self._check_readable()
        targets = self._targets
        return sorted(alias for alias in targets if resolve_alias(targets, alias) == index)

    def __contains__(self, name: str) -> bool:
        self._check_readable()
        return name in self._targets

    def update(self, actions: Sequence[AliasAction], indexes: Collection[str]) -> None:
        """Make every change, synced on return, or none.

        Args:
            actions: Made in this order; what counts is where they end.
            indexes: The names of all indexes.

        Raises:
            InputError: A malformed action or name.
            AliasNotFound: What is to be deleted or renamed is not there.
            AliasToNothing: An alias would point at neither an index nor an alias.
            AliasCircle: An alias would lead to itself.
            NameTaken: An alias would have the name of an index, or be renamed to another's.
            LimitReached: There would be more than there may be, and more than there are.
            OSError: The disk refused; nothing is changed.
        """
        self._check_readable()
        if not actions:
            raise EmptyInput.at("actions", "the list is empty.")
        targets = dict(self._targets)
        touched: dict[str, str] = {}
        for place, action in enumerate(actions):
            field = f"actions[{place}]"
            touched[_apply(targets, action, indexes, field)] = field
        for alias in targets:
            # one that led nowhere before is no reason to refuse what has to do with others
            if alias in touched or resolve_alias(self._targets, alias) in indexes:
                _check_end(targets, alias, indexes, touched.get(alias, "actions"))
        if len(targets) > max(self._max_aliases, len(self._targets)):
            raise LimitReached.at(
                "actions",
                f"there would be {len(targets)} aliases, and there may be "
                f"{self._max_aliases} (max_aliases); delete some first.",
                len(targets),
            )
        text = json.dumps({"format": FORMAT, "aliases": targets}, sort_keys=True, indent=1)
        replace_atomically(self.path, text)
        self._targets = targets  # in one go: readers hold the old mapping or this one

    def _check_readable(self) -> None:
        if self._broken:
            raise StorageError(self._broken)


def _apply(
    targets: dict[str, str], action: AliasAction, indexes: Collection[str], field: str
) -> str:
    """Make one change; returns the alias that it leaves to be checked."""
    if action.verb not in ALIAS_VERBS:
        raise InputError.at(
            field, f"{shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}.", action.verb
        )
    alias, target = action.alias, action.target
    if action.verb == "create":
        checks.check_new_name(alias, f"{field}.alias")
        checks.check_name(target, f"{field}.index")
        _check_free(alias, indexes, f"{field}.alias")
        assert target is not None  # checked above
        targets[alias] = target
        return alias
    if alias not in targets:
        known = ", ".join(sorted(targets)) or "none"
        raise AliasNotFound.at(
            f"{field}.alias", f"there is no alias {shorten(alias)}; there are: {known}.", alias
        )
    if action.verb == "delete":
        del targets[alias]
        return alias
    checks.check_new_name(target, f"{field}.to")
    assert target is not None  # checked above
    _check_free(target, (*indexes, *(targets.keys() - {alias})), f"{field}.to")
    targets[target] = targets.pop(alias)
    for other, end in targets.items():
        if end == alias:  # they follow it
            targets[other] = target
    return target


def _check_free(name: str, taken: Collection[str], field: str) -> None:
    if name in taken:
        raise NameTaken.at(field, f"{name!r} is the name of an index or alias that is there.", name)


def _check_end(
    targets: Mapping[str, str], alias: str, indexes: Collection[str], field: str
) -> None:
    path = alias_chain(targets, alias)
    if is_circle(path):
        circle = " -> ".join(path)
        raise AliasCircle.at(field, f"the aliases would lead in a circle: {circle}.", alias)
    if path[-1] not in indexes:
        raise AliasToNothing.at(
            field,
            f"alias {path[-2]!r} would point at {path[-1]!r}, which is no index and no alias.",
            path[-1],
        )


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StorageError("it is damaged: not JSON.") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise StorageError("it is damaged: it names no format.")
    if content["format"] > FORMAT:
        raise StorageError(
            f"it has format {content['format']}, written by a newer version; this one reads up to "
            f"format {FORMAT}."
        )
    targets = content.get("aliases")
    if not isinstance(targets, dict) or not all(
        isinstance(target, str) for target in targets.values()
    ):
        raise StorageError("it is damaged: it holds no aliases.")
    return targets
