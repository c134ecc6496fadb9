"""Running models whose weights are elsewhere, as registry and jobs know them.

What needs no weights (tokenizers, prompts, quotes, costs) is done here, in the caller's thread; the
rest is a call to a replica. None of these classes knows how a replica is reached: ``Remote`` does.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from condensery.cluster.calling import Remote
from condensery.cluster.messages import ModelFacts, PairNumbers
from condensery.errors import CondenseryError, CorruptModel, ModelCannot
from condensery.networks.oscar_interface import PassageWindow, PromptPart
from condensery.networks.oscar_loading import open_texts
from condensery.networks.quoting import Quotes
from condensery.question import GREEDY, CompressedPassage, GeneratedToken, Sampling
from condensery.runtime.generator import GeneratorBounds, StopStrings
from condensery.runtime.loader import RunningModel
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import LOAD_ERRORS, PairFacts, pair_traits
from condensery.runtime.tokenizing import (
    TOKENIZER,
    TYPICAL_CHARACTERS_PER_TOKEN,
    TextTokenizer,
    check_text,
)
from condensery.store.manifest import StoredModel
from condensery.values import (
    Classified,
    Embedded,
    EmbeddedTokens,
    Floats,
    Input,
    ModelInfo,
    ModelRole,
    Scored,
    TextToken,
)

if TYPE_CHECKING:
    from condensery.metrics import Metrics


def _count(texts: Sequence[Input]) -> int:
    """Return about how many tokens texts have."""
    characters = sum(len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts)
    return characters // TYPICAL_CHARACTERS_PER_TOKEN + 2 * len(texts)


class _Elsewhere:
    """What models and halves of pairs that run elsewhere have in common."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return self.remote.busy

    @property
    def unready(self) -> str | None:
        """Why no replica can serve a call now; None: one can."""
        return self.remote.unready

    def close(self) -> None:
        """Refuse new calls; those under way are finished."""
        self.remote.close()


class _RemoteModel(_Elsewhere):
    """What encoders and classifiers that run elsewhere have in common."""

    parts: Sequence[Any] = ()

    def __init__(self, remote: Remote, info: ModelInfo) -> None:
        super().__init__(remote)
        self.info = info


class RemoteEncoder(_RemoteModel):
    """An encoder that runs elsewhere; its tokenizer is here.

    Raises:
        CorruptModel: The stored model's tokenizer can't be read.
    """

    roles: frozenset[ModelRole] = frozenset({"encoder"})

    def __init__(
        self, remote: Remote, stored: StoredModel, info: ModelInfo, threads: ThreadPoolExecutor
    ) -> None:
        super().__init__(remote, info)
        self.prompts: Mapping[str, str] = stored.manifest.prompts
        self.default_prompt = stored.manifest.default_prompt
        folder = stored.file(TOKENIZER).parent
        self._tokenizer = TextTokenizer.load(folder, info.max_tokens, threads)
        self.content_tokens = self._tokenizer.max_tokens - self._tokenizer.special_tokens

    async def embed(
        self, texts: Sequence[str], *, field: str = "input", **options: Any
    ) -> Embedded:
        """Embed each text, as ``Encoder.embed``; raises likewise, and as ``Remote.call``."""
        embedded: Embedded = await self._embed("embed", texts, field=field, **options)
        return embedded

    async def embed_tokens(
        self, texts: Sequence[str], *, field: str = "input", **options: Any
    ) -> EmbeddedTokens:
        """Return every token's vector, as ``Encoder.embed_tokens``; raises as ``embed``."""
        embedded: EmbeddedTokens = await self._embed("embed_tokens", texts, field, **options)
        return embedded

    async def _embed(self, method: str, texts: Sequence[str], field: str, **options: Any) -> Any:
        self._tokenizer.check(texts, field)  # what can't be read goes nowhere
        tokens = _count(texts)
        return await self.remote.call(method, list(texts), field=field, tokens=tokens, **options)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return each token's characters, as ``Encoder.offsets``; here."""
        return self._tokenizer.offsets(text)

    def pieces(self, text: str, *, special: bool = True, field: str = "inputs") -> list[TextToken]:
        """Return the tokens of a text, as ``Encoder.pieces``; here."""
        check_text(text, field, self._tokenizer.max_characters)
        return self._tokenizer.pieces(text, special=special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, field: str = "ids") -> str:
        """Return the text of token ids, as ``Encoder.decode``; here."""
        return self._tokenizer.decode(ids, skip_special=skip_special, field=field)

    async def probe(self, text: str) -> Floats:
        """Return a text's vector, (1, dims), for the self-test to compare."""
        return (await self.embed([text])).vectors

    async def warm_up(self) -> None:
        """Ask once; the replica has warmed itself up."""
        await self.embed(["a"])


