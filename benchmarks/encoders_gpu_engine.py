"""Encoders of random weights, and an engine of them in processes: for ``encoders_gpu.py``."""

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from effir_gpu import make
from random_pairs import fill
from transformers import BertConfig, BertModel

from condensery.networks.accounting import DecoderShape
from condensery.networks.backbone import Backbone, run_packed
from condensery.networks.decoders import fill_buffers
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir_shape import Pruning
from condensery.networks.oscar_paper import MISTRAL_7B

TOKENS = {"queries": (6, 14), "passages": (90, 160)}  # special ones included
LIST = 32  # passages a request
MAX_TOKENS = 256


@dataclass(frozen=True)
class BertSize:
    """The dimensions of a BERT."""

    layers: int
    width: int
    heads: int
    mlp: int
    vocabulary: int = 30_522


SIZES: dict[str, BertSize | DecoderShape] = {
    "MiniLM-L6": BertSize(6, 384, 12, 1536),
    "BERT-base": BertSize(12, 768, 12, 3072),
    "Mistral-7B": MISTRAL_7B,
}
TINY: dict[str, BertSize | DecoderShape] = {
    "MiniLM-L6": BertSize(2, 32, 2, 64),
    "BERT-base": BertSize(2, 64, 4, 128),
    "Mistral-7B": DecoderShape(64, 4, 4, 2, 16, 128, 500),
}


def whole(shape: DecoderShape) -> Pruning:
    """Return a pruning that drops nothing."""
    return Pruning(shape.layers, (), (), None)


def build(size: BertSize | DecoderShape, device: torch.device, dtype: torch.dtype) -> Backbone:
    """Make a backbone with random weights, packed as the service runs it."""
    if isinstance(size, DecoderShape):
        return run_packed(make(size, whole(size), device, dtype))
    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.mlp,
    )
    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False)
    fill(model, device, dtype)
    fill_buffers(model, device)
    return run_packed(model.eval().requires_grad_(requires_grad=False))


def words_of(tokenizer: Any, kind: str, count: int) -> list[str]:
    """Return texts of about as many tokens as their kind has."""
    vocabulary = [word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii()]
    vocabulary.sort()
    draws = random.Random(kind)
    low, high = TOKENS[kind]
    return [
        " ".join(draws.choice(vocabulary) for _ in range(draws.randint(low - 2, high - 2)))
        for _ in range(count)
    ]


async def call(encoder: Any, texts: list[str], load: dict[str, Any]) -> dict[str, Any]:
    """Send requests from so many callers for so long; what began before the end counts."""
    draws = random.Random(1)
    latencies: list[float] = []
    until = time.perf_counter() + load["seconds"]

    async def caller() -> None:
        while (began := time.perf_counter()) < until:
            first = draws.randrange(len(texts) - load["list"] + 1)
            await encoder.embed(texts[first : first + load["list"]])
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(load["callers"])))
    return {"seconds": time.perf_counter() - began, "latencies": latencies}


def serve(pipe: Any, tiny: bool, tokenizer: Path, dtype_of: str) -> None:
    """Be one process of a service: make an encoder when told, and load it when told."""
    from concurrent.futures import ThreadPoolExecutor

    from condensery.runtime.device import prepare_process
    from condensery.runtime.encoder import Encoder, EncoderNetwork
    from condensery.runtime.tokenizing import TextTokenizer
    from condensery.runtime.workers import Workers
    from condensery.values import ModelInfo

    prepare_process()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    workers, threads = Workers(None, device), ThreadPoolExecutor(2)
    encoder: Any = None
    texts: dict[str, list[str]] = {}
    while (order := pipe.recv()) is not None:
        if isinstance(order, str):
            if encoder is not None:
                encoder.close()
            size = (TINY if tiny else SIZES)[order]
            backbone = build(size, device, getattr(torch, dtype_of))
            reader = TextTokenizer.load(tokenizer, MAX_TOKENS, threads)
            texts = {kind: words_of(reader.tokenizer, kind, 2000) for kind in TOKENS}
            info = ModelInfo(
                *(order, "encoder", "none", "", backbone.width, MAX_TOKENS),
                *(dtype_of, str(device), "", 0),
            )
            network = EncoderNetwork(backbone, "mean", order)
            encoder = Encoder(network, reader, workers, info=info, prompts={}, normalize=True)
            asyncio.run(encoder.warm_up())
            pipe.send("ready")
        else:
            pipe.send(asyncio.run(call(encoder, texts[order["kind"]], order)))
    workers.close()


def engine_rows(args: Any, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Load one process, then several; yields a row each."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Any] = []
    for _ in range(args.processes):
        ours, theirs = context.Pipe()
        arguments = (theirs, args.tiny, args.tokenizer, dtype_name(dtype))
        context.Process(target=serve, args=arguments, daemon=True).start()
        pipes.append(ours)
    for name in args.engines:
        for pipe in pipes:
            pipe.send(name)
        for pipe in pipes:
            pipe.recv()
        for kind, count, callers in (
            ("queries", 1, 512),
            ("queries", 1, 64),
            ("queries", 1, 1),
            ("passages", LIST, 32),
        ):
            for some in dict.fromkeys((1, args.processes)):
                if callers < some:
                    continue
                load = {
                    "kind": kind,
                    "list": count,
                    "callers": callers // some,
                    "seconds": args.seconds,
                }
                for pipe in pipes[:some]:
                    pipe.send(load)
                told = [pipe.recv() for pipe in pipes[:some]]
                taken = sorted(value for one in told for value in one["latencies"])
                yield {
                    "model": name,
                    **load,
                    "callers": callers,
                    "processes": some,
                    "texts_per_second": sum(
                        count * len(one["latencies"]) / one["seconds"] for one in told
                    ),
                    "p50_ms": 1000 * statistics.median(taken),
                    "p95_ms": 1000 * taken[int(0.95 * (len(taken) - 1))],
                }
    for pipe in pipes:
        pipe.send(None)
