"""A stored OSCAR pair, opened: its networks on their devices, its texts checked and counted.

Whatever its halves are made of, ``OscarModel`` knows it by this: windows of passages and prompts
from texts, two networks to run, and what an answer costs.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig

from condensery.errors import ContextTooLong, CorruptModel, InputError, SettingError
from condensery.networks.accounting import InferenceCosts
from condensery.networks.backbone import make_ready
from condensery.networks.dtypes import dtype_name
from condensery.networks.known_answers import KnownAnswer, PromptTable, known_answers
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_bert import BertCompressor
from condensery.networks.oscar_causal import CPU, CausalPair
from condensery.networks.oscar_interface import (
    CompressorNetwork,
    PairTexts,
    PassageWindow,
    PromptPart,
)
from condensery.networks.oscar_loading import cost_of, open_networks, open_texts, read_shape
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.quantised import EncoderWeights, Weights, quantise_linears
from condensery.networks.stepping import StepperNetwork
from condensery.networks.weight_files import ModelFolder, read_weights
from condensery.question import AnswerCost, CompressedPassage
from condensery.request_context import current_request
from condensery.runtime.generator import (
    DecodingDetokenizer,
    IncrementalDetokenizer,
    WordPieceDetokenizer,
    as_tensor,
)
from condensery.runtime.queue import NO_METRICS
from condensery.runtime.tokenizing import MAX_CHARACTERS_PER_TOKEN, check_text, run_tokenizing
from condensery.values import Floats, ModelInfo, PairTraits

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import Defaults, StoredModel


WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"  # how their name in a BERT's files ends
# What a file that is not a pair's makes the libraries raise.
LOAD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What of a pair needs no weights: its texts, what it costs, and how its prompts are laid out.

    The attributes are those of ``RunnablePair``.
    """

    texts: PairTexts
    cost: InferenceCosts
    window: int
    separators: int


@dataclass(frozen=True, slots=True)
class RunnablePair:
    """A pair that is ready to run.

    Attributes:
        window: Tokens of a passage in a full window; 0 is what the question leaves of a text.
        separators: Positions that the generator puts between two parts of a prompt.
        detokenizer: Makes one answer's text of its tokens.
        token: Text of one token.
        devices: Of the compressor, and of the generator.
        prefix: Ids of the tokens that each prompt of memory vectors begins with.
        known: Where the generator runs elsewhere, and only its word table is here: what it must
            say to some prompts.
    """

    texts: PairTexts
    compressor: CompressorNetwork
    generator: StepperNetwork | PromptTable
    cost: InferenceCosts
    window: int
    separators: int
    detokenizer: Callable[[], IncrementalDetokenizer]
    token: Callable[[int], str]
    devices: tuple[torch.device, torch.device]
    prefix: tuple[int, ...] = ()
    known: tuple[KnownAnswer, ...] = ()

    @property
    def facts(self) -> PairFacts:
        """What of it needs no weights."""
        return PairFacts(self.texts, self.cost, self.window, self.separators)


