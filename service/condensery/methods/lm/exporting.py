"""A stored language model as transformers reads it: for training, and for other tools."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from condensery.errors import InputError
from condensery.methods.lm.model import TABLE, open_lm_tokenizer, read_table, save_model
from condensery.methods.trainer.publishing import CARD_FIGURES, write_json
from condensery.parsers import Parser
from condensery.store.manifest import CARD, StoredModel
from condensery.store.store import ModelStore, shipped_store
from condensery.store.weights import load_state, open_folder
from condensery.store.writing import read_json


def open_model(stored: StoredModel, base: StoredModel | None) -> LlamaForCausalLM:
    """Open a stored language model, in float32.

    Args:
        stored: Its files checked by the store.
        base: The encoder whose word embeddings it shares, if it names one.

    Raises:
        InputError: It is no language model, or its weights are not its configuration's.
    """
    if stored.manifest.kind != "language-model":
        raise InputError(
            f"model: {stored.name} is of kind {stored.manifest.kind!r}, not a language model",
            field="model",
            value=stored.name,
        )
    model = LlamaForCausalLM(LlamaConfig.from_dict(read_json(stored.path / "config.json")))
    state = load_state(stored, dtype=torch.float32)
    if base is not None:
        state[TABLE] = read_table(open_folder(base))
    try:
        missing, unknown = model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # names each tensor of another shape
        raise InputError(f"model: {stored.name}: {error}", field="model") from error
    if unknown or set(missing) - {"lm_head.weight"}:
        raise InputError(
            f"model: {stored.name}: missing {sorted(missing)}, unknown {sorted(unknown)}",
            field="model",
            value=stored.name,
        )
    model.tie_weights()
    model.float().eval()
    return model


def export(store: ModelStore, name: str, folder: Path) -> None:
    """Write a stored language model as transformers reads it, in float32, words and card included.

    Raises:
        InputError: It is no language model, or the folder is there already.
        StoreError: It, or its base, is not in the store or not whole.
    """
    if folder.exists():
        raise InputError(f"out: {folder} is there already", field="out", value=str(folder))
    stored = store.open(name)
    model = open_model(stored, store.open_base(stored) if stored.manifest.base else None)
    folder.mkdir(parents=True)
    save_model(folder, model, open_lm_tokenizer(stored.path))
    write_json(folder / CARD_FIGURES, read_json(stored.path / CARD_FIGURES))
    # The licence goes where it is looked for: into the front matter of the model card.
    front = f"---\nlicense: other\nlicense_name: {json.dumps(stored.manifest.licence)}\n---\n\n"
    card = (stored.path / CARD).read_text(encoding="utf-8")
    (folder / "README.md").write_text(front + card, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery export lm``."""
    parser = Parser(prog="condensery export lm", description=__doc__)
    parser.add_argument("--model", required=True, help="its name in the stores")
    parser.add_argument("--store", type=Path, required=True, help="root that holds its base too")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args(argv)
    export(ModelStore(shipped_store(), args.store), args.model, args.out)


if __name__ == "__main__":
    main()
