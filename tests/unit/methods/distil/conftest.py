"""Tiny models: an encoder, teachers, and a cross-encoder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_causal import bpe, decoder_config, random_state
from tiny_pair import POSITIONS, sharpen, tiny_config, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)


def write_encoder(folder: Path) -> Path:
    """Write a random BERT and its tokenizer."""
    torch.manual_seed(0)
    model = BertModel(tiny_config())
    sharpen(model, 4)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return folder


CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<s>[INST] {{ messages[0]['content'] }} [/INST]"
)


def write_teacher(
    folder: Path,
    kind: str = "qwen2",
    *,
    template: str | None = CHAT,
    stop: int | list[int] = 1,
    change: Callable[[Any], None] | None = None,
    **config: Any,
) -> Path:
    """Write a random causal language model and its tokenizer as transformers does."""
    tokenizer = bpe(kind)
    made = AutoModelForCausalLM.from_config(
        decoder_config(kind, len(tokenizer.get_vocab()), **config)
    )
    state = random_state({name: tuple(tensor.shape) for name, tensor in made.state_dict().items()})
    made.load_state_dict(state)
    made.generation_config.eos_token_id = stop
    # As published models ask for; a teacher is greedy all the same.
    made.generation_config.do_sample = True
    made.generation_config.temperature = 0.5
    made.generation_config.repetition_penalty = 1.3
    if change is not None:
        change(made)
    made.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tokenizer.id_to_token(1))
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def write_cross_encoder(folder: Path) -> Path:
    """Write a random BERT that scores pairs, as transformers does."""
    torch.manual_seed(1)
    model = BertForSequenceClassification(tiny_config(num_labels=1))
    sharpen(model, 4)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        **{f"{name}_token": text for name, text in names.items()},
    ).save_pretrained(folder)
    return folder


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
