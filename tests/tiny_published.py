"""Tiny checkpoints in the layouts that naver publishes, and what the code beside them computes.

Written from the description of that code, with plain transformers modules, so that it shares
nothing with ours: padded rows, LoRA in a product of its own, slots found by their ids.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tiny_causal import bpe, decoder_config
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SYSTEM = (
    "You are a helpful assistant. Your task is to extract relevant information from provided "
    "documents and to answer to questions as briefly as possible."
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "[INST] {{ m.content | trim }} [/INST]{% endfor %}"
)
MARKS = {
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "qwen2": (None, "<|im_end|>"),
}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def randomise(module: nn.Module, seed: int) -> None:
    """Leave nothing uniform: with the usual small weights, attention hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            value = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                value = 1 + 0.2 * value if "norm" in name else 0.3 * value
            elif "embed" not in name:
                value = value * 2.5 * weight.shape[1] ** -0.5
            # As bf16 can hold it: published files are in bf16.
            weight.copy_(value.bfloat16().float())


def write_base(directory: Path, kind: str, seed: int = 0, **changes: Any) -> Path:
    """Write a base model as transformers saves one, with a chat template."""
    tokenizer = bpe(kind)
    spare = 40 if kind == "qwen2" else 0  # rows that no token has, as in Qwen2's own
    bos, eos = MARKS[kind]
    ids = {"eos_token_id": tokenizer.token_to_id(eos)}
    config = decoder_config(kind, len(tokenizer.get_vocab()) + spare, **changes)
    config.update(ids)
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, seed)
    model.generation_config.update(**ids)
    model.save_pretrained(directory)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({"bos_token": bos} if bos else {}),
        eos_token=eos,
        chat_template=CHATML if kind == "qwen2" else INST,
        padding_side="right" if kind == "qwen2" else "left",
    ).save_pretrained(directory)
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A base\n")
    return directory


