"""What jobs need of running models and of indexes: signatures only.

The runtime and the index satisfy these protocols by shape, and so do the stand-ins of the tests;
what a method does, raises and blocks on is documented where it is implemented.
"""

# ruff: noqa: D102  as the module says

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from condensery.errors import CondenseryError
from condensery.index.filters import Filter
from condensery.index.selecting import PageQuery
from condensery.question import GREEDY, CompressedPassage, FinishReason, Sampling, TokenLogprob
from condensery.values import (
    Alias,
    AliasAction,
    Classified,
    Document,
    Embedded,
    EmbeddedTokens,
    Floats,
    Hit,
    IndexInfo,
    IndexPrompts,
    Input,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelUnload,
    ModelVersion,
    Page,
    PairTraits,
    Passage,
    RebuildPlan,
    Scored,
    Snapshot,
    SnapshotList,
    TextToken,
    TruncationDirection,
)

if TYPE_CHECKING:  # else describing the REST API would load faiss
    from condensery.index.rebuilding import Rebuilding

JsonObject = Mapping[str, Any]


class Encoder(Protocol):
    """Texts to vectors, batched with those of other callers."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def prompts(self) -> Mapping[str, str]: ...
    @property
    def default_prompt(self) -> str | None: ...
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
    ) -> Embedded: ...
    async def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "input",
    ) -> EmbeddedTokens: ...
    def offsets(self, text: str) -> list[tuple[int, int]]: ...
    def pieces(
        self, text: str, *, special: bool = True, field: str = "inputs"
    ) -> list[TextToken]: ...
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


class Scorer(Protocol):
    """(query, passage) pairs to relevance scores, order kept."""

    @property
    def info(self) -> ModelInfo: ...
    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "documents",
    ) -> Scored: ...


class Classifier(Protocol):
    """Texts, or pairs of texts, to a logit for each of ``info.labels``."""

    @property
    def info(self) -> ModelInfo: ...
    async def classify(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "inputs",
    ) -> Classified: ...


class GeneratedToken(Protocol):
    """A step of generation: its text, the tokens so far, and why it ended (on the last only).

    ``waited`` is the seconds until the generator could begin with its answer.
    """

    @property
    def text(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def finish(self) -> FinishReason | None: ...
    @property
    def logprob(self) -> TokenLogprob | None: ...
    @property
    def waited(self) -> float: ...


class GeneratorPrompt(Protocol):
    """A question and its context as the generator reads them; ``vectors`` counts memory vectors."""

    @property
    def vectors(self) -> int: ...


class AnswerCost(Protocol):
    """What an answer takes: FLOPs from config dimensions, tokens as counted.

    ``flops_plain`` is of reading the same passages as text; ``question_limit`` is how many tokens
    of the question the compressor reads (None: all).
    """

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def context_vectors(self) -> int: ...
    @property
    def flops_used(self) -> int: ...
    @property
    def flops_plain(self) -> int: ...
    @property
    def question_tokens(self) -> int: ...
    @property
    def question_limit(self) -> int | None: ...


class CountedAnswer(Protocol):
    """An answer's texts, tokenised and counted: what it takes is arithmetic from here on.

    ``read`` is every passage that was compressed for it, whether or not it is in the prompt.
    """

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> AnswerCost: ...
    def compressing(self, read: Sequence[CompressedPassage]) -> int: ...


class OscarModel(Protocol):
    """An OSCAR pair: compresses passages for a question, then answers from the vectors.

    A context is what the generator reads, best first: memory vectors (vectors, hidden size), or
    text for a passage that is read plain; ``sizes`` are about the positions that each takes, and
    ``room`` what a prompt and its answer leave free (negative: too long). What is not awaited runs
    in the calling thread. Given the tokens of each passage, ``afford`` returns how many of the
    first are compressed; a passage that fails has its error in its place. ``kept`` is the text of
    the passages in a prompt, None where the prompt holds it already. ``expected_ms`` is about how
    long the first token takes, as measured so far; 0 if unknown.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def traits(self) -> PairTraits: ...
    async def compress(
        self,
        question: str,
        passages: Sequence[str],
        *,
        field: str = "documents",
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> list[CompressedPassage | CondenseryError]: ...
    def tokenise(self, question: str, context: Sequence[Floats | str]) -> GeneratorPrompt: ...
    def sizes(self, context: Sequence[Floats | str]) -> list[int]: ...
    def count(self, question: str, prompt: Any, kept: Sequence[str] | None) -> CountedAnswer: ...
    def generate_from(
        self, prompt: Any, *, max_tokens: int, sampling: Sampling = GREEDY, stop: Sequence[str] = ()
    ) -> AsyncIterator[GeneratedToken]: ...
    def room(self, prompt: Any, max_tokens: int) -> int: ...
    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float: ...


class ModelMeasurements(Protocol):
    """How good a model was measured to be. Calls block on disk: jobs run them in a thread."""

    def report(self) -> ModelReport: ...
    def card(self) -> str: ...
    def plot(self, name: str) -> bytes: ...


class ModelAliases(Protocol):
    """Other names of models: ``targets`` are models, or other aliases."""

    @property
    def targets(self) -> Mapping[str, str]: ...
    def resolve(self, name: str) -> str: ...
    def of(self, model: str) -> Sequence[str]: ...


class ModelLifecycle(Protocol):
    """Loads, replaces and unloads models while they serve.

    ``check`` is called at the last moment, and raises what speaks against unloading.
    """

    async def load(
        self, name: str, version: str | None = None, *, again: bool = False
    ) -> ModelLoad: ...
    async def unload(self, name: str, check: Callable[[], None]) -> ModelUnload: ...
    async def set_aliases(self, changes: Mapping[str, str | None]) -> Mapping[str, str]: ...
    async def versions(self) -> list[ModelVersion]: ...


class ModelRegistry(Protocol):
    """The running models by name; None asks for the default of its kind (else ModelNotFound).

    ``models`` lists what serves, defaults first; ``refused`` the stored ones that could not be
    loaded, with the reason; ``default_of`` the roles for which a model is the default; ``missing``
    is a default that does not serve any more. ``watch`` calls back at each change.
    """

    def encoder(self, name: str | None = None) -> Encoder: ...
    def scorer(self, name: str | None = None) -> Scorer: ...
    def classifier(self, name: str | None = None) -> Classifier: ...
    def reader(self, name: str | None = None) -> OscarModel: ...
    def measured(self, name: str) -> ModelMeasurements: ...
    def models(self) -> list[ModelInfo]: ...
    def refused(self) -> Mapping[str, str]: ...
    def default_of(self, name: str) -> Sequence[str]: ...
    def missing(self) -> str | None: ...
    def watch(self, told: Callable[[], None]) -> None: ...
    @property
    def aliases(self) -> ModelAliases: ...
    @property
    def changing(self) -> ModelLifecycle: ...


class IndexMaintenance(Protocol):
    """What is done to whole indexes while they serve. Calls block on disk."""

    def snapshot(self, name: str) -> Snapshot: ...
    def snapshots(self, name: str) -> SnapshotList: ...
    def get_snapshot(self, name: str, snapshot: str) -> Snapshot: ...
    def delete_snapshot(self, name: str, snapshot: str) -> None: ...
    def restore(self, name: str, snapshot: str, into: str | None = None) -> IndexInfo: ...
    def rebuild(
        self,
        name: str,
        *,
        encoder: str,
        fingerprint: str,
        dims: int,
        metric: str,
        kind: str,
        options: Mapping[str, int] | None = None,
        prompts: IndexPrompts | None = None,
    ) -> "Rebuilding": ...
    def unfinished_rebuilds(self) -> list[RebuildPlan]: ...
    def cancel_rebuild(self, name: str) -> None: ...


class Indexes(Protocol):
    """The indexes of a data directory; an alias does wherever a name is asked for.

    Calls block on disk, but for ``info``, ``list`` and ``aliases``, which answer from memory: jobs
    run the others in a thread. ``embedded_for`` is the description that ``info`` returned when the
    prompts were chosen (EncoderMismatch if the index has others now); None for a caller's vectors.
    """

    @property
    def keeping(self) -> IndexMaintenance: ...
    def create(
        self,
        name: str,
        *,
        encoder: str,
        fingerprint: str,
        dims: int,
        metric: str,
        kind: str,
        options: Mapping[str, int] | None = None,
        prompts: IndexPrompts | None = None,
    ) -> IndexInfo: ...
    def info(self, name: str) -> IndexInfo: ...
    def drop(self, name: str) -> None: ...
    def aliases(self) -> list[Alias]: ...
    def update_aliases(self, actions: Sequence[AliasAction]) -> list[Alias]: ...
    def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        passages: Sequence[Passage],
        vectors: Floats,
        *,
        fingerprint: str,
        embedded_for: IndexInfo | None = None,
    ) -> None: ...
    def delete(self, name: str, ids: Sequence[str]) -> int: ...
    def delete_chosen(self, name: str, chosen: Filter) -> int: ...
    def query(
        self,
        name: str,
        vector: Floats,
        *,
        top_k: int,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
        chosen: Filter | None = None,
    ) -> list[Hit]: ...
    def match(
        self, name: str, words: str, *, top_k: int, chosen: Filter | None = None
    ) -> list[Hit]: ...
    def count(self, name: str, chosen: Filter | None = None) -> tuple[int, int]: ...
    def read_page(self, name: str, wanted: PageQuery) -> Page: ...
    def get(self, name: str, ids: Sequence[str]) -> list[Document]: ...

    # the last, since from here on `list` is the method
    def list(self) -> list[IndexInfo]: ...
