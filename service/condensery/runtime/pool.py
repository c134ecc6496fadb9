"""The running models by name."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, cast

import torch

from condensery import callers
from condensery.errors import CondenseryError, ModelCannot, ModelNotFound, shorten
from condensery.runtime.changing import Changing
from condensery.runtime.classifier import Classifier
from condensery.runtime.encoder import Encoder
from condensery.runtime.generator import UNBOUNDED
from condensery.runtime.lending import Serving
from condensery.runtime.opening import Opener
from condensery.runtime.proving import Running, prove
from condensery.runtime.reader import Reader
from condensery.runtime.room import Bounds
from condensery.runtime.teams import Teams
from condensery.runtime.workers import Workers
from condensery.store.aliases import Aliases
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.values import ModelInfo

if TYPE_CHECKING:
    from condensery.metrics import Metrics

Role = Literal["encoder", "oscar-pair", "reranker", "classifier"]

# Who is asked where a request names no model, if it serves; else the first of what serves.
DEFAULT_ENCODER = "minilm-l6"
DEFAULT_PAIR = "oscar-mini"
DEFAULTS: Mapping[Role, str] = {
    "encoder": DEFAULT_ENCODER,
    "oscar-pair": DEFAULT_PAIR,
    "reranker": DEFAULT_PAIR,
    "classifier": "",
}


class RunningModels:
    """Encoders, pairs and classifiers that serve, and the stored models that were refused.

    Made by ``load``. What is asked while a call is served (``callers``) is that call's to its end,
    though it be replaced or unloaded meanwhile.

    Args:
        opener: How models are opened, and what they run on; its parts are closed with them.
        aliases: Other names of models.

    Attributes:
        aliases: As given.
        changing: Loads and unloads them while others serve.
    """

    def __init__(self, opener: Opener, aliases: Aliases, drain_seconds: float) -> None:
        self.aliases = aliases
        self._opener = opener
        self._metrics = opener.metrics
        self._serving: dict[str, Serving] = {}
        self._refused: dict[str, str] = {}
        # By role: whom those get who name nobody. It does not change because others come or go.
        self._defaults: dict[Role, str] = {}
        self._watchers: list[Callable[[], None]] = []
        self.changing = Changing(self, opener, drain_seconds)

    @property
    def teams(self) -> tuple[Workers, ...]:
        """What the models run on, one a device."""
        return self._opener.teams.all()

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
        aliases: Aliases | None = None,
        drain_seconds: float = 330.0,
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
            aliases: Other names of models; by default none, kept nowhere.
            drain_seconds: How long the last requests of a model that goes may take.
            metrics: Where to count.
            say: Called with a line of progress for each model.
        """
        opener = Opener(
            store=store,
            teams=Teams(workers),
            threads=ThreadPoolExecutor(2, thread_name_prefix="tokenizer"),
            device=device,
            compressor=compressor or device,
            generator=generator or device,
            dtype=dtype,
            bounds=bounds,
            queue_tokens=queue_tokens,
            queue_seconds=queue_seconds,
            metrics=metrics,
        )
        for one in (device, opener.compressor, opener.generator):  # all are watched from the start
            opener.teams.on(one)
        pool = cls(opener, aliases or Aliases(), drain_seconds)
        for name in store.names():
            pool._load(name, say)
        pool._settle_defaults()
        return pool

    def _load(self, name: str, say: Callable[[str], None]) -> None:
        try:
            stored = self._opener.store.open(name)
            if stored.manifest.kind == "language-model":  # what others are made from
                return
            if name in self.aliases:
                raise ModelCannot(f"its name is an alias of {self.aliases.targets[name]!r}")
            self._serving[name] = Serving(self._opener.open(stored))
        except CondenseryError as error:
            self._refused[name] = error.message
            say(f"{name}: refused: {error.message}")
        else:
            say(f"{name}: loaded in {self._serving[name].seconds:.1f} s")
        if self._metrics is not None:
            self._metrics.prepare_model(name)
            self.changing.states.tell(name)

    async def warm_up(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Try every model; one that fails is refused, the rest serve.

        Args:
            say: Called with a line for each that fails.
        """
        for name, serving in list(self._serving.items()):
            try:
                await prove(serving.model)
            except CondenseryError as error:
                serving.model.close()
                del self._serving[name]
                self._refused[name] = f"it fails when it is tried: {error.message}"
                say(f"{name}: refused: {self._refused[name]}")
                self.changing.states.tell(name)
        self._defaults.clear()
        self._settle_defaults()

    def encoder(self, name: str | None = None) -> Encoder:
        """Return the encoder; None is the default one. Raises ModelNotFound."""
        return cast(Encoder, self._find(name, "encoder"))

    def scorer(self, name: str | None = None) -> Reader | Classifier:
        """Return what reranks: a pair with a rerank head, a cross-encoder. Raises ModelNotFound."""
        return cast(Reader | Classifier, self._find(name, "reranker"))

    def classifier(self, name: str | None = None) -> Classifier:
        """Return what classifies, a cross-encoder too; None is the first of many labels.

        Raises ModelNotFound.
        """
        return cast(Classifier, self._find(name, "classifier"))

    def reader(self, name: str | None = None) -> Reader:
        """Return the OSCAR pair; None is the default one. Raises ModelNotFound."""
        return cast(Reader, self._find(name, "oscar-pair"))

    def measured(self, name: str) -> StoredReport:
        """Return how good a running model was measured to be. Raises ModelNotFound."""
        serving = self._serving.get(self.aliases.resolve(name))
        if serving is None:
            raise self._unknown(name, "model", sorted(self._serving))
        return StoredReport(serving.stored)

    def models(self) -> list[ModelInfo]:
        """List what serves, defaults first; aliases are not among them."""
        defaults = (DEFAULT_ENCODER, DEFAULT_PAIR)
        infos = [serving.model.info for serving in self._serving.values()]
        return sorted(infos, key=lambda info: (info.name not in defaults, info.name))

    def refused(self) -> Mapping[str, str]:
        """Name each stored model that was refused at load, with the reason."""
        return self._refused

    def default_of(self, name: str) -> tuple[Role, ...]:
        """Return for what a model is the default, whether it serves or not."""
        return tuple(role for role, default in self._defaults.items() if default == name)

    def missing(self) -> str | None:
        """Return a default model that does not serve any more; None while all do."""
        return next((name for name in self._defaults.values() if name not in self._serving), None)

    def serving(self, name: str) -> Serving | None:
        """Return what serves by a model's own name."""
        return self._serving.get(name)

    def require(self, name: str) -> Serving:
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

    def put(self, name: str, serving: Serving | None, *, refused: str | None = None) -> None:
        """Let another model serve by a name from now on, or none; and say that to who watches.

        Args:
            name: The model's own.
            serving: What serves.
            refused: Why nothing does, where that is for a fault.
        """
        if serving is None:
            self._serving.pop(name, None)
        else:
            self._serving[name] = serving
        self._refused.pop(name, None)
        if refused is not None:
            self._refused[name] = refused
        self._settle_defaults()
        self.told()

    def watch(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever other models, or aliases, serve than before."""
        self._watchers.append(told)

    def told(self) -> None:
        """Tell who watches."""
        for told in self._watchers:
            told()

    def close(self, seconds: float = 10.0) -> None:
        """Refuse new work, and finish what runs; what takes over ``seconds`` is left behind."""
        self.changing.close()
        for serving in self._serving.values():
            serving.model.close()
        for team in self.teams:
            team.close(seconds)
        self._opener.threads.shutdown(wait=False, cancel_futures=True)

    def _settle_defaults(self) -> None:
        """Choose a default for each role that has none yet."""
        for role, wanted in DEFAULTS.items():
            if role in self._defaults:
                continue
            # Rerankers: pairs before cross-encoders. Classifiers: one label tells nothing apart.
            names = [name for name, one in self._serving.items() if _plays(one.model, role)]
            names.sort(key=lambda name: isinstance(self._serving[name].model, Classifier))
            if role == "classifier":
                kinds = {name: self._serving[name].model.info.kind for name in names}
                names = [name for name in names if kinds[name] == "classifier"] or names
            if names:
                self._defaults[role] = wanted if wanted in names else names[0]

    def _find(self, name: str | None, role: Role) -> Running:
        asked = name or f"default {role}"  # no model's name holds a blank
        call = callers.served()
        kept: dict[str, Serving] = {} if call is None else call.kept
        if asked in kept and _plays(kept[asked].model, role):
            return kept[asked].model
        wanted = self.aliases.resolve(name or self._defaults.get(role, DEFAULTS[role]))
        serving = kept.get(wanted) or self._serving.get(wanted)
        if serving is None or not _plays(serving.model, role):
            if not wanted:
                raise ModelCannot(f"no {role} serves", field="model")
            those = sorted(own for own, one in self._serving.items() if _plays(one.model, role))
            raise self._unknown(name or wanted, role, those)
        if call is not None:
            serving.lend(call, (asked, wanted))
        return serving.model

    def _unknown(self, wanted: str, what: str, serving: list[str]) -> ModelNotFound:
        error = ModelNotFound
        target = self.aliases.resolve(wanted)
        if target in self._refused:
            reason = f"was refused: {self._refused[target]}"
        elif target in self._serving:
            reason, error = f"is no {what}", ModelCannot
        elif target in self._defaults.values():
            reason = "was unloaded"
        else:
            reason = "does not exist" if target == wanted else "does not serve"
        named = shorten(wanted) if target == wanted else f"{shorten(target)} (alias {wanted!r})"
        return error(
            f"model {named} {reason}; {what}s that serve: {serving}", field="model", value=wanted
        )


def _plays(model: Running, role: Role) -> bool:
    if role == "encoder":
        return isinstance(model, Encoder)
    if role == "oscar-pair":
        return isinstance(model, Reader)
    if role == "reranker" and isinstance(model, Reader):
        return model.traits.scores
    return isinstance(model, Classifier) and (role == "classifier" or model.info.kind == "reranker")
