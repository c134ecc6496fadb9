"""Random causal language models of three layers, and what transformers generates with them."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from tiny_pair import sharpen
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from condensery.networks.oscar_causal import CausalGenerator

VOCABULARY = 97
KINDS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama-grouped": (LlamaConfig, {"num_key_value_heads": 2}),
    "mistral": (MistralConfig, {"num_key_value_heads": 1, "sliding_window": None}),
    "mistral-window": (MistralConfig, {"num_key_value_heads": 2, "sliding_window": 11}),
    "qwen2": (Qwen2Config, {"num_key_value_heads": 2}),
}


def tiny_causal(kind: str = "llama-grouped", seed: int = 1) -> PreTrainedModel:
    """Make a model whose answers hang on all of a prompt, for inference in fp32."""
    config, changes = KINDS[kind]
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(
        config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=256,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            **changes,
        )
    ).eval()
    sharpen(made, 6)
    return made


class Reference:
    """A model, and what transformers' own ``generate`` says with a copy of it."""

    def __init__(self, kind: str = "llama-grouped") -> None:
        model = tiny_causal(kind)
        self.copy = copy.deepcopy(model)
        self.network = CausalGenerator(model)
        self._known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def __call__(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return ``count`` tokens, greedily."""
        key = tuple(prompt), count
        if key not in self._known:
            embeds = self.copy.get_input_embeddings()(torch.tensor([list(prompt)]))
            with torch.inference_mode():
                generated = self.copy.generate(
                    inputs_embeds=embeds, max_new_tokens=count, do_sample=False, pad_token_id=0
                )
            self._known[key] = generated[0].tolist()
        return self._known[key]
