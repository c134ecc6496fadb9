"""Other names of models, in one file that is whole or not there.

An alias leads to a model or another alias, or to a pair with an index (``pair@index?top_k=5``):
then questions that name it are answered from that index.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from condensery.atomic_files import replace_atomically
from condensery.errors import (
    InputError,
    ModelAliasCircle,
    ModelAliasTaken,
    ModelAliasToNothing,
    ModelNotFound,
    StoreError,
    shorten,
)
from condensery.names import INDEX_SEPARATOR, alias_chain, is_circle, split_model_name
from condensery.store.manifest import NAME_PATTERN
from condensery.values import ModelIndex

FILE = "model-aliases.json"
MOST = 1000


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: int = 1
    aliases: dict[str, str]


class ModelAliases:
    """Names that lead to models, or to other names that do; changed all at once, and kept.

    Args:
        path: The file; None keeps them in memory only.

    Raises:
        StoreError: The file can't be read: aliases that were promised would be gone.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._targets: dict[str, str] = {} if path is None else _read(path)
        self._steps = _steps_of(self._targets)

    @property
    def targets(self) -> Mapping[str, str]:
        """What each leads to, sorted by alias."""
        return dict(sorted(self._targets.items()))

    def resolve(self, name: str) -> str:
        """Return the model that a name leads to; one that is no alias is its own."""
        return self._chain(name)[-1]

    def index_of(self, name: str) -> ModelIndex | None:
        """Return the index that a name carries, or that what it leads to does; None if none does.

        Raises:
            InputError: It is malformed, or there are two.
        """
        if INDEX_SEPARATOR not in name and name not in self._steps:
            return None  # most requests
        return _index_on(self._chain(name), "model", name)

    def _chain(self, name: str) -> list[str]:
        if name in self._steps or INDEX_SEPARATOR not in name:
            return alias_chain(self._steps, name)
        return [name, *alias_chain(self._steps, name.partition(INDEX_SEPARATOR)[0])]

    def of(self, model: str) -> tuple[str, ...]:
        """Return every alias that leads to a model, sorted."""
        return tuple(alias for alias in self.targets if self.resolve(alias) == model)

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def change(
        self, changes: Mapping[str, str | None], *, serving: Collection[str], taken: Collection[str]
    ) -> None:
        """Set and remove aliases, all of them or none; on disk when this returns.

        Args:
            changes: What each alias is to lead to, perhaps with an index; None removes it.
            serving: The running models, to which aliases may lead.
            taken: Names that no alias may have: those of all models, running and stored.

        Raises:
            InputError: There is nothing to change, or an alias can't be a name, or what one would
                lead to is malformed or has two indexes.
            ModelNotFound: One to be removed is not there.
            ModelAliasToNothing: What one would lead to is neither a running model nor an alias.
            ModelAliasTaken: A model has the name.
            ModelAliasCircle: Some would lead nowhere but to each other.
            StoreError: The disk refused; nothing has changed.
        """
        if not changes:
            raise InputError("aliases: there is nothing to change.", field="aliases")
        targets = dict(self._targets)
        for alias, target in changes.items():
            _check_name(alias, taken)
            if target is not None:
                targets[alias] = target
            elif targets.pop(alias, None) is None:
                raise ModelNotFound(
                    f"aliases: there is no alias {shorten(alias)} to remove.",
                    field="aliases",
                    value=alias,
                )
        if len(targets) > MOST:
            raise InputError(f"aliases: {len(targets)}, over the limit of {MOST}.", field="aliases")
        _check_targets(targets, set(changes), serving)
        self._write(targets)
        self._targets, self._steps = targets, _steps_of(targets)

    def _write(self, targets: Mapping[str, str]) -> None:
        if self._path is None:
            return
        content = {"format": 1, "aliases": dict(sorted(targets.items()))}
        try:
            replace_atomically(self._path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise StoreError(
                f"The aliases can't be written, and stay as they were: {error.strerror or error}."
            ) from error


def _check_name(alias: str, taken: Collection[str]) -> None:
    if not re.fullmatch(NAME_PATTERN, alias):
        raise InputError(
            f"aliases: {shorten(alias)} can't be an alias: at most 64 letters, digits, '.', '_' "
            "and '-', and the first a letter or a digit.",
            field="aliases",
            value=alias,
        )
    if alias in taken:
        raise ModelAliasTaken(
            f"aliases: {shorten(alias)} is a model's name, and can't be an alias.",
            field="aliases",
            value=alias,
        )


def _steps_of(targets: Mapping[str, str]) -> dict[str, str]:
    """Return what each alias leads to, and from a pair with an index to the pair."""
    pairs = {
        target: target.partition(INDEX_SEPARATOR)[0]
        for target in targets.values()
        if INDEX_SEPARATOR in target
    }
    return {**targets, **pairs}


def _index_on(path: list[str], field: str, name: str) -> ModelIndex | None:
    """Return the index that is named on the way of a name. Raises InputError if there are two."""
    found = [index for step in path if (index := split_model_name(step, field)[1]) is not None]
    if len(found) > 1:
        raise InputError.at(
            field, f"{' -> '.join(path)} has more than one index; a question has one.", name
        )
    return found[0] if found else None


def _check_targets(targets: Mapping[str, str], changed: set[str], serving: Collection[str]) -> None:
    steps = _steps_of(targets)
    for alias in sorted(targets):
        path = alias_chain(steps, alias)
        if is_circle(path):
            raise ModelAliasCircle(
                f"aliases: {' -> '.join(path)} leads in a circle.", field="aliases", value=alias
            )
        if changed & set(path):
            _index_on(path, "aliases", alias)
        # One that leads to nothing already, since its model was refused at the start, may stay;
        # nobody may make another.
        if changed & set(path) and path[-1] not in serving:
            raise ModelAliasToNothing(
                f"aliases: {shorten(alias)} would lead to {shorten(path[-1])}, which is neither a "
                f"running model nor an alias; running: {', '.join(sorted(serving))}.",
                field="aliases",
                value=path[-1],
            )


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: the aliases of models can't be read: {error}") from error
    try:
        document = _File.model_validate_json(text)
        if document.format != 1:
            raise ValueError(f"format {document.format} is newer than this version reads")
        steps = _steps_of(document.aliases)
        for alias in document.aliases:
            _check_name(alias, ())
            chain = alias_chain(steps, alias)
            if is_circle(chain):
                raise ValueError(f"{alias!r} leads in a circle")
            _index_on(chain, "aliases", alias)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise StoreError(
            f"{path}: the aliases of models can't be read: {first['msg']}. Mend or remove the file."
        ) from error
    except (ValueError, InputError) as error:
        reason = str(error).rstrip(".")
        raise StoreError(
            f"{path}: the aliases of models can't be read: {reason}. Mend or remove the file."
        ) from error
    return dict(document.aliases)
