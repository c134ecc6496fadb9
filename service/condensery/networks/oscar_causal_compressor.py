"""A compressor that is a causal language model, or its first layers.

Source: OSCAR, "Online Soft Compression And Reranking", arXiv:2504.07109, sections 3.2 and 3.3.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from condensery.networks.backbone import make_ready, row_multiple
from condensery.networks.oscar_causal_shape import CompressorShape
from condensery.networks.oscar_interface import Memories, PassageWindow
from condensery.networks.packing import Packing
from condensery.networks.quantised import EncoderWeights


def check_positions(config: PretrainedConfig, needed: int, what: str) -> None:
    """Refuse a model that has fewer positions than are needed.

    Raises:
        ValueError: It has; names ``what`` takes them.
    """
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and needed > most:
        raise ValueError(f"the longest {what} takes {needed} positions, its model has {most}")


class CausalCompressor(nn.Module):
    """A headless causal language model with memory tokens, and perhaps a mapping and a head.

    Memory tokens follow the text, the rerank token follows them, so that under the causal rule
    memory is the same with and without it.

    Args:
        backbone: Built by ``decoders.headless``.
        shape: How it reads.
        written: The generator's hidden size.

    Raises:
        ValueError: There is no mapping, and the hidden sizes differ; or the backbone has fewer
            positions than the shape needs.
    """

    def __init__(self, backbone: PreTrainedModel, shape: CompressorShape, written: int) -> None:
        super().__init__()
        hidden: int = backbone.config.hidden_size
        if not shape.mapping_size and hidden != written:
            raise ValueError(
                f"halves that don't match: the compressor gives {hidden} features, the generator "
                f"reads {written}, and there is no mapping"
            )
        check_positions(backbone.config, shape.positions, "text")
        self.shape = shape
        self.backbone = backbone
        self.slots = nn.Embedding(shape.memory_rows + shape.rerank, hidden)
        self.mapping: nn.Module = nn.Identity()
        if shape.mapping_size:
            self.mapping = nn.Sequential(
                nn.Linear(hidden, shape.mapping_size),
                nn.ReLU(),
                nn.Linear(shape.mapping_size, written),
            )
        self.rerank = nn.Linear(hidden, 1) if shape.rerank else None

    def make_ready(self, weights: EncoderWeights = "float") -> None:
        """Read packed input, with layers whose weights are held so."""
        make_ready(self.backbone, weights)

    def cost(self, window: PassageWindow) -> int:
        """Return the positions a window takes, memory and rerank tokens included."""
        return len(window.ids) + window.memory + self.shape.rerank

    def compress(self, windows: Sequence[PassageWindow]) -> Memories:
        """Compress and score all of them in one forward pass, without padding."""
        words = self.backbone.get_input_embeddings()
        table = cast(Tensor, words.weight)
        device, shape = table.device, self.shape
        lengths = [self.cost(window) for window in windows]
        multiple = row_multiple(device, table.dtype)
        packing = Packing.of(lengths, dtype=table.dtype, device=device, total_multiple=multiple)
        ids, places = (np.zeros(packing.total, dtype=np.int64) for _ in range(2))
        slots_at: list[np.ndarray[Any, Any]] = []
        slot_ids: list[np.ndarray[Any, Any]] = []
        start = 0
        for window, length in zip(windows, lengths, strict=True):
            text, end = start + len(window.ids), start + length
            ids[start:text] = window.ids
            places[start:text] = np.arange(text - start)
            first = shape.slots_at or text - start
            places[text:end] = np.arange(first, first + end - text)
            slots_at.append(np.arange(text, end))
            rows = np.arange(window.memory) % shape.memory_rows
            slot_ids.append(np.append(rows, shape.memory_rows) if shape.rerank else rows)
            start = end
        at = torch.from_numpy(np.concatenate(slots_at)).to(device)
        embeds = words(torch.from_numpy(ids).to(device))
        embeds[at] = self.slots(torch.from_numpy(np.concatenate(slot_ids)).to(device))
        packing.wanted = at
        hidden = self.backbone(
            inputs_embeds=embeds[None],
            position_ids=torch.from_numpy(places).to(device)[None],
            packing=packing,
            use_cache=False,
        ).last_hidden_state[0]
        counts = tuple(window.memory for window in windows)
        if self.rerank is None:
            return Memories(self.mapping(hidden[at]), counts, None)
        last = packing.ends
        is_memory = torch.isin(at, last, invert=True)
        relevance = self.rerank(hidden[last]).squeeze(-1).float()
        return Memories(self.mapping(hidden[at[is_memory]]), counts, relevance)
