"""Sequence classifiers: a packed backbone and transformers' own head on one vector a text."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.networks.backbone import ROBERTA_LIKE, Backbone, run_packed
from condensery.networks.pooling import Pooling, pool
from condensery.networks.quantised import EncoderWeights


class Classifier(nn.Module):
    """Texts, or pairs of texts, to one logit a label; for inference only.

    Args:
        backbone: Reads packed tokens.
        pooling: Which of a text's token vectors the head reads.
        head: (texts, width) to (texts, labels), float32.
        labels: How many.
        typed: Whether the network tells the second text of a pair by its tokens' types.
    """

    def __init__(
        self, backbone: Backbone, pooling: Pooling, head: nn.Module, *, labels: int, typed: bool
    ) -> None:
        super().__init__()
        self.labels = labels
        self.backbone = backbone
        self.pooling: Pooling = pooling
        self.head = head
        self.typed = typed

    @torch.inference_mode()
    def read(
        self, sequences: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]]
    ) -> Tensor:
        """Return the logits (texts, labels), float32.

        Args:
            sequences: Token ids of each text or pair.
            token_types: Type of each token; of no effect on networks without types.
        """
        types = token_types if self.typed else None
        hidden, packing = self.backbone.read(sequences, types, pooling=self.pooling)
        logits: Tensor = self.head(pool(hidden, packing, self.pooling))
        return logits


def run_classifier(model: PreTrainedModel, *, weights: EncoderWeights = "float") -> Classifier:
    """Make one of transformers' sequence classifiers read packed input.

    Args:
        model: Its parts are replaced.
        weights: What its layers' are held as, but for the head's.

    Raises:
        CorruptModel: Its backbone does not give the same numbers packed as alone.
        ValueError: It is of no family whose head is known here; the ``model_type`` is named.
    """
    whole: Any = model
    config: Any = model.config
    base: Any = model.base_model
    pooling: Pooling = "cls"
    if config.model_type == "bert":
        head = nn.Sequential(_Tokens(), base.pooler, whole.classifier)
        base.pooler = None
    elif config.model_type in ROBERTA_LIKE:
        head = nn.Sequential(_Tokens(), whole.classifier)
    elif config.model_type == "modernbert":
        head = nn.Sequential(whole.head, whole.classifier)
        pooling = config.classifier_pooling
    elif isinstance(getattr(model, "score", None), nn.Linear):
        head = nn.Sequential(whole.score)
        pooling = "last"
    else:
        raise ValueError(f"model_type: the head of a {config.model_type!r} classifier is not known")
    typed = getattr(config, "type_vocab_size", 0) > 1
    backbone = run_packed(base, weights=weights)
    return Classifier(backbone, pooling, head.float(), labels=config.num_labels, typed=typed)


class _Tokens(nn.Module):
    """One vector a text as a sequence of one token, of which BERT's heads take the first."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(texts, width) to (texts, 1, width)."""
        return vectors[:, None]
