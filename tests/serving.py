"""Stored encoders as they are served, for tests that need no server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.store.manifest import StoredModel


def embed(stored: StoredModel, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Embed texts as they are served."""
    workers = Workers(1, torch.device("cpu"))
    encoder = Encoder.load(stored, workers)
    try:
        return asyncio.run(encoder.embed(list(texts))).vectors
    finally:
        encoder.close()
        workers.close()
