"""A pair in training: the networks that serving has, with adapters and rows that learn."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig

from condensery.errors import InputError, StoreError
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.lora import PARTS, adapt, merged_layers
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.networks.attention import PACKED
from condensery.networks.decoders import fill_buffers, put
from condensery.networks.oscar_causal import CausalPair

BACKBONE, NETWORK = "compressor.backbone.", "generator.network."
NO_DROPOUT = ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
SHOWN = 5  # weights that a message names


class OwnRows(nn.Module):
    """An embedding table that stays as it is but for a few rows, which are parameters.

    Training the table whole for the sake of a separator would cost an optimizer's state for
    every word, and put the table into every checkpoint.

    Args:
        table: (vocabulary, hidden).
        ids: Of the tokens whose rows learn, ascending.

    Attributes:
        weight: The table, its rows of ``ids`` as they were at first.
        own: The rows of ``ids``, (ids, hidden).
    """

    def __init__(self, table: nn.Parameter, ids: Sequence[int]) -> None:
        super().__init__()
        self.weight = table
        self.own = nn.Parameter(table.detach()[list(ids)].clone())
        self.ids = nn.Buffer(torch.tensor(ids, device=table.device), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (...), (..., hidden)."""
        rows = F.embedding(ids, self.weight)
        hits = ids[..., None] == self.ids
        own = F.embedding(hits.int().argmax(-1), self.own)
        return torch.where(hits.any(-1, keepdim=True), own, rows)

    def merged(self) -> Tensor:
        """Return the table with its own rows in it."""
        table = self.weight.detach().clone()
        table[self.ids] = self.own.detach()
        return table


