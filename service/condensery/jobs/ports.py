"""What the jobs need of running models. The runtime satisfies it by shape."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from condensery.answers import CompressedPassage, FinishReason, TokenLogprob
from condensery.errors import CondenseryError
from condensery.questions import GREEDY, Sampling
from condensery.values import (
    Classified,
    Embedded,
    EmbeddedTokens,
    Floats,
    Input,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelUnload,
    ModelVersion,
    PairTraits,
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

    @property
    def waited(self) -> float:
        """Seconds that its answer waited until the generator had room for it."""
        ...


class Prompt(Protocol):
    """A question and its context as the generator reads them, in tokens and vectors."""

    @property
    def vectors(self) -> int:
        """Memory vectors in it."""
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
    def question_limit(self) -> int | None:
        """Tokens of it that the compressor reads at most; None if it cuts none."""
        ...


class Counted(Protocol):
    """One answer's texts, tokenised and counted: what it takes is arithmetic from here on."""

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> ReadingCost:
        """Count what an answer took.

        Args:
            read: Every passage that the compressor read for it, kept or not.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        ...

    def compressing(self, read: Sequence[CompressedPassage]) -> int:
        """Return the FLOPs of compressing passages."""
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
        self,
        question: str,
        passages: Sequence[str],
        *,
        field: str = "documents",
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress and score each passage in one forward pass, at the finest rate.

        Order and count are kept. A passage that fails has its error in its place, and harms no
        other; what concerns all of them (no room, no time) is raised. Given the tokens of each
        passage, ``afford`` says how many of the first are compressed; by default all.
        """
        ...

    def tokenise(self, question: str, context: Sequence[Floats | str]) -> Prompt:
        """Return the prompt of a question and a context, for ``generate_from``; in this thread."""
        ...

    def sizes(self, context: Sequence[Floats | str]) -> list[int]:
        """Return about how many positions each passage takes in a prompt; in this thread."""
        ...

    def count(self, question: str, prompt: Any, kept: Sequence[str] | None) -> Counted:
        """Count what an answer's cost is made of; in this thread.

        Args:
            question: As asked.
            prompt: Made of it and of what the generator reads.
            kept: The text of the passages in context, as far as they are read; None where the
                prompt holds it already.
        """
        ...

    def generate_from(
        self,
        prompt: Any,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> AsyncIterator[Token]:
        """Answer a prompt that ``tokenise`` made, and that there is room for."""
        ...

    def room(self, prompt: Any, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long."""
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
