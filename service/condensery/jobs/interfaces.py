"""What jobs need of running models and of stored indexes: signatures only.

The runtime and the index satisfy these protocols by shape, and so do the stand-ins of the tests.
What a method of a model does, raises and blocks on is documented where it is implemented.
"""

# ruff: noqa: D102  as the module says

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from condensery.errors import CondenseryError
from condensery.index.filters import Filter
from condensery.index.selecting import PageQuery
from condensery.question import (
    GREEDY,
    AnswerCost,
    CompressedPassage,
    GeneratedToken,
    Sampling,
)
from condensery.values import (
    Classified,
    Document,
    Embedded,
    EmbeddedTokens,
    Floats,
    Hit,
    IndexInfo,
    IndexSpec,
    Input,
    ModelInfo,
    ModelLoad,
    ModelRole,
    ModelUnload,
    ModelVersion,
    Page,
    PairTraits,
    Passage,
    Scored,
    Snapshot,
    TextToken,
    TruncationDirection,
)

if TYPE_CHECKING:  # else describing the REST API would load faiss
    from condensery.index.maintenance import IndexMaintenance
    from condensery.store.aliases import ModelAliases
    from condensery.store.reports import StoredReport

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
    def decode(
        self, ids: Sequence[int], *, skip_special: bool = True, field: str = "ids"
    ) -> str: ...


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


class GeneratorPrompt(Protocol):
    """A question and its context as the generator reads them; ``vectors`` counts memory vectors."""

    @property
    def vectors(self) -> int: ...


class CountedAnswer(Protocol):
    """An answer's texts, tokenised and counted: what it takes is arithmetic from here on.

    ``read`` is every passage that was compressed for it, whether or not it is in the prompt.
    """

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> AnswerCost: ...
    def compressing(self, read: Sequence[CompressedPassage]) -> int: ...


class AnswerGenerator(Protocol):
    """What writes an answer: a pair's own generator, or another server's model.

    A context is what it reads, best first: memory vectors (vectors, hidden size), or text for a
    passage that is read plain; ``count_positions`` is about how many each takes, and
    ``free_positions`` what a prompt and its answer leave free (negative: too long); ``quotes`` are
    what an answer may say that reads these texts, None for anything, with the characters that the
    vectors of each point at. What is not awaited runs in the calling thread.
    """

    def make_prompt(self, question: str, context: Sequence[Floats | str]) -> GeneratorPrompt: ...
    def count_positions(self, context: Sequence[Floats | str]) -> list[int]: ...
    def free_positions(self, prompt: Any, max_tokens: int) -> int: ...
    def quotes(
        self, texts: Sequence[str], pointed: Sequence[tuple[int, int] | None] = ()
    ) -> Any: ...
    def generate_from_prompt(
        self,
        prompt: Any,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        quotes: Any = None,
    ) -> AsyncIterator[GeneratedToken]: ...


class AnswerServer(AnswerGenerator, Protocol):
    """Another server, whose ``model`` writes the answers of all pairs; it reads text alone.

    Its last token has ``prompt_tokens``. What it does wrong is AnswerServerFault or
    AnswerServerUnavailable.
    """

    @property
    def model(self) -> str: ...


class OscarModel(AnswerGenerator, Protocol):
    """An OSCAR pair: compresses passages for a question, then answers from the vectors.

    Given the tokens of each passage, ``afford`` returns how many of the first are compressed; a
    passage that fails has its error in its place. ``kept`` is the text of the passages in a prompt,
    None where the prompt holds it already. ``expected_ms`` is about how long the first token takes,
    as measured so far; 0 if unknown. ``writer`` is by what name another server's model writes its
    answers, None where its own generator does.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def writer(self) -> str | None: ...
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
    @property
    def generator_share(self) -> float: ...
    def count_answer(
        self, question: str, prompt: Any, kept: Sequence[str] | None
    ) -> CountedAnswer: ...
    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float: ...


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

    ``models`` lists what serves, all or in some roles, defaults first; ``refusals`` the stored ones
    that could not be loaded, with the reason; ``default_of`` the roles for which a model is the
    default; ``missing`` is a default that does not serve any more. ``unready`` is why a model, or
    any default one, can't do all of its work now. ``watch`` calls back at each change.
    """

    def encoder(self, name: str | None = None) -> Encoder: ...
    def scorer(self, name: str | None = None) -> Scorer: ...
    def classifier(self, name: str | None = None) -> Classifier: ...
    def pair(self, name: str | None = None) -> OscarModel: ...
    def measurements(self, name: str) -> "StoredReport": ...
    def models(self, *roles: ModelRole) -> list[ModelInfo]: ...
    def refusals(self) -> Mapping[str, str]: ...
    def default_of(self, name: str) -> Sequence[str]: ...
    def missing(self) -> str | None: ...
    def unready(self, name: str | None = None) -> str | None: ...
    def watch(self, callback: Callable[[], None]) -> None: ...
    @property
    def aliases(self) -> "ModelAliases": ...
    @property
    def lifecycle(self) -> ModelLifecycle: ...


class VectorStore(Protocol):
    """Where indexes are: ours (``condensery.index``), or a vector database behind an adaptor.

    This is all that ``/v1/indexes/*`` and retrieval for an answer need of one. An adaptor keeps a
    collection an index, with its ``IndexSpec``, and a point a passage: its vector, and as payload
    its id and span and its document's id, text and metadata. It holds to this:

    * Calls block: jobs make them in threads, many at once. ``info`` and ``list`` answer from
      memory, since the event loop calls them.
    * A write is made whole or not at all, is durable on return, and is seen by every later read.
      ``upsert`` replaces documents of the same ids, with all their passages.
    * ``query`` is a vector, (dims,), ranked by the index's metric, or words, ranked by BM25. Hits
      come best first, and more is better. The two are fused here, by their ranks.
    * A filter means what ``index.filters`` says, in a query as in a deletion. ``scroll`` goes by
      id, as ``PageQuery`` has it; ``count`` is of documents and of passages.
    * ``fingerprint`` is of the encoder that made the vectors. ``embedded_for`` is what ``info``
      said when the prompts were taken, None for a caller's own vectors. Where the index is of
      another encoder or has other prompts by now, it is EncoderMismatch.
    * Errors are ours: IndexNotFound, IndexExists, EncoderMismatch, InputError for a wrong request;
      StorageFull, StorageReadOnly, StorageError for what the database can't do.

    ``create`` with the same specification again returns the index as it is. ``maintenance`` is
    None where the database has no aliases, restores or rebuilds that this service could drive:
    they are refused then, and its own tools do them.
    """

    @property
    def maintenance(self) -> "IndexMaintenance | None": ...
    def create(self, name: str, spec: IndexSpec) -> IndexInfo: ...
    def info(self, name: str) -> IndexInfo: ...
    def drop(self, name: str) -> None: ...
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
    def delete(self, name: str, documents: Sequence[str] | Filter) -> int: ...
    def query(
        self,
        name: str,
        query: Floats | str,
        *,
        top_k: int,
        filter: Filter | None = None,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
    ) -> list[Hit]: ...
    def get(self, name: str, ids: Sequence[str]) -> list[Document]: ...
    def scroll(self, name: str, page: PageQuery) -> Page: ...
    def count(self, name: str, filter: Filter | None = None) -> tuple[int, int]: ...
    def snapshot(self, name: str) -> Snapshot: ...

    # the last, since from here on `list` is the method
    def list(self) -> list[IndexInfo]: ...
