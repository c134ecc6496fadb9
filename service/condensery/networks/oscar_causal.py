"""An OSCAR pair whose generator is a causal language model: Mistral, Llama, Qwen2 and their like.

What its compressor may be is in ``oscar_families``.

Source: OSCAR, "Online Soft Compression And Reranking", arXiv:2504.07109, sections 3.2 and 3.3.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from condensery.networks.adapters import Adapters
from condensery.networks.decoders import build, fill_buffers, put, rotary_buffers
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar_causal_compressor import check_positions
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_families import COMPRESSORS
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quantised import EncoderWeights, Weights, quantise_linears

CPU = torch.device("cpu")
HALVES = ("compressor", "generator")


def embed_parts(table: nn.Module, parts: Sequence[PromptPart]) -> Tensor:
    """Return a prompt's embeddings, (1, positions, hidden).

    Args:
        table: A language model's input embeddings.
    """
    words = cast(Tensor, table.weight)
    rows = [
        part.to(words)
        if isinstance(part, Tensor)
        else cast(Tensor, table(torch.tensor(list(part), dtype=torch.long, device=words.device)))
        for part in parts
    ]
    return torch.cat(rows)[None]


class CausalGenerator(nn.Module):
    """A causal language model whose prompt holds memory vectors among its token embeddings."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network

    @property
    def backbone(self) -> PreTrainedModel:
        """The model without its head."""
        return cast(PreTrainedModel, self.network.base_model)

    @property
    def words(self) -> Tensor:
        """The embedding table, (vocabulary, hidden)."""
        return cast(Tensor, self.network.get_input_embeddings().weight)

    @property
    def dtype(self) -> torch.dtype:
        """Of the embeddings."""
        return self.words.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.words.device

    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Return a prompt's embeddings, (1, positions, hidden)."""
        return embed_parts(self.network.get_input_embeddings(), parts)

    def said(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Return the embeddings of an answer's tokens, wherever they stand, (tokens, hidden)."""
        del places
        return self.embed([ids])[0]

    def forward(self, embeds: Tensor, **backbone: Any) -> Any:
        """Run the backbone over (batch, positions, hidden); extras go to transformers."""
        return self.backbone(inputs_embeds=embeds, **backbone)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token after the given states, (..., hidden) to (..., vocabulary)."""
        scores: Tensor = self.network.get_output_embeddings()(hidden)
        return scores


class CausalPair(nn.Module):
    """Both halves, their weights still nowhere; ``load`` fills them.

    Args:
        shape: The pair's dimensions and prompts.
        compressor: Configuration of the compressor's backbone, with the layers it runs.
        generator: The generator's.

    Raises:
        ValueError: The halves don't match, or a backbone has too few positions.
    """

    def __init__(
        self, shape: CausalShape, compressor: PretrainedConfig, generator: PretrainedConfig
    ) -> None:
        super().__init__()
        self.shape = shape
        family = COMPRESSORS[shape.family]
        self.compressor = family.build(compressor, shape.compressor, generator.hidden_size)
        self.generator = CausalGenerator(build(generator))
        check_positions(generator, shape.generator.positions, "prompt")
        self._shared = shape.compressor.shared
        self._rounded_rope = shape.compressor.rounded_rope
        self._adapter_scales = {
            "compressor": shape.compressor.adapter_scale,
            "generator": shape.generator.adapter_scale,
        }

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight that a stored pair holds, adapters left out.

        What one weight is tied to is not there twice; what the compressor shares with the
        generator is the generator's.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for name, weight in self.named_parameters():  # a tied one comes once
            if not (self._shared and name.startswith(SHARED)):
                shapes[name] = tuple(weight.shape)
        return shapes

    def load(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        compressor: torch.device = CPU,
        generator: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        weights: Weights = "float",
        compressor_weights: EncoderWeights = "float",
        generates: bool = True,
    ) -> "CausalPair":
        """Fill the pair, one tensor at a time, and make it ready for inference.

        Args:
            tensors: By name, as ``expected`` has them, and adapters.
            compressor: Where that half is to run.
            generator: Where the other is.
            dtype: What to compute in.
            weights: What the generator's are held as.
            compressor_weights: And the compressor's.
            generates: Whether its generator is to generate here; else it is left as it is read,
                without a second copy of its weights in the layout that fast layers read.

        Returns:
            The pair itself.

        Raises:
            ValueError: Weights are missing, unknown, or of another shape; they are named.
        """
        devices = {"compressor": compressor, "generator": generator}
        expected, adapters = self.expected(), {half: Adapters() for half in HALVES}
        wrong: list[str] = []
        for name, tensor in tensors:
            half, _, rest = name.partition(".")
            if half in adapters and adapters[half].take(rest, tensor):
                continue
            shape = expected.pop(name, None)
            if shape != tuple(tensor.shape):
                what = "unknown" if shape is None else f"expected {shape}"
                wrong.append(f"{name}: {tuple(tensor.shape)}, {what}")
                continue
            put(self, name, tensor.to(devices[half], dtype))
        wrong += [f"{name}: missing" for name in expected]
        if not wrong:
            self._finish(devices, adapters)
            wrong = [
                f"{half}.{problem}"
                for half in HALVES
                for problem in adapters[half].problems(self.get_submodule(half))
            ]
        wrong += [
            f"{half}: has adapters, and an adapter_scale of 0"
            for half in HALVES
            if adapters[half].layers and not self._adapter_scales[half]
        ]
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ValueError(f"not this pair's weights: {'; '.join(wrong[:5])}{more}")
        for half in HALVES:
            adapters[half].merge(self.get_submodule(half), self._adapter_scales[half])
        self.eval()  # what is rounded is compared with what it was: nothing may be dropped
        self.compressor.make_ready(compressor_weights)
        if generates:
            self._prepack(weights)
        else:
            prepack_linears(self.compressor)
        return self

    def _finish(self, devices: dict[str, torch.device], adapters: dict[str, Adapters]) -> None:
        """Tie, share, and make what no file holds."""
        network = self.generator.network
        network.tie_weights()
        if self._shared:
            own = adapters["compressor"].layers | {
                name.replace("network.model.", "backbone.", 1)
                for name in adapters["generator"].layers
            }
            theirs = dict(network.base_model.named_parameters())
            for name, _ in list(self.compressor.backbone.named_parameters()):
                weight = theirs[name].data.to(devices["compressor"])
                # Adapted by one half or the other, it is no longer the same for both.
                adapted = f"backbone.{name.removesuffix('.weight')}" in own
                put(self.compressor.backbone, name, weight.clone() if adapted else weight)
        backbone, device = self.compressor.backbone, devices["compressor"]
        fill_buffers(backbone, device, rounded=self._rounded_rope)
        fill_buffers(network, devices["generator"])

    def _prepack(self, weights: Weights) -> None:
        """Prepack both halves; layers that they share stay one, unless the generator's are rounded.

        How well passages are compressed and ranked is not the generator's bits to decide.
        """
        backbone, theirs = self.compressor.backbone, self.generator.backbone
        twins = [
            name
            for name, layer in backbone.named_modules()
            if self._shared and weights == "float" and isinstance(layer, nn.Linear)
            if layer.weight.data_ptr() == theirs.get_parameter(f"{name}.weight").data_ptr()
        ]
        quantise_linears(self.generator, weights)
        prepack_linears(self.generator)
        for name in twins:
            backbone.set_submodule(name, theirs.get_submodule(name))
        prepack_linears(self.compressor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert all but rotary frequencies, which stay as exact as they were."""
        exact = [buffer for buffer in rotary_buffers(self) if not buffer[2].is_meta]
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own
        for module, name, value in exact:
            device = module.get_buffer(name).device
            setattr(module, name, nn.Buffer(value.to(device), persistent=False))
        return moved


SHARED = "compressor.backbone."
