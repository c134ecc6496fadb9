"""The engine's models, as jobs know models, in a process that has none.

What can't be known or done here raises ``NotHere``: the request is then passed on whole to the
engine's process, whose answer is right by definition.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from condensery.cluster.calling import Remote, Replicas
from condensery.errors import CondenseryError, CorruptModel, ModelCannot, ModelNotFound, shorten
from condensery.fronts.channel import EngineState, OtherVersion, ServedModel
from condensery.jobs.services import NotHere
from condensery.metrics import Metrics
from condensery.request_context import current_request
from condensery.runtime.tokenizing import INLINE_CHARACTERS, TextTokenizer
from condensery.values import (
    Classified,
    Embedded,
    EmbeddedTokens,
    Input,
    ModelInfo,
    ModelRole,
    Scored,
)


class NothingHere:
    """Stands where a part of the services is the engine's alone."""

    def __getattr__(self, name: str) -> Any:
        raise NotHere(name)


class FrontModel(NothingHere):
    """A model of the engine's, of any kind: called there.

    Short texts are tokenised here, which is a quarter of what they would cost the engine; longer
    ones there, part by part, while the first parts are computed.

    Attributes:
        info: As the engine shows it.
        prompts: Of an encoder; text put before an input, by the prompt's name.
    """

    def __init__(self, served: ServedModel, engine: Replicas, metrics: Metrics) -> None:
        self.served = served
        self.info = served.info
        self.roles = served.roles
        self.prompts = served.prompts
        self.default_prompt = served.default_prompt
        self.tokenizer: TextTokenizer | None = None  # until it is read
        self._metrics = metrics
        self._remote = Remote(served.id, engine)

    async def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **tokenising: Any,
    ) -> Embedded:
        """Embed each text, as ``Encoder.embed``; raises likewise, and as ``Remote.call``."""
        options = {"normalize": normalize, "dimensions": dimensions}
        embedded: Embedded
        prompt = tokenising.get("prompt", "")
        characters = sum(map(len, texts)) + len(prompt) * len(texts)
        if self.tokenizer is not None and characters <= INLINE_CHARACTERS:
            began = time.perf_counter()
            with self._metrics.stage(self.info.name, "tokenize"):
                tokens = self.tokenizer.encode(texts, **tokenising)
            current_request().stats.tokenizing += time.perf_counter() - began
            try:
                embedded = await self._remote.call(
                    "embed_tokenized",
                    [(text.ids, text.truncated) for text in tokens],
                    characters,
                    tokens=0,
                    **options,
                )
                return embedded
            except OtherVersion:  # its tokens may mean other words
                pass
        embedded = await self._remote.call("embed", list(texts), tokens=0, **options, **tokenising)
        return embedded

    async def embed_tokens(self, texts: Sequence[str], **options: Any) -> EmbeddedTokens:
        """Return every token's vector, as ``Encoder.embed_tokens``; raises as ``embed``."""
        vectors: EmbeddedTokens = await self._remote.call(
            "embed_tokens", list(texts), tokens=0, **options
        )
        return vectors

    async def classify(self, inputs: Sequence[Input], **options: Any) -> Classified:
        """Read each text or pair, as ``Classifier.classify``; raises as ``embed``."""
        read: Classified = await self._remote.call("classify", list(inputs), tokens=0, **options)
        return read

    async def score(self, query: str, passages: Sequence[str], **options: Any) -> Scored:
        """Score each passage, as ``Scorer.score``; raises as ``embed``."""
        scored: Scored = await self._remote.call(
            "score", query, list(passages), tokens=0, **options
        )
        return scored


