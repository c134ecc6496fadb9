"""Networks of experts with random weights, of any size, pruned to one head; timed in process.

Needs torch and transformers only: GPU machines may have nothing else.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from effir_gpu import Texts, compiled_run, turns
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedModel

from condensery.methods.effir.speed import batches
from condensery.networks.backbone import Backbone, run_packed
from condensery.networks.pooling import normalise, pool
from condensery.networks.shrp import Experts, convert_layer
from condensery.networks.shrp_paper import BERT_BASE, BertShape, Row, rows
from condensery.runtime.queue import default_limits

SIZES = {
    "minilm-l6": BertShape(384, 6, 12, 1536),
    "bert-base": BERT_BASE,
    "tiny": BertShape(32, 4, 4, 48),
}
PAPER = {row.converted: row.paper_throughput for row in rows()}  # of BERT-base
BATCH, TOKENS = 64, 128
QUERY_TOKENS = 16
# What is timed: texts a call, and tokens of each.
KINDS = {"batch": (BATCH, TOKENS), "one": (1, TOKENS), "query": (1, QUERY_TOKENS)}
FULL = 512  # texts of a batch that the service runs on a GPU; one of 64 is mostly launches there
COMPARED = 4
AGREEMENT = 0.99  # what bf16 leaves of a cosine


def experts_of(shape: BertShape, converted: int) -> Experts:
    """Return the last layers converted, each pruned to its first head."""
    plain = shape.layers - converted
    return Experts((None,) * plain + ((0,),) * converted)


def make(shape: BertShape, converted: int, vocabulary: int) -> PreTrainedModel:
    """Make a network as it is trained, fp32; plain layers are the same whatever is converted."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp_size,
    )
    model: Any = BertModel(config, add_pooling_layer=False)
    for number, heads in enumerate(experts_of(shape, converted).heads):
        if heads is not None:
            convert_layer(model, number).keep(heads)
    model.eval().requires_grad_(requires_grad=False)
    return model  # type: ignore[no-any-return]  # transformers' constructors have no types


@torch.inference_mode()
def reference(model: Any, texts: Texts) -> Tensor:
    """Return vectors of the trained layers, fp32 on the CPU, texts padded to one length."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    mask = (torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]).long()
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return normalise((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


@torch.inference_mode()
def vectors(backbone: Backbone, texts: Texts) -> Tensor:
    """Return vectors as they are served."""
    hidden, packing = backbone.read(texts)
    return normalise(pool(hidden, packing, "mean")).float().cpu()


def agreement(vectors: Tensor, wanted: Tensor) -> float:
    """Return the least cosine of vectors of length 1.

    Raises:
        SystemExit: It is lower than rounding explains: what was timed is another network.
    """
    least = float((vectors * wanted).sum(-1).min())
    if not least >= AGREEMENT:  # a NaN too
        raise SystemExit(f"the served network gives other vectors: cosine {least:.4f}")
    return least


def random_texts(count: int, tokens: int, vocabulary: int) -> Texts:
    """Return random token ids."""
    source = torch.Generator().manual_seed(tokens)
    low = min(1000, vocabulary // 2)
    texts: Texts = torch.randint(low, vocabulary, (count, tokens), generator=source).tolist()
    return texts


def measure(
    shape: BertShape,
    converted: Sequence[int],
    texts: Mapping[str, Texts],
    *,
    vocabulary: int,
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    compiled: bool,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time networks in process, in turns; yields each way with seconds and agreements.

    Args:
        shape: Of the plain network.
        converted: How many layers of each, 0 among them.
        texts: By kind.
        vocabulary: Words of the table.
        device: Where.
        dtype: In what.
        rounds: Medians are over so many.
        compiled: Also as the paper has it, padded batches of transformers' model, by torch.compile.
    """
    backbones: dict[str, Backbone] = {}
    plain: dict[str, Any] = {}
    agreements: dict[str, float] = {}
    few = [*texts["batch"][:COMPARED], *texts["query"]]
    for count in converted:
        model = make(shape, count, vocabulary)
        wanted = reference(model, few)
        if compiled:
            plain[str(count)] = copy.deepcopy(model).to(device, dtype)
        backbones[str(count)] = run_packed(model.to(device, dtype))
        agreements[str(count)] = agreement(vectors(backbones[str(count)], few), wanted)
    most = default_limits(device).batch_tokens
    # CPU time: as the clock's on a machine of one's own, and less wrong on one that others share.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    ways: dict[str, Mapping[str, Any]] = {"packed": backbones}
    if compiled:
        ways["compiled"] = plain
    for way, models in ways.items():
        seconds = {}
        for kind, some in texts.items():
            cut = batches(some, most)
            runs = {
                name: compiled_run(network, some, device, len(some))
                if way == "compiled"
                else lambda network=network, cut=cut: [network.read(batch) for batch in cut]
                for name, network in models.items()
            }
            with torch.inference_mode():
                more = 20 if len(some) == 1 else 1  # short ones are noisier
                seconds[kind] = turns(runs, rounds * more, device, clock)
        yield way, {"seconds": seconds, "agreement": agreements}


def allowed(shape: BertShape, converted: int) -> float:
    """Return the speed-up that true FLOPs of the layers allow."""
    return 100 / Row(converted, 0.0, 0.0, 0.0, shape).true_flops(TOKENS)
