"""The dimensions of an OSCAR pair with a BERT-size compressor, and the rates a pair is read at."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Self


def check_fewer(fewer: object, memory_tokens: int) -> None:
    """Check the numbers of memory vectors, below all, at which a pair may be read as well.

    Raises:
        ValueError: They are no integers, or don't fall from ``memory_tokens`` towards 1.
    """
    if not isinstance(fewer, tuple) or any(type(number) is not int for number in fewer):
        raise ValueError(f"fewer must be a list of int, not {fewer!r}")
    if any(more <= less for more, less in pairwise((memory_tokens, *fewer, 0))):
        raise ValueError(
            f"fewer must fall from below memory_tokens ({memory_tokens}) to 1 at the least, each "
            f"number once, not {list(fewer)}"
        )


def rate_of(passage_tokens: int, vectors: int) -> int:
    """Return how many tokens a vector stands for, where a full window becomes so many."""
    return max(1, round(passage_tokens / vectors))


def longest_question(text_tokens: int, beside: int) -> int:
    """Return how many tokens of a question the compressor reads at most.

    What it reads at once holds question and passage, so that a long question leaves less for each
    window of the passage; a quarter is the passage's in any case.

    Args:
        text_tokens: Longest text that it reads at once.
        beside: Tokens of that which are neither question nor passage.
    """
    return max(1, text_tokens - beside - max(1, text_tokens // 4))


def without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what manifests written before the field was there don't have."""
    later = {"fewer", "walk", "bounds", "sharp", "ask_first", "quote", "two_way"}
    return {name: v for name, v in values.items() if name not in later or v}


@dataclass(frozen=True, slots=True)
class BertShape:
    """Dimensions of a BERT-size compressor (OSCAR, arXiv:2504.07109, appendix J).

    Attributes:
        memory_tokens: Memory vectors a passage is compressed to (``l`` in the paper).
        query_tokens: Longest question that it was trained with, tokens. Longer ones are read too,
            and leave less for the passage: see ``longest_question``.
        passage_tokens: Longest window of a passage, tokens; longer passages become windows.
        mapping_size: Hidden size of the two-layer ReLU mapping to the generator.
        fewer: Numbers of vectors, falling, at which it may be read as well: the first so many.
            It sees both ways, so training has to make them enough.
    """

    memory_tokens: int = 8
    query_tokens: int = 64
    passage_tokens: int = 128
    mapping_size: int = 768
    fewer: tuple[int, ...] = ()

    # Of a causal pair's compressor (``CompressorShape``): this one has weights of its own.
    shared: ClassVar[bool] = False
    adapter_scale: ClassVar[float] = 0.0
    rounded_rope: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool:
                if not isinstance(value, bool):
                    raise ValueError(f"{field.name} must be true or false, not {value!r}")
            elif field.type is int and (type(value) is not int or value < 1):  # True is an int too
                raise ValueError(f"{field.name} must be a positive integer, not {value!r}")
        check_fewer(self.fewer, self.memory_tokens)

    @property
    def memory_rows(self) -> int:
        """Learned memory embeddings: one for each memory token."""
        return self.memory_tokens

    @property
    def rerank(self) -> bool:
        """It always has a rerank token and its head."""
        return True

    @property
    def longest_question(self) -> int:
        """Tokens of a question that are read at most, three special tokens beside them."""
        return longest_question(self.text_tokens, 3)

    @property
    def slots(self) -> int:
        """Positions the compressor adds after the text: memory tokens and one rerank token."""
        return self.memory_tokens + 1

    @property
    def text_tokens(self) -> int:
        """Longest text: question, window and special tokens."""
        return self.query_tokens + self.passage_tokens + 3

    @property
    def positions(self) -> int:
        """Positions that the longest question with the longest window takes, slots included."""
        return self.text_tokens + self.slots

    @property
    def vectors(self) -> tuple[int, ...]:
        """Vectors that a full window may become, the most first."""
        return (self.memory_tokens, *self.fewer)

    @property
    def rates(self) -> tuple[int, ...]:
        """Tokens a vector, for each of ``vectors``."""
        return tuple(rate_of(self.passage_tokens, vectors) for vectors in self.vectors)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a manifest's ``shape``; unknown names raise TypeError."""
        lists: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
        }
        return cls(**lists)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, in JSON's types."""
        values = without_defaults(asdict(self))
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


@dataclass(frozen=True, slots=True)
class OscarShape(BertShape):
    """Dimensions of a pair that shares its base encoder's word table.

    Attributes:
        copy: Whether memory vectors also carry a pointer's mix of the passage's word embeddings.
        walk: Whether that pointer walks along the passage from where an answer starts; else each
            memory token points by itself.
        bounds: Whether that pointer scores where an answer begins and ends, as an extractive reader
            does; memory tokens then point at its first words, and the last one at its last.
        sharp: Whether it takes the likeliest walk or span alone; else all of them, mixed.
        ask_first: Whether the question stands before the passages too where any of them is read as
            text: a generator sees nothing that comes later, so it reads them knowing what is asked.
        quote: Whether an answer is held to the words of the passages read, one stretch of them.
        two_way: Whether the generator has BERT's layers, and all of a prompt sees all of it; else
            it has Llama's, and each place of a prompt sees those before it.
        generator_layers: Layers of the generator.
        generator_heads: Attention heads of the generator.
        generator_mlp_size: Neurons of each of the generator's MLPs.
        generator_positions: Longest generator prompt with its answer, positions.
    """

    copy: bool = True
    walk: bool = False
    bounds: bool = False
    sharp: bool = False
    ask_first: bool = False
    quote: bool = False
    two_way: bool = False
    generator_layers: int = 4
    generator_heads: int = 6
    generator_mlp_size: int = 1024
    generator_positions: int = 2048

    def __post_init__(self) -> None:
        """Check what the fields say together, too."""
        # Not super(): a dataclass with slots is a new class, which super() does not know.
        BertShape.__post_init__(self)
        if self.walk and not self.copy:
            raise ValueError("walk is true, but copy is false: there is no pointer to walk")
        if self.bounds and not self.copy:
            raise ValueError("bounds is true, but copy is false: there is no pointer to score them")
        if self.bounds and self.walk:
            raise ValueError("bounds and walk are true: a pointer does one of them")
        if self.sharp and not (self.walk or self.bounds):
            raise ValueError("sharp is true, but walk and bounds are false: nothing to choose")
        if self.two_way and self.ask_first:
            raise ValueError("ask_first and two_way are true: one that sees all needs no order")