class RemoteClassifier(_RemoteModel):
    """A classifier, or cross-encoder, that runs elsewhere."""

    def __init__(self, remote: Remote, info: ModelInfo) -> None:
        super().__init__(remote, info)
        self.roles: frozenset[ModelRole] = frozenset(
            {"classifier", "reranker"} if info.kind == "reranker" else {"classifier"}
        )

    async def classify(self, inputs: Sequence[Input], **options: Any) -> Classified:
        """Read each text or pair, as ``Classifier.classify``; raises so, and as ``Remote.call``."""
        tokens = _count(inputs)
        read: Classified = await self.remote.call(
            "classify", list(inputs), tokens=tokens, **options
        )
        return read

    async def score(self, query: str, passages: Sequence[str], **options: Any) -> Scored:
        """Score each passage, as ``Classifier.score``; raises likewise, and as ``Remote.call``."""
        tokens = _count([(query, passage) for passage in passages])
        scored: Scored = await self.remote.call(
            "score", query, list(passages), tokens=tokens, **options
        )
        return scored

    async def probe(self, text: str) -> Floats:
        """Return a text's logits, (1, labels), for the self-test to compare."""
        return (await self.classify([text])).logits

    async def warm_up(self) -> None:
        """Ask once; the replica has warmed itself up."""
        await self.classify(["a"])


class RemoteCompressor(_Elsewhere):
    """A pair's compressor that runs elsewhere: windows there, memory vectors back."""

    async def compress(
        self, passages: Sequence[Sequence[PassageWindow]]
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress each passage, as ``Compressor.compress``; raises so, and as ``Remote.call``."""
        windows = [list(windows) for windows in passages]
        tokens = sum(len(window.ids) for own in windows for window in own)
        compressed: list[CompressedPassage | CondenseryError] = await self.remote.call(
            "compress", windows, tokens=tokens
        )
        return compressed

    def expected_seconds(self, tokens: int) -> float:
        """Return about how many seconds so many tokens take, as its replicas measured."""
        return self.remote.rates.compressing(tokens)


class RemoteGenerator(_Elsewhere):
    """A pair's generator that runs elsewhere: a prompt there, tokens back one at a time."""

    writer: None = None

    def __init__(self, remote: Remote, bounds: GeneratorBounds) -> None:
        super().__init__(remote)
        self.bounds = bounds

    async def start(self) -> bool:
        """Return True: its replicas are there before it is."""
        return True

    def watch(self, callback: Callable[[], None]) -> None:
        """Never call ``callback``: replicas that are gone are told by the calls to them."""

    def free_positions(self, prompt: Sequence[PromptPart], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt leaves free, as ``Generator.free_positions``."""
        return self.bounds.free_positions(prompt, size, max_tokens)

    def expected_seconds(self, positions: int) -> float:
        """Return about how many seconds a prompt takes, as its replicas measured."""
        return self.remote.rates.prompting(positions)

    async def generate(
        self,
        prompt: Sequence[Floats | PromptPart],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        quotes: Quotes | None = None,
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Continue a prompt, as ``Generator.generate``; raises likewise, and as ``Remote.call``."""
        StopStrings(stop)  # refuses wrong ones
        # Vectors as numpy has them; ids stay lists, by which they are told from vectors.
        parts = [
            part.numpy()
            if isinstance(part, Tensor)
            else part
            if isinstance(part, np.ndarray)
            else list(part)
            for part in prompt
        ]
        answer = self.remote.stream(
            "generate",
            parts,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=tuple(stop),
            quotes=quotes,
            tokens=sum(map(len, parts)) + max_tokens,
        )
        async with aclosing(answer) as tokens:
            async for token in tokens:
                yield token


class RemotePair(OscarModel):
    """An OSCAR pair whose halves run elsewhere; its texts are read here.

    Raises:
        CorruptModel: The stored pair's texts can't be read.
    """

    def __init__(
        self,
        remote: Remote,
        stored: StoredModel,
        info: ModelInfo,
        numbers: PairNumbers,
        threads: ThreadPoolExecutor,
        metrics: "Metrics | None",
    ) -> None:
        try:
            texts = open_texts(Path(stored.path), stored.manifest.shape)
        except LOAD_ERRORS as error:
            raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error
        self.remote = remote
        bounds = GeneratorBounds(numbers.longest, numbers.cache_positions)
        self._join(
            PairFacts(texts, numbers.cost, numbers.window, numbers.separators),
            RemoteCompressor(remote),
            RemoteGenerator(remote, bounds),
            info=info,
            threads=threads,
            traits=pair_traits(texts, stored.manifest.defaults),
            metrics=metrics,
        )

    async def warm_up(self) -> None:
        """Compress once; the replica has warmed itself up."""
        await self.probe("a")


def remote_model(
    remote: Remote,
    stored: StoredModel,
    facts: ModelFacts,
    threads: ThreadPoolExecutor,
    metrics: "Metrics | None",
) -> RunningModel:
    """Return a stored model that runs elsewhere.

    Raises:
        ModelCannot: Models of its kind run here alone (``register_kind``).
        CorruptModel: What of it is read here can't be.
    """
    kind = stored.manifest.kind
    if facts.pair is not None:
        return RemotePair(remote, stored, facts.info, facts.pair, threads, metrics)
    if kind == "encoder":
        return RemoteEncoder(remote, stored, facts.info, threads)
    if kind in ("classifier", "reranker"):
        return RemoteClassifier(remote, facts.info)
    raise ModelCannot(f"models of kind {kind!r} do not run on a cluster", field="model")
