"""The passages that questions are answered from, found in a corpus by our own index."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from condensery.errors import EmptyInput, InputError, shorten
from condensery.methods.distil.retrieval import CorpusPassage, Mode, Retriever, fingerprint
from condensery.methods.trainer.rows import read_rows

if TYPE_CHECKING:
    from condensery.runtime.encoder import Encoder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages by id.

    Attributes:
        passages: All of them, in the file's order.
        fingerprint: Of ids, titles, texts and order.
    """

    passages: list[CorpusPassage]
    fingerprint: str

    def search(
        self, questions: Sequence[str], count: int, mode: Mode, encoder: "Encoder | None" = None
    ) -> list[list[str]]:
        """Return for each question the texts of the best passages, best first.

        BM25 finds fewer than ``count`` where fewer share a word with the question. Blocks, and
        runs an event loop of its own where there is an encoder.
        """
        texts = {passage.id: passage.text for passage in self.passages}
        with (
            tempfile.TemporaryDirectory() as folder,
            Retriever.build(self.passages, Path(folder), encoder=encoder) as retriever,
        ):
            ranked = retriever.search(questions, count, mode)
        log.info("%d passages found for each of %d questions (%s)", count, len(questions), mode)
        return [[texts[name] for name, _ in hits] for hits in ranked]


def read_corpus(path: Path) -> Corpus:
    """Read a JSONL file of {id or _id, title, text}.

    Raises:
        InputError: A row has no id, an id that came before, or no text; names line and field.
        EmptyInput: There is no row.
    """
    passages: list[CorpusPassage] = []
    seen: dict[str, str] = {}
    for row in read_rows(path):
        value = row.value
        name = value.get("id", value.get("_id"))
        text, title = value.get("text"), value.get("title") or ""
        if not isinstance(name, str) or not name:
            raise InputError(f"{row.where}: id: {shorten(name)} is no id", field="id", value=name)
        if name in seen:
            message = f"{row.where}: id: {shorten(name)} stands in {seen[name]} too"
            raise InputError(message, field="id", value=name)
        if not isinstance(text, str) or not text.strip() or not isinstance(title, str):
            message = f"{row.where}: text: {shorten(text)}, title: {shorten(title)}: not a passage"
            raise InputError(message, field="text", value=text)
        seen[name] = row.where
        passages.append(CorpusPassage(name, text, title))
    if not passages:
        raise EmptyInput(f"corpus: {path} holds no passage", field="corpus", value=str(path))
    return Corpus(passages, fingerprint(passages))
