"""What the jobs need of the layers below. The runtime and the index satisfy it by shape."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from condensery.answers import CompressedPassage, FinishReason, TokenLogprob
from condensery.errors import CondenseryError
from condensery.index.filters import Filter
from condensery.index.selecting import Wanted
from condensery.questions import GREEDY, Sampling
from condensery.upkeep import Alias, AliasAction, RebuildPlan, Snapshot, SnapshotList
from condensery.values import (
    Classified,
    Document,
    Embedded,
    EmbeddedTokens,
    Floats,
    Hit,
    IndexInfo,
    Input,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelUnload,
    ModelVersion,
    Page,
    PairTraits,
    Passage,
    Piece,
    Scored,
    Side,
)


class Encoder(Protocol):
    """Texts to vectors, batched with whoever else asks."""

    @property
    def info(self) -> ModelInfo:
        """What runs."""
        ...

    @property
    def prompts(self) -> Mapping[str, str]:
        """The model's prompts by name."""
        ...

    @property
    def default_prompt(self) -> str | None:
        """The name of the one that is taken where none is named, if there is one."""
        ...

    async def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: bool = True,
        side: Side = "right",
        dimensions: int | None = None,
        field: str = "input",
    ) -> Embedded:
        """Embed each text, with ``prompt`` put before it.

        ``dimensions`` is how many of the first numbers are kept; None is all of them.

        Raises:
            InputError: A text is over the limits, or is too long and ``truncate`` is false; it is
                named as an item of ``field``.
            ModelFault: A vector came out non-finite.
        """
        ...

    async def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: Side = "right",
        field: str = "input",
    ) -> EmbeddedTokens:
        """Return the vector of every token, neither pooled nor scaled; else as ``embed``."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character span of each token of ``text``, special tokens left out."""
        ...

    def pieces(self, text: str, *, special: bool = True, field: str = "inputs") -> list[Piece]:
        """Return the tokens of a text, however many, with the special ones or without.

        Raises:
            InputError: It is over the character limit, or no valid Unicode.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text that tokens spell; numbers of no token spell nothing."""
        ...


class Scorer(Protocol):
    """(query, passage) pairs to relevance scores."""

    @property
    def info(self) -> ModelInfo:
        """What runs."""
        ...

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: Side = "right",
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query``; order kept. ``field`` names the passages in errors."""
        ...


class Classifier(Protocol):
    """Texts, or pairs of texts, to a logit for each of ``info.labels``."""

    @property
    def info(self) -> ModelInfo:
        """What runs."""
        ...

    async def classify(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool = True,
        side: Side = "right",
        field: str = "inputs",
    ) -> Classified:
        """Read each text or pair; ``field`` names them in errors."""
        ...


class Token(Protocol):
    """One step of generation."""

    @property
    def text(self) -> str:
        """What the step adds; may be empty."""
        ...

    @property
    def count(self) -> int:
        """Tokens so far."""
        ...

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended; set on the last step only."""
        ...

    @property
    def logprob(self) -> TokenLogprob | None:
        """The chosen token's, if it was asked for."""
        ...


class ReadingCost(Protocol):
    """What one answer's reading takes, FLOPs from config dimensions, tokens as counted."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt that are text, plain passages included."""
        ...

    @property
    def context_vectors(self) -> int:
        """Memory vectors in the prompt."""
        ...

    @property
    def flops_used(self) -> int:
        """Of what was done."""
        ...

    @property
    def flops_plain(self) -> int:
        """Of reading the same passages as text."""
        ...

    @property
    def question_tokens(self) -> int:
        """Tokens of the question as asked."""
        ...

    @property
    def question_limit(self) -> int:
        """Tokens of it that were read at most."""
        ...


