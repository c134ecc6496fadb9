"""Stand-ins for models, exact enough to foretell every number; the index and metrics are real."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.errors import (
    CondenseryError,
    InputError,
    ModelCannot,
    ModelNotFound,
    ReportNotFound,
)
from condensery.index.store import IndexStore
from condensery.jobs.contexts import ContextStore
from condensery.jobs.services import RequestLimits, Services
from condensery.metrics import Metrics
from condensery.question import (
    GREEDY,
    CompressedPassage,
    FinishReason,
    Likely,
    MemoryWindow,
    Sampling,
    TokenLogprob,
)
from condensery.store.aliases import ModelAliases
from condensery.values import (
    Classified,
    Embedded,
    EmbeddedTokens,
    Floats,
    Input,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelRole,
    ModelUnload,
    ModelVersion,
    PairTraits,
    Revision,
    Scored,
    TextToken,
    TruncationDirection,
)

DIMS = 8
VOCABULARY = 1000
MEMORY_TOKENS = 2
QUERY_TOKENS = 8
ROLES: dict[str, tuple[ModelRole, ...]] = {
    "encoder": ("encoder",),
    "oscar-pair": ("oscar-pair", "reranker"),
    "classifier": ("classifier",),
    "reranker": ("classifier", "reranker"),
}
TRAITS = PairTraits(vectors=(2, 1), rates=(4, 8))


def info(name: str, kind: str, labels: tuple[str, ...] = ()) -> ModelInfo:
    return ModelInfo(
        id=name,
        kind=kind,
        method="none",
        fingerprint=f"sha256:{name}",
        dims=DIMS if kind == "encoder" else None,
        max_tokens=16,
        dtype="float32",
        device="cpu",
        licence="Apache-2.0",
        created=1,
        pooling="mean",
        labels=labels,
        independent=len(labels) == 1,
    )


def vector_of(text: str) -> Floats:
    digest = hashlib.sha256(text.encode()).digest()[:DIMS]
    raw = np.frombuffer(digest, np.uint8).astype(np.float32) - 127.5
    return raw / np.linalg.norm(raw)


@dataclass
class StandInEncoder:
    """A text's vector hangs on its characters alone; a token is a word.

    A forward pass takes ``delay`` seconds, and waits for ``gate`` where there is one; ``waiting``
    is how many are under way.
    """

    info: ModelInfo
    prompts: Mapping[str, str] = field(default_factory=lambda: {"query": "query: "})
    default_prompt: str | None = None
    asked: list[tuple[str, str, bool | None]] = field(default_factory=list)
    fails: CondenseryError | Exception | None = None
    delay: float = 0
    gate: asyncio.Event | None = None
    waiting: int = 0
    tokenizer_folder: Path | None = None
    sides: list[TruncationDirection] = field(default_factory=list)

    async def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: bool = True,
        side: TruncationDirection = "right",
        dimensions: int | None = None,
        field: str = "input",
    ) -> Embedded:
        self.sides.append(side)
        if self.fails is not None:
            raise self.fails
        self.asked += [(text, prompt, normalize) for text in texts]
        self.waiting += 1
        try:
            await asyncio.sleep(self.delay)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.waiting -= 1
        counts = [len(text.split()) for text in texts]
        over = tuple(i for i, count in enumerate(counts) if count > self.info.max_tokens)
        if over and not truncate:
            where = f"{field}[{over[0]}]"
            raise InputError(f"{where} has {counts[over[0]]} tokens", field=where)
        return Embedded(
            model=self.info.name,
            fingerprint=self.info.fingerprint,
            vectors=np.stack([vector_of(text)[:dimensions] for text in texts]),
            tokens=sum(counts),
            truncated=over,
        )

    async def embed_tokens(self, texts: Sequence[str], **options: Any) -> EmbeddedTokens:
        embedded = await self.embed(texts, **options)
        vectors = [
            np.stack([vector_of(w) for w in text.split()] or [vector_of("")]) for text in texts
        ]
        return EmbeddedTokens(
            *(
                embedded.model,
                embedded.fingerprint,
                tuple(vectors),
                embedded.tokens,
                embedded.truncated,
            )
        )

    def pieces(self, text: str, *, special: bool = True, field: str = "inputs") -> list[TextToken]:
        del field
        marks = [TextToken(0, "<s>", True, None, None)] if special else []
        words = [(m.group(), *m.span()) for m in re.finditer(r"\S+", text)]
        return [*marks, *(TextToken(len(w), w, False, start, end) for w, start, end in words)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, field: str = "ids") -> str:
        if unknown := [item for item in ids if not 0 <= item < VOCABULARY]:
            raise InputError.at(field, f"{unknown[0]} is not a token id.", unknown[0])
        return " ".join(str(item) for item in ids if item or not skip_special)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        spans, start = [], 0
        for word in text.split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
        return spans


@dataclass(frozen=True)
class StandInToken:
    text: str
    count: int
    finish: FinishReason | None = None
    logprob: TokenLogprob | None = None
    waited: float = 0.0


@dataclass(frozen=True)
class StandInCost:
    prompt_tokens: int
    context_vectors: int
    flops_used: int
    flops_plain: int
    question_tokens: int
    question_limit: int


@dataclass(frozen=True)
class StandInPrompt:
    question: str
    context: list[Floats | str]

    @property
    def vectors(self) -> int:
        return sum(len(item) for item in self.context if not isinstance(item, str))

    @property
    def words(self) -> int:
        return sum(len(item.split()) for item in self.context if isinstance(item, str))


@dataclass(frozen=True)
class StandInCounted:
    """Ten FLOPs a token or vector in context, one a passage compressed."""

    prompt: StandInPrompt
    plain: int

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> StandInCost:
        asked = len(self.prompt.question.split())
        used = 10 * (self.prompt.vectors + self.prompt.words) + len(read)
        limit = QUERY_TOKENS + completion_tokens
        prompt = asked + self.prompt.words
        return StandInCost(prompt, self.prompt.vectors, used, 10 * self.plain, asked, limit)

    def compressing(self, read: Sequence[CompressedPassage]) -> int:
        return len(read)


@dataclass
class StandInOscarModel:
    """A passage's relevance is how often it says "gold"; the answer repeats what it read.

    A token is a word. A passage becomes two vectors that hold its place among those compressed
    together, and the answer says the question, then for each passage in context that place, or,
    for one that is read as text, its words.

    Attributes:
        fails_after: Tokens after which generation breaks.
        generator_share: What its generator costs a token, over its compressor.
        closed: Answers that have ended, or were left.
        faults: What compressing a passage gives instead, by its text.
        breaks: What compressing raises.
        delay: Seconds that a forward pass takes.
        passes: Passages of each forward pass.
        positions: What the generator holds; a question, a passage and an answer take their words.
        ms_each: Milliseconds of a compressed token, a vector, a text token and a passage.
        asked: How each answer was to be generated.
        contexts: What each answer was generated from.
        quoted: The texts that it was held to.
        words_each: Words of a window; a passage has as many windows as it needs.
        waited: Seconds that an answer waits for room, as it says.
        tokenised: Texts that became tokens of a prompt, or were counted as such.
    """

    info: ModelInfo
    fails_after: int | None = None
    generator_share: float = 1.5
    writer: str | None = None
    closed: int = 0
    traits: PairTraits = TRAITS
    faults: dict[str, CondenseryError] = field(default_factory=dict)
    breaks: BaseException | None = None
    delay: float = 0
    passes: list[list[str]] = field(default_factory=list)
    positions: int = 1_000_000
    ms_each: tuple[float, float, float, float] = (0, 0, 0, 0)
    asked: list[tuple[Sampling, tuple[str, ...]]] = field(default_factory=list)
    contexts: list[list[Floats | str]] = field(default_factory=list)
    quoted: list[tuple[str, ...]] = field(default_factory=list)
    pointed: list[list[str | None]] = field(default_factory=list)
    words_each: int = 1_000_000
    waited: float = 0.0
    tokenised: list[str] = field(default_factory=list)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "documents",
    ) -> Scored:
        del field
        if side == "left":
            raise InputError("truncation_direction: no", field="truncation_direction")
        cut = len(query.split()) > QUERY_TOKENS
        if cut and not truncate:
            raise InputError("query is too long", field="query")
        scores = np.array([passage.count("gold") for passage in passages], np.float32)
        tokens = sum(len(item.split()) for item in passages)
        return Scored(self.info.name, scores, tokens, query_truncated=cut)

    async def compress(
        self,
        question: str,
        passages: Sequence[str],
        *,
        field: str = "documents",
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> list[CompressedPassage | CondenseryError]:
        del question, field
        if afford is not None:
            passages = passages[: afford([len(passage.split()) for passage in passages])]
        self.passes.append(list(passages))
        await asyncio.sleep(self.delay)
        if self.breaks is not None:
            raise self.breaks
        return [
            self.faults.get(passage) or self._compressed(place, passage)
            for place, passage in enumerate(passages)
        ]

    def _compressed(self, place: int, passage: str) -> CompressedPassage:
        """Read the window that says "gold" most often; all of them where nothing is scored.

        Of each window the vectors hold its own place, a thousandth each, beside the passage's.
        """
        words = passage.split()
        starts = range(0, max(1, len(words)), self.words_each)
        cuts = [" ".join(words[start : start + self.words_each]) for start in starts]
        if len(cuts) == 1:
            cuts = [passage]
        if not self.traits.scores and len(cuts) > 1:
            parts, end = [], 0
            for number, cut in enumerate(cuts):
                end = passage.index(cut, end) + len(cut)
                memory = np.full((MEMORY_TOKENS, 4), place + number / 1000, np.float32)
                tokens = min(len(words), (number + 1) * self.words_each)
                parts.append(MemoryWindow(memory, tokens, end))
            return CompressedPassage(
                parts[0].memory, None, len(words), len(parts), 0, end, tuple(parts)
            )
        best = max(cuts, key=lambda cut: cut.count("gold"))
        start = passage.index(best)
        return CompressedPassage(
            memory=np.full((MEMORY_TOKENS, 4), place, np.float32),
            relevance=float(best.count("gold")) if self.traits.scores else None,
            tokens_in=len(words),
            windows=len(cuts),
            start=start,
            end=start + len(best),
        )

    def make_prompt(self, question: str, context: Sequence[Floats | str]) -> StandInPrompt:
        self.tokenised += [item for item in context if isinstance(item, str)]
        return StandInPrompt(question, list(context))

    def count_positions(self, context: Sequence[Floats | str]) -> list[int]:
        self.tokenised += [item for item in context if isinstance(item, str)]
        return [len(entry.split()) if isinstance(entry, str) else len(entry) for entry in context]

    def count_answer(
        self, question: str, prompt: StandInPrompt, kept: Sequence[str] | None
    ) -> StandInCounted:
        assert question == prompt.question
        self.tokenised += kept or ()
        words = prompt.words if kept is None else sum(len(text.split()) for text in kept)
        return StandInCounted(prompt, words)

    def quotes(
        self, texts: Sequence[str], pointed: Sequence[tuple[int, int] | None] = ()
    ) -> Sequence[str]:
        self.pointed.append(
            [at and text[slice(*at)] for text, at in zip(texts, pointed, strict=False)]
        )
        return texts

    def generate_from_prompt(
        self,
        prompt: StandInPrompt,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        quotes: Sequence[str] = (),
    ) -> AsyncIterator[StandInToken]:
        self.quoted.append(tuple(quotes))
        self.asked.append((sampling, tuple(stop)))
        self.contexts.append(prompt.context)
        words = [item if isinstance(item, str) else str(int(item[0, 0])) for item in prompt.context]
        tokens = self._say([prompt.question, *words], max_tokens)
        return tokens if sampling.logprobs is None else self._with_logprobs(tokens)

    async def _say(self, words: Sequence[str], max_tokens: int) -> AsyncIterator[StandInToken]:
        try:
            for count, word in enumerate(words, 1):
                if self.fails_after is not None and count > self.fails_after:
                    raise RuntimeError("secret detail")
                last = count == max_tokens
                finish: FinishReason | None = "length" if last else None
                yield StandInToken(f"{word} ", count, finish, waited=self.waited)
                if last:
                    return
            yield StandInToken("", len(words), "stop")
        finally:
            self.closed += 1

    async def _with_logprobs(
        self, tokens: AsyncIterator[StandInToken]
    ) -> AsyncIterator[StandInToken]:
        async for token in tokens:
            top = (Likely(token.text, -0.5),)
            logprob = TokenLogprob(token.text, -0.5, top) if token.text else None
            yield replace(token, logprob=logprob)

    def free_positions(self, prompt: StandInPrompt, max_tokens: int) -> int:
        taken = len(prompt.question.split()) + prompt.words + prompt.vectors
        return self.positions - taken - max_tokens

    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float:
        counts = (compress_tokens, vectors, text_tokens, passages)
        return sum(ms * count for ms, count in zip(self.ms_each, counts, strict=True))


@dataclass
class StandInClassifier:
    """A label's logit is how often a text has its first letter, of a pair the second text."""

    info: ModelInfo

    async def classify(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "inputs",
    ) -> Classified:
        kept = slice(100) if side == "right" else slice(-100, None)
        texts = [item if isinstance(item, str) else item[1] for item in inputs]
        if not truncate and (long := [i for i, text in enumerate(texts) if len(text) > 100]):
            raise InputError(f"{field}[{long[0]}] has too many tokens", field=f"{field}[{long[0]}]")
        logits = [[text[kept].count(label[0]) for label in self.info.labels] for text in texts]
        cut = tuple(i for i, text in enumerate(texts) if len(text) > 100)
        return Classified(self.info.name, np.array(logits, np.float32), len(texts), cut)


