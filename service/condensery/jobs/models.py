"""Models that come and go, and their aliases: what speaks against it, and what it leads to."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from condensery.errors import ModelInUse
from condensery.jobs.index_vectors import report_prompts
from condensery.jobs.services import Services
from condensery.values import ModelInfo, ModelLoad, ModelUnload, ModelVersion


def follow(services: Services) -> None:
    """Let readiness and held contexts follow the models that serve, from now on."""

    def told() -> None:
        missing = services.pool.missing()
        lacks = None if missing is None else f"the default model {missing} is not loaded"
        services.health.lack(lacks)
        infos = services.pool.models()
        services.contexts.keep_only({info.name: info.fingerprint for info in infos})

    services.pool.watch(told)


def list_models(services: Services) -> list[ModelInfo]:
    """List what serves, defaults first, then the aliases of what does; pairs with their traits."""
    pool = services.pool
    found = []
    for info in pool.models():
        pair = pool.reader(info.name).traits if info.kind == "oscar-pair" else None
        found.append(replace(info, pair=pair))
    by_name = {info.name: info for info in found}
    for alias in pool.aliases.targets:
        target = by_name.get(pool.aliases.resolve(alias))
        if target is not None:
            found.append(replace(target, name=alias, alias_of=target.name))
    return found


def serves(services: Services, name: str) -> bool | None:
    """Say whether a model, or what an alias leads to, serves; None if there is none of the name."""
    pool = services.pool
    target = pool.aliases.resolve(name)
    if any(info.name == target for info in pool.models()):
        return True
    return False if target != name or name in pool.refused() else None


async def list_versions(services: Services) -> list[ModelVersion]:
    """List every stored version of every model, and which of them serve.

    Raises:
        StoreError: A store can't be read.
    """
    return await services.pool.changing.versions()


async def load_model(
    services: Services, name: str, version: str | None = None, *, again: bool = False
) -> ModelLoad:
    """Load a stored model and let it serve, in place of the version that does.

    The old one serves until the new one is checked and warm, and finishes what it has begun.

    Args:
        services: The running parts.
        name: In the store.
        version: A whole number; None is the highest.
        again: Load it though it serves already.

    Raises:
        ModelNotFound: There is no such model or version in the store.
        ModelCannot: It is no model that serves, or of another kind than what serves.
        ModelAliasTaken: Its name is an alias.
        ModelNotLoaded: It is broken, or fails when it is tried, or there is no room for it.
    """
    loaded = await services.pool.changing.load(name, version, again=again)
    fingerprint = loaded.info.fingerprint
    report_prompts(services, encoder=name)
    return replace(loaded, stranded_indexes=_stranded(services, name, fingerprint))


async def unload_model(services: Services, name: str, *, force: bool = False) -> ModelUnload:
    """Let a model serve no new request, wait for its last ones, and free its memory.

    Args:
        services: The running parts.
        name: The model's own, no alias.
        force: Though it is a default, or indexes or rebuilds need it. Requests that name no model
            are then refused, never answered by another; the server is not ready while a default
            is missing.

    Raises:
        ModelNotFound: It does not serve.
        ModelInUse: An alias leads to it; or, without ``force``, it is a default, an index's or a
            rebuild's.
    """
    unloaded = await services.pool.changing.unload(name, _objections(services, name, force))
    return replace(unloaded, stranded_indexes=_stranded(services, name, None))


async def set_aliases(services: Services, changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Set aliases of models, or (None) remove them, all at once; kept over a restart.

    Args:
        services: The running parts.
        changes: What each is to lead to: a running model, or another alias.

    Returns:
        All aliases that there are.

    Raises:
        InputError: There is nothing to change, or an alias can't be a name.
        ModelNotFound: One to be removed is not there.
        ModelAliasToNothing: What one would lead to does not serve.
        ModelAliasTaken: A model has the name.
        ModelAliasCircle: Some would lead nowhere but to each other.
        StoreError: The disk refused; nothing has changed.
    """
    return await services.pool.changing.set_aliases(changes)


def _objections(services: Services, name: str, force: bool) -> Callable[[], None]:
    def check() -> None:
        if aliases := services.pool.aliases.of(name):
            raise _in_use(
                name,
                f"aliases lead to it ({', '.join(aliases)}); set "
                "them to another model, or remove them, first",
            )
        if force:
            return
        if roles := services.pool.default_of(name):
            raise _in_use(
                name,
                f"it is the default {' and '.join(roles)}, which "
                "those get who name no model (`force` unloads it, and refuses them)",
            )
        if indexes := _needing(services, name):
            raise _in_use(
                name,
                f"it is the encoder of {', '.join(indexes)}; "
                "without it these indexes can be neither searched nor written (`force` unloads it)",
            )
        if indexes := services.rebuilds.of_encoder(name):
            raise _in_use(
                name,
                f"{', '.join(indexes)} is being rebuilt for it "
                "(`force` unloads it, and that fails)",
            )

    return check


def _in_use(name: str, reason: str) -> ModelInUse:
    return ModelInUse(f"model {name!r} is not unloaded: {reason}", field="model", value=name)


def _needing(services: Services, name: str) -> tuple[str, ...]:
    """Name the indexes whose encoder serves."""
    serving = {info.name: info.fingerprint for info in services.pool.models()}
    return tuple(
        index.name
        for index in services.indexes.list()
        if index.encoder == name and serving.get(name) == index.fingerprint
    )


def _stranded(services: Services, name: str, fingerprint: str | None) -> tuple[str, ...]:
    return tuple(
        index.name
        for index in services.indexes.list()
        if index.encoder == name and index.fingerprint != fingerprint
    )
