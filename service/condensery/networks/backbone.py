"""transformers' models as they run here: packed input, our attention, prepacked weights."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from condensery.errors import CorruptModel
from condensery.networks import native
from condensery.networks.attention import PACKED
from condensery.networks.bert import fuse_layers, reading_norms
from condensery.networks.dtypes import thread_dtypes
from condensery.networks.last_layer import trim_last
from condensery.networks.linear import Dense, prepack_linears
from condensery.networks.loading import has_other_parts, open_model
from condensery.networks.packing import Packing
from condensery.networks.pooling import Pooling, pool, rows_read
from condensery.networks.quantised import (
    EncoderWeights,
    Int8,
    Int16,
    RoundedProducts,
    quantise_linears,
    watching,
)
from condensery.networks.sublayers import constructor_options
from condensery.networks.weight_files import ModelFolder

# These count positions from padding_idx + 1 and derive them from the ids by default.
ROBERTA_LIKE = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"})
# oneDNN prepares a kernel for each new number of rows, so row totals are rounded up with filler:
# 23 to 30 % less CPU time over batches of random sizes. To less where a few rows are a large part
# of the work: one query takes a quarter less in 16 rows than in 32. Ours takes any number.
CPU_ROW_MULTIPLE = 32
CPU_ROW_MULTIPLE_SMALL = 16
SMALL_ROWS = 128
OWN_FORMS = {"panels", "quads", "words"}
# Packed against one by one through transformers' own attention, on random tokens. In bf16 the
# two differ by rounding (cosine 0.999); a wrong mask or position costs far more.
AGREEMENT = 0.99
AGREEMENT_ROUNDED = 0.9  # with weights of 8 bits

_loading = threading.Lock()


def row_multiple(device: torch.device, dtype: torch.dtype) -> int:
    """Return to what multiple many rows are rounded up with filler, for products of floats."""
    as_they_are = device.type != "cpu" or native.has_panels(dtype)
    return 1 if as_they_are else CPU_ROW_MULTIPLE


class Backbone(nn.Module):
    """A transformer that reads packed sequences; for inference only.

    Args:
        model: A transformers base model, in the device and dtype it will run in.

    Attributes:
        rounded: Whether some of its products are of integers.
        extra_tokens: Positions that it puts after each sequence, beside the tokens it is given.
    """

    extra_tokens = 0

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config: Any = model.config
        self.model = model
        self.width: int = config.hidden_size
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.position_offset = config.pad_token_id + 1 if config.model_type in ROBERTA_LIKE else 0
        products = [part for part in model.modules() if isinstance(part, Dense | Int8 | Int16)]
        forms = {part.form for part in products}
        self._rows_as_they_are = bool(forms) and forms <= OWN_FORMS
        self.rounded = any(not isinstance(part, Dense) for part in products)

    def pack(self, lengths: Sequence[int]) -> Packing:
        """Lay out sequences of these lengths for this device and dtype."""
        multiple = 1
        if self.device.type == "cpu" and not self._rows_as_they_are:
            small = sum(lengths) <= SMALL_ROWS
            multiple = CPU_ROW_MULTIPLE_SMALL if small else CPU_ROW_MULTIPLE
        return Packing.of(lengths, dtype=self.dtype, device=self.device, total_multiple=multiple)

    def forward(
        self, input_ids: Tensor, packing: Packing, token_types: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states (total, width) of ``input_ids`` (1, total).

        Args:
            input_ids: Token ids.
            packing: Where the sequences lie.
            token_types: Of each token, (1, total), for networks that have them; by default 0.
        """
        hidden: Tensor = self.model(
            input_ids=input_ids,
            position_ids=packing.position_ids + self.position_offset,
            packing=packing,
            use_cache=False,  # a decoder would copy every layer's keys and values, and hold them
            **({} if token_types is None else {"token_type_ids": token_types}),
        ).last_hidden_state
        return hidden[0]

    @property
    def longest(self) -> int | None:
        """The longest sequence that has positions, tokens; None if the config sets no bound."""
        places = getattr(self.model.config, "max_position_embeddings", None)
        return None if places is None else int(places) - self.position_offset

    @torch.inference_mode()
    def read(
        self,
        sequences: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int]] | None = None,
        *,
        pooling: Pooling | None = None,
    ) -> tuple[Tensor, Packing]:
        """Pack token ids, and perhaps their types; return the last hidden states (total, width).

        Args:
            sequences: Token ids of each.
            token_types: See ``forward``.
            pooling: What the states are for: those that it doesn't read may hold anything. None:
                all are read.
        """
        packing = self.pack([len(ids) for ids in sequences])
        packing.wanted = None if pooling is None else rows_read(packing, pooling)
        types = None if token_types is None else packing.row([*chain.from_iterable(token_types)])
        return self(packing.row([*chain.from_iterable(sequences)]), packing, types), packing

    def pool(self, hidden: Tensor, packing: Packing, pooling: Pooling) -> Tensor:
        """Make vectors, (sequences, width), float32, of what ``read`` returned."""
        return pool(hidden, packing, pooling)

    def check_texts(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        """Check that a tokenizer, and the longest input, are such as the network reads.

        Raises:
            ValueError: They are not.
        """


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal meanwhile."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def load_backbone(
    path: Path | ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    weights: EncoderWeights = "float",
) -> Backbone:
    """Load the transformer in ``path`` as it runs here.

    Args:
        path: See ``load_transformer``.
        device: Where to run.
        dtype: What to compute in.
        weights: What its layers' are held as; in 8 bits on a CPU alone.

    Raises:
        CorruptModel: As ``load_transformer``; or the architecture does not give the same numbers
            packed as alone.
    """
    return run_packed(load_transformer(path, device=device, dtype=dtype), weights=weights)


