"""Texts embedded by a running encoder, with the prompts that the service takes."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.runtime.encoder import Encoder
from condensery.runtime.queue import BatchLimits
from condensery.runtime.tokenizing import MAX_CHARACTERS_PER_TOKEN
from condensery.runtime.workers import Workers
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.store.manifest import StoredModel

log = logging.getLogger(__name__)
BLOCK = 256  # texts embedded at once


@contextmanager
def running(
    stored: "StoredModel", count: int, device: torch.device, dtype: torch.dtype
) -> Iterator[Encoder]:
    """Run a stored encoder while it is needed, with so many workers.

    Raises:
        CorruptModel: It is no encoder, or its files don't make one.
    """
    workers = Workers(count, device)
    # Nobody else waits: whatever is asked for may queue.
    limits = BatchLimits(queue_seconds=float("inf"))
    try:
        encoder = Encoder.load(stored, workers, dtype=dtype, limits=limits)
        try:
            yield encoder
        finally:
            encoder.close()
    finally:
        workers.close()


def embed(encoder: Encoder, texts: Sequence[str], prompt: str = "") -> Floats:
    """Embed texts with a prompt before each.

    Args:
        encoder: That runs; what is too long for it is cut.
        texts: At least one.
        prompt: Its text (``condensery.values``).

    Returns:
        (texts, dims).
    """
    most = encoder.info.max_tokens * MAX_CHARACTERS_PER_TOKEN
    parts: list[Floats] = []
    for start in range(0, len(texts), BLOCK):
        # A caller's text that is far too long is refused; a corpus has what it has.
        block = [text[:most] for text in texts[start : start + BLOCK]]
        parts.append(asyncio.run(encoder.embed(block, prompt=prompt)).vectors)
        if start // BLOCK % 8 == 7:
            log.info("%d of %d texts embedded", start + len(block), len(texts))
    return np.concatenate(parts)
