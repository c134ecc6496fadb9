"""The small generators: their prompts hold memory vectors among word embeddings, the encoder's own.

One has Llama's layers and sees what comes before. The other has BERT's, sees the whole of a prompt
from each place of it, and can so begin with what an encoder knows (docs/decisions/0038).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedModel

from condensery.networks.linear import Dense, form_of
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.quantised import Product

PART = 1024  # words standardised at a time
QUESTION, PASSAGE = 0, 1  # token types, as the compressor has them
ANSWER_SHARE = 8  # one in so many of the positions that are known is an answer's
# Places of passages in a prompt that are told apart, the best first; 0 is what is no passage.
RANKS = 16


def standardised(words: Tensor) -> Tensor:
    """Centre word embeddings and scale each to unit RMS, float32, (vocabulary, hidden).

    A generator trained from scratch shares the encoder's table; this gives its rows one scale.
    """
    centred = words.float() - words.float().mean(dim=0, keepdim=True)
    for part in centred.split(PART):  # in a core's cache; as a whole it takes three times as long
        part.div_(part.pow(2).mean(dim=-1, keepdim=True).sqrt().clamp_min_(1e-6))
    return centred


def llama_config(shape: OscarShape, hidden_size: int) -> LlamaConfig:
    """Return the backbone's configuration; the vocabulary lives outside of it."""
    return LlamaConfig(
        vocab_size=1,
        hidden_size=hidden_size,
        intermediate_size=shape.generator_mlp_size,
        num_hidden_layers=shape.generator_layers,
        num_attention_heads=shape.generator_heads,
        num_key_value_heads=shape.generator_heads,
        max_position_embeddings=shape.generator_positions,
        attention_bias=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def two_way_config(shape: OscarShape, encoder: BertConfig) -> BertConfig:
    """Return the backbone's configuration; vocabulary and positions live outside of it."""
    return BertConfig(
        vocab_size=1,
        hidden_size=encoder.hidden_size,
        hidden_act=encoder.hidden_act,
        layer_norm_eps=encoder.layer_norm_eps,
        intermediate_size=shape.generator_mlp_size,
        num_hidden_layers=shape.generator_layers,
        num_attention_heads=shape.generator_heads,
        max_position_embeddings=shape.generator_positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


class Generator(nn.Module):
    """A language model over embeddings, its word table shared and frozen.

    Prompt: each passage's memory vectors and one separator, then ``[CLS] question [SEP]``; the
    answer's word pieces follow, [SEP] ends it (OSCAR, arXiv:2504.07109, §3.1).
    """

    words: Tensor

    def __init__(self, backbone: PreTrainedModel, words: Tensor, shape: OscarShape) -> None:
        super().__init__()
        vocabulary, hidden = words.shape
        self.shape = shape
        self.backbone = backbone
        self.register_buffer("words", words, persistent=False)
        self.separator = nn.Parameter(torch.randn(hidden))
        self.output = nn.Linear(hidden, hidden, bias=False)
        nn.init.eye_(self.output.weight)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary))
        self.output_scale = nn.Parameter(torch.tensor(hidden**-0.5))
        self._head: nn.Module | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the word embeddings."""
        return self.words.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.words.device

    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Return a prompt's embeddings, a separator after every part but the last.

        Args:
            parts: Memory vectors (vectors, hidden), or word-piece ids; the last is the question.

        Returns:
            (1, positions, hidden).
        """
        rows: list[Tensor] = []
        for part in parts:
            rows.append(part.to(self.words) if isinstance(part, Tensor) else self._look_up(part))
            rows.append(self.separator.to(self.words.dtype)[None])
        return torch.cat(rows[:-1])[None]

    def said(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Return the embeddings of an answer's tokens, (tokens, hidden).

        Args:
            ids: The tokens'.
            places: Which token of its answer each is, from 0 on.
        """
        del places  # rotations tell where it stands
        return self._look_up(ids)

    def _look_up(self, ids: Sequence[int]) -> Tensor:
        return self.words[torch.tensor(ids, dtype=torch.long, device=self.device)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every word piece after the given states, (..., hidden) to (..., vocabulary)."""
        states: Tensor = self.output(hidden) * self.output_scale
        if self._head is not None:
            scores: Tensor = self._head(states)
            return scores
        return states @ self.words.T + self.output_bias

    def prepack(self, *, fp32: bool = False) -> None:
        """Hold the word table once more, in the layout that scoring reads: half of a step's time.

        It can only infer afterwards.
        """
        if self._head is None and form_of(self.words, fp32=fp32) != "torch":
            self._head = Dense(self.words, self.output_bias, fp32=fp32)

    def quantise(self, product: Product) -> None:
        """Hold the word table once more, in fewer bits, to score by; it can only infer then."""
        if product.takes(self.words):
            self._head = product(self.words, self.output_bias)


class LlamaGenerator(Generator):
    """One with Llama's layers."""

    def __init__(self, words: Tensor, shape: OscarShape) -> None:
        backbone = LlamaModel(llama_config(shape, words.shape[1]))
        del backbone.embed_tokens  # inputs are embeddings already
        super().__init__(backbone, words, shape)

    def forward(self, embeds: Tensor, **backbone: Any) -> Any:
        """Run the backbone over (batch, seq, hidden) embeddings; extras go to transformers."""
        return self.backbone(inputs_embeds=embeds, **backbone)


@dataclass(frozen=True, slots=True)
class Placing:
    """Which of the positions that BERT knows the parts of a prompt have, and an answer.

    Each passage stands where the compressor has it, behind the question, whatever stands before it
    in the prompt, so that a prompt may have more positions than BERT; its place among the others,
    which are the best scored ones first, is told apart from that. Answers have positions of their
    own.

    Attributes:
        known: Positions that are known.
    """

    known: int

    @property
    def answers_from(self) -> int:
        """The first that is an answer's."""
        return self.known - self.known // ANSWER_SHARE

    def question(self, count: int) -> list[int]:
        """Return the positions of a question with its special tokens, ``count`` in all."""
        return [min(place, self.answers_from - 1) for place in range(count)]

    def passage(self, count: int, question: int) -> list[int]:
        """Return the positions of a passage and its separator, ``count`` in all.

        Args:
            count: Past the last position they begin anew.
            question: Positions of the question.
        """
        first = min(question, self.answers_from // 2)
        return [first + place % (self.answers_from - first) for place in range(count)]

    def rank(self, passage: int) -> int:
        """Return what a passage's place among the others, from 0 on, is called."""
        return min(passage + 1, RANKS - 1)

    def answer(self, places: Sequence[int]) -> list[int]:
        """Return the positions of an answer's tokens; all from some on share the last one."""
        return [min(self.answers_from + place, self.known - 1) for place in places]


class TwoWayGenerator(Generator):
    """One with BERT's layers, whose prompts are read in both directions, and answers forwards.

    A prompt read so can't be continued by more of it, and has to be read at once (a "prefix", Dong
    et al., arXiv:1905.03197, section 2).

    Args:
        words: (vocabulary, hidden), standardised.
        shape: The pair's dimensions.
        encoder: The configuration of the encoder, whose kind of layers and whose number of
            positions it has.
    """

    def __init__(self, words: Tensor, shape: OscarShape, encoder: BertConfig) -> None:
        hidden, known = words.shape[1], encoder.max_position_embeddings
        backbone = BertModel(two_way_config(shape, encoder), add_pooling_layer=False)
        del backbone.embeddings  # inputs are embeddings already
        super().__init__(backbone, words, shape)
        self.placing = Placing(known)
        self.positions = nn.Embedding(known, hidden)
        self.kinds = nn.Embedding(2, hidden)
        self.ranks = nn.Embedding(RANKS, hidden)
        nn.init.zeros_(self.ranks.weight)  # what the encoder's layers know nothing of
        self.norm = nn.LayerNorm(hidden, eps=backbone.config.layer_norm_eps)
        self.word_scale = nn.Parameter(torch.ones(()))
        self.word_mean = nn.Parameter(torch.zeros(hidden))
        self.answered = nn.Parameter(torch.zeros(hidden))  # what tells an answer from a question

    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Do what ``Generator.embed`` does, and place each of them."""
        *passages, question = parts
        places: list[int] = []
        ranks: list[int] = []
        for number, passage in enumerate(passages):
            at = self.placing.passage(len(passage) + 1, len(question))
            places += at
            ranks += [self.placing.rank(number)] * len(at)
        kinds = [PASSAGE] * len(places) + [QUESTION] * len(question)
        places += self.placing.question(len(question))
        ranks += [0] * len(question)
        rows = super().embed(parts)[0]
        return self.place(rows, *map(self._whole, (places, kinds, ranks)))[None]

    def said(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Do what ``Generator.said`` does, and place each of them."""
        at = self._whole(self.placing.answer(places))
        none = torch.zeros_like(at)
        return self.place(self._look_up(ids), at, none, none, answered=True)

    def place(
        self,
        rows: Tensor,
        places: Tensor,
        kinds: Tensor,
        ranks: Tensor,
        *,
        answered: Tensor | bool = False,
    ) -> Tensor:
        """Return what the layers read: vectors with position, kind and rank, normalised.

        Args:
            rows: Words or memory vectors, (rows, hidden).
            places: Their positions, (rows,).
            kinds: QUESTION or PASSAGE, (rows,).
            ranks: Of the passages that they belong to, 0 where to none, (rows,).
            answered: Whether they are an answer's, (rows,), or for all of them.
        """
        whole = rows * self.word_scale + self.word_mean
        whole = whole + self.positions(places) + self.kinds(kinds) + self.ranks(ranks)
        if isinstance(answered, Tensor):
            whole = whole + answered[:, None].to(whole.dtype) * self.answered
        elif answered:
            whole = whole + self.answered
        placed: Tensor = self.norm(whole)
        return placed

    def forward(self, embeds: Tensor, attention_mask: Tensor | None = None, **backbone: Any) -> Any:
        """Run the backbone over (batch, seq, hidden) embeddings; extras go to its attention."""
        for name in ("position_ids", "use_cache"):  # what Llama's take
            backbone.pop(name, None)
        return self.backbone.get_submodule("encoder")(embeds, attention_mask, **backbone)

    def _whole(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


def make_generator(
    words: Tensor, shape: OscarShape, encoder: BertConfig
) -> LlamaGenerator | TwoWayGenerator:
    """Make the generator of a pair with random weights.

    Args:
        words: (vocabulary, hidden), standardised.
        shape: The pair's dimensions.
        encoder: The configuration of the compressor's backbone.
    """
    if shape.two_way:
        return TwoWayGenerator(words, shape, encoder)
    return LlamaGenerator(words, shape)
