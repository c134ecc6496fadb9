"""A small Llama: its tokenizer, shape, words, loss, perplexity, folder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from condensery.errors import CorruptModel, InputError
from condensery.methods.lm.text import IGNORED, Packed, Stream, pack
from condensery.methods.trainer.method import Loss
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.oscar_generator import standardised
from condensery.networks.weight_files import WORDS, ModelFolder, read_weights

TABLE = "model.embed_tokens.weight"  # of a Llama
CHUNK = 512  # positions scored at once: 60 MB of float32 logits at 30,522 words
# start, end and padding, by the names that word pieces and ours have for them
MARKS = (("[CLS]", "[SEP]", "[PAD]"), ("<s>", "</s>", "<pad>"))


@dataclass(frozen=True, slots=True)
class LmTokenizer:
    """A tokenizer and its marks.

    Attributes:
        tokenizer: Adds no marks of its own.
        start: Token that a document begins with.
        end: Token that it ends with.
        padding: Token that fills up batches.
    """

    tokenizer: Tokenizer
    start: int
    end: int
    padding: int


def open_lm_tokenizer(path: Path) -> LmTokenizer:
    """Read a ``tokenizer.json``, or the folder that holds one.

    Raises:
        InputError: There is none, or it has no marks that we know.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    return _marked(open_tokenizer(file), str(file))


