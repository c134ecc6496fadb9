"""A backbone that is run in steps over many sequences, its keys and values cached by us."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.errors import CorruptModel
from condensery.networks.cached_attention import CACHED
from condensery.networks.caching import Cache, Prefix, Span, Step
from condensery.networks.decoding import AGREEMENT, Decoder
from condensery.networks.last_layer import trim_last
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar_interface import GeneratorNetwork
from condensery.networks.paging import Tokens
from condensery.networks.step_layers import fuse_steps, part_steps

# Their angles hang on the longest sequence of a batch.
BATCH_BOUND_ROPES = frozenset({"dynamic", "longrope"})


class StepperNetwork(GeneratorNetwork, Protocol):
    """A generator whose backbone is a transformers model."""

    @property
    def backbone(self) -> PreTrainedModel:
        """The model without its head."""
        ...


class Stepper:
    """Runs a generator in steps.

    Args:
        network: In the device and dtype it runs in; its backbone's attention is replaced, and its
            linear layers by those that take few rows fast.

    Attributes:
        whole_prompts: Whether a prompt has to be read at once, since all of it sees all of it.

    Raises:
        CorruptModel: The backbone does not give the same numbers in steps as at once.
    """

    def __init__(self, network: StepperNetwork) -> None:
        backbone = network.backbone
        config: Any = backbone.config
        self._network = network
        self.layers: int = config.num_hidden_layers
        heads: int = config.num_attention_heads
        self._heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.width: int = config.hidden_size
        self.longest: int = config.max_position_embeddings
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") in BATCH_BOUND_ROPES:
            raise CorruptModel(
                f"a backbone of rope type {rope['rope_type']!r} does not run in steps: its angles "
                "hang on what else is in the batch"
            )
        if isinstance(network, nn.Module):
            prepack_linears(network, fp32=True)
        self.whole_prompts = not all(
            getattr(module, "is_causal", True) for module in backbone.modules()
        )
        self._take_over(backbone)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._network.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the embeddings."""
        return self._network.dtype

    @property
    def bytes_per_position(self) -> int:
        """Memory that one cached position takes."""
        return 2 * self.layers * self._heads * self._size * self._network.dtype.itemsize

    def cache(self, positions: int) -> Cache:
        """Make room for so many positions."""
        return Cache(
            self.layers,
            positions,
            self._heads,
            self._size,
            dtype=self._network.dtype,
            device=self._network.device,
        )

    def decoder(self, cache: Cache, rows: int) -> Decoder:
        """Make what runs single tokens of up to so many sequences in fixed shapes."""
        return Decoder(self, cache, rows)

    @torch.inference_mode()
    def prefix(self, ids: Sequence[int]) -> Prefix:
        """Read tokens that prompts begin with, once for all of them.

        Raises:
            ValueError: Prompts have to be read whole, and so their beginning with the rest.
        """
        if self.whole_prompts:
            raise ValueError("a prompt that is read from both sides has no beginning by itself")
        cache, places = self.cache(len(ids)), np.arange(len(ids))
        self.run(self.embed([ids]), Step(cache, [Span(places, 0, len(ids))]))
        return Prefix(tuple(ids), cache.copy(places))

    def embed(self, parts: Sequence[Sequence[int] | Tensor]) -> Tensor:
        """Return a prompt's embeddings, (positions, hidden)."""
        return self._network.embed(parts)[0]

    def said(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Return the embeddings of answers' tokens, each at a place of its answer."""
        return self._network.said(ids, places)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token after the given states, (rows, hidden) to (rows, vocabulary), fp32."""
        return self._network.logits(hidden).float()

    def run(self, embeds: Tensor, step: Step | Tokens) -> Tensor:
        """Run a step's rows (total, hidden); returns their last hidden states.

        Raises:
            ValueError: The backbone's attention is not ours any more.
        """
        visits = step.visits
        if step.padded > step.total:
            embeds = nn.functional.pad(embeds, (0, 0, 0, step.padded - step.total))
        hidden: Tensor = self._network(
            embeds[None], position_ids=step.position_ids, step=step, use_cache=False
        ).last_hidden_state[0]
        if step.visits - visits != self.layers:
            raise ValueError(f"{step.visits - visits} of {self.layers} layers used the cache")
        return hidden[: step.total]

    def _at_once(self, row: Tensor, prompt: int) -> Tensor:
        """Run (positions, hidden), of which so many are a prompt, without a cache."""
        options: dict[str, Any] = {"use_cache": False}
        if self.whole_prompts:
            seen = torch.ones(len(row), len(row), dtype=torch.bool, device=row.device).tril()
            seen[:prompt, :prompt] = True
            options["attention_mask"] = seen[None, None]
        hidden: Tensor = self._network(row[None], **options).last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def _take_over(self, backbone: PreTrainedModel) -> None:
        """Replace the attention, and see that nothing has changed: read at once, and in pieces."""
        kind = backbone.config.model_type
        source = torch.Generator().manual_seed(0)
        rows = [torch.randn(n, self.width, generator=source) for n in (9, 21)]
        probes = [row.to(device=self.device, dtype=self._network.dtype) for row in rows]
        part_steps(backbone)  # another stepper may have taken it before
        backbone.set_attn_implementation("sdpa")
        prompts = (8, 16)
        wanted = [self._at_once(row, prompt) for row, prompt in zip(probes, prompts, strict=True)]
        backbone.set_attn_implementation(CACHED)
        fuse_steps(backbone, probes[0])
        trim_last(backbone)
        cache = self.cache(48)
        places = [np.arange(start, start + 24) for start in (24, 0)]
        actual: list[list[Tensor]] = [[], []]
        # The second is a chunk behind, so that chunks and single tokens meet.
        for first, second in (
            ((0, prompts[0]), None),
            ((prompts[0], 9), (0, prompts[1])),
            (None, (prompts[1], 20)),
            (None, (20, 21)),
        ):
            which = [(i, part) for i, part in enumerate((first, second)) if part is not None]
            spans = [Span(places[i], a, b - a) for i, (a, b) in which]
            out = self.run(torch.cat([probes[i][a:b] for i, (a, b) in which]), Step(cache, spans))
            for (i, _), part in zip(which, out.split([s.count for s in spans]), strict=True):
                actual[i].append(part)
        pairs = zip(wanted, actual, strict=True)
        agreement = min(
            nn.functional.cosine_similarity(a.float(), torch.cat(b).float()).min().item()
            for a, b in pairs
        )
        # Not `<`: a NaN must be refused as well.
        if not agreement >= AGREEMENT:
            raise CorruptModel(
                f"a {kind!r} backbone gives other numbers in steps than at once "
                f"(cosine {agreement:.3f})"
            )
