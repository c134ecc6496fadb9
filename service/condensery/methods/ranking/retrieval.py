"""Passages found for questions by our own index, as the service finds them."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

import numpy as np
import torch

from condensery.atomic_files import write_atomically
from condensery.errors import EmptyInput, InputError, shorten
from condensery.index.fusion import LEAST_CANDIDATES, fuse
from condensery.index.prompts import make_index_prompts, make_older_index_prompts
from condensery.index.store import IndexStore
from condensery.networks.quantised import EncoderWeights
from condensery.runtime.encoder import Encoder
from condensery.runtime.queue import BatchLimits
from condensery.runtime.tokenizing import MAX_CHARACTERS_PER_TOKEN
from condensery.runtime.workers import Workers
from condensery.values import Document, Floats, Hit, IndexPrompts, IndexSpec, Passage

if TYPE_CHECKING:
    from condensery.store.manifest import StoredModel

log = logging.getLogger(__name__)
Mode = Literal["bm25", "dense", "hybrid"]
MODES: tuple[Mode, ...] = get_args(Mode)
INDEX, ABOUT = "passages", "corpus.json"
BLOCK = 256  # passages a transaction, and texts embedded at once


@contextmanager
def running(
    stored: "StoredModel",
    count: int,
    device: torch.device,
    dtype: torch.dtype,
    weights: EncoderWeights = "float",
) -> Iterator[Encoder]:
    """Run a stored encoder while it is needed, with so many workers.

    Raises:
        CorruptModel: It is no encoder, or its files don't make one.
    """
    workers = Workers(count, device)
    # Nobody else waits: whatever is asked for may queue.
    limits = BatchLimits(queue_seconds=float("inf"))
    try:
        encoder = Encoder.load(stored, workers, dtype=dtype, weights=weights, limits=limits)
        try:
            yield encoder
        finally:
            encoder.close()
    finally:
        workers.close()


def embed(encoder: Encoder, texts: Sequence[str], prompt: str = "") -> Floats:
    """Embed texts with a prompt before each.

    Args:
        encoder: That runs; what is too long for it is cut.
        texts: At least one.
        prompt: Its text (``condensery.values``).

    Returns:
        (texts, dims).
    """
    most = encoder.info.max_tokens * MAX_CHARACTERS_PER_TOKEN
    parts: list[Floats] = []
    for start in range(0, len(texts), BLOCK):
        # A caller's text that is far too long is refused; a corpus has what it has.
        block = [text[:most] for text in texts[start : start + BLOCK]]
        parts.append(asyncio.run(encoder.embed(block, prompt=prompt)).vectors)
        if start // BLOCK % 8 == 7:
            log.info("%d of %d texts embedded", start + len(block), len(texts))
    return np.concatenate(parts)


class Entry(Protocol):
    """What a corpus is made of."""

    @property
    def id(self) -> str:
        """Unique in the corpus."""

    @property
    def title(self) -> str:
        """Of the article, or ""."""

    @property
    def text(self) -> str:
        """The passage itself."""


@dataclass(frozen=True, slots=True)
class CorpusPassage:
    """A passage of a corpus: the plain ``Entry``."""

    id: str
    text: str
    title: str = ""


def titled_text(passage: Entry) -> str:
    """Return a passage with its title, if it has one, on a line before its text."""
    return "\n".join(part for part in (passage.title, passage.text) if part)


class Retriever:
    """Finds passages by words (BM25), by vectors, or by both; made by ``build``.

    A passage is indexed whole, its title on a line before its text. An encoder cuts what is too
    long for it; BM25 reads all of it. Vectors are compared one by one (no approximation).
    """

    def __init__(self, store: IndexStore, encoder: Encoder | None, prompts: IndexPrompts) -> None:
        self._store = store
        self._encoder = encoder
        self._prompts = prompts

    @classmethod
    def build(
        cls, passages: Sequence[Entry], folder: Path, *, encoder: Encoder | None = None
    ) -> "Retriever":
        """Index the passages in a folder, or go on with the folder that holds them.

        What was indexed before a kill is kept. A folder of other passages, or of another
        encoder's vectors, is refused and left as it is.

        Args:
            passages: The corpus, in an order that stays the same; ids are unique.
            folder: Of this index alone; made if it is not there. One process at a time.
            encoder: Makes the vectors; without it only ``bm25`` can be asked for.

        Raises:
            InputError: No passages, an id twice, or the folder is another corpus's; names it.
            DataDirTaken: Another process has the folder.
        """
        if not passages:
            raise EmptyInput("passages: none to index", field="passages")
        _check_ids(passages)
        about = {
            "format": 1,
            "passages": len(passages),
            "content": fingerprint(passages),
            "encoder": encoder.info.fingerprint if encoder else None,
        }
        store = IndexStore(folder)  # which locks the folder
        try:
            _claim(folder, about, taken=bool(store.list() or store.broken))
            prompts = make_index_prompts(encoder) if encoder else IndexPrompts("", "")
            info = store.create(
                INDEX,
                IndexSpec(
                    encoder=encoder.info.name if encoder else "none",
                    fingerprint=_vectors_of(encoder),
                    dims=(encoder.info.dims or 1) if encoder else 1,
                    metric="ip",
                    kind="flat",
                    prompts=prompts,
                ),
            )
            if info.prompts is None and encoder:  # from before indexes kept them
                prompts = make_older_index_prompts(encoder)
            made = cls(store, encoder, prompts)
            made._fill(passages)
        except BaseException:
            store.close()
            raise
        return made

    def search(self, queries: Sequence[str], k: int, mode: Mode) -> list[list[tuple[str, float]]]:
        """Return for each query the ids of the best passages and their scores, best first.

        Scores are BM25's, inner products, or what the fusion of both makes (``index.fusion``);
        those of different modes can't be compared. Fewer than ``k`` come where fewer share a word
        with the query (``bm25``), or where there are fewer.

        Args:
            queries: Plain texts.
            k: Most passages for each, 1 to 10,000.
            mode: How to look.

        Raises:
            InputError: An unknown mode, ``k`` out of range, or vectors asked for without encoder.
        """
        if mode not in MODES:
            raise InputError(
                f"mode: {shorten(mode)} is none of {', '.join(MODES)}", field="mode", value=mode
            )
        if mode != "bm25" and self._encoder is None:
            raise InputError(f"mode: {mode!r} needs an encoder", field="mode", value=mode)
        if k < 1:
            raise InputError(f"k: {k} is less than 1", field="k", value=k)
        depth = max(k, LEAST_CANDIDATES) if mode == "hybrid" else k
        hits_of = []
        for start in range(0, len(queries), BLOCK):
            block = queries[start : start + BLOCK]
            near = [] if mode == "bm25" else self._near(block, depth)
            alike = [] if mode == "dense" else [self._match(query, depth) for query in block]
            if mode == "hybrid":
                hits_of += [fuse(both, k) for both in zip(near, alike, strict=True)]
            else:
                hits_of += near or alike
        return [[(hit.passage.document_id, hit.score) for hit in hits] for hits in hits_of]

    def close(self) -> None:
        """Close the files and let the folder go; the encoder stays open."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _match(self, query: str, k: int) -> list[Hit]:
        return self._store.query(INDEX, query, top_k=k)

    def _near(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        vectors = self._embed(queries, self._prompts.query)
        own = _vectors_of(self._encoder)
        return [self._store.query(INDEX, vector, top_k=k, fingerprint=own) for vector in vectors]

    def _fill(self, passages: Sequence[Entry]) -> None:
        """Index what is not there yet: documents are written in order, a block at a time."""
        done, _ = self._store.count(INDEX)
        for start in range(done, len(passages), BLOCK):
            block = passages[start : start + BLOCK]
            texts = [titled_text(passage) for passage in block]
            self._store.upsert(
                INDEX,
                [Document(passage.id, text) for passage, text in zip(block, texts, strict=True)],
                [
                    Passage(passage.id, passage.id, text, 0, len(text))
                    for passage, text in zip(block, texts, strict=True)
                ],
                self._embed(texts, self._prompts.passage),
                fingerprint=_vectors_of(self._encoder),
            )
            log.info("%d of %d passages are indexed", start + len(block), len(passages))

    def _embed(self, texts: Sequence[str], prompt: str) -> Floats:
        """Make the vectors of texts, (texts, dims); without an encoder, zeros of one feature."""
        if self._encoder is None:
            return np.zeros((len(texts), 1), np.float32)
        return embed(self._encoder, texts, prompt)


def fingerprint(passages: Sequence[Entry]) -> str:
    """Return the sha256 of a corpus: ids, titles, texts and their order."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(json.dumps([passage.id, passage.title, passage.text]).encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _vectors_of(encoder: Encoder | None) -> str:
    return encoder.info.fingerprint if encoder else "none"


def _check_ids(passages: Sequence[Entry]) -> None:
    """Refuse an id that comes twice: across blocks, the later would quietly replace the first."""
    seen: set[str] = set()
    for row, passage in enumerate(passages):
        if passage.id in seen:
            raise InputError(
                f"passages[{row}].id: {shorten(passage.id)} comes twice",
                field=f"passages[{row}].id",
                value=passage.id,
            )
        seen.add(passage.id)


def _claim(folder: Path, about: dict[str, object], *, taken: bool) -> None:
    """Write what the folder is for, or check that it is for this."""
    path = folder / ABOUT
    if not path.exists():
        if taken:
            raise InputError(
                f"index folder: {folder} holds indexes of something else; give another folder",
                field="index_folder",
                value=str(folder),
            )
        write_atomically(path, json.dumps(about, indent=1) + "\n")
        return
    try:
        claimed = json.loads(path.read_text())
        differ = {name: claimed.get(name) for name in about if claimed.get(name) != about[name]}
    except (ValueError, AttributeError) as error:
        raise InputError(f"index folder: {path} is damaged ({error})") from error
    if differ:
        differences = "; ".join(
            f"{name} is {value}, not {about[name]}" for name, value in differ.items()
        )
        raise InputError(
            f"index folder: {folder} holds another corpus ({differences}); give another folder, "
            "or remove this one",
            field="index_folder",
            value=str(folder),
        )