@dataclass
class StandInMeasured:
    """A report with a card and one plot; ``None`` was never measured."""

    model: str
    found: dict[str, object] | None

    def report(self) -> ModelReport:
        if self.found is None:
            raise ReportNotFound(f"model {self.model!r} was never measured.", field="model")
        return ModelReport(self.model, "3", "sha256:pair", self.found, True, ("cost",))

    def card(self) -> str:
        self.report()
        return "# pair\n\n![cost](plots/cost.png)\n"

    def plot(self, name: str) -> bytes:
        if name not in self.report().plots:
            raise ReportNotFound(f"model {self.model!r} has no plot {name!r}", field="plot")
        return b"\x89PNG of " + name.encode()


@dataclass
class StandInLifecycle:
    """Loads and unloads at once, what a test says; ``asked`` is what was asked for."""

    registry: "StandInRegistry"
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    fails: CondenseryError | None = None

    async def load(
        self, name: str, version: str | None = None, *, again: bool = False
    ) -> ModelLoad:
        self.asked.append((name, version, again))
        if self.fails is not None:
            raise self.fails
        info = self._find(name)
        previous = Revision("1", info.fingerprint)
        return ModelLoad(replace(info, version=version or "2"), previous, True, 0.5, 1024)

    async def unload(self, name: str, check: Callable[[], None]) -> ModelUnload:
        self.asked.append((name,))
        check()
        info = self._find(name)
        return ModelUnload(name, "2", info.fingerprint, 0.25)

    def _find(self, name: str) -> ModelInfo:
        for item in self.registry.models():
            if item.name == name:
                return item
        raise ModelNotFound(f"no model {name!r} in the store", field="model", value=name)

    async def set_aliases(self, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        serving = {model.name for model in self.registry.models()}
        self.registry.aliases.change(changes, serving=serving, taken=serving)
        return self.registry.aliases.targets

    async def versions(self) -> list[ModelVersion]:
        return [
            *(ModelVersion(model.name, "2", "READY") for model in self.registry.models()),
            ModelVersion("broken", "1", "UNAVAILABLE", "model.json is cut short"),
        ]


@dataclass
class StandInRegistry:
    encoders: dict[str, StandInEncoder]
    pairs: dict[str, StandInOscarModel]
    classifiers: dict[str, StandInClassifier] = field(default_factory=dict)
    aliases: ModelAliases = field(default_factory=ModelAliases)
    lacks: str | None = None
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lifecycle = StandInLifecycle(self)

    def encoder(self, name: str | None = None) -> StandInEncoder:
        return self._find(self.encoders, name)

    def scorer(self, name: str | None = None) -> StandInOscarModel:
        return self._find(self.pairs, name)

    def classifier(self, name: str | None = None) -> StandInClassifier:
        if not self.classifiers:
            raise ModelCannot("no classifier serves", field="model")
        return self._find(self.classifiers, name)

    def pair(self, name: str | None = None) -> StandInOscarModel:
        return self._find(self.pairs, name)

    def measurements(self, name: str) -> StandInMeasured:
        self._find({info.name: info for info in self.models()}, name)
        report = {"format": 2, "settings": {"gold": {"f1": {"mean": 49.5}}}}
        return StandInMeasured(name, report if name == "pair" else None)

    def models(self, *roles: ModelRole) -> list[ModelInfo]:
        serving = (self.encoders, self.pairs, self.classifiers)
        infos = [model.info for models in serving for model in models.values()]
        return [i for i in infos if not roles or set(roles) & set(ROLES[i.kind])]

    def refusals(self) -> Mapping[str, str]:
        return {"broken": "model.json is cut short"}

    def default_of(self, name: str) -> tuple[str, ...]:
        return ("encoder",) if name == next(iter(self.encoders), None) else ()

    def missing(self) -> str | None:
        return self.lacks

    def unready(self, name: str | None = None) -> str | None:
        return None

    def watch(self, callback: Callable[[], None]) -> None:
        self.watchers.append(callback)

    def _find(self, serving, name):
        if name is None:
            return next(iter(serving.values()))
        name = self.aliases.resolve(name)
        if name not in serving:
            raise ModelNotFound(f"model {name!r} does not exist", field="model", value=name)
        return serving[name]


@pytest.fixture
def registry() -> StandInRegistry:
    encoders = {name: StandInEncoder(info(name, "encoder")) for name in ("words", "other")}
    return StandInRegistry(encoders, {"pair": StandInOscarModel(info("pair", "oscar-pair"))})


@pytest.fixture
def classifiers(registry: StandInRegistry) -> StandInRegistry:
    """Let two classifiers serve as well, one of three labels and a cross-encoder."""
    for name, kind, labels in (
        ("nli", "classifier", ("contradiction", "entailment", "neutral")),
        ("cross", "reranker", ("relevant",)),
    ):
        registry.classifiers[name] = StandInClassifier(info(name, kind, labels))
    return registry


@pytest.fixture
def classifier_of() -> Callable[..., StandInClassifier]:
    """Make a classifier of a name and labels."""
    return lambda name, *labels: StandInClassifier(info(name, "classifier", labels))


@pytest.fixture
def services(registry: StandInRegistry, tmp_path: Path) -> Iterator[Services]:
    metrics = Metrics()
    for model in registry.models():
        metrics.prepare_model(model.name)
    with IndexStore(tmp_path, metrics=metrics) as indexes:
        limits = RequestLimits(
            max_items=50, max_body_bytes=20_000, passage_tokens=12, passage_overlap=2
        )
        services = Services(
            registry=registry,
            indexes=indexes,
            metrics=metrics,
            limits=limits,
            contexts=ContextStore(metrics=metrics),
        )
        services.health.start()
        yield services
