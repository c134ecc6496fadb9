"""A language model in training: it writes a text into memory tokens, and reads on from them.

Both are one module. As the encoder it has adapters, memory tokens, perhaps an embedding table of
its own, and attention both ways; with all of that switched off it is the frozen language model
that the memory tokens are to serve. Source: LLM2Comp (AAAI 2026), section 3.1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from condensery.errors import InputError
from condensery.methods.llm2comp.recipe import AdapterStart, Embeddings, NetworkShape
from condensery.methods.llm2comp.weights import MemoryWeights, stacked
from condensery.methods.trainer.batching import Tokens, in_batches
from condensery.methods.trainer.lora import adapt, adapters_off
from condensery.methods.trainer.method import TrainingSetup
from condensery.networks.adapters import Adapters
from condensery.networks.backbone import reading
from condensery.networks.decoders import fill_buffers, get_linear, put
from condensery.networks.llm2comp import table_name, without_windows
from condensery.networks.loading import build_pruned, fill, pruning_of
from condensery.networks.sublayers import layers_of
from condensery.networks.weight_files import ModelFolder, read_weights

HEAD = "lm_head.weight"
# Of texts that run together, padding included: more leave a CPU's caches (1.5 times slower).
MOST_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class CausalBase:
    """A causal language model, all of it frozen.

    Attributes:
        model: Without its head; windows of its attention are lifted.
        head: What scores words, (vocabulary, hidden); the embedding table where they are one.
    """

    model: PreTrainedModel
    head: Tensor


def open_base(
    folder: ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> CausalBase:
    """Load a causal language model to train on it.

    Raises:
        CorruptModel: Its files don't make one; named.
    """
    with reading(folder.path):
        read = AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        config = without_windows(read)
        model = build_pruned(config, pruning_of(config))
        fill(model, folder, device=torch.device(device), dtype=dtype)
    head = _table(model)
    if not config.tie_word_embeddings:
        for _, tensor in read_weights(folder, lambda name: name == HEAD):
            head = tensor.to(device, dtype)
    return CausalBase(model, head)


def random_base(
    config: PretrainedConfig, *, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> CausalBase:
    """Make a language model of random weights, of any size, on the device that it trains on."""
    model = build_pruned(without_windows(config)).eval()
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(shape: torch.Size) -> Tensor:
        whole = torch.empty(shape, device=device, dtype=dtype)
        return whole.normal_(std=0.02, generator=generator)

    for name, parameter in [*model.named_parameters()]:
        vector = torch.full(parameter.shape, float("norm" in name), device=device, dtype=dtype)
        put(model, name, vector if parameter.ndim == 1 else drawn(parameter.shape))
    fill_buffers(model, device)
    table = _table(model)
    return CausalBase(model, table if config.tie_word_embeddings else drawn(table.shape))


def _table(model: PreTrainedModel) -> Tensor:
    return cast(Tensor, model.get_input_embeddings().weight).detach()


class MemoryNetwork(nn.Module):
    """Texts to vectors, with gradients; and the frozen language model that reads them.

    Args:
        base: The language model; it is changed in place.
        shape: How texts are read, and where adapters are.
        start: Id of the token that texts begin with; None: no such token.
        embeddings: Which rows of the embedding table learn.
        weights: Of an earlier stage, with the scale of its adapters.
        adapters: Whether to train those, or others over them.
        seed: Of what is new.

    Attributes:
        memory: Embeddings of the memory tokens, (k, hidden).
        vocabulary: Words of the base: the first memory token's id.
    """

    def __init__(
        self,
        base: CausalBase,
        shape: NetworkShape,
        start: int | None,
        *,
        embeddings: Embeddings = "none",
        weights: tuple[MemoryWeights, float] | None = None,
        adapters: AdapterStart = "fresh",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone, self.shape, self.start = base.model, shape, start
        self._head = (base.head,)  # no part of the module: it may be the table
        self.vocabulary, hidden = _table(base.model).shape
        self.table_name = table_name(base.model)
        torch.manual_seed(seed)
        earlier, scale = weights or (None, shape.scale)
        if earlier is not None and tuple(earlier.memory.shape) != (shape.k, hidden):
            raise InputError(
                f"memory_tokens={shape.k}: the stage before has {tuple(earlier.memory.shape)}",
                field="memory_tokens",
                value=shape.k,
            )
        table = _table(base.model)
        memory = new_memory(table, shape.k) if earlier is None else earlier.memory
        self.memory = nn.Parameter(memory.to(table.device, table.dtype).clone())
        self._words_trained = embeddings == "all" or (
            earlier is not None and earlier.table is not None
        )
        words = table if earlier is None or earlier.table is None else earlier.table
        self.words = (
            nn.Parameter(words.to(table.device, table.dtype).clone())
            if self._words_trained
            else None
        )
        self._past, self._past_scale = Adapters(), scale
        self._adapt(earlier, adapters)
        self.memory.requires_grad_(embeddings != "none")
        if self.words is not None:
            self.words.requires_grad_(embeddings == "all")

    def _adapt(self, earlier: MemoryWeights | None, start: AdapterStart) -> None:
        """Put adapters on the backbone: an earlier stage's, or new ones over those."""
        shape = self.shape
        if earlier is not None and start == "fresh":
            self._past = earlier.adapters
            for layer in self._past.layers:
                linear = get_linear(self.backbone, layer)
                if linear is None:
                    raise InputError(f"start: {layer} is no layer of this base", field="start")
                merged = self._past.merged(layer, linear.weight, self._past_scale)
                linear.weight.data.copy_(merged)
        adapt(
            self.backbone,
            rank=shape.lora_rank,
            alpha=shape.lora_alpha,
            dropout=shape.lora_dropout,
            layers=shape.adapted,
        )
        if earlier is not None and start == "continued":
            self._continue(earlier.adapters)

    def _continue(self, earlier: Adapters) -> None:
        """Give the adapters an earlier stage's factors.

        Raises:
            InputError: They are of other layers, or of another rank; named.
        """
        ratio = self._past_scale / self.shape.scale
        layers = dict(self._lora_layers())
        if earlier.layers != frozenset(layers):
            odd = sorted(earlier.layers ^ frozenset(layers))
            raise InputError(f"lora_layers: {odd[0]} differs from the stage before", field="start")
        for name, layer in layers.items():
            down, up = _factors(layer)
            if down.shape != earlier.down[name].shape:
                raise InputError(
                    f"lora_rank={self.shape.lora_rank}: the stage before has "
                    f"{len(earlier.down[name])}; train adapters anew (fresh)",
                    field="lora_rank",
                    value=self.shape.lora_rank,
                )
            down.data.copy_(earlier.down[name])
            up.data.copy_(ratio * earlier.up[name])

    def place(self, setup: TrainingSetup) -> None:
        """Move it to the device and the dtype."""
        setup.place(self.backbone)
        for parameter in (self.memory, self.words):
            if parameter is not None:
                parameter.data = parameter.data.to(setup.device, setup.dtype)
        self._head = (self._head[0].to(setup.device, setup.dtype),)

    @property
    def head(self) -> Tensor:
        """What scores the base's words, (vocabulary, hidden): memory tokens have no row."""
        return self._head[0]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.memory.device

    @property
    def begins(self) -> int:
        """Tokens that stand before a text."""
        return int(self.start is not None)

    def drop_attention(self, share: float) -> None:
        """Drop attention weights in training."""
        for module in self.backbone.modules():
            if isinstance(getattr(module, "attention_dropout", None), float | int):
                setattr(module, "attention_dropout", share)  # noqa: B010  # of no declared type

    def recompute(self) -> None:
        """Keep only what goes into each layer, and compute the rest again going backward."""
        for layer in layers_of(self.backbone):
            layer.forward = self._again(layer.forward)

    def _again(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            frozen = not self._encoding

            def once(*arguments: Any, **named: Any) -> Any:
                # The way back runs when the module may be what it was not on the way there.
                with self._as_reader() if frozen else self._as_encoder():
                    return forward(*arguments, **named)

            return checkpoint(once, *arguments, use_reentrant=False, **named)

        return run

    _encoding = True

    @contextmanager
    def _as_reader(self) -> Iterator[None]:
        """Be the frozen language model meanwhile."""
        before, self._encoding = self._encoding, False
        try:
            with adapters_off(self.backbone):
                yield
        finally:
            self._encoding = before

    @contextmanager
    def _as_encoder(self) -> Iterator[None]:
        before, self._encoding = self._encoding, True
        try:
            yield
        finally:
            self._encoding = before

    def states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Read padded texts, memory tokens after each, as the encoder.

        Args:
            rows: Token ids, the start token included, memory tokens not.

        Returns:
            Last hidden states (texts, longest, hidden), and the lengths with memory tokens
            (texts,).
        """
        memory = [*range(self.vocabulary, self.vocabulary + self.shape.k)]
        ids, lengths = padded([[*row, *memory] for row in rows], self.device)
        embedded = self._embed(ids)
        mask = None if self.shape.causal else both_ways(lengths, ids.shape[1], embedded.dtype)
        return self._run(embedded, mask), lengths

    def memory_states(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the memory tokens' last hidden states, (texts, k, hidden)."""
        hidden, lengths = self.states(rows)
        back = torch.arange(-self.shape.k, 0, device=hidden.device)
        at = (lengths[:, None] + back)[..., None].expand(-1, -1, hidden.shape[-1])
        return hidden.gather(1, at)

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Embed texts; returns (texts, hidden), float32, of any length."""
        if self.shape.k:
            return self.memory_states(rows).float().mean(1)
        if self.shape.pooling == "echo":
            rows = [[*row, *row[self.begins :]] for row in rows]
        hidden, lengths = self.states(rows)
        weights = self._pooling_weights(lengths, hidden.shape[1])
        return (hidden.float() * (weights / weights.sum(1, keepdim=True))[..., None]).sum(1)

    def embed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Embed many texts, those of like length together; as ``forward`` otherwise."""
        tokens = [Tokens(row) for row in rows]
        return in_batches(tokens, MOST_TOKENS, lambda part: self([row.ids for row in part]))

    def _pooling_weights(self, lengths: Tensor, longest: int) -> Tensor:
        """Return how much each state counts without memory tokens, (texts, longest)."""
        places = torch.arange(longest, device=lengths.device)[None]
        inside = places < lengths[:, None]
        if self.shape.pooling == "last":
            return (places == lengths[:, None] - 1).float()
        if self.shape.pooling == "weighted":
            return inside * (places + 1.0)
        if self.shape.pooling == "echo":
            copy = (lengths[:, None] - self.begins) // 2
            return (inside & (places >= lengths[:, None] - copy)).float()
        return inside.float()

    def _embed(self, ids: Tensor) -> Tensor:
        """Return the encoder's embeddings of ids, those of memory tokens among them."""
        table = _table(self.backbone) if self.words is None else self.words
        words = F.embedding(ids.clamp(max=self.vocabulary - 1), table)
        if not self.shape.k:
            return words
        memory = F.embedding((ids - self.vocabulary).clamp(min=0), self.memory)
        return torch.where((ids >= self.vocabulary)[..., None], memory, words)

    def base_embeddings(self, ids: Tensor) -> Tensor:
        """Return the frozen language model's own embeddings of ids (..., hidden)."""
        return F.embedding(ids, _table(self.backbone))

    def read_on(self, embedded: Tensor) -> Tensor:
        """Read as the frozen language model, causally; padding stands at the right.

        Args:
            embedded: (texts, tokens, hidden).

        Returns:
            Last hidden states, as many; ``head`` scores words by them.
        """
        with self._as_reader():
            return self._run(embedded, None)

    def _run(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        hidden: Tensor = self.backbone(
            inputs_embeds=embedded, attention_mask=mask, use_cache=False
        ).last_hidden_state
        return hidden

    def trained(self) -> MemoryWeights:
        """Return what was trained, earlier stages included, on the CPU in float32."""
        own = Adapters()
        for name, layer in self._lora_layers():
            own.down[name], own.up[name] = (t.detach().float().cpu() for t in _factors(layer))
        adapters = stacked(self._past, own, self._past_scale / self.shape.scale)
        words = None if self.words is None else self.words.detach().float().cpu()
        return MemoryWeights(self.memory.detach().float().cpu(), adapters, words)

    def _lora_layers(self) -> Iterator[tuple[str, LoraLinear]]:
        for name, part in self.backbone.named_modules():
            if isinstance(part, LoraLinear):
                yield name, part


def _factors(layer: LoraLinear) -> tuple[Tensor, Tensor]:
    """Return an adapter's (rank, in) and (out, rank)."""
    (name,) = layer.active_adapters
    down, up = (cast(nn.Linear, part[name]).weight for part in (layer.lora_A, layer.lora_B))
    return down, up


def new_memory(table: Tensor, k: int) -> Tensor:
    """Draw memory tokens like words: each feature has the mean and deviation that it has there.

    Neither paper nor code says how they begin; all alike, only their places would tell them apart.
    """
    words = table.float()
    noise = torch.randn(k, words.shape[1]).to(words.device)
    return words.mean(0) + words.std(0) * noise


def both_ways(lengths: Tensor, longest: int, dtype: torch.dtype) -> Tensor:
    """Return the additive mask that hides padding and nothing else, (texts, 1, longest, longest).

    transformers' causal models take a mask of four dimensions as it is.
    """
    hidden = torch.arange(longest, device=lengths.device)[None] >= lengths[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device)
    mask.masked_fill_(hidden, torch.finfo(dtype).min)
    return mask[:, None, None, :].expand(-1, 1, longest, -1)


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad ids at their ends; returns (rows, longest) and lengths (rows,). What fills up is 0."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.as_tensor(row)
    return ids.to(device), lengths.to(device)
