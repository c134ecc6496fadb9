"""Published OSCAR pairs into the store: read once, checked, rewritten as safetensors."""

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from condensery.errors import StoreError
from condensery.store.cocom import read_cocom
from condensery.store.layouts import prose_of, read_licence
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.pisco import read_pisco
from condensery.store.published_pairs import PublishedPair, write_pair
from condensery.store.store import ModelStore

READERS: dict[str, Callable[[Path, PairOptions], PublishedPair]] = {
    "COCOM": read_cocom,
    "PISCO": read_pisco,
}


def import_pair(
    store: ModelStore, path: Path, name: str, layout: str, options: PairOptions
) -> StoredModel:
    """Import a published pair; nothing of its own code is run, and nothing is downloaded.

    Args:
        store: Where to.
        path: The directory.
        name: The name to store it under.
        layout: The ``model_type`` of its ``config.json``, one of ``READERS``.
        options: What the directory does not say.

    Raises:
        StoreError: A file is missing, or asks for what we don't do; see also
            ``store.refusals``.
        CorruptModel: A file can't be read, or its tensors are not the network's.
    """
    pair = READERS[layout](path, options)
    _check_length(pair, options)
    notes = list(pair.notes)
    if options.asks:
        notes.append("The compressor reads the question with each passage.")
    licence = read_licence(path / "README.md")
    if licence == "unknown":
        notes.append("No licence is stated in the model card's front matter.")
    # Named as a publisher's own, so that one left by a crash is swept away like those.
    aside = store.own / f".{name}-{secrets.token_hex(4)}.partial"
    try:
        aside.mkdir(parents=True)
        written = write_pair(replace(pair, notes=tuple(notes)), aside)
        manifest = Manifest(
            name=name,
            kind="oscar-pair",
            method="oscar",
            max_tokens=pair.shape.compressor.text_tokens,
            dtype=written.dtype,
            shape=pair.shape.to_dict(),
            licence=licence,
            provenance=Provenance(source=str(path.resolve()), notes=tuple(notes)),
            cost={"parameters": written.parameters},
        )
        return store.publish(written.files | prose_of(path), manifest)
    except OSError as error:
        raise StoreError(
            f"model {name!r} can't be written to the store: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_length(pair: PublishedPair, options: PairOptions) -> None:
    """Refuse a ``max_length`` that the compressor has no positions for."""
    most = pair.configs[0].get("max_position_embeddings")
    needed = pair.shape.compressor.positions
    if options.max_length is not None and isinstance(most, int) and needed > most:
        raise StoreError(
            f"--max-length {options.max_length} is too long: with what is read around it that "
            f"takes {needed} positions, and the compressor has {most}",
            field="max_length",
            value=options.max_length,
        )
