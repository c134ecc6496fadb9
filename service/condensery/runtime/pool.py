"""The running models by name."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch

from condensery.errors import CondenseryError, ModelCannot, ModelNotFound, shorten
from condensery.runtime.classifier import Classifier
from condensery.runtime.encoder import Encoder
from condensery.runtime.generator import UNBOUNDED
from condensery.runtime.limits import Limits, default_limits
from condensery.runtime.reader import Reader
from condensery.runtime.room import Bounds
from condensery.runtime.workers import Workers
from condensery.store.manifest import StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.values import ModelInfo

if TYPE_CHECKING:
    from condensery.metrics import Metrics

Running = Encoder | Reader | Classifier
Model = TypeVar("Model", bound=Running)

DEFAULT_ENCODER = "minilm-l6"
DEFAULT_PAIR = "oscar-mini"


class Teams:
    """Workers by device, each team started when it is first asked for.

    Args:
        count: Threads of a team; None is what suits the device.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._teams: dict[torch.device, Workers] = {}

    def on(self, device: torch.device) -> Workers:
        """Return the team of a device."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._teams:
            self._teams[device] = Workers(self._count, device)
        return self._teams[device]

    def all(self) -> tuple[Workers, ...]:
        """Return every team there is."""
        return tuple(self._teams.values())


class RunningModels:
    """Encoders, pairs and classifiers that serve, and the stored models that were refused.

    Args:
        encoders: By name.
        readers: Pairs, by name.
        classifiers: And cross-encoders, which have one label, by name.
        refused: Reason why a stored model does not serve, by name.
        teams: What the models run on, one a device; closed with them.
        threads: Where texts are tokenised; closed with them.
        metrics: Where to count.
        stored: What they were loaded from, by name.
    """

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        readers: Mapping[str, Reader],
        classifiers: Mapping[str, Classifier],
        refused: Mapping[str, str],
        teams: Sequence[Workers],
        threads: ThreadPoolExecutor,
        metrics: "Metrics | None" = None,
        stored: Mapping[str, StoredModel] | None = None,
    ) -> None:
        self._encoders = dict(encoders)
        self._readers = dict(readers)
        self._classifiers = dict(classifiers)
        self._refused = dict(refused)
        self._teams = tuple(teams)
        self._threads = threads
        self._metrics = metrics
        self._stored = dict(stored or {})

    @property
    def teams(self) -> tuple[Workers, ...]:
        """What the models run on, one a device."""
        return self._teams

    @classmethod
    def load(
        cls,
        store: ModelStore,
        *,
        device: torch.device,
        dtype: torch.dtype,
        compressor: torch.device | None = None,
        generator: torch.device | None = None,
        bounds: Bounds = UNBOUNDED,
        workers: int | None = None,
        queue_tokens: int | None = None,
        queue_seconds: float = 10.0,
        metrics: "Metrics | None" = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> "RunningModels":
        """Load every stored model that is whole; one that is not is refused, the rest serve.

        Args:
            store: Where the models are.
            device: Where to run them.
            dtype: What to compute in.
            compressor: Where to run pairs' compressors, if elsewhere.
            generator: Where to run their generators, if elsewhere.
            bounds: What each generator may hold.
            workers: Threads for forward passes; None is one a core on a CPU.
            queue_tokens: Tokens that may wait for each model; None is what suits the device.
            queue_seconds: How long a request may have to wait for its turn.
            metrics: Where to count.
            say: Called with a line of progress for each model.
        """
        teams = Teams(workers)
        threads = ThreadPoolExecutor(2, thread_name_prefix="tokenizer")

        def limits(device: torch.device) -> Limits:
            own = replace(default_limits(device), queue_seconds=queue_seconds)
            return own if queue_tokens is None else replace(own, queue_tokens=queue_tokens)

        encoders: dict[str, Encoder] = {}
        readers: dict[str, Reader] = {}
        classifiers: dict[str, Classifier] = {}
        refused: dict[str, str] = {}
        whole: dict[str, StoredModel] = {}
        for name in store.names():
            started = time.perf_counter()
            try:
                stored = store.open(name)
                if stored.manifest.kind == "language-model":  # what others are made from
                    continue
                whole[name] = stored
                if stored.manifest.kind == "encoder":
                    encoders[name] = Encoder.load(
                        *(stored, teams.on(device)),
                        dtype=dtype,
                        limits=limits(device),
                        metrics=metrics,
                        threads=threads,
                    )
                elif stored.manifest.kind == "oscar-pair":
                    halves = compressor or device, generator or device
                    readers[name] = Reader.load(
                        *(stored, store.open_base(stored) if stored.manifest.base else None),
                        teams.on(halves[0]),
                        generators=teams.on(halves[1]),
                        dtype=dtype,
                        threads=threads,
                        limits=limits,
                        bounds=bounds,
                        metrics=metrics,
                    )
                else:
                    classifiers[name] = Classifier.load(
                        *(stored, teams.on(device)),
                        dtype=dtype,
                        limits=limits(device),
                        metrics=metrics,
                        threads=threads,
                    )
            except CondenseryError as error:
                refused[name] = error.message
            if name in refused:
                say(f"{name}: refused: {refused[name]}")
            else:
                say(f"{name}: loaded in {time.perf_counter() - started:.1f} s")
            if metrics is not None:
                metrics.prepare_model(name)
                metrics.model_loaded.labels(name).set(name not in refused)
        return cls(encoders, readers, classifiers, refused, teams.all(), threads, metrics, whole)

    async def warm_up(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Run every model once; one that fails is refused, the rest serve.

        Args:
            say: Called with a line for each that fails.
        """
        await self._warm_up(self._encoders, say)
        await self._warm_up(self._readers, say)
        await self._warm_up(self._classifiers, say)

    async def _warm_up(self, serving: dict[str, Model], say: Callable[[str], None]) -> None:
        for name, model in list(serving.items()):
            try:
                await model.warm_up()
            except CondenseryError as error:
                model.close()
                del serving[name]
                self._refused[name] = f"it fails when it is tried: {error.message}"
                say(f"{name}: refused: {self._refused[name]}")
                if self._metrics is not None:
                    self._metrics.model_loaded.labels(name).set(0)

    def encoder(self, name: str | None = None) -> Encoder:
        """Return the encoder; None is the default one. Raises ModelNotFound."""
        return self._find(self._encoders, name, DEFAULT_ENCODER, "encoder")

    def scorer(self, name: str | None = None) -> Reader | Classifier:
        """Return what reranks: a pair with a rerank head, a cross-encoder. Raises ModelNotFound."""
        scorers: dict[str, Reader | Classifier] = {
            **{own: model for own, model in self._readers.items() if model.traits.scores},
            **{
                own: model
                for own, model in self._classifiers.items()
                if model.info.kind == "reranker"
            },
        }
        return self._find(scorers, name, DEFAULT_PAIR, "reranker")

    def classifier(self, name: str | None = None) -> Classifier:
        """Return what classifies, a cross-encoder too; None is the first of many labels.

        Raises ModelNotFound.
        """
        several = (m.info.name for m in self._classifiers.values() if m.info.kind == "classifier")
        default = next(several, "")
        return self._find(self._classifiers, name, default, "classifier")

    def reader(self, name: str | None = None) -> Reader:
        """Return the OSCAR pair; None is the default one. Raises ModelNotFound."""
        return self._find(self._readers, name, DEFAULT_PAIR, "oscar-pair")

    def measured(self, name: str) -> StoredReport:
        """Return how good a running model was measured to be. Raises ModelNotFound."""
        serving = {info.name for info in self.models()}
        if name not in serving:
            raise self._unknown(name, "model", serving)
        return StoredReport(self._stored[name])

    def models(self) -> list[ModelInfo]:
        """List what serves, defaults first."""
        defaults = (DEFAULT_ENCODER, DEFAULT_PAIR)
        infos = [model.info for model in self._all()]
        return sorted(infos, key=lambda info: (info.name not in defaults, info.name))

    def refused(self) -> Mapping[str, str]:
        """Name each stored model that was refused at load, with the reason."""
        return self._refused

    def close(self, seconds: float = 10.0) -> None:
        """Refuse new work, and finish what runs; what takes over ``seconds`` is left behind."""
        for model in self._all():
            model.close()
        for team in self._teams:
            team.close(seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _all(self) -> list[Running]:
        serving = (self._encoders, self._readers, self._classifiers)
        return [model for kind in serving for model in kind.values()]

    def _find(
        self, serving: Mapping[str, Model], name: str | None, default: str, kind: str
    ) -> Model:
        wanted = name or (default if default in serving else next(iter(serving), default))
        if wanted in serving:
            return serving[wanted]
        if not wanted:
            raise ModelCannot(f"no {kind} serves", field="model")
        raise self._unknown(wanted, kind, serving)

    def _unknown(self, wanted: str, kind: str, serving: Collection[str]) -> ModelNotFound:
        error = ModelNotFound
        if wanted in self._refused:
            reason = f"was refused: {self._refused[wanted]}"
        elif wanted in {info.name for info in self.models()}:
            reason, error = f"is no {kind}", ModelCannot
        else:
            reason = "does not exist"
        return error(
            f"model {shorten(wanted)} {reason}; {kind}s that serve: {sorted(serving)}",
            field="model",
            value=wanted,
        )
