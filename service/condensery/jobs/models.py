"""Models: what serves, what each can do, how good it was measured to be; load and unload them.

Reports, cards and plots raise ModelNotFound where no such model runs, ReportNotFound where it was
never measured or the part is not there, and CorruptModel where a file is not the one published.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from condensery.errors import (
    IndexNotFound,
    InputError,
    ModelInUse,
    ModelNotFound,
    Unavailable,
    shorten,
)
from condensery.jobs.indexes import log_outdated_prompts
from condensery.jobs.services import Services
from condensery.names import resolve_alias, split_model_name
from condensery.values import (
    ModelIndex,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelRole,
    ModelUnload,
    ModelVersion,
)

# What each task needs; TEI's ``/info`` and infinity list pairs under rerank with or without a head.
TASK_ROLES: dict[str, tuple[ModelRole, ...]] = {
    "embed": ("encoder",),
    "rerank": ("oscar-pair", "reranker"),
    "predict": ("classifier",),
    "answer": ("oscar-pair",),
}
TOKENIZATION_WORKERS = 2


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model and what one request to it may ask for.

    Attributes:
        tasks: What it can do, as in ``list_capabilities``.
        max_concurrent_requests: At once, whatever their model.
        max_batch_tokens: Of one request's texts together.
        max_client_batch_size: Texts of one request.
        tokenization_workers: Threads that tokenise.
    """

    model: ModelInfo
    tasks: tuple[str, ...]
    max_concurrent_requests: int
    max_batch_tokens: int
    max_client_batch_size: int
    tokenization_workers: int = TOKENIZATION_WORKERS


def list_capabilities(services: Services) -> dict[str, list[ModelInfo]]:
    """Return which models can do what, by the task's name in TEI's ``/info``."""
    return {task: services.registry.models(*roles) for task, roles in TASK_ROLES.items()}


def describe_model(services: Services, name: str | None = None) -> ModelDescription:
    """Describe a model; None is the default one: an encoder, else a pair, else what there is.

    Raises:
        ModelNotFound: No such model serves.
        Unavailable: None does.
    """
    model = _find_model(services, name)
    max_items = services.limits.max_items
    return ModelDescription(
        model=model,
        tasks=tuple(
            task
            for task, infos in list_capabilities(services).items()
            if any(info.name == model.name for info in infos)
        ),
        max_concurrent_requests=services.admission.max_requests,
        max_batch_tokens=model.max_tokens * max_items,
        max_client_batch_size=max_items,
    )


def is_classifier(services: Services, name: object) -> bool:
    """Whether a model, or (None) the default one, gives labels rather than vectors."""
    if not (name is None or isinstance(name, str)):
        return False
    try:
        own = _find_model(services, name).name
    except (ModelNotFound, Unavailable):
        return False
    return any(info.name == own for info in services.registry.models("classifier"))


def _default_model(services: Services) -> ModelInfo:
    models = list_capabilities(services)
    info = next(iter([*models["embed"], *models["answer"], *models["predict"]]), None)
    if info is None:
        raise Unavailable("No model serves; /v1/models would be empty.")
    return info


def _find_model(services: Services, name: str | None) -> ModelInfo:
    if name is None:
        return _default_model(services)
    registry = services.registry
    errors: list[ModelNotFound] = []
    for find in (registry.encoder, registry.pair, registry.classifier):
        try:
            return find(name).info
        except ModelNotFound as error:
            errors.append(error)
    raise errors[0]


# Reports


async def read_model_report(services: Services, model: str) -> ModelReport:
    """Return what a model was measured at."""
    return await asyncio.to_thread(services.registry.measurements(model).report)


async def read_model_card(services: Services, model: str) -> str:
    """Return a model's card, Markdown."""
    return await asyncio.to_thread(services.registry.measurements(model).card)


async def read_model_plot(services: Services, model: str, plot: str) -> bytes:
    """Return a plot of a model's report, PNG."""
    return await asyncio.to_thread(services.registry.measurements(model).plot, plot)


# Loading, unloading and aliases


