"""Which sub-layers of a transformer are gone, and how wide its MLPs still are (EffiR).

Read from a ``config.json``: LLM-Drop's keys ``drop_attn_list`` and ``drop_mlp_list``, and our own
``mlp_intermediate_sizes`` for widths, which has no published form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = ATTENTION, MLP, SIZES = "drop_attn_list", "drop_mlp_list", "mlp_intermediate_sizes"


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is left of a transformer.

    Attributes:
        layers: Layers of the dense model, which keep their numbers.
        attention: Layers whose attention is gone, ascending.
        mlp: Layers whose MLP is gone, ascending.
        sizes: Neurons of each layer's MLP, 0 where it is gone; None: the dense model's.
    """

    layers: int
    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()
    sizes: tuple[int, ...] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Pruning":
        """Read what a ``config.json`` says; one that says nothing is of a dense model.

        Lists are null, layer numbers in any order, or a boolean a layer (as transformers writes
        them back).

        Raises:
            ValueError: A list is out of range, of the wrong length or of something else, or
                nothing would be left; the key is named.
        """
        layers = _whole(config, "num_hidden_layers")
        sizes = config.get(SIZES)
        dropped = _dropped(MLP, config.get(MLP), layers)
        if sizes is not None:
            sizes = _sizes(sizes, layers, _whole(config, "intermediate_size"))
            zeros = tuple(layer for layer, size in enumerate(sizes) if not size)
            if config.get(MLP) is None:
                dropped = zeros
            elif zeros != dropped:
                raise ValueError(
                    f"{SIZES}: is 0 in the layers {list(zeros)}, but {MLP} names {list(dropped)}"
                )
        pruning = cls(layers, _dropped(ATTENTION, config.get(ATTENTION), layers), dropped, sizes)
        if len(pruning.mlp) == layers:
            raise ValueError(f"{MLP}: every MLP is dropped, all {layers} of them")
        if len(pruning.attention) == layers:
            raise ValueError(f"{ATTENTION}: every attention is dropped, all {layers} of them")
        return pruning

    @staticmethod
    def named(config: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` names any of the keys that this is read from."""
        return any(config.get(key) is not None for key in KEYS)

    def to_config(self) -> dict[str, Any]:
        """Return the keys to write; depth alone is then as LLM-Drop reads it."""
        keys: dict[str, Any] = {ATTENTION: list(self.attention), MLP: list(self.mlp)}
        return keys if self.sizes is None else {**keys, SIZES: list(self.sizes)}

    @property
    def dense(self) -> bool:
        """Whether nothing is gone."""
        return not self.attention and not self.mlp and self.sizes is None

    def size(self, layer: int, whole: int) -> int:
        """Return the neurons of a layer's MLP, of ``whole`` in the dense model; 0: it is gone."""
        if layer in self.mlp:
            return 0
        return whole if self.sizes is None else self.sizes[layer]


def _dropped(key: str, listed: object, layers: int) -> tuple[int, ...]:
    """Return the layers that a list names."""
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise ValueError(f"{key}: {listed!r} is no list")
    if listed and all(isinstance(value, bool) for value in listed):  # True is an int too
        if len(listed) != layers:
            raise ValueError(f"{key}: has {len(listed)} booleans for {layers} layers")
        return tuple(layer for layer, gone in enumerate(listed) if gone)
    for value in listed:
        if type(value) is not int or not 0 <= value < layers:
            raise ValueError(f"{key}: {value!r} is no layer of {layers}")
    if len(set(listed)) != len(listed):
        raise ValueError(f"{key}: names a layer twice: {listed}")
    return tuple(sorted(listed))


def _sizes(listed: object, layers: int, whole: int) -> tuple[int, ...]:
    """Return the widths of a list, one a layer."""
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != layers:
        raise ValueError(f"{SIZES}: {listed!r} is no list of {layers} widths")
    for layer, value in enumerate(listed):
        if type(value) is not int or not 0 <= value <= whole:
            raise ValueError(f"{SIZES}: layer {layer} has {value!r} neurons, of {whole}")
    return tuple(listed)


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ValueError(f"{key}: {value!r} is no positive integer")
    return value
