"""Random sequence classifiers as Hugging Face and sentence-transformers save them."""

import json
from pathlib import Path
from typing import Any

import torch
from tiny_pair import VOCABULARY, sharpen, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    RobertaConfig,
)

LENGTH = 48
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
}
MARKS = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
CONFIGS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(
        **{**SIZES, "type_vocab_size": 1, "max_position_embeddings": LENGTH + 1}
    ),
    "modernbert": ModernBertConfig(**SIZES, **MARKS, classifier_pooling="mean"),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=2),
}
# What stands round two texts; Qwen's tokenizers put nothing there.
PAIRS = {
    "bert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "roberta": "[CLS] $A [SEP] [SEP] $B [SEP]",
    "modernbert": "[CLS] $A [SEP] $B [SEP]",
}


def write_classifier(
    folder: Path, kind: str = "bert", labels: tuple[str, ...] = ("relevant",), **settings: Any
) -> Path:
    """Write a classifier in Hugging Face's layout; its logits differ from text to text.

    Args:
        folder: Where to.
        kind: Of ``CONFIGS``.
        labels: By number.
        settings: More of its configuration.
    """
    config = CONFIGS[kind].__class__.from_dict(CONFIGS[kind].to_dict())
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model: Any = AutoModelForSequenceClassification.from_config(config)
    sharpen(model, 4)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if kind in PAIRS:
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair=PAIRS[kind],
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        pad_token="[PAD]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    return folder


def as_sentence_transformers(folder: Path, **about: Any) -> Path:
    """Add what sentence-transformers 6 writes beside a cross-encoder."""
    own = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None, **about}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = {"transformer_task": "sequence-classification", "max_seq_length": 40}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def reference(
    folder: Path,
    inputs: list[Any],
    length: int = LENGTH,
    side: str = "right",
    model: Any = None,
) -> torch.Tensor:
    """Return the logits as transformers computes them, one input at a time in fp32.

    Args:
        folder: With the tokenizer, and with the model if none is given.
        inputs: Texts and pairs.
        length: Most tokens of one.
        side: Where what is longer is cut.
        model: Another than the folder's.
    """
    if model is None:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, truncation_side=side)
    rows = []
    for item in inputs:
        texts = (item,) if isinstance(item, str) else item
        lists = [[text] for text in texts]  # by itself "" would be no second text
        encoded = tokenizer(*lists, truncation="longest_first", max_length=length)
        if model.config.model_type != "bert":
            encoded.pop("token_type_ids", None)
        with torch.inference_mode():
            rows.append(model(**{k: torch.tensor(v) for k, v in encoded.items()}).logits[0])
    return torch.stack(rows)
