"""A pair's compressor as transformers reads a BERT: what an extractive reader can start from."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor
from transformers import BertConfig, BertModel

from condensery.errors import InputError, shorten
from condensery.methods.trainer.arguments import open_model
from condensery.methods.trainer.publishing import CARD_FIGURES, write_json
from condensery.parsers import Parser
from condensery.runtime.oscar_pair import word_embeddings
from condensery.store.store import ModelStore, shipped_store
from condensery.store.weights import load_state, open_folder

log = logging.getLogger(__name__)
BACKBONE = "compressor.backbone."
TABLE = "embeddings.word_embeddings.weight"


def export(
    config: BertConfig, words: Tensor, state: Mapping[str, Tensor], tokenizer: Path, folder: Path
) -> None:
    """Write a compressor's layers over its encoder's words, in float32, with the tokenizer.

    Slots, mapping, pointer and rerank head stay behind: a BERT has none.

    Args:
        config: The compressor's.
        words: The encoder's embedding table, (vocabulary, hidden).
        state: The pair's own weights.
        tokenizer: Its file.
        folder: What to write; not there yet.

    Raises:
        InputError: The folder is there already, or the weights are not the configuration's.
    """
    if folder.exists():
        raise InputError(f"out: {folder} is there already", field="out", value=str(folder))
    encoder = BertModel(config, add_pooling_layer=False)
    layers = {
        key.removeprefix(BACKBONE): value.float()
        for key, value in state.items()
        if key.startswith(BACKBONE)
    }
    try:
        encoder.load_state_dict({**layers, TABLE: words.float()})
    except RuntimeError as error:  # names each tensor that is missing or of another shape
        named = shorten(" ".join(str(error).split()))
        raise InputError(f"model: its weights are not a BERT's: {named}", field="model") from error
    folder.mkdir(parents=True)
    encoder.save_pretrained(folder)
    shutil.copy(tokenizer, folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery export compressor``."""
    parser = Parser(prog="condensery export compressor", description=__doc__)
    parser.add_argument("--model", required=True, help="the pair's name in the stores")
    parser.add_argument("--store", type=Path, required=True, help="root that holds its base too")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    store = ModelStore(shipped_store(), args.store)
    stored = open_model(store, args.model, "oscar-pair")
    if stored.manifest.base is None:
        raise InputError(
            f"model: {args.model!r} has files of its own, and no encoder whose layers these were",
            field="model",
            value=args.model,
        )
    export(
        BertConfig.from_json_file(stored.path / "config.json"),
        word_embeddings(open_folder(store.open_base(stored))),
        load_state(stored),
        stored.path / "tokenizer.json",
        args.out,
    )
    name = f"{stored.name} {stored.manifest.fingerprint}"
    write_json(args.out / CARD_FIGURES, {"compressor_of": name})
    log.info("the compressor of %s is in %s", name, args.out)


if __name__ == "__main__":
    main()
