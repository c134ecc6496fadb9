"""How much faster a model is with parts gone, against what the parts themselves took."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from condensery.methods.retriever.timing import ROUNDS
from condensery.networks.backbone import Backbone
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import Family, family_of, layers_of

BATCH_TOKENS = 4096
Texts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a forward pass's time goes, seconds.

    Attributes:
        whole: The pass.
        attention: Of each layer's attention, with its norm if that goes when it is dropped.
        mlp: Of each layer's MLP, likewise.
    """

    whole: float
    attention: tuple[float, ...]
    mlp: tuple[float, ...]

    def without(self, pruning: Pruning, neurons: int) -> float:
        """Return the time that would be left if what is gone had taken no other time with it.

        Args:
            pruning: What is left.
            neurons: Of each MLP before.
        """
        gone = sum(self.attention[layer] for layer in pruning.attention)
        for layer, seconds in enumerate(self.mlp):
            gone += seconds * (1 - pruning.size(layer, neurons) / neurons)
        return self.whole - gone


def batches(texts: Texts, most: int = BATCH_TOKENS) -> list[list[Sequence[int]]]:
    """Put texts of similar lengths into batches of at most so many tokens."""
    rows: list[list[Sequence[int]]] = [[]]
    size = 0
    for ids in sorted(texts, key=len):
        if rows[-1] and size + len(ids) > most:
            rows.append([])
            size = 0
        rows[-1].append(ids)
        size += len(ids)
    return rows


def times(
    backbones: Mapping[str, Backbone], texts: Texts, rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Return the seconds that each takes for all texts, a round each, in turns.

    Args:
        backbones: By name; on one device.
        texts: Token ids.
        rounds: Of all; one more goes before, uncounted.
    """
    by_name: dict[str, list[float]] = {name: [] for name in backbones}
    rows = batches(texts)
    for number in range(rounds + 1):
        for name, backbone in backbones.items():
            seconds = _timed(backbone, rows)
            if number:
                by_name[name].append(seconds)
    return by_name


def profile(backbone: Backbone, texts: Texts, rounds: int = ROUNDS) -> Profile:
    """Measure where a dense model's time goes, medians over rounds.

    The pass itself is timed without looking into it; its parts in other passes, by turns.
    """
    rows = batches(texts)
    layers = len(layers_of(backbone.model))
    passes: list[float] = []
    parts: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds + 1):
        seconds = _timed(backbone, rows)
        spent: dict[tuple[str, int], float] = {}
        with _watched(backbone, spent):
            for batch in rows:
                backbone.read(batch)
        if number:
            passes.append(seconds)
            for key, value in spent.items():
                parts.setdefault(key, []).append(value)

    def of(kind: str) -> tuple[float, ...]:
        return tuple(median(parts[kind, layer]) for layer in range(layers))

    return Profile(median(passes), of("attention"), of("mlp"))


def _timed(backbone: Backbone, rows: Sequence[Texts]) -> float:
    """Return the seconds that batches take."""
    _wait(backbone.device)
    began = time.perf_counter()
    for batch in rows:
        backbone.read(batch)
    _wait(backbone.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _watched(backbone: Backbone, spent: dict[tuple[str, int], float]) -> Iterator[None]:
    """Add up what each sub-layer takes meanwhile; on CUDA each is waited for."""
    handles = []
    family = family_of(backbone.model)
    for number, layer in enumerate(layers_of(backbone.model, family)):
        for kind, names in _parts(layer, family).items():
            for name, sign in names.items():
                began: list[float] = []

                def enters(*_: Any, began: list[float] = began) -> None:
                    _wait(backbone.device)
                    began.append(time.perf_counter())

                def leaves(
                    *_: Any,
                    began: list[float] = began,
                    key: tuple[str, int] = (kind, number),
                    sign: int = sign,
                ) -> None:
                    _wait(backbone.device)
                    seconds = time.perf_counter() - began.pop()
                    spent[key] = spent.get(key, 0.0) + sign * seconds

                module = layer.get_submodule(name)
                handles += [
                    module.register_forward_pre_hook(enters),
                    module.register_forward_hook(leaves),
                ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(layer: nn.Module, family: Family) -> dict[str, dict[str, int]]:
    """Return the modules of a layer as it runs, fused or transformers' own; -1: one that stays."""
    if not family.norm_first:  # networks.bert's
        return {kind: {kind: 1, f"{kind}.norm": -1} for kind in ("attention", "mlp")}
    return {
        "attention": dict.fromkeys(family.attention_parts, 1),
        "mlp": dict.fromkeys(family.mlp_parts, 1),
    }
