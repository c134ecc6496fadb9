"""The dimensions and prompts of an OSCAR pair whose generator is a causal language model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args

from condensery.networks.oscar_shape import BertShape, check_fewer, rate_of, without_defaults

# How question and passage stand in the compressor's text:
#   pair       as the tokenizer joins two texts: question, then passage
#   joined     "\nQuery:\n" question "Document:\n" passage
#   enclosed   as joined, between texts of the shape's own (special tokens)
#   lines      "Query: " question "\n Document: " passage
Layout = Literal["pair", "joined", "enclosed", "lines"]

Shape = TypeVar("Shape", bound="CompressorShape | GeneratorShape | BertShape")


@dataclass(frozen=True, slots=True)
class CompressorShape:
    """How the compressor reads, and what it gives (OSCAR, arXiv:2504.07109, section 3).

    Attributes:
        layout: Of its text.
        question: Whether it reads the question; PISCO's compressors don't.
        text_tokens: Longest text, question and special tokens included; a longer passage becomes
            windows.
        query_tokens: Tokens of the longest question that it was trained with or reports rates for.
            Longer ones are read too, and leave less for the passage: see ``longest_question``.
        text_before: Before an enclosed text.
        text_after: After it.
        memory_tokens: Memory vectors a window is compressed to (``l``).
        memory_rate: If not 0, vectors are ``text // memory_rate + 1`` instead, ``text`` in tokens.
        memory_rows: Learned memory embeddings: one for each token of ``memory_tokens``, or one
            for all.
        rerank: Whether a rerank token follows them, with a linear head.
        slots_at: Position of the first memory token; 0 is right after the text. Others come from
            models trained with padding between the two, which their positions count.
        final_norm: Whether the backbone's last norm runs; first-N-layers compressors have none.
        mapping_size: Hidden size of the two-layer ReLU mapping; 0 is no mapping.
        shared: Whether its weights are the generator's, with adapters of its own.
        adapter_scale: What the product of an adapter's two matrices is scaled by; 0 is no adapters.
        rounded_rope: Whether rotary frequencies are rounded to bf16, as the reference code does.
        fewer: Numbers of vectors, falling, at which it may be read as well: the first so many of
            each window, which under the causal rule are the same without those after them.
    """

    layout: Layout
    text_tokens: int
    question: bool = True
    query_tokens: int = 64
    text_before: str = ""
    text_after: str = ""
    memory_tokens: int = 8
    memory_rate: int = 0
    memory_rows: int = 8
    rerank: bool = False
    slots_at: int = 0
    final_norm: bool = True
    mapping_size: int = 0
    shared: bool = False
    adapter_scale: float = 0.0
    rounded_rope: bool = False
    fewer: tuple[int, ...] = ()

    # Of a passage in a full window; 0: as many as the question leaves of a text.
    passage_tokens: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout must be one of {get_args(Layout)}, not {self.layout!r}")
        _check(self, positive=("text_tokens", "query_tokens", "memory_tokens", "memory_rows"))
        if self.memory_rows not in (1, self.memory_tokens):
            raise ValueError(
                f"memory_rows must be 1 or memory_tokens ({self.memory_tokens}), "
                f"not {self.memory_rows}"
            )
        if self.memory_rate and self.memory_rows != 1:
            raise ValueError("memory_rate needs memory_rows 1: how many vectors there are differs")
        if 0 < self.slots_at < self.text_tokens:
            raise ValueError(f"slots_at {self.slots_at} lies inside the text ({self.text_tokens})")
        check_fewer(self.fewer, self.memory_tokens)
        if self.fewer and self.memory_rate:
            raise ValueError(
                "fewer needs memory_rate 0: there is one number of vectors to go below"
            )

    @property
    def specials(self) -> int:
        """About how many tokens of a text are neither question nor passage."""
        if self.question:
            return 3 if self.layout == "pair" else 8
        return 2 if self.layout in ("pair", "joined") else 3

    @property
    def positions(self) -> int:
        """Positions that the longest text takes, memory and rerank tokens included."""
        text = max(self.text_tokens, self.slots_at)
        return text + self.memory_of(self.text_tokens) + self.rerank

    @property
    def vectors(self) -> tuple[int, ...]:
        """Vectors that a full window may become, the most first."""
        return (self.memory_of(self.text_tokens), *self.fewer)

    @property
    def rates(self) -> tuple[int, ...]:
        """Tokens a vector, for each of ``vectors``; of the passage, beside the longest question."""
        if self.memory_rate:
            return (self.memory_rate,)
        beside = self.specials + self.query_tokens * self.question
        return tuple(rate_of(self.text_tokens - beside, vectors) for vectors in self.vectors)

    def memory_of(self, text: int) -> int:
        """Return how many memory vectors a text of so many tokens becomes."""
        return text // self.memory_rate + 1 if self.memory_rate else self.memory_tokens


@dataclass(frozen=True, slots=True)
class GeneratorShape:
    """The generator's prompt: ``before``, the passages, ``between``, the question, ``after``.

    Attributes:
        before: Chat template and system prompt, up to the first passage.
        between: From the last passage to the question.
        after: From the question to the answer.
        passage_before: Before a passage; ``{number}`` is its place, from 0.
        passage_after: After a passage's memory tokens, its separator.
        plain_after: After a passage that is given as text.
        memory: The tokens whose embeddings memory vectors replace, in turn.
        strip: Whether the chat template strips the question.
        positions: Longest prompt with its answer.
        stop: Ids that end an answer.
        adapter_scale: As in the compressor.
    """

    before: str
    between: str
    after: str
    memory: tuple[str, ...]
    stop: tuple[int, ...]
    passage_before: str = ""
    passage_after: str = ""
    plain_after: str = "\n"
    strip: bool = False
    positions: int = 2048
    adapter_scale: float = 0.0

    def __post_init__(self) -> None:
        _check(self, positive=("positions",))
        if not self.memory or not self.stop:
            raise ValueError("memory and stop must name at least one token each")


# By its name in a manifest's shape, what a compressor is; how it is built is in ``oscar_families``.
# A pair that shares its base encoder's word table (``OscarShape``) has no such name.
FAMILIES: dict[str, type[CompressorShape] | type[BertShape]] = {
    "causal": CompressorShape,
    "bert-causal": BertShape,
}


@dataclass(frozen=True, slots=True)
class CausalShape:
    """Both halves."""

    compressor: CompressorShape | BertShape
    generator: GeneratorShape

    def __post_init__(self) -> None:
        rows, names = self.compressor.memory_rows, len(self.generator.memory)
        if rows != names:
            raise ValueError(
                f"halves that don't match: the compressor has {rows} memory tokens, "
                f"the generator's prompt {names}"
            )

    @property
    def family(self) -> str:
        """What its compressor is, one of ``FAMILIES``."""
        return next(name for name, kind in FAMILIES.items() if type(self.compressor) is kind)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CausalShape":
        """Build from a manifest's ``shape``.

        Raises:
            ValueError: A name is unknown or missing, or a value is of the wrong kind.
        """
        family = values.get("family")
        kind = FAMILIES.get(family) if isinstance(family, str) else None
        if kind is None or set(values) != {"family", "compressor", "generator"}:
            raise ValueError(
                f"the shape is not of a causal pair: family is {family!r}, and it has "
                f"{sorted(values)}"
            )
        compressor: CompressorShape | BertShape = _read(kind, values["compressor"])
        return cls(compressor, _read(GeneratorShape, values["generator"]))

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, in JSON's types."""
        halves = {
            name: {
                key: list(v) if isinstance(v, tuple) else v
                for key, v in without_defaults(half).items()
            }
            for name, half in asdict(self).items()
        }
        return {"family": self.family, **halves}


