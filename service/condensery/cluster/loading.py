"""The doors' side of a cluster: a registry whose models run in replicas, and its readiness.

``serve_models`` is to ``server.Server`` what ``runtime.registry.load_models`` is on one machine.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from condensery.cluster.calling import Remote
from condensery.cluster.config import ClusterConfig
from condensery.cluster.deployments import Application, Cluster
from condensery.cluster.messages import ModelId
from condensery.cluster.remote import remote_model
from condensery.cluster.replica import RUNTIME_SETTINGS
from condensery.cluster.replica_metrics import ReplicaMetrics
from condensery.errors import CondenseryError, ModelFault, SettingError
from condensery.metrics import Metrics
from condensery.runtime.device import prepare_process
from condensery.runtime.loader import LoadedModel, ModelLoader
from condensery.runtime.registry import ModelRegistry, check_serving, drain_seconds, open_store
from condensery.runtime.workers import WorkersByDevice
from condensery.settings import Settings
from condensery.store.aliases import FILE, ModelAliases
from condensery.store.manifest import StoredModel

if TYPE_CHECKING:
    from condensery.store.store import ModelStore


@dataclass(frozen=True, slots=True)
class ClusterLoader(ModelLoader):
    """Opens stored models in replicas of a cluster; nothing runs here.

    Attributes:
        cluster: Where.
        begun: Applications that were deployed at the start, by model; each is taken once.
    """

    cluster: Cluster = field(kw_only=True)
    begun: dict[ModelId, Application] = field(default_factory=dict, kw_only=True)

    def names(self) -> Sequence[str]:
        """Name the models that the cluster's file asks for, stored or not."""
        return self.cluster.config.names(self._servable())

    def begin(self, say: Callable[[str], None]) -> None:
        """Deploy every group, so that all of them start at the same time. Blocks shortly.

        A model that can't be read is left out here, and is refused when it is opened.

        Raises:
            Unavailable: The cluster does not answer.
        """
        for group in self.cluster.config.deployed(self.names()):
            models = []
            for name in group.models:
                try:
                    models.append(_id_of(self.store.open(name, check=False)))
                except CondenseryError:
                    continue
            if not models:
                continue
            app = self.cluster.deploy(models, group)
            say(f"{', '.join(group.models)}: replicas asked for, as {app.name}")
            self.begun.update(dict.fromkeys(models, app))

    def end(self) -> None:
        """Let the replicas go of models that were refused before they were opened."""
        for model, app in self.begun.items():
            app.close(model)
        self.begun.clear()

    def open(self, stored: StoredModel) -> LoadedModel:
        """Have a stored model run in replicas, and wait until they are up. Blocks.

        Raises:
            ModelFault: They don't get ready in time, or can't.
            ModelCannot: Models of its kind run on one machine alone.
            CorruptModel: Its texts can't be read here.
            Unavailable: The cluster does not answer.
        """
        model = _id_of(stored)
        app = self.begun.pop(model, None)
        if app is None:  # loaded later, or again
            app = self.cluster.deploy([model], self.cluster.config.alone(model.name), anew=True)
        remote = Remote(model, app)
        try:
            there = self.cluster.wait_ready(app)
            if model not in there.models:
                raise ModelFault(there.refused.get(model, "its replicas hold other models"))
            facts = there.models[model]
            running = remote_model(remote, stored, facts, self.threads, self.metrics)
        except CondenseryError:
            remote.close()
            raise
        return LoadedModel(running, stored, facts.seconds, facts.memory)

    def _servable(self) -> list[str]:
        """Name the stored models that serve: what others are made from does not."""
        from condensery.runtime.loader import RUNNERS

        names = []
        for name in self.store.names():
            try:
                if self.store.open(name, check=False).manifest.kind not in RUNNERS:
                    continue
            except CondenseryError:  # it is refused when it is opened
                pass
            names.append(name)
        return names


