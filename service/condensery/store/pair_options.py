"""What an import of a published pair is told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """What a published directory does not say, or says of the machine that made it.

    Attributes:
        generator_base: The generator's base model; the directory it names, if None.
        compressor_base: The compressor's; likewise.
        questions: Whether the compressor reads the question.
        max_length: Tokens of question and passage together; None is the layout's own.
        rounded_rope: Round the compressor's rotary frequencies to bf16, as the reference code does.
    """

    generator_base: Path | None = None
    compressor_base: Path | None = None
    questions: bool = True
    max_length: int | None = None
    rounded_rope: bool = False
