"""BERT-size compressors (OSCAR, arXiv:2504.07109, appendix J) behind the pairs' interface.

Their generator is either a small one over the same word pieces (``OscarPair``), or any causal
language model with a tokenizer of its own (``BertHalf``, a half of ``oscar_causal.CausalPair``).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from condensery.networks.backbone import make_ready
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_compressor import Compressor
from condensery.networks.oscar_interface import (
    Characters,
    Memories,
    PassageWindow,
    PromptPart,
    SpecialTokenEscaper,
    cut_windows,
)
from condensery.networks.oscar_packing import Pairing, Specials, length, pack
from condensery.networks.oscar_shape import BertShape, OscarShape
from condensery.networks.pointers import BoundsPointer
from condensery.networks.quantised import EncoderWeights
from condensery.networks.quoting import END, Quotes


class BertWindows:
    """Question and passages as the compressor reads them: ``[CLS] question [SEP] passage [SEP]``.

    Args:
        tokenizer: The compressor's, without truncation or padding.
        shape: The compressor's.

    Raises:
        ValueError: The tokenizer has no [CLS] and [SEP].
    """

    def __init__(self, tokenizer: Tokenizer, shape: BertShape) -> None:
        self.specials = Specials.of(tokenizer)
        self.query_tokens: int | None = shape.longest_question
        self._tokenizer = tokenizer
        self._shape = shape
        self._neutral = SpecialTokenEscaper(tokenizer)

    def cut(self, question: str) -> tuple[str, int]:
        """Return the question as far as it is read, and how many tokens it has in whole."""
        encoding = self._tokenizer.encode(self._neutral(question), add_special_tokens=False)
        limit = self._shape.longest_question
        cut = question[: encoding.offsets[limit - 1][1]] if len(encoding.ids) > limit else question
        return cut, len(encoding.ids)

    def make_windows(self, question: str, passages: Sequence[str]) -> list[list[PassageWindow]]:
        """Return the windows of each passage."""
        head = self.question_ids(question, self._shape.longest_question)
        room = min(self._shape.passage_tokens, self._shape.text_tokens - len(head) - 1)
        texts = [self._neutral(passage) for passage in passages]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        windows = []
        for encoding in encodings:
            ids, offsets = encoding.ids, encoding.offsets
            windows.append(
                [
                    PassageWindow(
                        ids=[*head, *ids[a:b], self.specials.end],
                        head=len(head),
                        tail=1,
                        memory=self._shape.memory_tokens,
                        start=offsets[a][0] if b > a else 0,
                        end=offsets[b - 1][1] if b > a else 0,
                        first=a,
                        offsets=offsets[a:b],
                    )
                    for a, b in cut_windows(len(ids), room)
                ]
            )
        return windows

    def question_ids(self, question: str, most: int | None = None) -> list[int]:
        """Return ``[CLS] question [SEP]``, of the question the first ``most`` tokens if so many."""
        pieces = self.pieces(question)[:most]
        return [self.specials.start, *pieces, self.specials.end]

    def pieces(self, text: str) -> list[int]:
        """Return a text's word pieces, none of them special."""
        ids: list[int] = self.encode(text).ids
        return ids

    def encode(self, text: str) -> Encoding:
        """Return a text's word pieces, none of them special, with their characters."""
        return self._tokenizer.encode(self._neutral(text), add_special_tokens=False)


class BertTexts:
    """Texts of a pair whose generator reads the compressor's own word pieces.

    Raises:
        ValueError: The tokenizer has no [CLS] and [SEP].
    """

    def __init__(self, tokenizer: Tokenizer, shape: OscarShape) -> None:
        self._tokenizer = tokenizer
        self._compressor = BertWindows(tokenizer, shape)
        self._ask_first = shape.ask_first
        self._continues: NDArray[np.bool_] | None = None
        self._unknown = tokenizer.token_to_id("[UNK]")
        if shape.quote:
            names = map(tokenizer.id_to_token, range(tokenizer.get_vocab_size()))
            self._continues = np.array([str(name).startswith("##") for name in names])
        self.stop = frozenset({self._compressor.specials.end})
        self.positions = shape.generator_positions
        self.query_tokens = self._compressor.query_tokens
        self.text_tokens = shape.text_tokens
        self.vectors = shape.vectors
        self.rates = shape.rates
        self.scores = shape.rerank
        self.cut = self._compressor.cut
        self.make_windows = self._compressor.make_windows

    def prompt(self, question: str, context: Sequence[Tensor | str]) -> list[PromptPart]:
        """Return the prompt of memory vectors and pieces; ``embed`` puts separators between."""
        own = self._compressor
        passages = [part if isinstance(part, Tensor) else own.pieces(part) for part in context]
        asked = own.question_ids(question)
        first = self._ask_first and any(isinstance(part, str) for part in context)
        return [*([asked] if first else []), *passages, asked]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the pieces' text, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def quotes(
        self, texts: Sequence[str], pointed: Sequence[Characters | None] = ()
    ) -> Quotes | None:
        """Return what an answer may say that read these texts; None: anything."""
        if self._continues is None:
            return None
        encodings = [self._compressor.encode(text) for text in texts]
        # An unknown word has no letters to say: nothing goes on across it.
        pieces = [
            [END if piece == self._unknown else piece for piece in encoding.ids]
            for encoding in encodings
        ]
        stretches = [
            None if span is None else _tokens_of(encoding.offsets, span)
            for encoding, span in zip(encodings, pointed, strict=False)
        ]
        return Quotes.of(pieces, self._continues, stretches)


