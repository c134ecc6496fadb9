"""The running models by name and role, and those a server starts with."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from condensery import request_context
from condensery.atomic_files import PRIVATE_UMASK, umask
from condensery.errors import (
    CondenseryError,
    ModelCannot,
    ModelNotFound,
    SettingError,
    StartError,
    shorten,
)
from condensery.metrics import Metrics
from condensery.networks import native
from condensery.networks.dtypes import dtype_name
from condensery.runtime.classifier import Classifier
from condensery.runtime.device import (
    choose_common_dtype,
    choose_device,
    choose_encoder_weights,
    choose_weights,
    prepare_process,
)
from condensery.runtime.encoder import Encoder
from condensery.runtime.generator_server import GeneratorServerConfig
from condensery.runtime.lifecycle import ModelLifecycle, explain_failure
from condensery.runtime.loader import (
    RUNNERS,
    ModelLease,
    ModelLoader,
    RunningModel,
    self_test,
)
from condensery.runtime.oscar import OscarModel
from condensery.runtime.queue import NO_METRICS
from condensery.runtime.scheduler import GeneratorLimits
from condensery.runtime.workers import Workers
from condensery.settings import Settings, read_generator_servers, read_names
from condensery.store.aliases import FILE, ModelAliases
from condensery.store.importing import MINILM, import_minilm
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore, shipped_store
from condensery.values import ModelInfo, ModelRole

# No request outlives its time by more, so that a model that goes is never taken from one.
DRAIN_MARGIN_SECONDS = 30.0
# What answers a request that names no model, if it serves; else the first of what serves.
DEFAULT_ENCODER = "minilm-l6"
DEFAULT_PAIR = "oscar-mini"
DEFAULTS: Mapping[ModelRole, str] = {
    "encoder": DEFAULT_ENCODER,
    "oscar-pair": DEFAULT_PAIR,
    "reranker": DEFAULT_PAIR,
    "classifier": "",
}


class ModelRegistry:
    """Encoders, pairs and classifiers that serve, and the stored models that were refused.

    Made by ``load``. A model that is asked for while a call is served (``request_context``) is
    that call's to its end, though it be replaced or unloaded meanwhile.

    Args:
        loader: How models are opened, and what they run on; its parts are closed with them.
    """

    def __init__(self, loader: ModelLoader, aliases: ModelAliases, drain_seconds: float) -> None:
        self.aliases = aliases
        self._loader = loader
        self._serving: dict[str, ModelLease] = {}
        self._refused: dict[str, str] = {}
        # By role: what a request that names no model gets, whatever else comes or goes.
        self._defaults: dict[ModelRole, str] = {}
        self._watchers: list[Callable[[], None]] = []
        self._trying = asyncio.Lock()  # one model at a time, as a caller would
        self.lifecycle = ModelLifecycle(self, loader, drain_seconds)

    @property
    def workers(self) -> tuple[Workers, ...]:
        """What the models run on, one a device."""
        return self._loader.workers.all()

    @classmethod
    def load(
        cls,
        store: ModelStore,
        *,
        device: torch.device,
        compressor: torch.device | None = None,
        generator: torch.device | None = None,
        workers: int | None = None,
        aliases: ModelAliases | None = None,
        drain_seconds: float = 330.0,
        say: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> "ModelRegistry":
        """Load every stored model that is whole; one that is not is refused, the rest serve.

        Args:
            compressor: Where to run pairs' compressors, if elsewhere.
            generator: Where to run their generators, if elsewhere.
            workers: Threads for forward passes; None is one a core on a CPU.
            aliases: Other names of models; by default none, kept nowhere.
            drain_seconds: How long the last requests of a model that goes may take.
            say: Called with a line of progress for each model.
            **options: The other fields of ``ModelLoader``.
        """
        loader = ModelLoader.on_devices(
            store,
            device=device,
            compressor=compressor,
            generator=generator,
            workers=workers,
            **options,
        )
        return cls.open(loader, aliases or ModelAliases(), drain_seconds, say)

    @classmethod
    def open(
        cls,
        loader: ModelLoader,
        aliases: ModelAliases,
        drain_seconds: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> "ModelRegistry":
        """Open every model that a loader names, as ``load`` does."""
        registry = cls(loader, aliases, drain_seconds)
        try:
            for name in loader.names():
                registry._load(name, say)
        except BaseException:
            registry.close(0)
            raise
        registry._settle_defaults()
        return registry

    @classmethod
    async def start(
        cls,
        loader: ModelLoader,
        aliases: ModelAliases,
        drain_seconds: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> "ModelRegistry":
        """Open every model that a loader names and try it, each while the next one is opened."""
        registry, tries = cls(loader, aliases, drain_seconds), list[asyncio.Task[None]]()
        try:
            for name in loader.names():
                await asyncio.to_thread(registry._load, name, say)
                if name in registry._serving:
                    tries.append(asyncio.create_task(registry._try(name, say)))
            say("warming up")
            await asyncio.gather(*tries)
        except BaseException:  # no group of tasks: who starts it tells errors by their type
            for task in tries:
                task.cancel()
            registry.close(0)
            await asyncio.gather(*tries, return_exceptions=True)
            raise
        registry._settle_defaults()
        return registry

    def _load(self, name: str, say: Callable[[str], None]) -> None:
        version = ""
        try:
            stored = self._loader.store.open(name)
            version = stored.version
            if stored.manifest.kind not in RUNNERS:  # what others are made from
                return
            if name in self.aliases:
                raise ModelCannot(f"its name is an alias of {self.aliases.targets[name]!r}")
            self._serving[name] = ModelLease(self._loader.open(stored))
        except Exception as error:  # whatever is wrong with a model is its own fault alone
            self._refused[name] = explain_failure(error, name, version)
            say(f"{name}: refused: {self._refused[name]}")
        else:
            say(f"{name}: loaded in {self._serving[name].seconds:.1f} s")
        (self._loader.metrics or NO_METRICS).prepare_model(name)
        self.lifecycle.states.update_metrics(name)

    async def warm_up(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Try every model; one that fails is refused, the rest serve.

        Args:
            say: Called with a line for each that fails.
        """
        for name in list(self._serving):
            await self._try(name, say)
        self._defaults.clear()
        self._settle_defaults()

    async def _try(self, name: str, say: Callable[[str], None]) -> None:
        lease = self._serving[name]
        async with self._trying:
            try:
                await self_test(lease.model)
                self._follow(lease.model)
            except Exception as error:  # as in ``_load``
                lease.model.close()
                del self._serving[name]
                reason = explain_failure(error, name, lease.stored.version)
                self._refused[name] = f"it fails when it is tried: {reason}"
                say(f"{name}: refused: {self._refused[name]}")
            self.lifecycle.states.update_metrics(name)

    def encoder(self, name: str | None = None) -> Encoder:
        """Return the encoder; None is the default one. Raises ModelNotFound."""
        return cast(Encoder, self._find(name, "encoder"))

    def scorer(self, name: str | None = None) -> OscarModel | Classifier:
        """Return what reranks: a pair with a rerank head, a cross-encoder. Raises ModelNotFound."""
        return cast(OscarModel | Classifier, self._find(name, "reranker"))

    def classifier(self, name: str | None = None) -> Classifier:
        """Return what classifies, a cross-encoder too; None is the first of many labels.

        Raises ModelNotFound.
        """
        return cast(Classifier, self._find(name, "classifier"))

    def pair(self, name: str | None = None) -> OscarModel:
        """Return the OSCAR pair; None is the default one. Raises ModelNotFound."""
        return cast(OscarModel, self._find(name, "oscar-pair"))

    def measurements(self, name: str) -> StoredReport:
        """Return how good a running model was measured to be. Raises ModelNotFound."""
        lease = self._serving.get(self.aliases.resolve(name))
        if lease is None:
            raise self._unknown(name, "model", sorted(self._serving))
        return StoredReport(lease.stored)

    def models(self, *roles: ModelRole) -> list[ModelInfo]:
        """List what serves, defaults first; aliases are not among them.

        Args:
            roles: Leave out what has none of these, if any are named.
        """
        defaults = (DEFAULT_ENCODER, DEFAULT_PAIR)
        names = self._names(*roles) if roles else self._serving
        infos = [self._serving[name].model.info for name in names]
        return sorted(infos, key=lambda info: (info.name not in defaults, info.name))

    def refusals(self) -> Mapping[str, str]:
        """Name each stored model that was refused at load, with the reason."""
        return self._refused

    def default_of(self, name: str) -> tuple[ModelRole, ...]:
        """Return for what a model is the default, whether it serves or not."""
        return tuple(role for role, default in self._defaults.items() if default == name)

    def missing(self) -> str | None:
        """Return a default model that does not serve any more; None while all do."""
        return next((name for name in self._defaults.values() if name not in self._serving), None)

    def unready(self, name: str | None = None) -> str | None:
        """Return why a model that serves can't do all of its work now; None: it can.

        Args:
            name: The model's own; None is any that is a default.
        """
        names = set(self._defaults.values()) if name is None else {name}
        leases = (self._serving[name] for name in sorted(names & set(self._serving)))
        reasons = (getattr(lease.model, "unready", None) for lease in leases)
        return next((reason for reason in reasons if reason is not None), None)

    def serving(self, name: str) -> ModelLease | None:
        """Return what serves by a model's own name."""
        return self._serving.get(name)

    def require(self, name: str) -> ModelLease:
        """Return what serves by a model's own name. Raises ModelNotFound; an alias is none."""
        if name in self._serving:
            return self._serving[name]
        if name in self.aliases:
            raise ModelNotFound(
                f"{name!r} is an alias of {self.aliases.resolve(name)!r}: give the model's own "
                "name",
                field="model",
                value=name,
            )
        raise self._unknown(name, "model", sorted(self._serving))

    def put(self, name: str, lease: ModelLease | None, *, refused: str | None = None) -> None:
        """Let another model serve by a name from now on, or none; those that watch are called.

        Args:
            refused: Why nothing does, where that is for a fault.
        """
        if lease is None:
            self._serving.pop(name, None)
        else:
            self._serving[name] = lease
            self._follow(lease.model)
        self._refused.pop(name, None)
        if refused is not None:
            self._refused[name] = refused
        self._settle_defaults()
        self.notify()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever other models, or aliases, serve than before."""
        self._watchers.append(callback)

    def _follow(self, model: RunningModel) -> None:
        """Call those that watch whenever a pair's generator on another server comes or goes."""
        if not isinstance(model, OscarModel) or model.writer is None:
            return
        name = model.info.name

        def changed() -> None:
            self.lifecycle.states.update_metrics(name)
            self.notify()

        model.watch(changed)

    def notify(self) -> None:
        """Call those that watch."""
        for callback in self._watchers:
            callback()

    def close(self, seconds: float = 10.0) -> None:
        """Refuse new work, and finish what runs; what takes over ``seconds`` is left behind."""
        self.lifecycle.close()
        for lease in list(self._serving.values()):  # a start that was given up may load one still
            lease.model.close()
        for workers in self.workers:
            workers.close(seconds)
        self._loader.threads.shutdown(wait=False, cancel_futures=True)

    def _settle_defaults(self) -> None:
        """Choose a default for each role that has none yet."""
        for role, wanted in DEFAULTS.items():
            if role in self._defaults:
                continue
            names = self._names(role)
            if names:
                kinds = list(RUNNERS)
                first = min(
                    names, key=lambda name: kinds.index(self._serving[name].stored.manifest.kind)
                )
                self._defaults[role] = wanted if wanted in names else first

    def _names(self, *roles: ModelRole) -> list[str]:
        """Name what serves in any of these roles, in the order in which it came."""
        return [
            name for name, lease in self._serving.items() if lease.model.roles.intersection(roles)
        ]

    def _find(self, name: str | None, role: ModelRole) -> RunningModel:
        self._check_alone(name)
        asked = name or f"default {role}"  # no model's name holds a blank
        call = request_context.served_request()
        leases: dict[str, ModelLease] = {} if call is None else call.leases
        if asked in leases and role in leases[asked].model.roles:
            return leases[asked].model
        wanted = self.aliases.resolve(name or self._defaults.get(role, DEFAULTS[role]))
        lease = leases.get(wanted) or self._serving.get(wanted)
        if lease is None or role not in lease.model.roles:
            if not wanted:
                raise ModelCannot(f"no {role} serves", field="model")
            raise self._unknown(name or wanted, role, sorted(self._names(role)))
        if call is not None:
            lease.lend(call, (asked, wanted))
        return lease.model

    def _check_alone(self, name: str | None) -> None:
        """Refuse a name that carries an index, from which only questions are answered.

        Their jobs take it apart before they ask for the pair.
        """
        if name is None or (index := self.aliases.index_of(name)) is None:
            return
        pair = self.aliases.resolve(name)
        raise ModelCannot(
            f"model {shorten(name)} is {pair!r} with the index {index.name!r}: it answers "
            "questions (chat completions, responses, answers) and does nothing else; name the "
            f"pair alone, {pair!r}",
            field="model",
            value=name,
        )

    def _unknown(self, wanted: str, what: str, serving: list[str]) -> ModelNotFound:
        error = ModelNotFound
        target = self.aliases.resolve(wanted)
        if target in self._refused:
            reason = f"was refused: {self._refused[target]}"
        elif target in self._serving:
            reason, error = f"is no {what}", ModelCannot
        elif target in self._defaults.values():
            reason = "was unloaded"
        elif target in self._loader.store.names():
            reason = "is stored, and not loaded"
        else:
            reason = "does not exist" if target == wanted else "does not serve"
        named = shorten(wanted) if target == wanted else f"{shorten(target)} (alias {wanted!r})"
        return error(
            f"model {named} {reason}; {what}s that serve: {serving}", field="model", value=wanted
        )


