"""A pair's compressor as transformers reads a BERT: what an extractive reader can start from."""

import logging
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertModel

from condensery.errors import InputError
from condensery.methods.oscar.preparing import Origins, start_state
from condensery.methods.trainer.publishing import CARD_FIGURES, write_json
from condensery.parsers import Parser

log = logging.getLogger(__name__)
BACKBONE = "compressor.backbone."
TABLE = "embeddings.word_embeddings.weight"


def export(base: Path, state: Mapping[str, Tensor], name: str, folder: Path) -> None:
    """Write the compressor's layers over its encoder's words, in float32, with the tokenizer.

    Slots, mapping, pointer and rerank head stay behind: a BERT has none.

    Args:
        base: Directory of the encoder that the compressor started from.
        state: The pair's own weights.
        name: What it is called, with its fingerprint.
        folder: What to write; not there yet.

    Raises:
        InputError: The folder is there already, or the layers are not the encoder's.
    """
    if folder.exists():
        raise InputError(f"out: {folder} is there already", field="out", value=str(folder))
    encoder = BertModel.from_pretrained(
        base, add_pooling_layer=False, local_files_only=True, dtype=torch.float32
    )
    layers = {
        key.removeprefix(BACKBONE): value.float()
        for key, value in state.items()
        if key.startswith(BACKBONE)
    }
    own = encoder.state_dict()
    odd = own.keys() ^ {*layers, TABLE}
    odd |= {key for key in own.keys() & layers.keys() if own[key].shape != layers[key].shape}
    if odd:
        raise InputError(
            f"model: {name}: its compressor is not over {base}: {', '.join(sorted(odd)[:3])}",
            field="model",
            value=name,
        )
    encoder.load_state_dict({**own, **layers, TABLE: own[TABLE]})
    folder.mkdir(parents=True)
    encoder.save_pretrained(folder)
    shutil.copy(base / "tokenizer.json", folder)
    write_json(folder / CARD_FIGURES, {"compressor_of": name})


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery export compressor``."""
    parser = Parser(prog="condensery export compressor", description=__doc__)
    parser.add_argument("--model", required=True, help="the pair's name in the stores")
    parser.add_argument("--base", type=Path, required=True, help="its encoder's directory (BERT)")
    parser.add_argument("--store", type=Path, help="where the pair is, if it is not shipped")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    state, name = start_state(Origins(args.base, start_model=args.model, store=args.store))
    export(args.base, state or {}, name, args.out)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.info("the compressor of %s is in %s", name, args.out)


if __name__ == "__main__":
    main()