class Reader(Protocol):
    """An OSCAR pair: compresses passages for a question, then answers from the vectors.

    A context is what the generator reads, best first: memory vectors (vectors, hidden size), or
    text for a passage that is read plain.
    """

    @property
    def info(self) -> ModelInfo:
        """What runs."""
        ...

    @property
    def traits(self) -> PairTraits:
        """What it can do."""
        ...

    async def compress(
        self, question: str, passages: Sequence[str], *, field: str = "documents"
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress and score each passage in one forward pass, at the finest rate.

        Order and count are kept. A passage that fails has its error in its place, and harms no
        other; what concerns all of them (no room, no time) is raised.
        """
        ...

    def generate(
        self,
        question: str,
        context: Sequence[Floats | str],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> AsyncIterator[Token]:
        """Answer from a context.

        Raises:
            ContextTooLong: It does not fit, the answer's tokens included.
        """
        ...

    def spare(self, question: str, context: Sequence[Floats | str], max_tokens: int) -> int:
        """Return the positions that a context and its answer leave free; negative: too long."""
        ...

    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float:
        """Return about how long it takes to the first token, as measured so far; 0 if unknown.

        Args:
            compress_tokens: Of passages that are still to be compressed.
            vectors: Memory vectors in context.
            text_tokens: Tokens of passages that are read plain.
            passages: In context.
        """
        ...

    def cost(
        self,
        question: str,
        read: Sequence[CompressedPassage],
        context: Sequence[Floats | str],
        kept: Sequence[str],
        *,
        completion_tokens: int,
    ) -> ReadingCost:
        """Count what an answer took.

        Args:
            question: As asked.
            read: Every passage that the compressor read for it, kept or not.
            context: What the generator read.
            kept: The text of the passages in context, as far as they were read.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        ...


class Measured(Protocol):
    """How good a model was measured to be. Calls block on disk: jobs run them in a thread.

    Each raises ReportNotFound where there is no such part.
    """

    def report(self) -> ModelReport:
        """Return the report."""
        ...

    def card(self) -> str:
        """Return the card, Markdown."""
        ...

    def plot(self, name: str) -> bytes:
        """Return a plot, PNG."""
        ...


class Aliases(Protocol):
    """Other names of models."""

    @property
    def targets(self) -> Mapping[str, str]:
        """What each alias leads to: a model, or another alias."""
        ...

    def resolve(self, name: str) -> str:
        """Return the model that a name leads to; one that is no alias is its own."""
        ...

    def of(self, model: str) -> Sequence[str]:
        """Return every alias that leads to a model."""
        ...


class Changing(Protocol):
    """Loads, replaces and unloads models while they serve; ``jobs.models`` says what it raises."""

    async def load(
        self, name: str, version: str | None = None, *, again: bool = False
    ) -> ModelLoad:
        """Load a stored model, try it, and let it serve in place of the version that does."""
        ...

    async def unload(self, name: str, check: Callable[[], None]) -> ModelUnload:
        """Let a model serve no new request, wait for its last ones, and free its memory.

        ``check`` raises what speaks against it, at the last moment.
        """
        ...

    async def set_aliases(self, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Change aliases, all at once, and return all there are; None removes one."""
        ...

    async def versions(self) -> list[ModelVersion]:
        """List every stored version of every model, and which of them serve."""
        ...


class Pool(Protocol):
    """The running models by name; None asks for the default of its kind."""

    def encoder(self, name: str | None = None) -> Encoder:
        """Return the encoder; raises ModelNotFound."""
        ...

    def scorer(self, name: str | None = None) -> Scorer:
        """Return what reranks (a pair's rerank head by default); raises ModelNotFound."""
        ...

    def classifier(self, name: str | None = None) -> Classifier:
        """Return what classifies; raises ModelNotFound."""
        ...

    def reader(self, name: str | None = None) -> Reader:
        """Return the OSCAR pair; raises ModelNotFound."""
        ...

    def measured(self, name: str) -> Measured:
        """Return how good a running model was measured to be; raises ModelNotFound."""
        ...

    def models(self) -> list[ModelInfo]:
        """List what serves, defaults first."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Name each stored model that was refused at load, with the reason."""
        ...

    def default_of(self, name: str) -> Sequence[str]:
        """Return for what a model is the default: its roles."""
        ...

    def missing(self) -> str | None:
        """Return a default model that does not serve any more; None while all do."""
        ...

    def watch(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever other models, or aliases, serve than before."""
        ...

    @property
    def aliases(self) -> Aliases:
        """Other names of models."""
        ...

    @property
    def changing(self) -> Changing:
        """Loads and unloads models while others serve."""
        ...


# named here, since within the class `list` is the method
Hits = list[Hit]
Documents = list[Document]
AliasList = list[Alias]


class RebuildStep(Protocol):
    """Documents to be made anew."""

    @property
    def number(self) -> int:
        """0 if there is nothing left to do."""
        ...

    @property
    def documents(self) -> Documents:
        """As the index has them now."""
        ...


class Rebuilding(Protocol):
    """A rebuild under way. Calls block on disk; one at a time is made."""

    @property
    def plan(self) -> RebuildPlan:
        """What is being made."""
        ...

    def pending(self) -> int:
        """Count the documents and writes that are still to be done."""
        ...

    def step(self, most: int) -> Any:
        """Return a ``RebuildStep``; raises TextsMissing."""
        ...

    def done(self, step: Any, pieces: Sequence[Passage], vectors: Floats) -> None:
        """Write a step's documents, with their passages; synced on return."""
        ...

    def sample(self, most: int) -> list[str]:
        """Return texts of some documents."""
        ...

    def overlap(self, old: Floats, new: Floats, top_k: int) -> float:
        """Return which share of what the old index finds the new one finds."""
        ...

    def finish(self) -> bool:
        """Let the new index serve; False if something was written since."""
        ...


class Keeping(Protocol):
    """What is done to whole indexes while they serve. Calls block on disk."""

    def snapshot(self, name: str) -> Snapshot:
        """Copy an index as it is now, while it goes on; synced on return."""
        ...

    def snapshots(self, name: str) -> SnapshotList:
        """List an index's snapshots, also of one that is no more or is broken."""
        ...

    def get_snapshot(self, name: str, snapshot: str) -> Snapshot:
        """Return what a snapshot is; SnapshotNotFound, SnapshotDamaged, SnapshotTooNew."""
        ...

    def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Delete a snapshot; synced on return."""
        ...

    def restore(self, name: str, snapshot: str, into: str | None = None) -> IndexInfo:
        """Make an index of a snapshot, over the one that is there or anew; synced on return."""
        ...

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
    ) -> Rebuilding:
        """Begin to make an index anew, or go on; RebuildRunning, TextsMissing."""
        ...

    def unfinished_rebuilds(self) -> list[RebuildPlan]:
        """Return what was begun and is neither done nor cancelled."""
        ...

    def cancel_rebuild(self, name: str) -> None:
        """Give up what is being made of an index; RebuildNotFound if nothing is."""
        ...


class Indexes(Protocol):
    """The indexes of a data directory.

    Calls block on disk, but for ``info`` and ``list``, which answer from memory: jobs run the
    others in a thread. An alias does wherever a name is asked for.
    """

    @property
    def keeping(self) -> Keeping:
        """Snapshots and restores."""
        ...

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
    ) -> IndexInfo:
        """Create an index; the same settings again return it as it is (IndexExists else)."""
        ...

    def info(self, name: str) -> IndexInfo:
        """Return what the index is and holds."""
        ...

    def list(self) -> list[IndexInfo]:
        """Return every index."""
        ...

    def drop(self, name: str) -> None:
        """Delete the index with all it holds; IndexAliased if an alias points at it."""
        ...

    def aliases(self) -> AliasList:
        """Return every alias; from memory."""
        ...

    def update_aliases(self, actions: Sequence[AliasAction]) -> AliasList:
        """Make all of these changes or none, synced on return; returns the aliases then."""
        ...

    def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        passages: Sequence[Passage],
        vectors: Floats,
        *,
        fingerprint: str,
    ) -> None:
        """Write documents with their passages and vectors, replacing those ids. Synced on return.

        Raises:
            IndexNotFound, EncoderMismatch, InputError (dims, NaN), StorageFull, StorageReadOnly.
        """
        ...

    def delete(self, name: str, ids: Sequence[str]) -> int:
        """Delete documents by id; returns how many were there. Synced on return."""
        ...

    def query(
        self,
        name: str,
        vector: Floats,
        *,
        top_k: int,
        fingerprint: str | None = None,
        chosen: Filter | None = None,
    ) -> Hits:
        """Return the nearest passages of the documents chosen, best first."""
        ...

    def match(self, name: str, words: str, *, top_k: int, chosen: Filter | None = None) -> Hits:
        """Return the passages that share most words with a text, by BM25, best first."""
        ...

    def delete_chosen(self, name: str, chosen: Filter) -> int:
        """Delete the documents that a filter chooses; returns how many. Synced on return."""
        ...

    def count(self, name: str, chosen: Filter | None = None) -> tuple[int, int]:
        """Return the (documents, passages) that there are, or that a filter chooses."""
        ...

    def read_page(self, name: str, wanted: Wanted) -> Page:
        """Return documents by id, as far as one page goes."""
        ...

    def get(self, name: str, ids: Sequence[str]) -> Documents:
        """Return the documents found, in the order asked."""
        ...


JsonObject = Mapping[str, Any]
