"""What makes an encoder of a causal language model: memory tokens after the text (LLM2Comp)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEMORY, START, SCALE, EFFECTIVE = KEYS = (
    "memory_tokens",
    "start_token",
    "adapter_scale",
    "effective_tokens",
)


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """How a memory encoder reads a text, ``[start] text M1 .. Mk``, as its manifest's shape says.

    Attributes:
        memory_tokens: How many follow the text (k); the paper's 8. Their ids are those of the
            embedding table's last k rows.
        start_token: Id of the token that each text begins with; None: the language model was
            trained without one. No end token follows.
        adapter_scale: What the product of an adapter's two matrices is scaled by; 0: no adapters.
        effective_tokens: Which memory tokens, ascending from 0, the vector is the mean of, where
            others are like them (section 4.2 of the paper); none: all of them.
    """

    memory_tokens: int = 8
    start_token: int | None = None
    adapter_scale: float = 0.0
    effective_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        k, start, scale, kept = (
            self.memory_tokens,
            self.start_token,
            self.adapter_scale,
            self.effective_tokens,
        )
        if type(k) is not int or k < 1:  # True is an int too
            raise ValueError(f"{MEMORY} must be a positive integer, not {k!r}")
        if start is not None and (type(start) is not int or start < 0):
            raise ValueError(f"{START} must be a token's id or null, not {start!r}")
        if type(scale) not in (int, float) or not 0 <= scale < 1000:
            raise ValueError(f"{SCALE} must be a number, at least 0, not {scale!r}")
        if any(type(token) is not int or not 0 <= token < k for token in kept):
            raise ValueError(f"{EFFECTIVE} must be numbers under {MEMORY} ({k}), not {list(kept)}")
        if list(kept) != sorted(set(kept)):
            raise ValueError(f"{EFFECTIVE} must ascend, each once, not {list(kept)}")

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> "MemoryShape":
        """Read a manifest's ``shape``; keys of others are left.

        Raises:
            ValueError: A value is wrong, or ``memory_tokens`` is missing; the key is named.
        """
        kept = shape.get(EFFECTIVE, ())
        if not isinstance(kept, list | tuple):
            raise ValueError(f"shape.{EFFECTIVE}: {kept!r} is no list")
        try:
            return cls(
                memory_tokens=shape.get(MEMORY),  # type: ignore[arg-type]  # checked by the class
                start_token=shape.get(START),
                adapter_scale=shape.get(SCALE, 0.0),
                effective_tokens=tuple(kept),
            )
        except ValueError as error:
            raise ValueError(f"shape.{error}") from error

    def to_shape(self) -> dict[str, Any]:
        """Return the keys to write into a manifest's ``shape``."""
        keys: dict[str, Any] = {MEMORY: self.memory_tokens, START: self.start_token}
        if self.adapter_scale:
            keys[SCALE] = self.adapter_scale
        if self.effective_tokens:
            keys[EFFECTIVE] = list(self.effective_tokens)
        return keys

    @property
    def kept(self) -> tuple[int, ...]:
        """The memory tokens that the vector is the mean of."""
        return self.effective_tokens or tuple(range(self.memory_tokens))

    def check_length(self, max_tokens: int) -> None:
        """Check that a text has room beside the memory tokens.

        Args:
            max_tokens: Longest input, tokens, memory tokens included.

        Raises:
            ValueError: It has not; both numbers are named.
        """
        room = max_tokens - self.memory_tokens - (self.start_token is not None)
        if room < 1:
            raise ValueError(
                f"{MEMORY} {self.memory_tokens} leave no room for a text in max_tokens {max_tokens}"
            )