def _read(kind: type[Shape], values: Any) -> Shape:
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__}: {values!r} is no object")
    lists: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in values.items()
    }
    try:
        return kind(**lists)
    except TypeError as error:  # a name that is unknown, or missing
        raise ValueError(f"{kind.__name__}: {error}") from error


def _check(shape: "CompressorShape | GeneratorShape", positive: tuple[str, ...]) -> None:
    """Refuse what is of another type than the field, or not positive where it must be."""
    for field in fields(shape):
        value = getattr(shape, field.name)
        least = 1 if field.name in positive else 0
        if field.type is bool:
            wrong, wanted = not isinstance(value, bool), "true or false"
        elif field.type is int:
            wrong = type(value) is not int or value < least  # True is an int too
            wanted = f"an integer, at least {least}"
        elif field.type is float:
            wrong = type(value) not in (int, float) or not 0 <= value < 1000
            wanted = "a number, at least 0"
        elif field.type in (tuple[str, ...], tuple[int, ...]):
            kind = str if field.type == tuple[str, ...] else int
            wrong = not isinstance(value, tuple) or any(type(item) is not kind for item in value)
            wanted = f"a list of {kind.__name__}"
        else:
            wrong, wanted = not isinstance(value, str), "text"
        if wrong:
            raise ValueError(f"{field.name} must be {wanted}, not {value!r}")
