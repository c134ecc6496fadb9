"""Stand-ins for models, exact enough to foretell every number; the index and metrics are real."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import CondenseryError, InputError, ModelNotFound
from condensery.index.store import IndexStore
from condensery.jobs.services import Limits, Services
from condensery.metrics import Metrics
from condensery.runtime.generator import Token
from condensery.runtime.reader import ReadingCost
from condensery.values import CompressedPassage, Embedded, Floats, ModelInfo, Scored

DIMS = 8
MEMORY_TOKENS = 2
QUERY_TOKENS = 8


def info(name: str, kind: str) -> ModelInfo:
    return ModelInfo(
        name=name,
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
    )


def vector_of(text: str) -> Floats:
    digest = hashlib.sha256(text.encode()).digest()[:DIMS]
    raw = np.frombuffer(digest, np.uint8).astype(np.float32) - 127.5
    return raw / np.linalg.norm(raw)


@dataclass
class StandInEncoder:
    """A text's vector hangs on its characters alone; a token is a word.

    A forward pass takes ``delay`` seconds; ``waiting`` is how many are under way.
    """

    info: ModelInfo
    prompts: Mapping[str, str] = field(default_factory=lambda: {"query": "query: "})
    asked: list[tuple[str, str, bool | None]] = field(default_factory=list)
    fails: CondenseryError | Exception | None = None
    delay: float = 0
    waiting: int = 0

    async def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: bool = True,
        field: str = "input",
    ) -> Embedded:
        if self.fails is not None:
            raise self.fails
        self.asked += [(text, prompt, normalize) for text in texts]
        self.waiting += 1
        try:
            await asyncio.sleep(self.delay)
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
            vectors=np.stack([vector_of(text) for text in texts]),
            tokens=sum(counts),
            truncated=over,
        )

    def offsets(self, text: str) -> list[tuple[int, int]]:
        spans, start = [], 0
        for word in text.split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
        return spans


@dataclass
class StandInReader:
    """A passage's relevance is how often it says "gold"; the answer is the best one's words."""

    info: ModelInfo
    fails_after: int | None = None
    closed: int = 0

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        field: str = "documents",
    ) -> Scored:
        del field
        cut = len(query.split()) > QUERY_TOKENS
        if cut and not truncate:
            raise InputError("query is too long", field="query")
        scores = np.array([passage.count("gold") for passage in passages], np.float32)
        tokens = sum(len(one.split()) for one in passages)
        return Scored(self.info.name, scores, tokens, query_truncated=cut)

    async def compress(self, question: str, passages: Sequence[str]) -> list[CompressedPassage]:
        del question
        return [
            CompressedPassage(
                memory=np.full((MEMORY_TOKENS, 4), place, np.float32),
                relevance=float(passage.count("gold")),
                tokens_in=len(passage.split()),
            )
            for place, passage in enumerate(passages)
        ]

    def generate(
        self, question: str, memory: Sequence[Floats], *, max_tokens: int
    ) -> AsyncIterator[Token]:
        return self._say([question, *(str(int(one[0, 0])) for one in memory)], max_tokens)

    def generate_plain(
        self, question: str, passages: Sequence[str], *, max_tokens: int
    ) -> AsyncIterator[Token]:
        return self._say([question, *passages], max_tokens)

    async def _say(self, words: Sequence[str], max_tokens: int) -> AsyncIterator[Token]:
        try:
            for count, word in enumerate(words, 1):
                if self.fails_after is not None and count > self.fails_after:
                    raise RuntimeError("secret detail")
                last = count == max_tokens
                yield Token(f"{word} ", count, "length" if last else None)
                if last:
                    return
            yield Token("", len(words), "stop")
        finally:
            self.closed += 1

    def cost(
        self,
        question: str,
        compressed: Sequence[CompressedPassage],
        kept: Sequence[str],
        *,
        plain: bool,
        completion_tokens: int,
    ) -> ReadingCost:
        tokens = sum(len(text.split()) for text in kept)
        asked = len(question.split())
        vectors = 0 if plain else MEMORY_TOKENS * len(kept)
        used = 10 * tokens if plain else 10 * vectors + len(compressed)
        text = asked + tokens if plain else asked
        return ReadingCost(text, vectors, tokens, used, 10 * tokens, asked, 8 + completion_tokens)


@dataclass
class StandInPool:
    encoders: dict[str, StandInEncoder]
    readers: dict[str, StandInReader]

    def encoder(self, name: str | None = None) -> StandInEncoder:
        return self._find(self.encoders, name)

    def scorer(self, name: str | None = None) -> StandInReader:
        return self._find(self.readers, name)

    def reader(self, name: str | None = None) -> StandInReader:
        return self._find(self.readers, name)

    def models(self) -> list[ModelInfo]:
        return [one.info for one in [*self.encoders.values(), *self.readers.values()]]

    def refused(self) -> Mapping[str, str]:
        return {"broken": "model.json is cut short"}

    @staticmethod
    def _find(serving, name):
        if name is None:
            return next(iter(serving.values()))
        if name not in serving:
            raise ModelNotFound(f"model {name!r} does not exist", field="model", value=name)
        return serving[name]


@pytest.fixture
def pool() -> StandInPool:
    encoders = {name: StandInEncoder(info(name, "encoder")) for name in ("words", "other")}
    return StandInPool(encoders, {"pair": StandInReader(info("pair", "oscar-pair"))})


@pytest.fixture
def services(pool: StandInPool, tmp_path: Path) -> Iterator[Services]:
    metrics = Metrics()
    for model in pool.models():
        metrics.prepare_model(model.name)
    with IndexStore(tmp_path, metrics=metrics) as indexes:
        limits = Limits(max_items=50, max_body_bytes=20_000, passage_tokens=12, passage_overlap=2)
        services = Services(pool=pool, indexes=indexes, metrics=metrics, limits=limits)
        services.health.start()
        yield services
