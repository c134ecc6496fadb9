"""A causal language model as an encoder: it reads both ways, and memory tokens hold the text.

Source: LLM2Comp, "Learning to Compress: Unlocking the Potential of Large Language Models for Text
Representation" (AAAI 2026), sections 3.1 and 4.2. The network sees ``[start] text M1 .. Mk``, every
position all others, and gives the last hidden states of ``M1 .. Mk``, whose mean is the vector.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from condensery.errors import CorruptModel
from condensery.networks.adapters import DOWN, UP, Adapters
from condensery.networks.backbone import Backbone, reading, run_packed
from condensery.networks.decoders import fill_buffers, put
from condensery.networks.llm2comp_shape import MEMORY, SCALE, MemoryShape
from condensery.networks.llm2comp_texts import check_texts
from condensery.networks.loading import build_pruned, own_name, pruning_of
from condensery.networks.packing import Packing
from condensery.networks.pooling import Pooling
from condensery.networks.quantised import EncoderWeights
from condensery.networks.weight_files import ModelFolder, read_weights

ROWS = "memory_tokens.weight"  # (k, hidden): what is stored beside a table that has none of them
SHOWN = 5


def without_windows(config: PretrainedConfig) -> PretrainedConfig:
    """Return a copy in which every layer's attention reaches all of a text."""
    values = config.to_dict()
    for key in ("sliding_window", "max_window_layers"):
        if key in values:
            values[key] = None if key == "sliding_window" else values["num_hidden_layers"]
    if "use_sliding_window" in values:
        values["use_sliding_window"] = False
    if values.get("layer_types"):
        values["layer_types"] = ["full_attention"] * len(values["layer_types"])
    copy: PretrainedConfig = CONFIG_MAPPING[config.model_type].from_dict(values)
    return copy


def read_both_ways(model: nn.Module) -> None:
    """Let every position of a causal language model see all others of its text, in place.

    Raises:
        ValueError: No attention of it says that it is causal.
    """
    causal = [module for module in model.modules() if getattr(module, "is_causal", False) is True]
    if not causal:
        raise ValueError("the model has no causal attention")
    for module in causal:
        module.is_causal = False  # type: ignore[assignment]  # of no declared type


def memory_at(packing: Packing, tokens: int) -> Tensor:
    """Return the rows of each sequence's last ``tokens`` positions, (sequences, tokens)."""
    back = torch.arange(1 - tokens, 1, device=packing.device)
    return packing.ends[:, None] + back