async def open_store(
    settings: Settings, say: Callable[[str], None], usual_umask: int = PRIVATE_UMASK
) -> ModelStore:
    """Open the store of the settings, the default encoder in it.

    Args:
        usual_umask: For the own store, if it is outside the data directory: it may be shared.

    Raises:
        StoreError: It can't be read.
    """
    store = ModelStore(shipped_store(), settings.own_store)
    # nothing else is written meanwhile
    with umask(PRIVATE_UMASK if settings.store_is_private else usual_umask):
        await _import_default_encoder(store, say)
    return store


async def load_models(
    settings: Settings,
    metrics: Metrics,
    say: Callable[[str], None],
    *,
    usual_umask: int = PRIVATE_UMASK,
) -> ModelRegistry:
    """Open the store, load what it holds as the settings say, and warm it up.

    Args:
        usual_umask: As in ``open_store``.

    Raises:
        StartError: No model serves.
        SettingError: A device is not there, or has no such precision.
        StoreError: The store can't be read, or the aliases.
    """
    prepare_process()
    aliases = ModelAliases(settings.data_dir / FILE)
    store = await open_store(settings, say, usual_umask)
    loader = make_loader(settings, store, metrics, say)
    registry = await ModelRegistry.start(loader, aliases, drain_seconds(settings), say)
    check_serving(registry, say)
    return registry