class ClusterModels:
    """Makes the doors' registry, and keeps what runs behind it; given to ``server.serve``.

    Args:
        config: The cluster's file.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._cluster: Cluster | None = None
        self._metrics: ReplicaMetrics | None = None

    async def load(
        self,
        settings: Settings,
        metrics: Metrics,
        say: Callable[[str], None],
        *,
        usual_umask: int,
    ) -> ModelRegistry:
        """Join the cluster, deploy what its file asks for, and wait for it.

        Raises:
            SettingError: Replicas have more time to start than the whole server; or models are
                named elsewhere than in the file, or generators are to run on other servers.
            StartError: The cluster does not answer, or no model serves.
            StoreError: The store can't be read, or the aliases.
        """
        if settings.models is not None:
            raise SettingError(
                "models: on a Ray cluster its file names them",
                field="models",
                value=settings.models,
            )
        if settings.generator_servers is not None:
            raise SettingError(
                "generator_servers: pairs on a Ray cluster generate there",
                field="generator_servers",
                value=settings.generator_servers,
            )
        if settings.front_processes:
            raise SettingError(
                "front_processes: on a Ray cluster models run in other processes already",
                field="front_processes",
                value=settings.front_processes,
            )
        if self._config.ready_seconds >= settings.start_timeout_seconds:
            raise SettingError(
                f"ready_seconds {self._config.ready_seconds:g} is not allowed: it must be below "
                f"start_timeout_seconds, {settings.start_timeout_seconds:g}",
                field="ready_seconds",
                value=self._config.ready_seconds,
            )
        prepare_process()
        aliases = ModelAliases(settings.data_dir / FILE)
        store = await open_store(settings, say, usual_umask)
        self._cluster = cluster = Cluster(
            self._config,
            {name: _plain(settings, name) for name in RUNTIME_SETTINGS},
            str(settings.own_store.resolve()),
            max_requests=settings.max_requests,
            drain_seconds=drain_seconds(settings),
        )
        say(f"joining Ray: {self._config.address or 'one of its own'}")
        try:
            await asyncio.to_thread(cluster.connect)
            loader = _make_loader(store, metrics, cluster)
            await asyncio.to_thread(loader.begin, say)
            # nobody is served yet, and the new ones may need the room
            await asyncio.to_thread(cluster.delete_others)
            registry = await asyncio.to_thread(
                ModelRegistry.open, loader, aliases, drain_seconds(settings), say
            )
            loader.end()
            say("warming up")
            await registry.warm_up(say)
            check_serving(registry, say)
        except BaseException:  # a signal too: a Ray that was started here must not stay
            await asyncio.to_thread(cluster.close)
            raise
        self._metrics = ReplicaMetrics(cluster, metrics)
        return registry

    def watch(
        self,
        registry: ModelRegistry,
        on_fault: Callable[[str | None], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """Call back, in the running loop.

        Args:
            on_fault: With why the cluster does not answer, or None: it does. That a default model
                has no replica is seen in the registry, which is looked at again then.
            on_fatal: With why the cluster is given up.
        """
        loop, cluster = asyncio.get_running_loop(), self._cluster
        assert cluster is not None

        def look() -> None:
            on_fault(cluster.down)
            for info in registry.models():
                registry.lifecycle.states.update_metrics(info.name)
            registry.notify()

        def in_loop(function: Callable[..., None], *args: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: the server has ended
                loop.call_soon_threadsafe(function, *args)

        cluster.watch(partial(in_loop, look), partial(in_loop, on_fatal))

    def close(self) -> None:
        """Leave the cluster."""
        if self._metrics is not None:
            self._metrics.close()
        if self._cluster is not None:
            self._cluster.close()


def _make_loader(store: "ModelStore", metrics: Metrics, cluster: Cluster) -> ClusterLoader:
    here = torch.device("cpu")  # what a model runs on is its replicas' matter
    return ClusterLoader(
        store=store,
        workers=WorkersByDevice(None),
        threads=ThreadPoolExecutor(2, thread_name_prefix="tokenizer"),
        device=here,
        compressor=here,
        generator=here,
        dtype=torch.float32,
        metrics=metrics,
        cluster=cluster,
    )


def _id_of(stored: StoredModel) -> ModelId:
    return ModelId(stored.name, stored.version, stored.manifest.fingerprint)


def _plain(settings: Settings, name: str) -> object:
    value = getattr(settings, name)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