class MemoryBackbone(Backbone):
    """A transformer that puts memory tokens after each sequence; for inference only.

    Args:
        model: It reads both ways, and runs packed (``run_packed``).
        shape: How it reads.
    """

    def __init__(self, model: PreTrainedModel, shape: MemoryShape) -> None:
        super().__init__(model)
        self.shape = shape
        self.extra_tokens = shape.memory_tokens
        self.first_memory: int = model.config.vocab_size - shape.memory_tokens
        self._kept = torch.tensor(shape.kept, device=self.device)

    @torch.inference_mode()
    def read(
        self,
        sequences: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int]] | None = None,
        *,
        pooling: Pooling | None = None,
    ) -> tuple[Tensor, Packing]:
        """Pack token ids, memory tokens after each; return the last hidden states.

        Arguments are those of ``Backbone.read``; each of the packing's sequences is longer by
        ``extra_tokens`` than what it was given.
        """
        assert token_types is None  # no language model has them
        k = self.extra_tokens
        memory = range(self.first_memory, self.first_memory + k)
        packing = self.pack([len(ids) + k for ids in sequences])
        if pooling is not None:
            packing.wanted = self._effective(packing).flatten()
        ids = chain.from_iterable(chain(sequence, memory) for sequence in sequences)
        return self(packing.row([*ids]), packing), packing

    def pool(self, hidden: Tensor, packing: Packing, pooling: Pooling) -> Tensor:
        """Pool the states of each sequence's effective memory tokens, in float32.

        Args:
            hidden: (total, width).
            packing: As ``read`` returned it.
            pooling: Their mean (the paper's), the first, or the last.

        Returns:
            (sequences, width).
        """
        states = hidden[self._effective(packing)].float()
        if pooling == "mean":
            return states.mean(1)
        return states[:, 0 if pooling == "cls" else -1]

    def check_texts(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        """Check that a tokenizer gives what this reads; raises ValueError as ``check_texts``."""
        check_texts(tokenizer, self.shape, self.first_memory, max_tokens)

    def _effective(self, packing: Packing) -> Tensor:
        """Return the rows of the memory tokens that count, (sequences, effective)."""
        return memory_at(packing, self.extra_tokens)[:, self._kept]


def load_memory_backbone(
    folder: ModelFolder,
    shape: MemoryShape,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    weights: EncoderWeights = "float",
) -> MemoryBackbone:
    """Load a memory encoder as it runs here; the arguments are ``load_backbone``'s.

    Raises:
        CorruptModel: As ``load_memory_model``; or it does not give the same numbers packed as
            alone.
    """
    model = load_memory_model(folder, shape, device=device, dtype=dtype)
    return MemoryBackbone(run_packed(model, both_ways=True, weights=weights).model, shape)


def load_memory_model(
    folder: ModelFolder,
    shape: MemoryShape,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Load a memory encoder's transformer, which reads both ways, adapters merged.

    Weights are named as transformers names the base model's (``layers.0.mlp.up_proj.weight``);
    adapters by their layer (``layers.0.mlp.up_proj.lora_A``). The embedding table has the memory
    tokens' rows at its end, or they are in a tensor of their own (``ROWS``).

    Args:
        folder: A directory whose ``config.json`` is a causal language model's, of ``vocab_size``
            with the memory tokens; what is not in it, its base has.
        shape: How it reads.
        device: Where to.
        dtype: Of its weights; what is stored otherwise is merged before it is cast.

    Raises:
        CorruptModel: A file is missing or unreadable, a weight is missing or of another shape, an
            adapter fits no layer, or memory rows stand in two places; named.
    """
    with reading(folder.path):
        read = AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        config = without_windows(read)
        model = build_pruned(config, pruning_of(config))
        read_both_ways(model)
        _fill(model, folder, shape, torch.device(device), dtype)
    model.requires_grad_(requires_grad=True)
    model.eval()
    return model


def _fill(
    model: PreTrainedModel,
    folder: ModelFolder,
    shape: MemoryShape,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Fill a model that is still nowhere; raises CorruptModel as ``load_memory_model``."""
    adapters, rows = _own_parts(model, folder, shape)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    table = table_name(model)
    wrong: list[str] = []
    for name, tensor in read_weights(folder, lambda name: not _is_own(name)):
        own = name if name in wanted else own_name(name, model)
        expected = wanted.pop(own, None)
        if expected is None:
            continue  # the head, what is dropped
        whole = tensor
        if rows is not None and own == table:
            whole = _grown(folder, name, tensor, rows, expected[0] - len(rows))
        if tuple(whole.shape) != expected:
            wrong.append(f"{name} is {tuple(whole.shape)}, not {expected}")
            continue
        layer = own.removesuffix(".weight")
        if layer in adapters.layers and layer != own:
            whole = adapters.merged(layer, whole.float(), shape.adapter_scale)
        put(model, own, whole.to(device, dtype))
    wrong += [f"{name} is missing" for name in wanted]
    _refuse(folder, wrong)
    fill_buffers(model, device)


def _grown(folder: ModelFolder, name: str, words: Tensor, rows: Tensor, vocabulary: int) -> Tensor:
    """Return an embedding table, (vocabulary, hidden), with the memory tokens' rows at its end.

    Raises:
        CorruptModel: It has memory tokens' rows already, or is of another width.
    """
    if len(words) > vocabulary:
        raise CorruptModel(
            f"{folder.name}: {ROWS} are the rows from {vocabulary} on of {name}, but that has "
            f"{len(words)} of its own: the ids collide"
        )
    if words.shape[1:] != rows.shape[1:]:
        raise CorruptModel(
            f"{folder.name}: {ROWS} is {tuple(rows.shape)} beside {name} {tuple(words.shape)}"
        )
    return torch.cat([words.float(), rows.float()])


def _own_parts(
    model: PreTrainedModel, folder: ModelFolder, shape: MemoryShape
) -> tuple[Adapters, Tensor | None]:
    """Read a model's adapters and memory rows; raises CorruptModel as ``load_memory_model``."""
    adapters, rows = Adapters(), None
    for name, tensor in read_weights(folder, _is_own):
        if name == ROWS:
            rows = tensor
        else:
            adapters.take(own_name(name, model), tensor)
    wrong = [f"{problem}" for problem in adapters.problems(model)]
    hidden = int(model.config.hidden_size)
    if rows is not None and tuple(rows.shape) != (shape.memory_tokens, hidden):
        expected = (shape.memory_tokens, hidden)
        wrong.append(f"{ROWS} is {tuple(rows.shape)}, not {expected} ({MEMORY}, hidden_size)")
    if bool(adapters.layers) != bool(shape.adapter_scale):
        there = "there are adapters" if adapters.layers else "there is no adapter"
        wrong.append(f"shape.{SCALE} is {shape.adapter_scale}, but {there}")
    _refuse(folder, wrong)
    return adapters, rows


def _is_own(name: str) -> bool:
    return name == ROWS or name.endswith((DOWN, UP))


def _refuse(folder: ModelFolder, wrong: Sequence[str]) -> None:
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise CorruptModel(f"{folder.name}: {'; '.join(wrong[:SHOWN])}{more}")


def table_name(model: PreTrainedModel) -> str:
    """Return the name of a base model's embedding table."""
    table = model.get_input_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is table)


def token_clusters(similarity: Tensor, above: float = 0.9) -> tuple[tuple[int, ...], ...]:
    """Group memory tokens that are alike (section 4.2 of the paper).

    Each token begins as a cluster; two clusters become one while the least similarity between a
    token of one and a token of the other is over ``above``, the most alike first.

    Args:
        similarity: Between tokens, (k, k), symmetric: a mean over texts of their states' cosines.
        above: What is alike enough.

    Returns:
        The clusters, ascending by their first tokens.
    """
    clusters: list[tuple[int, ...]] = [(token,) for token in range(len(similarity))]
    while len(clusters) > 1:
        pairs = [
            (float(similarity[list(one)][:, list(other)].min()), i, j)
            for i, one in enumerate(clusters)
            for j, other in enumerate(clusters[:i])
        ]
        least, i, j = max(pairs)
        if not least > above:
            break
        joined = tuple(sorted(clusters[i] + clusters[j]))
        clusters = sorted([c for at, c in enumerate(clusters) if at not in (i, j)] + [joined])
    return tuple(clusters)


def token_similarity(states: Iterator[Tensor] | Sequence[Tensor]) -> Tensor:
    """Return the mean similarity of memory tokens over texts (equation 7), of states of length 1.

    Args:
        states: Memory tokens' last hidden states, (texts, k, hidden), in parts.

    Returns:
        (k, k), float64.

    Raises:
        ValueError: There is no text.
    """
    total, texts = None, 0
    for part in states:
        unit = nn.functional.normalize(part.double(), dim=-1)
        summed = (unit @ unit.transpose(1, 2)).sum(0)
        total = summed if total is None else total + summed
        texts += len(part)
    if total is None or not texts:
        raise ValueError("no text to compare memory tokens on")
    return total / texts


def effective_tokens(
    similarity: Tensor, above: float = 0.9, generator: torch.Generator | None = None
) -> tuple[int, ...]:
    """Choose one memory token of each cluster, for ``MemoryShape.effective_tokens``.

    Args:
        similarity: See ``token_clusters``.
        above: What is alike enough.
        generator: Chooses at random, as the paper does; None takes each cluster's first.
    """
    clusters = token_clusters(similarity, above)
    if generator is None:
        return tuple(cluster[0] for cluster in clusters)
    draws = (int(torch.randint(len(c), (), generator=generator)) for c in clusters)
    return tuple(sorted(c[at] for c, at in zip(clusters, draws, strict=True)))