def train_lm_tokenizer(documents: Sequence[str], size: int) -> LmTokenizer:
    """Train byte-level pairs, which any text comes back out of whole.

    Args:
        documents: The text.
        size: Tokens in all, at least 259: the bytes and three marks.

    Raises:
        InputError: The size is too small.
    """
    marks = list(MARKS[1])
    if size < 256 + len(marks):
        raise InputError(
            f"vocabulary={size}: must be at least {256 + len(marks)}, the bytes and three marks",
            field="vocabulary",
            value=size,
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return _marked(tokenizer, "the trained tokenizer")


def _marked(tokenizer: Tokenizer, name: str) -> LmTokenizer:
    for marks in MARKS:
        ids = [i for mark in marks if (i := tokenizer.token_to_id(mark)) is not None]
        if len(ids) == len(marks):
            return LmTokenizer(tokenizer, *ids)
    raise InputError(f"tokenizer: {name} has neither {MARKS[0]} nor {MARKS[1]}", field="tokenizer")


@dataclass(frozen=True, slots=True)
class LmShape:
    """A small Llama's dimensions; the defaults, with MiniLM's word pieces, are 22M parameters.

    Attributes:
        width: Features of the residual stream.
        layers: How many.
        heads: Attention heads; they divide the width into even parts.
        mlp_width: Neurons of an MLP.
        length: Most positions; a window's tokens in training.
    """

    width: int = 384
    layers: int = 6
    heads: int = 6
    mlp_width: int = 1024
    length: int = 512

    def __post_init__(self) -> None:
        """Refuse a shape that is none.

        Raises:
            InputError: Names field and value.
        """
        for name in ("width", "layers", "heads", "mlp_width", "length"):
            value = getattr(self, name)
            if value < (2 if name == "length" else 1):
                raise InputError(f"{name}={value}: too small", field=name, value=value)
        if self.width % (2 * self.heads):
            raise InputError(
                f"heads={self.heads}: must divide width={self.width} into even parts",
                field="heads",
                value=self.heads,
            )


def read_table(model: Path | ModelFolder) -> Tensor:
    """Read a model's word embeddings, standardised.

    Args:
        model: Its directory; a stored one's as its manifest has it (``store.weights.open_folder``).

    Returns:
        (vocabulary, hidden), float32.

    Raises:
        InputError: There is no such tensor, or a file can't be read.
    """
    folder = ModelFolder.of(model)
    try:
        for _, table in read_weights(folder, lambda name: name.endswith(WORDS)):
            return standardised(table)
    except (OSError, CorruptModel) as error:
        raise InputError(f"words: {folder.path}: {error}", field="words") from error
    raise InputError(f"words: {folder.path} holds no word embeddings", field="words")


def check_table(table: Tensor, vocabulary: int, width: int) -> None:
    """Check that a table is one of so many tokens and features.

    Raises:
        InputError: It is not; names field and value.
    """
    if len(table) < vocabulary:
        raise InputError(
            f"words: {len(table)} rows for a tokenizer of {vocabulary} tokens",
            field="words",
            value=len(table),
        )
    if table.shape[1] != width:
        raise InputError(
            f"width={width}: the word embeddings have {table.shape[1]} features",
            field="width",
            value=width,
        )
    if not torch.isfinite(table).all():
        raise InputError("words: holds values that are not finite", field="words")


def new_model(shape: LmShape, words: LmTokenizer, table: Tensor | None = None) -> LlamaForCausalLM:
    """Build a Llama with random weights, its output embeddings those of its input.

    Args:
        shape: Its dimensions.
        words: Its tokenizer.
        table: Word embeddings to start with and to keep, rows of unit RMS, (vocabulary, width).

    Raises:
        InputError: The table has too few rows, or is of another width.
    """
    vocabulary = words.tokenizer.get_vocab_size()
    if table is not None:
        check_table(table, vocabulary, shape.width)
        vocabulary = len(table)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.mlp_width,
        max_position_embeddings=shape.length,
        tie_word_embeddings=True,
        bos_token_id=words.start,
        eos_token_id=words.end,
        pad_token_id=words.padding,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    if table is not None:
        embeddings = model.model.embed_tokens.weight
        embeddings.data.copy_(table)
        embeddings.requires_grad_(False)
        # Rows of unit RMS would make logits of the width's scale, the largest each word's own.
        nn.init.constant_(model.model.norm.weight, shape.width**-0.75)
    return model


class _Scored(torch.autograd.Function):
    """Keeps the gradient that each chunk of logits gives, instead of the logits."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, learns: bool) -> Tensor:
        by_hidden = torch.empty_like(hidden)
        trained = learns and weight.requires_grad
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for at in range(0, len(hidden), CHUNK):
            chunk, wanted = hidden[at : at + CHUNK], labels[at : at + CHUNK, None]
            logits = (chunk @ weight.T).float()
            peak = logits.logsumexp(1, keepdim=True)
            total += (peak - logits.gather(1, wanted)).sum()
            if not learns:
                continue
            share = logits.sub_(peak).exp_()
            share.scatter_add_(1, wanted, share.new_full(wanted.shape, -1.0))
            share = share.to(weight.dtype)
            by_hidden[at : at + CHUNK] = share @ weight
            if by_weight is not None:
                by_weight += share.T @ chunk
        ctx.save_for_backward(by_hidden, by_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_weight = ctx.saved_tensors
        factor = above[0] / len(by_hidden)
        if by_weight is not None:
            by_weight = (by_weight * factor).to(by_hidden.dtype)
        return by_hidden * factor.to(by_hidden.dtype), by_weight, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``hidden @ weight.T``, in nats.

    Args:
        hidden: (positions, width).
        weight: (vocabulary, width); gets a gradient if it is trained.
        labels: Which word is right, (positions,).
    """
    learns = torch.is_grad_enabled()  # in the function it never is
    loss: Tensor = _Scored.apply(hidden, weight, labels, learns)  # type: ignore[no-untyped-call]
    return loss


def lm_loss(model: nn.Module, batch: Packed) -> Loss:
    """Return the mean negative log-likelihood of the batch's labels, in nats a token."""
    device = model.get_input_embeddings().weight.device  # type: ignore[operator]
    labels = batch.labels.to(device).flatten()
    kept = labels != IGNORED
    # Packed: without a mask, transformers reads the documents' bounds off the positions.
    hidden = model.model(  # type: ignore[operator]
        input_ids=batch.ids.to(device), position_ids=batch.positions.to(device), use_cache=False
    ).last_hidden_state
    head = model.lm_head.weight  # type: ignore[union-attr]
    total = linear_cross_entropy(hidden.flatten(0, 1)[kept], cast(Tensor, head), labels[kept])
    return Loss(total, weight=float(kept.sum()), items=len(batch.ids))


@torch.no_grad()
def perplexity(
    model: nn.Module, stream: Stream, length: int, rows: int, most: int | None = None
) -> dict[str, float]:
    """Measure held-out text, in windows one after the other.

    Args:
        model: A causal language model.
        stream: The text.
        length: Tokens a window.
        rows: Windows a batch.
        most: Windows measured, None for all.

    Returns:
        ``perplexity`` a token, ``bits_per_byte`` of the text (which compares tokenizers), and
        ``tokens``, how many were predicted.
    """
    model.eval()
    whole = stream.windows(length)
    firsts = [i * length for i in range(whole)] or [0]
    length = min(length, len(stream.ids))
    firsts = firsts[:most]
    nats = tokens = 0.0
    for at in range(0, len(firsts), rows):
        loss = lm_loss(model, pack(stream, firsts[at : at + rows], length))
        nats += float(loss.total) * loss.weight
        tokens += loss.weight
    mean = nats / tokens
    # Bytes of what was predicted; of the tokens, only those that begin a document stand for none.
    size = stream.size * tokens / (len(stream.ids) - len(stream.begins))
    return {
        "perplexity": math.exp(mean),
        "bits_per_byte": nats / math.log(2) / size,
        "tokens": tokens,
    }


def save_model(folder: Path, model: LlamaForCausalLM, words: LmTokenizer) -> None:
    """Write the model and its tokenizer as transformers reads them."""
    model.config.use_cache = True
    model.save_pretrained(folder)
    names = [words.tokenizer.id_to_token(i) for i in (words.start, words.end, words.padding)]
    PreTrainedTokenizerFast(
        tokenizer_object=words.tokenizer,
        bos_token=names[0],
        eos_token=names[1],
        pad_token=names[2],
        model_max_length=model.config.max_position_embeddings,
    ).save_pretrained(folder)
