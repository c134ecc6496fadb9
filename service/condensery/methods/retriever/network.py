"""A retriever in training: the transformer that serves, on packed texts, and its pooling."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from condensery.errors import CorruptModel
from condensery.methods.trainer.lora import adapt, merged
from condensery.networks.attention import PACKED
from condensery.networks.backbone import Backbone, load_transformer
from condensery.networks.pooling import Pooling, normalise, pool
from condensery.networks.sublayers import layers_of

if TYPE_CHECKING:  # the store needs pydantic, which is absent where runs are only trained
    from condensery.store.manifest import StoredModel


class Retriever(nn.Module):
    """Texts to vectors of length 1, with gradients; padding-free, as in serving.

    Args:
        model: transformers' base model, parts gone or not; it drops nothing out.
        pooling: Of token vectors.
    """

    def __init__(self, model: PreTrainedModel, pooling: Pooling) -> None:
        super().__init__()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(getattr(module, "attention_dropout", None), float):
                setattr(module, "attention_dropout", 0.0)  # noqa: B010  # of no declared type
        model.set_attn_implementation(PACKED)
        self.backbone = Backbone(model)
        self.pooling: Pooling = pooling

    @property
    def model(self) -> PreTrainedModel:
        """The transformer."""
        return self.backbone.model

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Embed token ids; returns (texts, dims), float32."""
        packing = self.backbone.pack([len(ids) for ids in texts])
        flat = [token for ids in texts for token in ids]
        return normalise(pool(self.backbone(packing.row(flat), packing), packing, self.pooling))

    def adapt(self, *, rank: int, alpha: int) -> None:
        """Put LoRA adapters on every linear layer; they alone learn from then on."""
        adapt(self.model, rank=rank, alpha=alpha)

    def freeze_embeddings(self) -> None:
        """Let the embeddings, of words and of what else is added to them, not learn."""
        self.model.get_input_embeddings().requires_grad_(requires_grad=False)
        beside: object = getattr(self.model, "embeddings", None)
        if isinstance(beside, nn.Module):
            beside.requires_grad_(requires_grad=False)

    def recompute(self) -> None:
        """Keep only what goes into each layer, and compute the rest again in the backward pass."""
        for layer in layers_of(self.model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)

    def weights(self) -> dict[str, Tensor]:
        """Return the transformer's weights by its own names, adapters merged."""
        return merged(self.model)


def open_retriever(
    stored: "StoredModel",
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Retriever:
    """Load a stored encoder to train it.

    Raises:
        CorruptModel: It is no encoder, or its files don't make one.
        ModelNotFound: The base that has some of them is not in the store.
    """
    from condensery.store.weights import open_folder  # late: see above

    pooling = stored.manifest.pooling
    if stored.manifest.kind != "encoder" or pooling is None:
        raise CorruptModel(f"{stored.name}: kind {stored.manifest.kind!r} is no encoder")
    if stored.manifest.method == "llm2comp":  # it would be read causally, without memory tokens
        raise CorruptModel(f"{stored.name}: memory encoders are not trained as retrievers")
    folder = open_folder(stored)
    model = load_transformer(folder, device=device or torch.device("cpu"), dtype=dtype)
    return Retriever(model, pooling)
