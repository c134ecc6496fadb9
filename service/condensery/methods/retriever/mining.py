"""Make rows to tune a retriever on: hard negatives by our own index, scores by a cross-encoder."""

import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Protocol, get_args

import torch

from condensery.errors import InputError
from condensery.methods.distil.journal import Journal, Line
from condensery.methods.ranking.parts import fingerprint
from condensery.methods.ranking.retrieval import CorpusPassage, Retriever
from condensery.methods.ranking.sets import parse_set
from condensery.methods.rerank.negatives import mine, open_encoder
from condensery.methods.rerank.recipe import RerankRecipe, Search
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.rerank.sets import RankingSets, leave_out
from condensery.methods.rerank.sources import Sources, read_pool
from condensery.methods.trainer.arguments import add_machine, begin
from condensery.methods.trainer.questions import Wrong
from condensery.parsers import Parser
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
BLOCK = 32  # rows synced at once


class PassageScorer(Protocol):
    """What scores passages: a ``CrossEncoder``."""

    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return a raw logit for each passage."""


def read_queries(sources: Sources) -> RankingSets:
    """Read queries with passages, and leave out what is like evaluation text.

    Raises:
        InputError: A row is wrong, or no query is left.
    """
    pool = read_pool(sources)
    report = {f"left out: {kind}": count for kind, count in sorted(pool.left_out.items())}
    passages, queries = leave_out(pool.passages, pool.queries, sources.not_like, report)
    if not queries:
        raise InputError(f"data: holds no query to mine for; {report}", field="data")
    return RankingSets(tuple(passages), tuple(queries), (), report)


def rows(
    sets: RankingSets,
    recipe: RerankRecipe,
    retriever: Retriever,
    scorer: PassageScorer | None,
    first: int = 0,
) -> Iterator[Line]:
    """Yield a row a query, in their order, from the ``first`` on; an empty one where none is found.

    Args:
        sets: Queries to mine for, and passages.
        recipe: Where to look, how deep, how many negatives.
        retriever: The passages' index, by their numbers.
        scorer: Makes scores; None makes none.
        first: Rows that are there already.
    """
    rest = RankingSets(sets.passages, sets.train[first:], (), {})
    for query, ranked in zip(rest.train, mine(rest, recipe, retriever, first), strict=True):
        negatives = [sets.passages[n] for n in ranked[: recipe.negatives]]
        positives = [sets.passages[n] for n in query.gold]
        row: Line = {"query": query.text, "positive": positives, "negatives": negatives}
        if scorer is not None and negatives:
            row["scores"] = scorer.scores(query.text, positives + negatives)
        yield row


def make_rows(
    sources: Sources,
    recipe: RerankRecipe,
    out: Path,
    *,
    encoder: Path | None,
    cross_encoder: tuple[Path, PassageScorer] | None,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """Mine and score, and write JSONL; goes on where a killed run was.

    Args:
        sources: Queries and passages.
        recipe: Where to look, how deep, how many negatives.
        out: ``*.jsonl``; beside it ``*.about.json`` says what it was made of.
        encoder: Directory of the encoder that finds negatives by vectors.
        cross_encoder: Its directory, and itself.
        device: Where the encoder runs.
        dtype: What it computes in.

    Returns:
        Rows written; queries for which too few negatives were found have none.

    Raises:
        InputError: The data or the directories are of no use, or ``out`` was made of others.
    """
    sets = read_queries(sources)
    about = {
        "data": sets.fingerprint(),
        "encoder": None if encoder is None else fingerprint(encoder),
        "cross_encoder": None if cross_encoder is None else fingerprint(cross_encoder[0]),
        **{name: getattr(recipe, name) for name in ("negatives", "search", "depth", "seed")},
    }
    kept = 0

    def see(line: Line) -> None:
        nonlocal kept
        kept += bool(line["negatives"])

    with ExitStack() as stack, Journal(out, about, see) as journal:
        if journal.done:
            log.info("%s is there already", out)
            return kept
        index = out.with_name(f"{out.name}.index")
        running = (
            None if encoder is None else stack.enter_context(open_encoder(encoder, device, dtype))
        )
        corpus = [CorpusPassage(str(i), text) for i, text in enumerate(sets.passages)]
        with Retriever.build(corpus, index, encoder=running) as retriever:
            scorer = None if cross_encoder is None else cross_encoder[1]
            missing = rows(sets, recipe, retriever, scorer, journal.count)
            _append(journal, missing, len(sets.train))
        summary = {**sets.report, "queries": journal.count, "rows": kept}
        journal.finish(lambda line: [line] if line["negatives"] else [], summary)
        shutil.rmtree(index)  # nothing asks it again
    return kept


def _append(journal: Journal, missing: Iterator[Line], total: int) -> None:
    """Write rows as they are made, a block at a time."""
    while block := list(islice(missing, BLOCK)):
        journal.append(block)
        log.info("%d of %d queries", journal.count, total)


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery distil retriever``."""
    parser = Parser(prog="condensery distil retriever", description=__doc__)
    add = parser.add_argument
    add("--questions", type=Path, nargs="+", default=(), help="questions with passages: JSONL")
    add("--retrieval-set", nargs="+", default=(), metavar="DIR:SPLIT", help="judged corpora")
    add("--corpus", type=Path, nargs="+", default=(), help="more passages: JSONL")
    add("--not-like", type=Path, nargs="+", default=(), help="evaluation text to keep out: JSONL")
    add("--wrong", choices=get_args(Wrong), default="refuse", help="rows (refuse)")
    add("--encoder", type=Path, help="directory of an encoder that finds negatives by vectors")
    add("--cross-encoder", type=Path, help="directory of what scores positives and negatives")
    add("--negatives", type=int, default=15, help="a query (15)")
    add("--depth", type=int, default=30, help="passages taken of each search (30)")
    add("--search", choices=get_args(Search), help="where to look (both, or bm25 without encoder)")
    add("--seed", type=int, default=13)
    add("--out", type=Path, required=True, help="rows, JSONL; run again to go on")
    add_machine(parser)
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(words)
    search = args.search or ("bm25" if args.encoder is None else "both")
    if search != "bm25" and args.encoder is None:
        raise InputError(f"search: {search!r} needs --encoder", field="search", value=search)
    recipe = RerankRecipe(negatives=args.negatives, depth=args.depth, search=search, seed=args.seed)
    sources = Sources(
        args.questions,
        [parse_set(text) for text in args.retrieval_set],
        args.corpus,
        args.not_like,
        args.wrong,
    )
    device = begin(args)
    dtype = choose_dtype(device, args.dtype)
    cross_encoder = None
    if args.cross_encoder is not None:
        opened = CrossEncoder.open(args.cross_encoder, device=device, dtype=dtype)
        cross_encoder = args.cross_encoder, opened
    count = make_rows(
        sources,
        recipe,
        args.out,
        encoder=None if search == "bm25" else args.encoder,
        cross_encoder=cross_encoder,
        device=device,
        dtype=dtype,
    )
    log.info("%d rows are in %s", count, args.out)


if __name__ == "__main__":
    main()
