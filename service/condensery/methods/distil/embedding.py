"""Texts embedded by a running encoder, with the prompts that the service takes."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.runtime.encoder import Encoder

log = logging.getLogger(__name__)
BLOCK = 256  # texts embedded at once
# The prompts that the service takes where a model has them (jobs.search, jobs.indexes).
QUERY_PROMPTS, PASSAGE_PROMPTS = ("query",), ("document", "passage")


def embed(encoder: "Encoder", texts: Sequence[str], prompts: Sequence[str] = ()) -> Floats:
    """Embed texts with the first of these prompts that the encoder has.

    Args:
        encoder: That runs; what is too long for it is cut.
        texts: At least one.
        prompts: By name; without any of them, none is put before.

    Returns:
        (texts, dims).
    """
    has = encoder.prompts
    prompt = next((has[name] for name in prompts if name in has), "")
    parts: list[Floats] = []
    for start in range(0, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        parts.append(asyncio.run(encoder.embed(block, prompt=prompt)).vectors)
        if start // BLOCK % 8 == 7:
            log.info("%d of %d texts embedded", start + len(block), len(texts))
    return np.concatenate(parts)