def watch_models(services: Services) -> None:
    """Let readiness and held contexts follow the models that serve, from now on."""

    def follow() -> None:
        missing = services.registry.missing()
        services.health.set_missing(
            services.registry.unready()
            if missing is None
            else f"the default model {missing} is not loaded"
        )
        infos = services.registry.models()
        services.contexts.keep_only({info.name: info.fingerprint for info in infos})

    services.registry.watch(follow)
    follow()  # a generator on another server may not be there yet


def list_models(services: Services) -> list[ModelInfo]:
    """List what serves, defaults first, then the aliases of what does; pairs with their traits."""
    registry = services.registry
    pairs = {info.name for info in registry.models("oscar-pair")}
    infos = [
        replace(info, pair=registry.pair(info.name).traits) if info.name in pairs else info
        for info in registry.models()
    ]
    by_name = {info.name: info for info in infos}
    for alias in registry.aliases.targets:
        target = by_name.get(registry.aliases.resolve(alias))
        if target is not None:
            index = registry.aliases.index_of(alias)
            infos.append(replace(target, id=alias, alias_of=target.name, index=index))
    return infos


def find_model(services: Services, name: str) -> ModelInfo:
    """Return a running model by its name or an alias.

    Raises:
        ModelNotFound: It does not run; the message says why, and lists those that do.
    """
    running = list_models(services)
    for info in running:
        if info.name == name:
            return info
    reason = services.registry.refusals().get(services.registry.aliases.resolve(name))
    why = f"was refused: {reason}" if reason else "does not exist"
    raise ModelNotFound(
        f"model {shorten(name)} {why}; there are: {', '.join(info.name for info in running)}.",
        field="model",
        value=name,
    )


def list_rerankers(services: Services) -> list[ModelInfo]:
    """List what reranks, and its aliases: first what does where no model is named.

    An alias that carries an index answers questions, and ranks nothing.
    """
    rerankers = {info.name for info in services.registry.models("reranker")}
    if not rerankers:
        return []
    default = services.registry.scorer().info.name
    infos = [
        info
        for info in list_models(services)
        if (info.alias_of or info.name) in rerankers and info.index is None
    ]
    return sorted(infos, key=lambda info: info.name != default)


def is_serving(services: Services, name: str) -> bool | None:
    """Whether a model, or what an alias leads to, serves; None if there is no such name."""
    registry = services.registry
    target = registry.aliases.resolve(name)
    if any(info.name == target for info in registry.models()):
        return True
    return False if target != name or name in registry.refusals() else None


def find_unready(services: Services, name: str) -> str | None:
    """Return why a model, or what an alias leads to, can't do all of its work now; None: it can."""
    registry = services.registry
    return registry.unready(registry.aliases.resolve(name))


async def list_versions(services: Services) -> list[ModelVersion]:
    """List every stored version of every model, and which of them serve.

    Raises:
        StoreError: A store can't be read.
    """
    return await services.registry.lifecycle.versions()


async def load_model(
    services: Services, name: str, version: str | None = None, *, again: bool = False
) -> ModelLoad:
    """Load a stored model and let it serve, in place of the version that does.

    The old one serves until the new one is checked and warm, and finishes what it has begun.

    Args:
        name: In the store.
        version: A whole number; None is the highest.
        again: Load it though it serves already.

    Raises:
        As the runtime's ``ModelLifecycle.load``.
    """
    loaded = await services.registry.lifecycle.load(name, version, again=again)
    fingerprint = loaded.info.fingerprint
    log_outdated_prompts(services, encoder=name)
    return replace(loaded, stranded_indexes=_stranded_indexes(services, name, fingerprint))


async def unload_model(services: Services, name: str, *, force: bool = False) -> ModelUnload:
    """Unload a model: its last requests are finished, and its memory is free then.

    Args:
        name: The model's own, no alias.
        force: Though it is a default, or indexes or rebuilds need it. Requests that name no model
            are then refused, never answered by another; the server is not ready while a default
            is missing.

    Raises:
        ModelNotFound: It does not serve.
        ModelInUse: An alias leads to it; or, without ``force``, it is a default, an index's or a
            rebuild's.
    """
    unloaded = await services.registry.lifecycle.unload(name, _unload_check(services, name, force))
    return replace(unloaded, stranded_indexes=_stranded_indexes(services, name, None))


