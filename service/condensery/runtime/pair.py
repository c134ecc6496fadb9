"""Load an OSCAR pair as it runs here."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from torch import Tensor
from transformers import BertConfig

from condensery.errors import CorruptModel
from condensery.networks.attention import PACKED
from condensery.networks.bert import fuse_layers
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_shape import OscarShape

if TYPE_CHECKING:
    from condensery.store.manifest import StoredModel


def word_embeddings(base: Path) -> Tensor:
    """Read a BERT encoder's word embeddings, (vocabulary, hidden).

    Raises:
        CorruptModel: There is no such tensor in the directory's weights.
    """
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (safe_open has no iterator)
                if name.endswith("embeddings.word_embeddings.weight"):
                    found: Tensor = weights.get_tensor(name)
                    return found
    raise CorruptModel(f"{base.parent.name}: no word embeddings in its weights")


def load_pair(
    stored: "StoredModel", base: "StoredModel", *, device: torch.device, dtype: torch.dtype
) -> OscarPair:
    """Load ``stored`` with the word embeddings of ``base``, ready for packed inference.

    Raises:
        CorruptModel: The files don't make a pair.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import load_state

    try:
        shape = OscarShape.from_dict(stored.manifest.shape)
        config = BertConfig.from_json_file(stored.path / "config.json")
        pair = OscarPair(config, shape, word_embeddings(base.path))
        pair.load_own_state(load_state(stored))
    except (OSError, ValueError, TypeError, RuntimeError, StrictDataclassError) as error:
        raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error
    return make_ready(pair.to(device=device, dtype=dtype).eval())


def make_ready(pair: OscarPair) -> OscarPair:
    """Replace a pair's parts by those that infer fast, on packed input; it can't train then."""
    pair.compressor.backbone.set_attn_implementation(PACKED)
    fuse_layers(pair.compressor.backbone)
    pair.generator.backbone.set_attn_implementation("sdpa")
    prepack_linears(pair)
    return pair
