"""Sets in BEIR's form: passages, queries, and which passages answer which query."""

import argparse
import logging
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import EmptyInput, InputError, shorten
from condensery.methods.ranking.retrieval import CorpusPassage, Mode, Retriever, fingerprint
from condensery.methods.trainer.rows import read_lines, read_rows
from condensery.runtime.encoder import Encoder

log = logging.getLogger(__name__)
SEED = 17  # of which queries and passages are taken, where not all are


@dataclass(frozen=True, slots=True)
class RankingSet:
    """Queries with judged passages.

    Attributes:
        name: The folder's; with the split, if that is not ``test``.
        passages: The corpus, in the file's order.
        content: The corpus's fingerprint.
        queries: Text of those that are asked, by id.
        judged: For each of them the passages of a grade above 0.
    """

    name: str
    passages: list[CorpusPassage]
    content: str
    queries: Mapping[str, str]
    judged: Mapping[str, Mapping[str, int]]


def parse_set(text: str, *, split: str = "") -> tuple[Path, str]:
    """Read ``DIR:SPLIT``, or ``DIR`` where there is a usual split.

    Raises:
        InputError: It is of another form.
    """
    if split and Path(text).is_dir():
        return Path(text), split
    folder, _, named = text.rpartition(":")
    if not folder and split:
        return Path(text), split
    if not folder or not named:
        raise InputError(
            f"retrieval-set: {text!r} is not DIR:SPLIT", field="retrieval_set", value=text
        )
    return Path(folder), named


def read_set(
    folder: Path,
    split: str = "test",
    *,
    queries: int = 0,
    others: int | None = None,
    seed: int = SEED,
) -> RankingSet:
    """Read ``corpus.jsonl.gz``, ``queries.jsonl.gz`` and ``qrels.SPLIT.tsv``.

    Also as BEIR itself lays them out: without ``.gz``, and ``qrels/SPLIT.tsv``.

    Args:
        folder: Of the set.
        split: Which judgements.
        queries: How many judged queries to choose at random; 0 for all.
        others: How many passages, at random, are searched beside those that these queries'
            judgements put above 0; None for the whole corpus.
        seed: Of the choices.

    Raises:
        InputError: A file can't be read, or names a query or passage that there is not; it names
            file, line and value. Or fewer than 0 queries or others are asked for.
    """
    for field, value in (("queries", queries), ("others", others)):
        if value is not None and value < 0:
            raise InputError(f"{field}: {value} is less than 0", field=field, value=value)
    corpus = read_corpus(_find(folder, "corpus.jsonl.gz", "corpus.jsonl"))
    texts: dict[str, str] = {}
    for row in read_rows(_find(folder, "queries.jsonl.gz", "queries.jsonl")):
        name, text = row.value.get("_id"), row.value.get("text")
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise InputError(
                f"{row.where}: _id: {shorten(name)}, text: {shorten(text)}: no query", field="text"
            )
        texts[name] = text
    judged = read_judgements(
        _find(folder, f"qrels.{split}.tsv", f"qrels/{split}.tsv"),
        texts,
        {passage.id for passage in corpus.passages},
    )
    chosen = list(judged)
    if queries and queries < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, queries), key=chosen.index)
    passages, content = corpus.passages, corpus.fingerprint
    if others is not None:
        relevant = {passage for name in chosen for passage in judged[name]}
        rest = [passage.id for passage in passages if passage.id not in relevant]
        kept = relevant | set(random.Random(seed).sample(rest, min(others, len(rest))))
        passages = [passage for passage in passages if passage.id in kept]
        content = fingerprint(passages)
    name = folder.resolve().name
    return RankingSet(
        name if split == "test" else f"{name}:{split}",
        passages,
        content,
        {name: texts[name] for name in chosen},
        {name: judged[name] for name in chosen},
    )


def _find(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"{folder}: is no retrieval set, it has no {' or '.join(names)}", value=str(folder)
    )


def add_sets(parser: argparse.ArgumentParser, *, seed: int = SEED) -> None:
    """Add the flags of what measures on sets: which, how many queries, where, where to."""
    add = parser.add_argument
    add(
        "--set",
        dest="sets",
        action="append",
        required=True,
        metavar="DIR[:SPLIT]",
        help="corpus.jsonl.gz, queries.jsonl.gz, qrels.SPLIT.tsv (test); may be given again",
    )
    add("--queries", type=int, default=0, help="of each set, at random (0: all)")
    add("--seed", type=int, default=seed)
    add("--device", default="auto", help="cpu, cuda (auto)")
    add("--dtype", default="auto", help="float32, bfloat16 (auto)")
    add("--out", type=Path, help="where to write the report's part (JSON)")


def read_sets(
    names: Iterable[str], *, queries: int = 0, others: int | None = None, seed: int = SEED
) -> list[RankingSet]:
    """Read sets as a command names them, ``DIR`` or ``DIR:SPLIT``; the rest as ``read_set``.

    Raises:
        InputError: A set is of no use, or two folders have one name.
    """
    named = list(names)
    sets = [
        read_set(*parse_set(name, split="test"), queries=queries, others=others, seed=seed)
        for name in named
    ]
    if len({ranking_set.name for ranking_set in sets}) < len(sets):
        raise InputError("set: two folders of one name", field="set", value=named)
    return sets


def read_judgements(
    path: Path, queries: Mapping[str, str], passages: set[str]
) -> dict[str, dict[str, int]]:
    """Return the passages of a grade above 0 of each query that has one, in the file's order.

    Args:
        path: Perhaps a heading, then a line ``query, passage, grade`` each, split by tabs.
        queries: Those that there are, by id.
        passages: The ids of those that there are.

    Raises:
        InputError: A line is of another form, or names what is not there; with file and line.
        EmptyInput: No query has a passage of a grade above 0.
    """
    judged: dict[str, dict[str, int]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.rstrip("\r\n").split("\t")
        if not line.strip() or (number == 1 and not _is_judgement(fields)):
            continue
        where = f"{path}, line {number}"
        try:
            query, passage, grade = fields[0], fields[1], int(fields[2])
        except (IndexError, ValueError):
            raise InputError(
                f"{where}: {shorten(line)} is not query, passage and grade", field="qrels"
            ) from None
        for what, name, there in (("query", query, queries), ("passage", passage, passages)):
            if name not in there:
                raise InputError(f"{where}: there is no {what} {shorten(name)}", field="qrels")
        if grade > 0:
            judged.setdefault(query, {})[passage] = grade
    if not judged:
        raise EmptyInput(f"{path}: no query has a passage of a grade above 0", field="qrels")
    return judged


def _is_judgement(fields: Sequence[str]) -> bool:
    return len(fields) == 3 and fields[2].strip().isdigit()


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
        self, questions: Sequence[str], count: int, mode: Mode, encoder: Encoder | None = None
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
        InputError: A row has no id, an id that came before, or neither text nor title; names line
            and field.
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
        if not isinstance(text, str) or not isinstance(title, str) or not (text + title).strip():
            message = f"{row.where}: text: {shorten(text)}, title: {shorten(title)}: not a passage"
            raise InputError(message, field="text", value=text)
        seen[name] = row.where
        passages.append(CorpusPassage(name, text, title))
    if not passages:
        raise EmptyInput(f"corpus: {path} holds no passage", field="corpus", value=str(path))
    return Corpus(passages, fingerprint(passages))
