"""A trained language model into the model store."""

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from condensery.errors import InputError
from condensery.methods.lm.card import card_text
from condensery.methods.lm.model import TABLE, open_lm_tokenizer, perplexity, read_table
from condensery.methods.lm.text import read_documents, tokenise
from condensery.methods.trainer.publishing import CARD_FIGURES, MODEL, publication
from condensery.methods.trainer.reports import without_folders
from condensery.networks.weight_files import dequantise, quantise
from condensery.parsers import Parser
from condensery.store.importing import import_minilm
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import open_folder, save_state
from condensery.store.writing import read_json


def publish(
    model: Path,
    store: ModelStore,
    *,
    name: str,
    base: StoredModel | None = None,
    held_out: Sequence[Path] = (),
) -> StoredModel:
    """Publish the model of a training run: matrices as int8 with a scale a row, tokenizer, card.

    Args:
        model: The run's ``model`` folder.
        store: Its own root receives the model.
        name: What it is called.
        base: The encoder whose word embeddings it shares, which are then not stored again.
        held_out: Text to measure the stored weights on, beside what the card says of the trained.

    Raises:
        InputError: The folder holds no such model, or its words are not the base's.
    """
    card = read_json(model / CARD_FIGURES)
    card["command"] = without_folders(card["command"])
    tensors = load_file(model / "model.safetensors")
    if base is not None:
        _check_shared(tensors.pop(TABLE), read_table(open_folder(base)))
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    quality: dict[str, JsonValue] = {"held_out": card["figures"]["held_out"]}
    if held_out:
        quality["held_out_int8"] = {**measure_int8(model, matrices, held_out)}
    manifest = Manifest(
        name=name,
        kind="language-model",
        base=base.name if base else None,
        max_tokens=card["shape"]["length"],
        dtype="int8",
        shape=card["shape"],
        licence=card["data"]["licence"],
        provenance=Provenance(
            command=card["command"], data=tuple(card["data"]["train"]), seed=card["seed"]
        ),
        quality=quality,
        cost={"parameters": card["parameters"]},
    )
    existing = {file: model / file for file in ("config.json", "tokenizer.json")}
    with publication(existing) as model_files:
        save_state(model_files.folder, tensors, int8_names=matrices)
        model_files.add_written()
        model_files.add_json(CARD_FIGURES, card)
        return model_files.publish(store, manifest, card_text(name, card, quality))


def measure_int8(
    folder: Path, matrices: Collection[str], held_out: Sequence[Path]
) -> dict[str, float]:
    """Return the figures of ``perplexity`` on text, ``matrices`` rounded as they are stored."""
    words = open_lm_tokenizer(folder)
    documents = [text for text, _ in read_documents(held_out)]
    stream = tokenise(documents, words.tokenizer, words.start, words.end)
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    model.set_attn_implementation("eager")
    for name, weight in model.named_parameters():
        if name in matrices:
            weight.data = dequantise(*quantise(weight.detach())).to(weight.dtype)
    return perplexity(model, stream, model.config.max_position_embeddings, rows=8)


def _check_shared(table: Tensor, words: Tensor) -> None:
    if table.shape != words.shape or not torch.equal(table, words.to(table.dtype)):
        raise InputError(
            f"base: its standardised word embeddings {tuple(words.shape)} are not the model's "
            f"{tuple(table.shape)}; was it trained with --words?",
            field="base",
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery publish lm``."""
    parser = Parser(prog="condensery publish lm", description=main.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the training run's folder")
    parser.add_argument("--name", required=True, help="what the model is called")
    parser.add_argument("--store", type=Path, required=True, help="root to publish into")
    parser.add_argument(
        "--base-store", type=Path, help="root of minilm-l6, whose words the model shares"
    )
    parser.add_argument(
        "--held-out-text", type=Path, nargs="+", default=(), help="to measure the int8 weights on"
    )
    args = parser.parse_args(argv)
    base = import_minilm(ModelStore(None, args.base_store)) if args.base_store else None
    store = ModelStore(base.root if base else None, args.store)
    publish(args.run / MODEL, store, name=args.name, base=base, held_out=args.held_out_text)


if __name__ == "__main__":
    main()
