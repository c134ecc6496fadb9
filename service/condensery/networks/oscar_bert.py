"""A pair with a BERT-size compressor behind the same interface as the causal ones."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from torch import Tensor

from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_interface import Memories, Part, Reading
from condensery.networks.oscar_packing import Pairing, Specials, length, pack
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.windows import windows


class BertTexts:
    """``[CLS] question [SEP] passage [SEP]``, and the generator's prompt over the same pieces.

    Raises:
        ValueError: The tokenizer has no [CLS] and [SEP].
    """

    def __init__(self, tokenizer: Tokenizer, shape: OscarShape) -> None:
        self._tokenizer = tokenizer
        self._shape = shape
        self._specials = Specials.of(tokenizer)
        self.stop = frozenset({self._specials.end})
        self.positions = shape.generator_positions
        self.query_tokens = shape.query_tokens
        self.text_tokens = shape.text_tokens
        self.vectors = shape.vectors
        self.rates = shape.rates
        self.scores = True

    def cut(self, question: str) -> tuple[str, int]:
        """Return the question, whose pieces are cut where they are read, and how many it has."""
        return question, len(self._tokenizer.encode(question, add_special_tokens=False).ids)

    def readings(self, question: str, passages: Sequence[str]) -> list[list[Reading]]:
        """Return the windows of each passage."""
        head = self._asked(question)
        found = self._tokenizer.encode_batch(list(passages), add_special_tokens=False)
        readings = []
        for encoding in found:
            ids, offsets = encoding.ids, encoding.offsets
            readings.append(
                [
                    Reading(
                        ids=[*head, *ids[a:b], self._specials.end],
                        head=len(head),
                        tail=1,
                        memory=self._shape.memory_tokens,
                        start=offsets[a][0] if b > a else 0,
                        end=offsets[b - 1][1] if b > a else 0,
                        first=a,
                    )
                    for a, b in windows(len(ids), self._shape.passage_tokens)
                ]
            )
        return readings

    def prompt(self, question: str, context: Sequence[Tensor | str]) -> list[Part]:
        """Return the prompt of memory vectors and pieces; ``embed`` puts separators between."""
        return [*(self._passage(given) for given in context), self._asked(question)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the pieces' text, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _passage(self, given: Tensor | str) -> Part:
        if isinstance(given, Tensor):
            return given
        ids: list[int] = self._tokenizer.encode(given, add_special_tokens=False).ids
        return ids

    def _asked(self, question: str) -> list[int]:
        ids = self._tokenizer.encode(question, add_special_tokens=False).ids
        return [self._specials.start, *ids[: self._shape.query_tokens], self._specials.end]


class BertCompressor:
    """The compressor of an ``OscarPair`` that is ready for packed inference."""

    def __init__(self, pair: OscarPair, specials: Specials) -> None:
        self._compressor = pair.compressor
        self._words = pair.generator.words
        self._shape = pair.shape
        self._specials = specials

    def cost(self, reading: Reading) -> int:
        """Return the positions a reading takes, slots included."""
        return length(_pairing(reading), self._shape)

    def compress(self, readings: Sequence[Reading]) -> Memories:
        """Compress and score all of them in one forward pass, without padding."""
        given = pack(
            [_pairing(reading) for reading in readings],
            self._shape,
            self._specials,
            self._compressor.slot_positions,
            dtype=self._words.dtype,
            device=self._words.device,
        )
        out = self._compressor(given, self._words)
        counts = (self._shape.memory_tokens,) * len(readings)
        return Memories(out.memory.flatten(0, 1), counts, out.relevance)


def _pairing(reading: Reading) -> Pairing:
    ids = reading.ids
    return Pairing(ids[1 : reading.head - 1], ids[reading.head : len(ids) - reading.tail])
