"""What a stored model takes from its base: weights and files that are the same in both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "from_base"  # of a manifest's shape, so that the fingerprint covers it
WEIGHTS, FILES = "weights", "files"


@dataclass(frozen=True, slots=True)
class BaseParts:
    """What is not stored with a model, for its base has it.

    Attributes:
        weights: Names of tensors, each with its name in the base.
        files: Names of files, the same in the base.
    """

    weights: Mapping[str, str]
    files: tuple[str, ...]

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> "BaseParts | None":
        """Read a manifest's ``shape``; None where it takes nothing from a base.

        Raises:
            ValueError: It says so in another way; the key is named.
        """
        content = shape.get(KEY)
        if content is None:
            return None
        if not isinstance(content, Mapping) or set(content) != {WEIGHTS, FILES}:
            raise ValueError(f"shape.{KEY}: holds other keys than {WEIGHTS} and {FILES}")
        weights, files = content[WEIGHTS], content[FILES]
        if not isinstance(weights, Mapping) or not _all_text(weights.values()):
            raise ValueError(f"shape.{KEY}.{WEIGHTS}: {weights!r} is no table of names")
        if not isinstance(files, Sequence) or isinstance(files, str) or not _all_text(files):
            raise ValueError(f"shape.{KEY}.{FILES}: {files!r} is no list of names")
        if len(set(weights.values())) != len(weights):
            raise ValueError(f"shape.{KEY}.{WEIGHTS}: names a tensor of the base twice")
        return cls(dict(weights), tuple(files))

    def to_shape(self) -> dict[str, Any]:
        """Return the key to write into a manifest's ``shape``."""
        return {KEY: {WEIGHTS: dict(self.weights), FILES: list(self.files)}}


def _all_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
