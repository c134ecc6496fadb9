"""The dimensions of an OSCAR pair."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OscarShape:
    """Dimensions of a pair with a BERT-size compressor (OSCAR, arXiv:2504.07109, appendix J).

    Attributes:
        memory_tokens: Memory vectors a passage is compressed to (``l`` in the paper).
        query_tokens: Longest question, tokens; longer ones are cut.
        passage_tokens: Longest window of a passage, tokens; longer passages become windows.
        mapping_size: Hidden size of the two-layer ReLU mapping to the generator.
        copy: Whether memory vectors also carry a pointer's mix of the passage's word embeddings.
        generator_layers: Layers of the generator.
        generator_heads: Attention heads of the generator.
        generator_mlp_size: Neurons of each of the generator's MLPs.
        generator_positions: Longest generator prompt with its answer, positions.
    """

    memory_tokens: int = 8
    query_tokens: int = 64
    passage_tokens: int = 128
    mapping_size: int = 768
    copy: bool = True
    generator_layers: int = 4
    generator_heads: int = 6
    generator_mlp_size: int = 1024
    generator_positions: int = 2048

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "copy":
                if not isinstance(value, bool):
                    raise ValueError(f"copy must be true or false, not {value!r}")
            elif type(value) is not int or value < 1:  # True is an int too
                raise ValueError(f"{name} must be a positive integer, not {value!r}")

    @property
    def slots(self) -> int:
        """Positions the compressor adds after the text: memory tokens and one rerank token."""
        return self.memory_tokens + 1

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OscarShape":
        """Build from a manifest's ``shape``; unknown names raise TypeError."""
        return cls(**values)

    @property
    def positions(self) -> int:
        """Positions that the longest question with the longest window takes, slots included."""
        return self.query_tokens + self.passage_tokens + 3 + self.slots

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads."""
        return asdict(self)