def open_pair(
    stored: "StoredModel",
    base: "StoredModel | None",
    *,
    compressor: torch.device,
    generator: torch.device,
    dtype: torch.dtype,
    weights: Weights = "float",
    compressor_weights: EncoderWeights = "float",
    generates: bool = True,
) -> RunnablePair:
    """Load a stored pair of any kind, each half onto its device.

    Args:
        base: The encoder whose word embeddings it shares, if it names one.
        weights: What the generator's are held as.
        compressor_weights: And the compressor's.
        generates: Whether its generator is to run here. Else all of it is read once, so that it is
            known what it must say elsewhere, and its word table kept.

    Raises:
        CorruptModel: The files don't make a pair.
        SettingError: It is to generate elsewhere, and is of a kind that can't.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import each_tensor

    values = stored.manifest.shape
    try:
        if isinstance(read_shape(values), OscarShape):
            if not generates:
                raise SettingError(
                    f"generator_servers: {stored.name} generates here only: its generator shares "
                    "the words of its encoder, which no other server serves, and its answers are "
                    "held to the words of what they quote",
                    field="generator_servers",
                    value=stored.name,
                )
            if base is None:
                raise ValueError("it names no base, whose word embeddings it would share")
            whole = load_bert_pair(
                stored,
                base,
                device=generator,
                dtype=dtype,
                compressor=compressor,
                weights=weights,
                compressor_weights=compressor_weights,
            )
            return runnable_bert_pair(whole, stored.path)
        texts = open_texts(stored.path, values)
        network = open_networks(
            stored.path,
            values,
            each_tensor(stored),
            compressor=compressor,
            generator=generator if generates else CPU,
            dtype=dtype,
            weights=weights,
            compressor_weights=compressor_weights,
            generates=generates,
        )
        pair = runnable_causal_pair(network, texts)
        if generates:
            return pair
        known = known_answers(network.generator, network.compressor, texts)
        table = PromptTable(network.generator.network.get_input_embeddings())
        return replace(pair, generator=table, known=known)
    except LOAD_ERRORS as error:
        raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error


def runnable_bert_pair(pair: OscarPair, directory: Path) -> RunnablePair:
    """Run networks that are ready for packed inference; ``directory`` has their tokenizer.

    Raises:
        CorruptModel: The tokenizer can't be read, or is not the pair's.
    """
    try:
        texts = open_texts(directory, pair.shape.to_dict())
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        specials = Specials.of(tokenizer)
    except LOAD_ERRORS as error:
        raise CorruptModel(f"{directory.name}: {error}") from error

    def piece(token: int) -> str:
        return tokenizer.id_to_token(token) or ""

    return RunnablePair(
        texts=texts,
        compressor=BertCompressor(pair, specials),
        generator=pair.generator,
        cost=cost_of(pair),
        window=pair.shape.passage_tokens,
        separators=1,
        detokenizer=lambda: WordPieceDetokenizer(piece),
        token=piece,
        devices=(pair.compressor.slots.weight.device, pair.generator.device),
    )


def runnable_causal_pair(pair: CausalPair, texts: PairTexts) -> RunnablePair:
    """Run networks whose generator is a causal language model."""
    return RunnablePair(
        texts=texts,
        compressor=pair.compressor,
        generator=pair.generator,
        cost=cost_of(pair),
        window=pair.compressor.shape.passage_tokens,
        separators=0,
        detokenizer=lambda: DecodingDetokenizer(texts.decode),
        token=_token_decoder(texts),
        devices=(pair.compressor.slots.weight.device, pair.generator.device),
        prefix=_common_beginning(texts),
    )


def _common_beginning(texts: PairTexts) -> tuple[int, ...]:
    """Return the tokens before the first memory vector, which are the same in each prompt."""
    memory = torch.zeros(1, 1)
    (first, *_), (other, *_) = (texts.prompt(question, [memory]) for question in ("a", "to be"))
    if isinstance(first, Tensor) or isinstance(other, Tensor) or list(first) != list(other):
        return ()
    return tuple(first)


def _token_decoder(texts: PairTexts) -> Callable[[int], str]:
    """Return a function from a token to its text within an answer, leading blank and all."""
    # Decoders drop a text's leading blank: so each token is decoded behind another one.
    ids = [
        token for part in texts.prompt("a", []) if not isinstance(part, Tensor) for token in part
    ]
    before = next(([token] for token in ids if texts.decode([token]).strip()), [])
    skipped = len(texts.decode(before))
    return lambda token: texts.decode([*before, token])[skipped:]


def word_embeddings(base: Path | ModelFolder) -> Tensor:
    """Read a BERT encoder's word embeddings, (vocabulary, hidden).

    Args:
        base: Its directory; a stored one's as its manifest has it (``store.weights.open_folder``).

    Raises:
        CorruptModel: There is no such tensor in its weights, or they can't be read.
    """
    for _, tensor in read_weights(base, lambda name: name.endswith(WORD_EMBEDDINGS)):
        return tensor
    raise CorruptModel(f"{ModelFolder.of(base).name}: no word embeddings in its weights")


def load_bert_pair(
    stored: "StoredModel",
    base: "StoredModel",
    *,
    device: torch.device,
    dtype: torch.dtype,
    compressor: torch.device | None = None,
    weights: Weights = "float",
    compressor_weights: EncoderWeights = "float",
) -> OscarPair:
    """Load ``stored`` with the word embeddings of ``base``, ready for packed inference.

    ``weights`` is what the generator's are held as.

    Raises:
        CorruptModel: The files don't make a pair.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import load_state, open_folder

    try:
        shape = OscarShape.from_dict(stored.manifest.shape)
        config = BertConfig.from_json_file(stored.path / "config.json")
        words = word_embeddings(open_folder(base))
        pair = OscarPair.of_state(config, shape, words, load_state(stored))
    except LOAD_ERRORS as error:
        raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error
    pair.generator.to(device=device, dtype=dtype)
    pair.compressor.to(device=compressor or device, dtype=dtype)
    return prepare_for_inference(pair.eval(), weights, compressor_weights)


