"""An encoder with a span head, and its loss."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertForQuestionAnswering

from condensery.errors import InputError
from condensery.methods.reader.data import Batch
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.trainer.method import Loss


def new_reader(base: Path, recipe: ReaderRecipe) -> BertForQuestionAnswering:
    """Put a fresh span head on the encoder at ``base``.

    Raises:
        InputError: There is no BERT, or it has too few positions.
    """
    torch.manual_seed(recipe.seed)
    try:
        model = BertForQuestionAnswering.from_pretrained(
            base,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",  # SDPA's backward pass is slow in bf16 on a CPU
            attention_probs_dropout_prob=0.0,  # crops vary enough
            hidden_dropout_prob=0.0,
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{base}: no encoder ({error})", field="base", value=str(base)) from error
    config: Any = model.config
    needed = recipe.query_tokens + recipe.passage_tokens + 3
    if needed > config.max_position_embeddings:
        raise InputError(
            f"passage_tokens={recipe.passage_tokens}: with the question that is {needed} "
            f"positions, and the encoder has {config.max_position_embeddings}",
            field="passage_tokens",
            value=recipe.passage_tokens,
        )
    nn.init.normal_(model.qa_outputs.weight, std=config.initializer_range)
    nn.init.zeros_(model.qa_outputs.bias)
    for name in ("passage_tokens", "query_tokens", "answer_tokens"):
        setattr(config, name, getattr(recipe, name))
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    return model


def span_loss(model: BertForQuestionAnswering, batch: Batch) -> Loss:
    """Return the mean cross-entropy of first and last token, over passage and [CLS]."""
    device = model.device
    out = model(**{name: values.to(device) for name, values in batch.inputs.items()})
    spans, rows = batch.spans.to(device), len(batch.first)
    terms = {}
    for name, logits, wanted in (
        ("start", out.start_logits, batch.start),
        ("end", out.end_logits, batch.end),
    ):
        terms[name] = F.cross_entropy(
            logits.float().masked_fill(~spans, -torch.inf), wanted.to(device)
        )
    return Loss((terms["start"] + terms["end"]) / 2, weight=rows, items=rows, terms=terms)