async def set_model_aliases(
    services: Services, changes: Mapping[str, str | None]
) -> Mapping[str, str]:
    """Set aliases of models, or (None) remove them, all at once; kept over a restart.

    Args:
        changes: What each is to lead to: a running model, or another alias; or a pair with an
            index, as ``split_model_name`` reads it.

    Returns:
        All aliases that there are.

    Raises:
        InputError: There is nothing to change, or an alias is no valid name, or what it would
            lead to can't answer questions from an index.
        IndexNotFound: There is no such index.
        ModelNotFound: One to be removed is not there.
        ModelAliasToNothing: What one would lead to does not serve.
        ModelAliasTaken: A model has the name.
        ModelAliasCircle: Some would lead nowhere but to each other.
        StoreError: The disk refused; nothing has changed.
    """
    targets = {**services.registry.aliases.targets, **changes}
    for target in filter(None, changes.values()):
        model, index = split_model_name(target, "aliases")
        if index is not None:
            kept = {alias: end for alias, end in targets.items() if end is not None}
            _check_index(services, resolve_alias(kept, model), index, target)
    return await services.registry.lifecycle.set_aliases(changes)


def _check_index(services: Services, model: str, index: ModelIndex, target: str) -> None:
    """Refuse an index that an alias can't carry."""
    registry, limit = services.registry, services.limits.max_answer_documents
    pairs = {info.name for info in registry.models("oscar-pair")}
    if model not in pairs and any(info.name == model for info in registry.models()):
        raise InputError.at(
            "aliases",
            f"{target!r}: {model!r} answers no questions; pairs do: {', '.join(sorted(pairs))}.",
            target,
        )
    if index.top_k is not None and index.top_k > limit:
        raise InputError.at(
            "aliases", f"{target!r}: top_k {index.top_k} is over the limit of {limit}.", target
        )
    try:
        services.indexes.info(index.name)
    except IndexNotFound as error:
        raise IndexNotFound.at("aliases", f"{target!r}: {error.message}", target) from error


def _unload_check(services: Services, name: str, force: bool) -> Callable[[], None]:
    def check() -> None:
        if aliases := services.registry.aliases.of(name):
            raise _in_use_error(
                name,
                f"aliases lead to it ({', '.join(aliases)}); set "
                "them to another model, or remove them, first",
            )
        if force:
            return
        if roles := services.registry.default_of(name):
            raise _in_use_error(
                name,
                f"it is the default {' and '.join(roles)}, which "
                "those get who name no model (`force` unloads it, and refuses them)",
            )
        if indexes := _indexes_of_encoder(services, name):
            raise _in_use_error(
                name,
                f"it is the encoder of {', '.join(indexes)}; "
                "without it these indexes can be neither searched nor written (`force` unloads it)",
            )
        if indexes := services.rebuilds.indexes_for_encoder(name):
            raise _in_use_error(
                name,
                f"{', '.join(indexes)} is being rebuilt for it "
                "(`force` unloads it, and that fails)",
            )

    return check


def _in_use_error(name: str, reason: str) -> ModelInUse:
    return ModelInUse(f"model {name!r} is not unloaded: {reason}", field="model", value=name)


def _indexes_of_encoder(services: Services, name: str) -> tuple[str, ...]:
    """Name the indexes whose encoder serves."""
    serving = {info.name: info.fingerprint for info in services.registry.models()}
    return tuple(
        index.name
        for index in services.indexes.list()
        if index.encoder == name and serving.get(name) == index.fingerprint
    )


def _stranded_indexes(services: Services, name: str, fingerprint: str | None) -> tuple[str, ...]:
    return tuple(
        index.name
        for index in services.indexes.list()
        if index.encoder == name and index.fingerprint != fingerprint
    )
