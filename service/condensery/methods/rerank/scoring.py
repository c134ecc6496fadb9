"""Score passages for a query with any cross-encoder."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from condensery.errors import InputError, ModelFault
from condensery.methods.rerank.model import PairTokenizer
from condensery.methods.trainer.batching import by_length
from condensery.store.layouts import text_positions

# Tokens of a forward pass, padding included: a CPU's caches hold few, a GPU wants many.
CPU_TOKENS, CUDA_TOKENS = 4096, 65_536


class CrossEncoder:
    """Reads a query and a passage together and says how relevant the one is to the other.

    Args:
        module: Given token ids, returns ``logits`` (pairs, 1).
        pair_tokenizer: Makes its inputs.
    """

    def __init__(self, module: nn.Module, pair_tokenizer: PairTokenizer) -> None:
        self.module = module
        self.pair_tokenizer = pair_tokenizer

    @classmethod
    def open(
        cls, path: Path, *, device: torch.device, dtype: torch.dtype, length: int | None = None
    ) -> Self:
        """Open a Hugging Face directory, of which no code is run.

        Args:
            path: Holds a sequence classifier of one label (``config.json``), safetensors, and a
                fast tokenizer.
            device: Where it runs.
            dtype: What it computes in.
            length: Most tokens of a pair; by default as many as it can read.

        Raises:
            InputError: It is no such thing, or some of its weights are missing; named.
        """
        if not (path / "config.json").is_file():
            raise _refusal(path, "it has no config.json")
        try:
            config = AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
            if config.num_labels != 1:
                raise _refusal(path, f"it has {config.num_labels} labels, and a score is one")
            module, loading = AutoModelForSequenceClassification.from_pretrained(
                path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise _refusal(path, " ".join(str(error).split())) from error
        if missing := sorted(loading["missing_keys"]):  # transformers makes up random ones
            raise _refusal(path, f"weights are missing: {', '.join(missing[:5])}")
        if not tokenizer.is_fast:
            raise _refusal(path, "it has no tokenizer.json")
        most = longest(config, tokenizer)
        module.requires_grad_(requires_grad=False).eval().to(device)
        return cls(module, PairTokenizer(tokenizer, min(length or most, most)))

    @torch.no_grad()
    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return a raw logit for each passage, in the given order; more is more relevant.

        Passages of similar lengths share a batch. What shares one does not change a score, but
        for rounding.

        Raises:
            ModelFault: A score is not finite.
        """
        device = next(self.module.parameters()).device
        pairs = self.pair_tokenizer.read([query] * len(passages), passages)
        result = [0.0] * len(pairs)
        most = CUDA_TOKENS if device.type == "cuda" else CPU_TOKENS
        for rows in by_length(pairs, most):
            inputs = self.pair_tokenizer.collate([pairs[i] for i in rows], device)
            logits = self.module(**inputs).logits[:, 0].float().tolist()
            for i, logit in zip(rows, logits, strict=True):
                if not math.isfinite(logit):
                    raise ModelFault(f"the score of passage {i} is {logit}", field="passages")
                result[i] = logit
        return result


def longest(config: Any, tokenizer: Any) -> int:
    """Return the most tokens that a network has positions for and its tokenizer allows."""
    most = int(min(tokenizer.model_max_length, 10**9))  # 1e30 is no limit
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return min(most, 512)
    padding = getattr(config, "pad_token_id", None)
    return min(most, text_positions(config.model_type, positions, padding))


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"cross-encoder: {path}: {why}", field="cross_encoder", value=str(path))