def prepare_for_inference(
    pair: OscarPair, weights: Weights = "float", compressor_weights: EncoderWeights = "float"
) -> OscarPair:
    """Replace a pair's parts by those that infer fast, on packed input; it can't train then.

    ``weights`` is what the generator's are held as.
    """
    make_ready(pair.compressor.backbone, compressor_weights)
    pair.generator.backbone.set_attn_implementation("sdpa")
    quantise_linears(pair.generator, weights)
    prepack_linears(pair)
    return pair


def pair_info(
    pair: RunnablePair,
    *,
    name: str,
    weights: Weights = "float",
    compressor_weights: EncoderWeights = "float",
    fingerprint: str = "",
    licence: str = "",
    created: int = 0,
) -> ModelInfo:
    """Return what ``/v1/models`` shows of a pair."""
    halves = {"compressor": compressor_weights, "generator": weights}
    rounded = "".join(f", {half} {held}" for half, held in halves.items() if held != "float")
    devices = [str(device) for device in pair.devices]
    if pair.known:
        devices[1] = "generator's server"
    return ModelInfo(
        id=name,
        kind="oscar-pair",
        method="oscar",
        fingerprint=fingerprint,
        dims=None,
        max_tokens=pair.texts.text_tokens,
        dtype=dtype_name(pair.generator.dtype) + rounded,
        device=", ".join(dict.fromkeys(devices)),
        licence=licence,
        created=created,
    )


def pair_traits(texts: PairTexts, defaults: "Defaults | None" = None) -> PairTraits:
    """Return what a pair of such texts can do, and does where nothing is asked for."""
    own = {} if defaults is None else defaults.model_dump(exclude_none=True)
    return PairTraits(texts.vectors, texts.rates, texts.scores, **own)


@dataclass(frozen=True, slots=True)
class CutQuestion:
    """A question as the compressor reads it; the generator reads all of it.

    Attributes:
        text: As far as it is read.
        tokens: In whole.
        limit: That are read at most; None where the compressor reads no question, and cuts none.
    """

    text: str
    tokens: int
    limit: int | None

    @property
    def read(self) -> int:
        """Tokens of it that are read."""
        return self.tokens if self.limit is None else min(self.tokens, self.limit)


@dataclass(frozen=True, slots=True)
class GeneratorPrompt:
    """A generator's prompt.

    Attributes:
        parts: Token ids, or memory vectors.
        text: Tokens that are text.
        size: Positions of both, and of the separators between parts.
    """

    parts: list[PromptPart]
    text: int
    vectors: int
    size: int