def add_tokens(tokenizer: PreTrainedTokenizerFast, names: list[str]) -> None:
    tokens = [AddedToken(name, special=True, normalized=False) for name in names]
    tokenizer.add_tokens(tokens, special_tokens=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.bos_token or tokenizer.eos_token


class Lora(nn.Module):
    """PEFT's way: the adapter's product beside the layer's own, scaled by alpha / rank = 2."""

    def __init__(self, linear: nn.Linear, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.linear, self.down, self.up = linear, down, up

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 2.0 * (x @ self.down.T @ self.up.T)


def add_lora(model: nn.Module, rank: int, seed: int) -> dict[str, Tensor]:
    """Adapt every linear layer but the head; returns the tensors, named as they are published."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, layer in list(model.named_modules()):
        if name.rpartition(".")[2] in LINEAR:
            assert isinstance(layer, nn.Linear)
            out, into = layer.weight.shape
            down = (0.4 * torch.randn(rank, into, generator=generator)).bfloat16().float()
            up = (0.1 * torch.randn(out, rank, generator=generator)).bfloat16().float()
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, Lora(layer, down, up))
            state[f"{name}.lora_A.weight"], state[f"{name}.lora_B.weight"] = down, up
    return state


class Cocom:
    """A COCOM directory, and its own code's numbers, in fp32.

    Args:
        directory: Where to write it.
        bases: Directories of the decoder and, for a compressor of its own, of its base.
        compressor: "small", "trimmed" or "shared".
        changes: Of its ``config.json``.
    """

    def __init__(
        self, directory: Path, bases: tuple[Path, Path], compressor: str, **changes: Any
    ) -> None:
        self.path = directory
        self.kind = compressor
        self.config = {
            "model_type": "COCOM",
            "auto_map": {"AutoModel": "modelling_pisco.COCOM"},
            "decoder_model_name": str(bases[0]),
            "compr_model_name": {
                "small": str(bases[1]), "trimmed": "mistral_trimmed", "shared": None
            }[compressor],
            "compr_base_model_name": str(bases[1]) if compressor == "trimmed" else None,
            "compr_bidirectional": False,
            "compr_every_n_layer": None,
            "compr_n_layers": 2 if compressor == "trimmed" else None,
            "compr_mlp_hidden_dim": 48,
            "compr_rate": 16,
            "compr_rms_norm": False,
            "compr_use_mlp": compressor == "small",
            "device_map": "auto",
            "different_mem_tokens": True,
            "doc_max_length": 128,
            "kbtc_training": False,
            "load_adapters": True,
            "lora": True,
            "lora_compressor": False,
            "lora_r": 4,
            "lora_r_compressor": 3,
            "quantization": "no",
            "sep": True,
            "training_form": "both_separately",
            **changes,
        }  # fmt: skip
        distinct = self.config["different_mem_tokens"]
        self.names = [f"<MEM{i}>" for i in range(8)] if distinct else ["<MEM>"]
        self.files: dict[str, Any] = {}
        self._make_decoder(bases[0])
        if compressor != "shared":
            self._make_compressor(bases[1])
        self.write()

    def _make_decoder(self, base: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
        add_tokens(self.tokenizer, [*self.names, "<AE>", "<ENC>", "<SEP>"])
        self.tokenizer.padding_side = "left"
        self.decoder = AutoModelForCausalLM.from_pretrained(base).eval()
        self.decoder.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
        randomise(self.decoder.get_input_embeddings(), 5)
        ends = {"model.embed_tokens.weight": self.decoder.get_input_embeddings().weight.detach()}
        if not self.decoder.config.tie_word_embeddings:
            randomise(self.decoder.lm_head, 6)
            ends["lm_head.weight"] = self.decoder.lm_head.weight.detach()
        self.files["decoder_first_last_layers.pth"] = ends
        self.plain = AutoModelForCausalLM.from_pretrained(base).eval()
        self.plain.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
        self.plain.load_state_dict(self.decoder.state_dict())
        adapters = {"decoder_adapter": add_lora(self.decoder, self.config["lora_r"], 7)}
        if self.kind == "shared":
            self.compressor: Any = self.plain
            adapters["encoder_adapter"] = add_lora(self.plain, self.config["lora_r"], 8)
            self.reader = self.tokenizer
        self.files["adapters.pth"] = adapters

    def _make_compressor(self, base: Path) -> None:
        self.reader = PreTrainedTokenizerFast.from_pretrained(base)
        add_tokens(self.reader, self.names)
        whole: PreTrainedModel
        if self.kind == "small":
            self.reader.padding_side = "left"
            whole = self.compressor = AutoModel.from_pretrained(base).eval()
            prefix = ""
        else:
            whole = AutoModelForCausalLM.from_pretrained(base).eval()
            prefix = "custom_model."
            first, step = self.config["compr_n_layers"], self.config["compr_every_n_layer"]
            whole.model.layers = whole.model.layers[:: step or 1][:first]
            whole.config.num_hidden_layers = len(whole.model.layers)
            if not self.config["compr_rms_norm"]:
                whole.model.norm = nn.Identity()
            self.compressor = whole.model
        whole.resize_token_embeddings(len(self.reader), mean_resizing=False)
        if self.config["lora_compressor"]:
            table = whole.get_input_embeddings()
            randomise(table, 11)
            self.files["compressor/first_layer.pth"] = {"weight": table.weight.detach()}
            adapters = add_lora(whole, self.config["lora_r_compressor"], 12)
            named = {
                prefix + k.replace(".weight", ".compr_adapter.weight"): v
                for k, v in adapters.items()
            }
            self.files["compressor/compressor_adapters.pth"] = named
        else:
            randomise(whole, 10)
            state = {prefix + name: value for name, value in whole.state_dict().items()}
            self.files["compressor/compressor.pth"] = state
        self.mapping: nn.Module = nn.Identity()
        if self.config["compr_use_mlp"]:
            sizes = whole.config.hidden_size, 48, self.decoder.config.hidden_size
            self.mapping = nn.Sequential(
                nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2])
            )
            randomise(self.mapping, 13)
            self.files["compressor/mlp.pth"] = self.mapping.state_dict()

    def write(self) -> None:
        """Write the directory, tensors in bf16."""
        for name, content in self.files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(halved(content), path)
        (self.path / "config.json").write_text(json.dumps(self.config))
        (self.path / "modelling_pisco.py").write_text("raise SystemExit('I was run')")
        card = "---\nlicense: cc-by-nc-4.0\nlanguage: en\n---\n# A pair\n"
        (self.path / "README.md").write_text(card)

    @torch.inference_mode()
    def compress(self, question: str | None, documents: list[str], length: int) -> Tensor:
        """Return (documents, 8, hidden of the decoder), every row padded to the longest allowed."""
        asked = question is not None
        pad: dict[str, Any] = {"padding": "max_length", "return_tensors": "pt"}
        together = [f"\nQuery:\n{question}Document:\n{d}" if asked else d for d in documents]
        if self.kind == "small":
            pair = ([question] * len(documents), documents) if asked else (documents,)
            how, room = ("only_second", 3) if asked else (True, 2)
            encoded = self.reader(*pair, truncation=how, max_length=length + room, **pad)
        elif self.kind == "trimmed":
            room = 8 if asked else 2
            encoded = self.reader(together, truncation=True, max_length=length + room, **pad)
        else:
            bos, eos = self.reader.bos_token, self.reader.eos_token
            texts = [f"<ENC>{bos}{text}{eos}" for text in together]
            room = 8 if asked else 3
            encoded = self.reader(
                texts, add_special_tokens=False, truncation=True, max_length=length + room, **pad
            )
        slots = self.reader.convert_tokens_to_ids(self.names) * (8 // len(self.names))
        block = torch.tensor(slots).expand(len(documents), 8)
        ids = torch.cat([encoded["input_ids"], block], dim=1)
        mask = torch.cat([encoded["attention_mask"], torch.ones_like(block)], dim=1)
        hidden = self.compressor(
            input_ids=ids,
            attention_mask=mask,
            position_ids=torch.arange(ids.shape[1])[None],
            output_hidden_states=True,
            use_cache=False,  # its layers would not be numbered as the cache expects
        ).hidden_states[-1]
        where = torch.isin(ids, torch.tensor(slots))
        if self.kind == "shared":
            return hidden[where].reshape(len(documents), 8, -1)
        return self.mapping(hidden[where].reshape(len(documents), 8, -1))

    def prompt(self, question: str, documents: int) -> str:
        slots = "".join(self.names * (8 // len(self.names)))
        separator = "<SEP>" if self.config["sep"] else ""
        user = f"Background:\n{(slots + separator) * documents}\n\nQuestion:{question}"
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        if self.tokenizer.chat_template == INST:  # System role not supported
            turns = [{"role": "user", "content": f"{SYSTEM}\n{user}"}]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return str(text)

    @torch.inference_mode()
    def embed(self, question: str, memory: Tensor) -> Tensor:
        """Return the prompt's embeddings, memory at the first slot and then in strides."""
        text = self.prompt(question, len(memory))
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        embeds = self.decoder.get_input_embeddings()(ids)
        first = ids[0].tolist().index(self.tokenizer.convert_tokens_to_ids(self.names[0]))
        stride = 9 if self.config["sep"] else 8
        for number, vectors in enumerate(memory):
            start = first + number * stride
            embeds[0, start : start + 8] = vectors
        return embeds

    def answer(self, embeds: Tensor, tokens: int) -> list[int]:
        return generate(self.decoder, embeds, tokens)


class Pisco:
    """A PISCO directory, as the rewritten code of naver/pisco writes it, and its numbers."""

    def __init__(self, directory: Path, decoder: Path, compressor: Path, rate: int = 4) -> None:
        self.path, self.rate = directory, rate
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(decoder)
        add_tokens(self.tokenizer, ["<MEM>", "<AE>"])
        self.reader = PreTrainedTokenizerFast.from_pretrained(compressor)
        add_tokens(self.reader, ["<MEM>"])
        self.decoder = AutoModelForCausalLM.from_pretrained(decoder).eval()
        before = self.decoder.get_input_embeddings().weight.detach().clone()
        self.decoder.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
        randomise(self.decoder, 20)
        base = self.decoder.state_dict()
        state = {
            f"base_model.model.{name}": tensor
            for name, tensor in {
                "model.embed_tokens.original_module.weight": before,
                "model.embed_tokens.modules_to_save.default.weight": base[
                    "model.embed_tokens.weight"
                ],
                "lm_head.modules_to_save.default.weight": base["lm_head.weight"],
            }.items()
        }
        # All but both ends are the base's, which is where they are read from.
        whole = AutoModelForCausalLM.from_pretrained(decoder)
        rest = {n: t for n, t in whole.state_dict().items() if "embed" not in n and "head" not in n}
        self.decoder.load_state_dict(rest, strict=False)
        for name, tensor in add_lora(self.decoder, 4, 21).items():
            state[f"base_model.model.{name.replace('.weight', '.default.weight')}"] = tensor
        self.compressor = AutoModelForCausalLM.from_pretrained(compressor).eval()
        self.compressor.resize_token_embeddings(len(self.reader), mean_resizing=False)
        randomise(self.compressor, 22)
        sizes = self.compressor.config.hidden_size, self.decoder.config.hidden_size
        self.connector = nn.Sequential(nn.Linear(sizes[0], 40), nn.ReLU(), nn.Linear(40, sizes[1]))
        randomise(self.connector, 23)
        config = {
            "model_type": "PISCO",
            "decoder_model_name": str(decoder),
            "compressor_model_name": str(compressor),
            "compr_rate": rate,
            "compressor_mlp_hidden_dim": 40,
            "lora_decoder": True,
            "lora_r_decoder": 4,
        }
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        torch.save(halved(state), directory / "decoder_state.pt")
        torch.save(halved(dict(self.connector.state_dict())), directory / "connector.pt")
        self.compressor.save_pretrained(directory / "compressor")
        self.reader.save_pretrained(directory / "compressor_tokenizer")
        self.tokenizer.save_pretrained(directory / "decoder_tokenizer")

    @torch.inference_mode()
    def compress(self, question: str, documents: list[str]) -> list[Tensor]:
        vectors = []
        for document in documents:
            ids = self.reader(f"Query: {question}\n Document: {document}")["input_ids"]
            count = len(ids) // self.rate + 1
            ids = [*ids, *[self.reader.convert_tokens_to_ids("<MEM>")] * count]
            out = self.compressor(input_ids=torch.tensor([ids]), output_hidden_states=True)
            vectors.append(self.connector(out.hidden_states[-1][0, -count:]))
        return vectors

    @torch.inference_mode()
    def embed(self, question: str, memory: list[Tensor]) -> Tensor:
        documents = "".join(f"Document {i}:{'<MEM>' * len(m)}" for i, m in enumerate(memory))
        user = f"\n\nBackground:{documents}\n Question: {question}"
        turns = [{"role": "user", "content": f"{SYSTEM}\n{user}"}]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        embeds = self.decoder.get_input_embeddings()(ids)
        embeds[ids == self.tokenizer.convert_tokens_to_ids("<MEM>")] = torch.cat(memory)
        return embeds

    def answer(self, embeds: Tensor, tokens: int) -> list[int]:
        return generate(self.decoder, embeds, tokens)


@torch.inference_mode()
def generate(model: Any, embeds: Tensor, tokens: int) -> list[int]:
    generated = model.generate(
        inputs_embeds=embeds,
        attention_mask=torch.ones(embeds.shape[:2]),
        do_sample=False,
        max_new_tokens=tokens,
        pad_token_id=0,
    )
    return [int(token) for token in generated[0]]


def halved(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: halved(value) for name, value in content.items()}
    return content.bfloat16()
