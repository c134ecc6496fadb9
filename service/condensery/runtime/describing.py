"""What ``/v1/models`` shows of a model that one network makes: encoders and classifiers."""

from typing import TYPE_CHECKING, Any

import torch

from condensery.errors import CorruptModel
from condensery.networks.backbone import Backbone
from condensery.values import ModelInfo

if TYPE_CHECKING:  # not there on a machine that only runs forward passes
    from condensery.store.manifest import Manifest


def describe(
    manifest: "Manifest", backbone: Backbone, device: torch.device, dtype: torch.dtype, **own: Any
) -> ModelInfo:
    """Say what runs.

    Args:
        manifest: The stored model's.
        backbone: What was loaded of it.
        device: Where it runs.
        dtype: What it computes in.
        own: Fields of ``ModelInfo`` that only its kind has.

    Raises:
        CorruptModel: The manifest promises longer inputs than the network has positions for.
    """
    if backbone.longest is not None and manifest.max_tokens > backbone.longest:
        raise CorruptModel(
            f"{manifest.name}: max_tokens is {manifest.max_tokens}, but the network has "
            f"only {backbone.longest} positions"
        )
    return ModelInfo(
        name=manifest.name,
        kind=manifest.kind,
        method=manifest.method,
        fingerprint=manifest.fingerprint,
        max_tokens=manifest.max_tokens,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        licence=manifest.licence,
        created=manifest.created,
        **own,
    )


def vector_lengths(manifest: "Manifest", width: int) -> tuple[int, ...]:
    """Return the lengths that a stored model's vectors may be cut to, as its manifest has them.

    Raises:
        CorruptModel: One is none of a vector that the model gives.
    """
    declared = manifest.shape.get("matryoshka", [])
    lengths = declared if isinstance(declared, list) else [declared]
    found = tuple(one for one in lengths if type(one) is int and 0 < one <= width)
    if len(found) != len(lengths):
        raise CorruptModel(f"{manifest.name}: matryoshka {declared!r} of {width} dimensions")
    return tuple(sorted(set(found)))
