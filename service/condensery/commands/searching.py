"""``condensery index query``: the passages nearest to a text, reranked if asked for."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from condensery.commands.ask import add_search_arguments
from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_action,
    add_json_argument,
    json_fields,
    print_entry,
    shorten_line,
)
from condensery.commands.terminal import paint
from condensery.documents.records import read_text
from condensery.documents.sections import skip_heading
from condensery.errors import InputError
from condensery.sentences import nearest_sentence, words_of
from condensery.values import Hit

DEFAULT_CANDIDATES = 50
MARKED_LETTERS = 4  # shorter words are in most sentences, whatever those are about


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that the index found, and its relevance where a reranker scored it."""

    hit: Hit
    relevance: float | None = None


def add_query(actions: Parsers) -> None:
    """Add ``query``."""
    help = "find the passages nearest to a text"
    description = (
        "Find the passages nearest to a text. Of each the sentence is shown that shares most with"
        " it, behind the score and the id; its words are bold on a terminal."
    )
    with add_action(actions, "query", run_query, help, description) as query:
        query.add_argument("name", metavar="NAME")
        query.add_argument("text", metavar="TEXT", help="- reads it from standard input")
        query.add_argument(
            "--top-k", type=int, default=10, metavar="N", help="default: %(default)s"
        )
        add_search_arguments(query)
        query.add_argument(
            "--rerank",
            action="store_true",
            help="order what the search finds by a reranker, and show its scores",
        )
        query.add_argument(
            "--candidates",
            type=int,
            metavar="N",
            help="passages to rerank, at least --top-k, of which the best --top-k are printed"
            f" (default: {DEFAULT_CANDIDATES})",
        )
        query.add_argument(
            "--model", help="with --rerank: a reranker or pair; the server's default else"
        )
        add_json_argument(query, "one JSON object a passage, with the reranker's relevance_score,")


def run_query(args: argparse.Namespace, client: AnyClient) -> None:
    """Print the nearest passages."""
    for flag in ("candidates", "model"):
        if getattr(args, flag) is not None and not args.rerank:
            raise InputError(f"--{flag}: is for --rerank, which is not given", field=flag)
    text = read_text(args.text)
    for found in find_passages(args, client, text):
        if args.json:
            scored = {} if found.relevance is None else {"relevance_score": found.relevance}
            print_entry(**json_fields(found.hit), **scored)
        else:
            print(describe_found(found, text))


def find_passages(args: argparse.Namespace, client: AnyClient, text: str) -> Sequence[Found]:
    """Return the passages nearest to a text, the best first."""
    top_k = args.top_k
    if args.rerank:
        top_k = max(top_k, DEFAULT_CANDIDATES if args.candidates is None else args.candidates)
    hits = client.query(args.name, text, top_k=top_k, search=args.search, filter=args.filter)
    if not args.rerank or not hits:
        return [Found(hit) for hit in hits]
    passages = [hit.headed_text for hit in hits]
    ranking = client.rerank(text, passages, model=args.model, top_n=args.top_k)
    return [Found(hits[ranked.index], ranked.relevance_score) for ranked in ranking]


def describe_found(found: Found, text: str) -> str:
    """Return a passage's score and id, and below them its sentence nearest to a text."""
    hit = found.hit
    score = hit.score if found.relevance is None else found.relevance
    heading = skip_heading(hit.text, hit.metadata)
    start, end = nearest_sentence(hit.text, text, heading)
    sentence = " ".join(hit.text[start:end].split())
    before, after = (
        "… " if hit.text[heading:start].strip() else "",
        " …" if hit.text[end:].strip() else "",
    )
    shown = f"{before}{mark_words(sentence, text)}{after}"
    under = f"  under {shorten_line(hit.heading)}" if hit.heading else ""
    return f"{paint(f'{score:.3f}  {hit.id}{under}', 'dim')}\n       {shown}"


def mark_words(sentence: str, text: str) -> str:
    """Return a sentence with the longer words of a text in bold, where that is shown."""
    words = {word for word in words_of(text) if len(word) >= MARKED_LETTERS or word.isdigit()}

    def mark(match: re.Match[str]) -> str:
        word = match[0]
        return paint(word, "bold") if word.casefold() in words else word

    return re.sub(r"\w+", mark, sentence)