class FrontRegistry(NothingHere):
    """Models by name and role, as the engine last told them.

    Args:
        engine: By which its models are called.
    """

    def __init__(self, engine: Replicas) -> None:
        self._engine = engine
        self._models: dict[str, FrontModel] = {}
        self._aliases: Mapping[str, str] = {}
        self._defaults: Mapping[ModelRole, str] = {}
        self._missing: Mapping[ModelRole, CondenseryError] = {}
        self._refusals: Mapping[str, str] = {}
        self._threads = ThreadPoolExecutor(1, "tokenizers")

    def update(self, state: EngineState, metrics: Metrics) -> None:
        """Know these models, and no others, from now on."""
        models = {}
        for served in state.models:
            model = self._models.get(served.info.name)
            if model is None or model.served != served:
                metrics.prepare_model(served.info.name)
                model = FrontModel(served, self._engine, metrics)
                if served.tokenizer is not None:
                    self._threads.submit(_read_tokenizer, model)
            models[served.info.name] = model
        self._models = models
        self._aliases, self._defaults = state.aliases, state.defaults
        self._missing, self._refusals = state.missing, state.refusals

    def encoder(self, name: str | None = None) -> FrontModel:
        """Return the encoder; None is the default one. Raises NotHere."""
        return self._find(name, "encoder")

    def scorer(self, name: str | None = None) -> FrontModel:
        """Return what reranks. Raises NotHere."""
        return self._find(name, "reranker")

    def classifier(self, name: str | None = None) -> FrontModel:
        """Return what classifies. Raises NotHere."""
        return self._find(name, "classifier")

    def models(self, *roles: ModelRole) -> list[ModelInfo]:
        """List what serves, in the engine's order."""
        return [
            model.info
            for model in self._models.values()
            if not roles or model.roles.intersection(roles)
        ]

    def explain(self, name: str | None, role: ModelRole) -> CondenseryError:
        """Return the error of a model that does not serve in a role, by what the engine told."""
        if name is None:
            told = self._missing[role]
            return type(told)(told.message, field=told.field, value=told.value)
        wanted = self._aliases.get(name, name)
        error, reason = ModelNotFound, "does not serve"
        if wanted in self._models:
            error, reason = ModelCannot, f"is no {role}"
        elif wanted in self._refusals:
            reason = f"was refused: {self._refusals[wanted]}"
        elif wanted in (told.value for told in self._missing.values()):
            reason = "was unloaded"
        serving = sorted(info.name for info in self.models(role))
        return error(
            f"model {shorten(name)} {reason}; {role}s that serve: {serving}",
            field="model",
            value=name,
        )

    def _find(self, name: str | None, role: ModelRole) -> FrontModel:
        wanted = self._defaults.get(role, "") if name is None else self._aliases.get(name, name)
        model = self._models.get(wanted)
        if model is None or role not in model.roles:
            raise NotHere(role)  # the engine has the words for it
        return model


class RefusingRegistry(NothingHere):
    """The same models for a door that can't pass on what it has read: it refuses what is not here.

    Args:
        registry: Kept up to date by who made it.
    """

    def __init__(self, registry: FrontRegistry) -> None:
        self._registry = registry
        self.models = registry.models

    def encoder(self, name: str | None = None) -> FrontModel:
        """Return the encoder; None is the default one. Raises ModelNotFound."""
        return self._find(self._registry.encoder, name, "encoder")

    def scorer(self, name: str | None = None) -> FrontModel:
        """Return what reranks. Raises ModelNotFound."""
        return self._find(self._registry.scorer, name, "reranker")

    def classifier(self, name: str | None = None) -> FrontModel:
        """Return what classifies. Raises ModelNotFound."""
        return self._find(self._registry.classifier, name, "classifier")

    def _find(
        self, find: Callable[[str | None], FrontModel], name: str | None, role: ModelRole
    ) -> FrontModel:
        try:
            return find(name)
        except NotHere:
            raise self._registry.explain(name, role) from None


def _read_tokenizer(model: FrontModel) -> None:
    """Read a model's tokenizer, off the event loop; until then, and without, the engine's does."""
    assert model.served.tokenizer is not None
    try:
        model.tokenizer = TextTokenizer.load(model.served.tokenizer, model.info.max_tokens)
    except CorruptModel:  # it has gone since: a new version is on its way
        return
