"""Options of importing a published pair."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PairOptions:
    """What a published directory does not say, or says of the machine that made it.

    None is not asked for: an option that is, and does not apply, is refused.

    Attributes:
        generator_base: The generator's base model; the directory it names, if None.
        compressor_base: The compressor's; likewise.
        questions: Whether the compressor reads the question; it does, if None.
        max_length: Tokens of question and passage together (of the passage alone where no question
            is read), beside those that the layout puts around them; None is a passage as long as
            the layout was trained on, and 64 for the question where it is read.
        rounded_rope: Round the compressor's rotary frequencies to bf16, as the reference code does.
    """

    generator_base: Path | None = None
    compressor_base: Path | None = None
    questions: bool | None = None
    max_length: int | None = None
    rounded_rope: bool | None = None

    @property
    def asks(self) -> bool:
        """Whether the compressor reads the question."""
        return self.questions is not False