def drain_seconds(settings: Settings) -> float:
    """Return how long the last requests of a model that goes may take."""
    return settings.request_timeout_seconds + DRAIN_MARGIN_SECONDS


def make_loader(
    settings: Settings, store: ModelStore, metrics: Metrics, say: Callable[[str], None]
) -> ModelLoader:
    """Return what opens stored models as the settings say.

    Raises:
        SettingError: A device is not there, or has no such precision.
    """
    device = choose_device(settings.device)
    halves = [
        choose_device(named, field) if named else device
        for field, named in (
            ("compressor_device", settings.compressor_device),
            ("generator_device", settings.generator_device),
        )
    ]
    dtype = choose_common_dtype([device, *halves], settings.dtype)
    # Refused before any model is read.
    encoders, compressors = (
        choose_encoder_weights(field, on, asked, settings.dtype)
        for field, on, asked in (
            ("encoder_weights", device, settings.encoder_weights),
            ("compressor_weights", halves[0], settings.compressor_weights),
        )
    )
    choose_weights(halves[1], dtype, settings.generator_weights, {})
    places = ", ".join(dict.fromkeys(map(str, [device, *halves])))
    say(f"loading models on {places} in {dtype_name(dtype)}")
    if native.kernels() is None and any(on.type == "cpu" for on in (device, *halves)):
        say("a CPU does without kernels of ours, slower: none were built at installation")
    return ModelLoader.on_devices(
        store,
        device=device,
        dtype=dtype,
        compressor=halves[0],
        generator=halves[1],
        generator_limits=GeneratorLimits(
            settings.generator_sequences, settings.generator_cache_mib
        ),
        encoder_weights=encoders,
        compressor_weights=compressors,
        generator_weights=settings.generator_weights,
        generator_servers=_generator_servers(settings),
        first=_first(settings, store),
        workers=settings.workers or None,
        queue_tokens=settings.max_queue_tokens,
        queue_seconds=settings.max_queue_seconds,
        metrics=metrics,
    )