class CheckedTexts:
    """A pair's texts for a service: limits checked, long ones tokenised in a thread.

    Args:
        separators: Positions that its generator puts between two parts of a prompt.
    """

    def __init__(
        self,
        texts: PairTexts,
        separators: int,
        threads: ThreadPoolExecutor,
        *,
        model: str = "",
        metrics: "Metrics | None" = None,
    ) -> None:
        self._model = model
        self._metrics: Metrics = metrics or NO_METRICS
        self._texts = texts
        self._separators = separators
        self._threads = threads
        self.max_characters = texts.text_tokens * MAX_CHARACTERS_PER_TOKEN

    def cut(self, question: str) -> CutQuestion:
        """Cut a question to what the compressor reads of it.

        Raises:
            InputError: It is over the character limit, or no valid Unicode.
        """
        check_text(question, "query", self.max_characters)
        return self._cut(question)

    async def read(
        self,
        question: str,
        passages: Sequence[str],
        field: str,
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> tuple[CutQuestion, list[list[PassageWindow]]]:
        """Return the question as it is read, and the windows of each passage.

        Args:
            field: The request's field that holds the passages, for messages.
            afford: From the tokens of each passage, how many of the first are read.

        Raises:
            InputError: A text is over the character limit, or no valid Unicode; names ``field``.
        """
        characters = self._check(question, passages, field)
        metrics, stats = self._metrics, current_request().stats
        began = time.perf_counter()
        with metrics.stage(self._model, "tokenize"):
            cut, windows = await run_tokenizing(
                lambda: self._read(question, passages), characters, self._threads
            )
        stats.tokenizing += time.perf_counter() - began
        stats.characters += characters
        sizes = [parts[-1].first + parts[-1].tokens for parts in windows]
        if afford is not None:
            windows = windows[: afford(sizes)]
        stats.inputs += len(windows)
        stats.passages += len(windows)
        tokens = sum(sizes[: len(windows)])
        stats.tokens += cut.read + tokens
        metrics.input_tokens.labels(self._model).inc(cut.tokens + tokens)
        if cut.read < cut.tokens:
            metrics.truncated_inputs.labels(self._model).inc()
        return cut, windows

    async def prompt(self, question: str, context: Sequence[Floats | str]) -> GeneratorPrompt:
        """Return the generator's prompt.

        Raises:
            InputError: As in ``read``.
        """
        characters = self._check(question, _texts_of(context))
        make = partial(self.make_prompt, question, context)
        return await run_tokenizing(make, characters, self._threads)

    def make_prompt(self, question: str, context: Sequence[Floats | str]) -> GeneratorPrompt:
        """Do what ``prompt`` does, in this thread; raises likewise."""
        self._check(question, _texts_of(context))
        own = [item if isinstance(item, str) else as_tensor(item) for item in context]
        parts = self._texts.prompt(question, own)
        vectors = sum(len(part) for part in parts if isinstance(part, Tensor))
        whole = sum(map(len, parts))
        size = whole + self._separators * (len(parts) - 1)
        return GeneratorPrompt(parts, whole - vectors, vectors, size)

    def window_overhead(self, cut: CutQuestion) -> int:
        """Return the tokens that a window has beside its passage's own."""
        ((window,),) = self._windows(cut.text, [""])
        return window.head + window.tail

    def _check(self, question: str, texts: Sequence[str], field: str = "documents") -> int:
        most = self.max_characters
        characters = check_text(question, "query", most)
        return characters + sum(check_text(t, f"{field}[{i}]", most) for i, t in enumerate(texts))

    def _read(
        self, question: str, passages: Sequence[str]
    ) -> tuple[CutQuestion, list[list[PassageWindow]]]:
        cut = self._cut(question)
        return cut, self._windows(cut.text, passages)

    def _cut(self, question: str) -> CutQuestion:
        return CutQuestion(*self._texts.cut(question), self._texts.query_tokens)

    def _windows(self, question: str, passages: Sequence[str]) -> list[list[PassageWindow]]:
        try:
            return self._texts.make_windows(question, passages)
        except ValueError as error:  # where texts are short, a question may take all of it
            raise InputError.at("query", f"{error}") from error


def _texts_of(context: Sequence[Floats | str]) -> list[str]:
    """Return each passage's text, "" where it is memory, so that each keeps its place."""
    return [item if isinstance(item, str) else "" for item in context]


def context_too_long(
    prompt: GeneratorPrompt, passages: int, max_tokens: int, spare: int
) -> ContextTooLong:
    """Return the error of a prompt that does not fit, with the remedy.

    Args:
        spare: Positions that are left free; negative.
    """
    positions = prompt.size + max_tokens + spare
    remedy = "keep fewer passages (rerank.top_n) or ask for" if passages else "ask for"
    return ContextTooLong(
        f"the context takes {prompt.size} positions and max_tokens is {max_tokens}, but the "
        f"generator has {positions}: {remedy} fewer tokens (max_tokens)",
        field="rerank.top_n" if passages else "max_tokens",
        value=passages or max_tokens,
    )


@dataclass(frozen=True, slots=True)
class CountedAnswer:
    """One answer's texts, tokenised and counted: what it takes is arithmetic from here on.

    Attributes:
        asked: The question, as the compressor reads it.
        plain: Positions of a prompt with the text of the same passages.
        window: Tokens of a passage in a full window, beside this question.
    """

    flops: InferenceCosts
    asked: CutQuestion
    prompt: GeneratorPrompt
    plain: int
    window: int

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> AnswerCost:
        """Count what an answer took.

        Args:
            read: Every passage that the compressor read for it, kept or not.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        generating = self.flops.generate(self.prompt.size, completion_tokens)
        return AnswerCost(
            prompt_tokens=self.prompt.text,
            context_vectors=self.prompt.vectors,
            positions=self.prompt.size,
            flops_used=generating + self.compressing(read),
            flops_plain=self.flops.generate(self.plain, completion_tokens),
            question_tokens=self.asked.tokens,
            question_limit=self.asked.limit,
        )

    def compressing(self, read: Sequence[CompressedPassage]) -> int:
        """Return the FLOPs of compressing passages."""
        # Of a passage in several windows each is full, so that the windows' tokens are known.
        question, window = self.asked.read, self.window
        return sum(
            passage.windows * self.flops.compress(question, min(passage.tokens_in, window))
            for passage in read
        )