def load_transformer(
    path: Path | ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Load the base model in ``path`` (config.json, *.safetensors) as transformers has it.

    Args:
        path: A directory in transformers' layout, whose weights may be int8 or a base's. Nothing
            is fetched, and no code in it runs.
        device: Where to.
        dtype: Of its weights.

    Raises:
        CorruptModel: A file is missing or unreadable, weights are missing or of other shapes, or
            the configuration's lists of what is dropped (``networks.effir_shape``) or of heads
            that are left (``networks.shrp``) are wrong.
    """
    folder = ModelFolder.of(path)
    with reading(folder.path):
        config = AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        if has_other_parts(config) or not folder.plain:
            return open_model(folder, config, device=device, dtype=dtype)
        options = constructor_options(config)
        model, report = AutoModel.from_pretrained(
            folder.path,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            **_options(dtype),
            **options,
        )
    return _whole(folder.path, model, report, device)


def load_classifier(
    path: Path | ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Load the sequence classifier in ``path`` as transformers has it; see ``load_transformer``.

    Raises:
        CorruptModel: As there; or sub-layers of it are dropped, which is known of encoders only.
    """
    folder = ModelFolder.of(path)
    with reading(folder.path):
        config = AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        if has_other_parts(config) or not folder.plain:
            return open_model(folder, config, classifies=True, device=device, dtype=dtype)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder.path,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            **_options(dtype),
        )
    return _whole(folder.path, model, report, device)


def _options(dtype: torch.dtype) -> dict[str, Any]:
    """Return what every model is loaded with."""
    return {"dtype": dtype, "local_files_only": True, "output_loading_info": True}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Load one model at a time, quietly.

    Raises:
        CorruptModel: In the place of what transformers raises.
    """
    try:
        with _loading, _quietly(), thread_dtypes():
            yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CorruptModel(f"{path.name}: transformers can't load it: {error}") from error


def _whole(
    path: Path, model: Any, report: Mapping[str, Any], device: torch.device | str
) -> PreTrainedModel:
    """Check that nothing was made up: transformers fills what is missing with random numbers.

    Raises:
        CorruptModel: Something was; named.
    """
    wrong = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if wrong:
        raise CorruptModel(f"{path.name}: weights missing or of another shape: {wrong[:5]}")
    ready: PreTrainedModel = model.to(device).eval()
    return ready


def run_packed(
    model: PreTrainedModel, *, both_ways: bool = False, weights: EncoderWeights = "float"
) -> Backbone:
    """Make ``model`` read packed input, replacing its parts by those that are faster here.

    Args:
        model: A base model.
        both_ways: Whether it is a causal language model that was made to read both ways.
        weights: As in ``load_backbone``.

    Raises:
        CorruptModel: It does not give the same numbers packed as it gave one by one; or rounded
            weights give clearly others.
    """
    kind = model.config.model_type
    generator = torch.Generator().manual_seed(0)
    padding = model.config.pad_token_id  # some models skip it when they count positions
    probes = [
        [(token + 1) % model.config.vocab_size if token == padding else token for token in tokens]
        for tokens in (
            torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()
            for length in (5, 33, 16)
        )
    ]
    watched = {} if weights == "float" else reading_norms(model)
    with torch.inference_mode(), watching(watched) as reach:
        alone = [_alone(model, ids, both_ways=both_ways) for ids in probes]
    try:
        model.set_attn_implementation(PACKED)
        products = Dense if weights == "float" else RoundedProducts(weights, reach)
        if not fuse_layers(model, products):
            quantise_linears(model, weights)
        trim_last(model)
        prepack_linears(model)
        backbone = Backbone(model)
        packed, packing = backbone.read(probes)
    except (ValueError, TypeError) as error:
        raise CorruptModel(f"a {kind!r} model does not run packed: {error}") from error
    wanted = torch.cat(alone).float()
    got = packed[: packing.cu_seqlens[-1]].float()
    agreement = nn.functional.cosine_similarity(wanted, got).min().item()
    # Not `<`: a NaN must be refused as well.
    rounds = weights != "float"
    if not agreement >= (AGREEMENT_ROUNDED if weights == "int8" else AGREEMENT):
        rounded = f", its weights in {weights}," if rounds else ""
        advice = "; it runs with its weights as floats" if rounds else ""
        raise CorruptModel(
            f"a {kind!r} model{rounded} gives other numbers packed than alone "
            f"(cosine {agreement:.3f}){advice}"
        )
    return backbone


def make_ready(model: PreTrainedModel, weights: EncoderWeights = "float") -> None:
    """Let ``model`` read packed input, fast, as part of a network that is not a ``Backbone``.

    Args:
        model: A base model, replaced in place; it can't train then.
        weights: As in ``load_backbone``.

    Raises:
        CorruptModel: Rounded, it gives clearly other numbers.
    """
    if weights != "float":
        run_packed(model, weights=weights)
        return
    model.set_attn_implementation(PACKED)
    fuse_layers(model)
    trim_last(model)


def _alone(model: PreTrainedModel, ids: Sequence[int], *, both_ways: bool) -> Tensor:
    """Return the last hidden states (tokens, width) of one sequence, as transformers has them."""
    row = torch.tensor([ids], device=model.device)
    mask = None
    if both_ways:  # a mask of four dimensions is added to the scores as it is: nothing is hidden
        mask = torch.zeros(1, 1, len(ids), len(ids), device=model.device, dtype=model.dtype)
    hidden: Tensor = model(input_ids=row, attention_mask=mask).last_hidden_state
    return hidden[0]