class TiedHead(nn.Module):
    """An output layer whose weight is such a table.

    Args:
        rows: The table; not a part of this module, so that it has one name.
    """

    def __init__(self, rows: OwnRows) -> None:
        super().__init__()
        self._rows = (rows,)

    @property
    def weight(self) -> Tensor:
        """The table."""
        return self._rows[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Score every token after ``hidden`` (..., hidden), (..., vocabulary)."""
        (rows,) = self._rows
        scores = F.linear(hidden, rows.weight)
        return scores.index_copy(-1, rows.ids, F.linear(hidden, rows.own))


def new_pair(
    bases: Bases,
    recipe: CausalRecipe,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> CausalPair:
    """Build a pair that trains; all chance of its new weights comes from the recipe's seed.

    New weights: memory and rerank tokens are drawn like words, each feature with the mean and
    the deviation that it has in the compressor's table, so that they differ and are no strangers
    to its layers. The generator's new tokens are the mean of its words, which makes them no
    likelier than others. The mapping is torch's default; the rerank head is small, so that all
    scores begin near 0. Adapters begin as no change (LoRA, arXiv:2106.09685).

    Args:
        bases: The directories.
        recipe: Which weights learn, and by what.
        device: Where to; default: the CPU.
        dtype: Of the weights.

    Raises:
        InputError: The halves don't match, or weights are missing, of another shape or not
            finite; they are named.
    """
    device = device or torch.device("cpu")
    torch.manual_seed(recipe.seed)
    try:
        pair = CausalPair(bases.shape, *map(_without_dropout, bases.configs))
    except ValueError as error:
        raise InputError(str(error), field="compressor") from error
    _load(pair, bases, device, dtype)
    network, backbone = pair.generator.network, pair.compressor.backbone
    network.tie_weights()
    for model in (backbone, network):
        fill_buffers(model, device)
        model.set_attn_implementation(PACKED)
        if recipe.checkpoint_layers:
            # By its older name before transformers had this one.
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    pair.compressor.requires_grad_(True)
    _tune(pair, bases, recipe)
    return pair


def _load(pair: CausalPair, bases: Bases, device: torch.device, dtype: torch.dtype) -> None:
    """Give a pair all weights that it begins with; refuse what doesn't fit."""
    expected = pair.expected()
    wrong: list[str] = []
    try:
        for name, tensor in _tensors(bases, pair):
            shape = expected.pop(name, None)
            if shape is None:
                continue  # such as a head that is tied: the network has no such weight of its own
            if shape != tuple(tensor.shape):
                wrong.append(f"{name} is {tuple(tensor.shape)}, not {shape}")
            elif not bool(torch.isfinite(tensor).all()):
                wrong.append(f"{name} holds values that are not finite")
            else:
                put(pair, name, tensor.to(device, dtype))
    except StoreError as error:  # a file is missing, or damaged
        raise InputError(str(error), field="generator") from error
    wrong += [f"{name} is missing" for name in expected]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InputError(
            f"generator, compressor: weights don't fit: {'; '.join(wrong[:SHOWN])}{more}",
            field="generator",
        )


def _without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Return a copy whose layers drop nothing: packed attention can't, and adapters do."""
    values = config.to_dict()
    kept: PretrainedConfig = type(config).from_dict(
        values | {n: 0.0 for n in NO_DROPOUT if n in values}
    )
    return kept


def _tensors(bases: Bases, pair: CausalPair) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights that a pair begins with, by the names of its networks."""
    table: Tensor | None = None
    for name, tensor in bases.compressor_tensors():
        if name.endswith(("embed_tokens.weight", "word_embeddings.weight")):
            table = tensor.float()
        yield BACKBONE + name, tensor
    if table is None:
        raise InputError("compressor: has no embedding table", field="compressor")
    slots = len(pair.compressor.slots.weight)
    drawn = torch.randn(slots, table.shape[1])
    yield "compressor.slots.weight", table.mean(0) + table.std(0) * drawn
    for part in ("mapping", "rerank"):
        head = getattr(pair.compressor, part)
        for name, weight in [] if head is None else list(head.named_parameters()):
            yield f"compressor.{part}.{name}", _drawn(weight, 0.0 if part == "mapping" else 0.02)
    for name, tensor in bases.generator_tensors():
        grows = name in ("model.embed_tokens.weight", "lm_head.weight")
        grown = tensor
        if grows and len(tensor) == bases.base_config.vocab_size:
            mean = tensor.float().mean(0, keepdim=True).to(tensor.dtype)
            grown = torch.cat([tensor, mean.expand(bases.rows - len(tensor), -1)])
            grown[bases.new_ids] = mean  # some may be spare rows of the base
        yield NETWORK + name, grown


def _drawn(like: Tensor, deviation: float) -> Tensor:
    """Return a fresh weight of that shape: torch's default of a linear layer, or smaller."""
    if like.ndim == 1:
        return torch.zeros(tuple(like.shape))
    drawn: Tensor = torch.empty(tuple(like.shape))
    if deviation:
        return drawn.normal_(std=deviation)
    bound: float = like.shape[1] ** -0.5
    return drawn.uniform_(-bound, bound)


def _tune(pair: CausalPair, bases: Bases, recipe: CausalRecipe) -> None:
    """Make those of the generator's weights learn that the recipe says."""
    network = pair.generator.network
    if recipe.generator_tuning == "full":
        pair.generator.requires_grad_(True)
    if recipe.generator_tuning != "lora":
        return
    alpha = cast(int, recipe.lora_alpha)  # only ever divided by the rank
    adapt(pair.generator.backbone, rank=recipe.lora_rank, alpha=alpha, dropout=recipe.lora_dropout)
    # The rows of new tokens learn too: the separator's is read, and nothing else teaches it.
    table = cast(nn.Parameter, cast(nn.Embedding, network.get_input_embeddings()).weight)
    rows = OwnRows(table, bases.new_ids)
    tied = cast(nn.Linear, network.get_output_embeddings()).weight is table
    network.set_input_embeddings(rows)
    if tied:
        network.set_output_embeddings(TiedHead(rows))


def merged(pair: CausalPair, *, rerank: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield a pair's weights as it is served: adapters and own rows merged, in the weights' dtype.

    Args:
        pair: In training.
        rerank: Whether to keep the rerank token and its head, as the causal rule allows.
    """
    body = f"{NETWORK}{pair.generator.network.base_model_prefix}."
    own = rows_of(pair)
    drop = pair.compressor.shape.rerank and not rerank
    yield from merged_layers(pair)
    for name, weight in pair.named_parameters():
        if any(part in name for part in PARTS) or name.endswith(".own"):
            continue
        if name == f"{body}embed_tokens.weight" and own is not None:
            yield name, own.merged()
        elif drop and name == "compressor.slots.weight":
            yield name, weight.detach()[:-1]
        elif not (drop and name.startswith("compressor.rerank.")):
            yield name, weight.detach()


def rows_of(pair: CausalPair) -> OwnRows | None:
    """Return the rows of new tokens that learn on their own, if they do."""
    table = pair.generator.network.get_input_embeddings()
    return table if isinstance(table, OwnRows) else None


def groups(pair: CausalPair, recipe: CausalRecipe, *, layers: bool) -> list[Group]:
    """Split the weights that learn: by half, and matrices (decayed) or not.

    Args:
        pair: In training.
        recipe: The rates.
        layers: Whether the compressor is layers of the generator.
    """
    compressor_rate = recipe.rate(layers=layers)

    def rate(name: str) -> float:
        return compressor_rate if name.startswith("compressor.") else recipe.generator_rate

    return split_groups(pair, rate, recipe.weight_decay)