def _tokens_of(offsets: Sequence[Characters], span: Characters) -> tuple[int, int] | None:
    """Return the first token within characters and the one after the last; None: there is none."""
    inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
    return (inside[0], inside[-1] + 1) if inside else None


class BertCompressor:
    """The compressor of an ``OscarPair`` that is ready for packed inference."""

    def __init__(self, pair: OscarPair, specials: Specials) -> None:
        self._compressor = pair.compressor
        # A copy where the halves run on two devices.
        self._words = pair.generator.words.to(pair.compressor.slots.weight.device)
        self._specials = specials

    def cost(self, window: PassageWindow) -> int:
        """Return the positions a window takes, slots included."""
        return length(_pairing(window), self._compressor.shape)

    def compress(self, windows: Sequence[PassageWindow]) -> Memories:
        """Compress and score all of them in one forward pass, without padding."""
        return _compress(self._compressor, windows, self._specials, self._words)


class BertHalf(Compressor):
    """A BERT-size compressor whose generator has a vocabulary of its own: nothing is copied."""

    def make_ready(self, weights: EncoderWeights = "float") -> None:
        """Replace parts by those that infer fast (``backbone.make_ready``)."""
        make_ready(self.backbone, weights)

    def cost(self, window: PassageWindow) -> int:
        """Return the positions a window takes, slots included."""
        return len(window.ids) + self.shape.slots

    def compress(self, windows: Sequence[PassageWindow]) -> Memories:
        """Compress and score all of them in one forward pass, without padding."""
        ids = windows[0].ids  # of every window, the first and last are [CLS] and [SEP]
        return _compress(self, windows, Specials(ids[0], ids[-1]), None)


def _compress(
    compressor: Compressor,
    windows: Sequence[PassageWindow],
    specials: Specials,
    words: Tensor | None,
) -> Memories:
    slots = compressor.slots.weight
    inputs = pack(
        [_pairing(window) for window in windows],
        compressor.shape,
        specials,
        compressor.slot_positions,
        dtype=slots.dtype,
        device=slots.device,
        pointing=compressor.pointer is not None,
    )
    out = compressor(inputs, words)
    counts = (compressor.shape.memory_tokens,) * len(windows)
    pointed = None
    if out.pointer is not None:
        ends = (inputs.passage_at >= 0).sum(1) - 1
        pointed = _stretches(
            out.pointer.argmax(-1), ends, isinstance(compressor.pointer, BoundsPointer)
        )
    return Memories(out.memory.flatten(0, 1), counts, out.relevance, pointed)


def _stretches(places: Tensor, ends: Tensor, bounds: bool) -> Tensor:
    """Return the first and last token that memory tokens point at, (windows, 2).

    Args:
        places: The likeliest token for each of them, (windows, memory tokens).
        ends: Of each window, that of the passage's [SEP], (windows,).
        bounds: Whether the last of them points at the last one of an answer, however long; else
            what they point at lasts as long as one follows the other.
    """
    step = torch.arange(places.shape[1], device=places.device)
    follows = (places == places[:, :1] + step) & (places < ends[:, None])
    last = places[:, 0] + follows.cumprod(1).sum(1) - 1
    if bounds:
        last = torch.where(places[:, -1] < ends, places[:, -1], last)
    return torch.stack([places[:, 0], last], dim=1)


def _pairing(window: PassageWindow) -> Pairing:
    ids = window.ids
    return Pairing(ids[1 : window.head - 1], ids[window.head : len(ids) - window.tail])