def _first(settings: Settings, store: ModelStore) -> tuple[str, ...]:
    """Return the models to start with, if not all.

    Raises:
        SettingError: One is not stored, or is none that serves.
    """
    names, stored = read_names(settings.models) if settings.models else (), store.names()
    for name in names:
        if name not in stored:
            problem = f"there are {', '.join(stored) or 'none'}"
            raise SettingError(f"models: {shorten(name)}: {problem}", field="models", value=name)
        try:
            kind = store.open(name, check=False).manifest.kind
        except CondenseryError:  # it is refused when it is opened
            continue
        if kind not in RUNNERS:
            problem = "others are made from it, it does not serve"
            raise SettingError(f"models: {shorten(name)}: {problem}", field="models", value=name)
    return names


def _generator_servers(settings: Settings) -> dict[str, GeneratorServerConfig]:
    """Return where generators run that run elsewhere, by their pairs' names."""
    key, servers = settings.answer_key, settings.generator_servers
    return {
        name: GeneratorServerConfig(
            url,
            key=None if key is None else key.get_secret_value(),
            timeout_seconds=settings.answer_timeout,
            retries=settings.answer_retries,
        )
        for name, url in read_generator_servers(servers or "").items()
    }


async def _import_default_encoder(store: ModelStore, say: Callable[[str], None]) -> None:
    """Import it every time: it costs little where it is whole, and mends it where it is not."""
    if MINILM not in store.names():
        say(f"importing {MINILM} into {store.own} (the first time only)")
    try:
        await asyncio.to_thread(import_minilm, store)
    except CondenseryError as error:  # others may serve
        say(f"{MINILM}: not imported: {error.message}")


def check_serving(registry: ModelRegistry, say: Callable[[str], None]) -> None:
    """Name aliases that lead nowhere.

    Raises:
        StartError: No model serves.
    """
    serving = {info.name for info in registry.models()}
    for alias in registry.aliases.targets:
        if (target := registry.aliases.resolve(alias)) not in serving:
            say(f"alias {alias}: leads to {target}, which does not serve")
    if not serving:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in registry.refusals().items())
        registry.close(0)
        raise StartError(f"No model serves. {reasons or 'The store is empty.'}")
