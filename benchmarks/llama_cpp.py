"""llama.cpp as a contender of ``generate.py``: a Llama of ours as its file, and its server.

The prebuilt xllamacpp has AVX2 and nothing wider; where a CPU has more, build it there
(``pip install --no-binary xllamacpp xllamacpp``), else the comparison is not fair to it.
"""

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

NEEDS = ("xllamacpp", "gguf")
FIRST_WORD = 4  # of the vocabulary: unknown, begin, end and a line's end are before
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def missing() -> list[str]:
    """Return which of the packages that it needs are not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def write_gguf(model: Any, path: Path, *, bits: int) -> None:
    """Write transformers' ``LlamaForCausalLM``, its words tied, with 32, 16 or 8 bits a weight."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    kinds, words = gguf.TokenType, range(FIRST_WORD, config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "<0x0A>", *(f"\u2581w{word}" for word in words)])
    writer.add_token_scores([0.0] * config.vocab_size)
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, kinds.BYTE]
    writer.add_token_types([*special, *[kinds.NORMAL] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    tables = model.model.state_dict()
    put(writer, "token_embd.weight", tables["embed_tokens.weight"], bits)
    put(writer, "output_norm.weight", tables["norm.weight"], bits)
    for layer in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            weight = tables[f"layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):  # pairs that rotate together lie side by side there
                halves = weight.view(-1, 2, config.head_dim // 2, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
            put(writer, f"blk.{layer}.{ours}.weight", weight, bits)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def put(writer: Any, name: str, weight: Any, bits: int) -> None:
    import gguf

    numbers = np.ascontiguousarray(weight.detach().float().numpy())
    kinds = gguf.GGMLQuantizationType
    kind = {32: kinds.F32, 16: kinds.BF16, 8: kinds.Q8_0}[bits]
    if kind is not kinds.F32 and numbers.ndim == 2:
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, numbers)


class LlamaCpp:
    """llama.cpp's own server, called in process; sequences join its batch as they come.

    Args:
        path: Of the file.
        threads: That it computes with.
        callers: As many sequences at once, at most.
        positions: Of each, prompt and answer, at most.
    """

    def __init__(self, path: Path, threads: int, callers: int, positions: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        self._callers, self._positions = callers, positions
        params.n_ctx, params.n_parallel = positions * callers, callers
        params.port, params.verbosity = 0, -1  # it listens, too, and we have two; errors only
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = 0  # no prompt comes twice
        self._server = xllamacpp.Server(params)

    def answer(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[int], callers: int
    ) -> list[tuple[float, float, tuple[int, ...]]]:
        """Answer prompts, so many callers at once; returns of each the seconds to its first token
        and to its last, and the answer's ids.
        """
        assert callers <= self._callers
        assert max(map(len, prompts)) + max(tokens) <= self._positions

        def ask(prompt: Sequence[int], count: int) -> tuple[float, float, tuple[int, ...]]:
            pieces: list[tuple[float, str]] = []
            ends: list[Any] = []
            began = time.perf_counter()

            def note(chunk: Any) -> None:
                seconds = time.perf_counter() - began
                texts = (choice.get("text") for choice in chunk.get("choices", ()))
                pieces.extend((seconds, text) for text in texts if text)
                ends[:] = [chunk]

            self._server.handle_completions(
                {
                    "prompt": list(prompt),
                    "max_tokens": count,
                    "temperature": 0.0,
                    "ignore_eos": True,
                    "cache_prompt": False,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
                note,
            )
            # By its own count: words that are no text, of four, are missing among the pieces.
            made = ends[-1].get("usage", {}).get("completion_tokens")
            if made != count:
                raise RuntimeError(f"llama.cpp made {made} of {count} tokens: {ends[-1]}")
            text = "".join(piece for _, piece in pieces)
            ids = tuple(int(word) for word in re.findall(r"w(\d+)", text))
            return pieces[0][0], time.perf_counter() - began, ids

        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(ask, prompts, tokens))
