"""From token vectors to one vector a sequence, in fp32 whatever the network computed in."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from condensery.networks.packing import Packing

Pooling = Literal["mean", "cls", "last"]


def pool(hidden: Tensor, packing: Packing, pooling: Pooling) -> Tensor:
    """Pool packed token vectors.

    Args:
        hidden: (total, width), any float dtype.
        packing: Where the sequences lie.
        pooling: The mean over a sequence's tokens, its first, or its last token.

    Returns:
        (sequences, width), float32.
    """
    rows = rows_read(packing, pooling)
    if rows is not None:
        return hidden.index_select(0, rows).float()
    ids = packing.sequence_ids
    sums = torch.zeros(len(packing.lengths), hidden.shape[1], device=hidden.device)
    sums.index_add_(0, ids, hidden[: len(ids)].float())
    return sums / torch.diff(packing.cu_seqlens)[:, None]


def rows_read(packing: Packing, pooling: Pooling) -> Tensor | None:
    """Return the rows that ``pool`` reads, one a sequence; None if all of them."""
    if pooling == "cls":
        return packing.starts
    return packing.ends if pooling == "last" else None


def normalise(vectors: Tensor) -> Tensor:
    """Scale each row of ``vectors`` (rows, width) to length 1; a zero row stays zero."""
    return F.normalize(vectors, dim=1)
