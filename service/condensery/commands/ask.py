"""``condensery ask`` and ``condensery compress``.

A question is answered from an index, or from documents that were compressed for it before.
"""

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_document_arguments,
    ask_server,
    format_table,
    shorten_line,
)
from condensery.commands.terminal import paint, shows_colours
from condensery.documents.records import open_documents, read_text
from condensery.errors import shorten
from condensery.question import (
    Answer,
    AnswerEvent,
    Citation,
    Comparison,
    Compressed,
    CompressedDocument,
    Compression,
    Delta,
    Snippet,
)
from condensery.sentences import sentence_around
from condensery.values import Document, SearchMode

if TYPE_CHECKING:
    from condensery.client.questions import QuestionOptions

DEFAULT_INDEX = "samples"
NOT_FOUND_STATUS = 3  # so that a script can tell "not found" from an answer, and from a failure


def add_ask(parsers: Parsers) -> None:
    """Add ``ask``."""
    parser = parsers.add_parser(
        "ask",
        help="answer a question from an index",
        description="Answer a question from the passages of an index, or from those that"
        " `condensery compress` read for it, and cite them: the sentence that has the answer, its"
        f" document, its characters there. Status {NOT_FOUND_STATUS}: none was found; the nearest"
        " sentences are shown.",
    )
    parser.add_argument("question", help="- reads it from standard input")
    add_question_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--no-compress", action="store_true", help="read the passages' own tokens instead"
    )
    how.add_argument(
        "--compare", action="store_true", help="answer both ways, and say how the answers agree"
    )
    parser.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the answer as it is generated (default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    ask_server(parser, run_ask)


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``read_options`` reads, but ``--no-compress``."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--index", help=f"default: {DEFAULT_INDEX}")
    where.add_argument(
        "--context", metavar="HANDLE", help="answer from what `condensery compress` kept instead"
    )
    add_search_arguments(parser)
    parser.add_argument(
        "--top-k", type=int, default=20, metavar="N", help="passages to find (default: %(default)s)"
    )
    parser.add_argument(
        "--top-n",
        type=int,
        metavar="N",
        help="passages to read, the best scored; 0 reads all (default: as many as the pair reads"
        " best)",
    )
    parser.add_argument("--model", help="name of a pair; the server's default else")
    parser.add_argument(
        "--rate", type=int, metavar="N", help="tokens a vector, of the rates that the pair has"
    )
    parser.add_argument(
        "--min-relevance",
        type=float,
        metavar="SCORE",
        help="say that the passages don't hold the answer if the best one scores less (0 to 1;"
        " default: the pair's own)",
    )
    add_generation_arguments(parser)


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose how an answer is generated, and where it ends."""
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end there; may be repeated"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="up to 2; at 0 the best token is taken always (default: %(default)g)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="the same one gives the same answer again"
    )


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose how an index is searched, and what in it."""
    parser.add_argument(
        "--search",
        choices=get_args(SearchMode),
        help="find passages by vectors (dense), by words (bm25) or by both (hybrid); default: the"
        " server's own",
    )
    add_filter_argument(parser)


def add_filter_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that chooses an index's documents."""
    parser.add_argument(
        "--filter",
        metavar="JSON",
        type=read_filter,
        help="which documents: must, should and must_not over match, range and has_id; as"
        """ '{"must": [{"key": "year", "range": {"gte": 1900}}]}'""",
    )


def read_filter(text: str) -> dict[str, Any]:
    """Read a filter from the command line; the server checks it."""
    try:
        filter = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not JSON: {error}") from error
    if not isinstance(filter, dict):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a JSON object")
    return filter


def read_options(args: argparse.Namespace) -> "QuestionOptions":
    """Return how a question is to be answered."""
    return {
        "index": args.index or (None if args.context else DEFAULT_INDEX),
        "context": args.context,
        "search": args.search,
        "filter": args.filter,
        "top_k": args.top_k,
        "top_n": args.top_n,
        "model": args.model,
        "mode": "off" if args.no_compress else "auto",
        "rate": args.rate,
        "min_relevance": args.min_relevance,
        "max_tokens": args.max_tokens,
        "stop": args.stop,
        "temperature": args.temperature,
        "seed": args.seed,
    }


def run_ask(args: argparse.Namespace, client: AnyClient) -> int:
    """Ask, and print the answer, where it stands, its passages and what compression did.

    Returns:
        The exit status: ``NOT_FOUND_STATUS`` where no answer was found. A comparison is made
        either way, so that is always 0.
    """
    question, how = read_text(args.question), read_options(args)
    if args.compare:
        comparison = client.compare(question, **how)
        print_json(comparison) if args.json else print_comparison(comparison)
        return 0
    if args.json or not args.stream:
        answer = client.answer(question, **how)
        print_json(answer) if args.json else print(answer.answer)
    else:
        answer = print_stream(client.answer_stream(question, **how))
    if not args.json:
        print_place(answer)
        print()
        print_sources(answer)
    return NOT_FOUND_STATUS if answer.finish_reason == "not_found" else 0


def print_stream(events: Iterable[AnswerEvent]) -> Answer:
    """Print the answer as it comes; returns the whole."""
    whole: Answer | None = None
    begun = False
    try:
        for event in events:
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
                begun = True
            elif isinstance(event, Answer):
                whole = event
    finally:
        if begun or whole is not None:  # a failure is told on a line of its own
            print()
    assert whole is not None  # else the client raises an error
    return whole


def print_place(answer: Answer) -> None:
    """Print the sentence that the answer stands in, or that it stands in none, or what is near."""
    if answer.snippets:
        print("\nnot found; the nearest sentences:")
        for snippet in answer.snippets:
            print(describe_snippet(snippet))
    elif answer.grounded is False:
        print("\ngrounded: false (its words stand together in no passage that was read)")
    elif citation := find_source(answer):
        print(f"\n{describe_source(citation)}")


def find_source(answer: Answer) -> Citation | None:
    """Return the citation that the answer's words are of: the best that has their very letters."""
    holding = [citation for citation in answer.citations if citation.answer_start is not None]
    return max(holding, key=lambda citation: words_in(citation) in answer.answer, default=None)


def words_in(citation: Citation) -> str:
    """Return the answer's words as they stand in a citation."""
    start, end = citation.answer_start or 0, citation.answer_end or 0
    return citation.text[start - citation.start : end - citation.start]


def describe_source(citation: Citation) -> str:
    """Return the sentence of a citation with the answer marked, and where that is, on two lines."""
    assert citation.answer_start is not None
    assert citation.answer_end is not None
    text, start = citation.text, citation.answer_start - citation.start
    end = citation.answer_end - citation.start
    first, last = sentence_around(text, start, end)
    pieces = (text[first:start], mark(text[start:end]), text[end:last])
    sentence = "".join(re.sub(r"\s+", " ", piece) for piece in pieces)
    place = f"{citation.document_id}, characters {citation.answer_start} to {citation.answer_end}"
    return f"  {sentence}\n  {place}"


def describe_snippet(snippet: Snippet) -> str:
    """Return a sentence that may be near, on one line, and below it where it stands."""
    score = format_score(snippet.relevance_score)
    place = f"{snippet.document_id}, characters {snippet.start} to {snippet.end}"
    return f"  {score}  {' '.join(snippet.text.split())}\n         {place}"


def format_score(score: float | None) -> str:
    """Return a passage's score, as wide where there is none."""
    return "  -  " if score is None else f"{score:.3f}"


def mark(text: str) -> str:
    """Return a text as it stands out: in bold on a terminal, else as Markdown has it."""
    return paint(text, "bold") if shows_colours(sys.stdout) else f"**{text}**"


def print_comparison(comparison: Comparison) -> None:
    """Print both answers, the passages, and how the two ways compare."""
    compressed, plain = comparison.compressed, comparison.plain
    print(f"compressed: {compressed.answer}")
    print(f"plain:      {plain.answer}\n")
    print_sources(compressed)
    agreement = comparison.agreement
    measures = f"F1 {agreement.f1:.2f}"
    if agreement.cosine is not None:
        measures += f", cosine {agreement.cosine:.2f}"
    print(f"agreement: {'the same answer, ' if agreement.exact else ''}{measures}")
    print(
        f"speedup: {comparison.speedup:.2f} (plain's time over compressed's), of the generator"
        f" alone {comparison.generator_speedup:.2f}"
    )
    if comparison.why:
        print(comparison.why)
    print(describe_flops(compressed.compression))


def print_sources(answer: Answer) -> None:
    """Print the passages in context, what compression did, and who else wrote the text.

    Where none of the passages had the answer, the nearest sentences stand for them.
    """
    if not answer.snippets:
        for citation in answer.citations:
            print(describe_citation(citation))
    print(describe_compression(answer.compression))
    if answer.generator is not None:
        print(f"written by: {answer.generator}, of another server")


# What fields were called, or lay elsewhere, before they took REST's names.
OLDER_NAMES: dict[type, tuple[str, ...]] = {
    Answer: ("text",),
    Compression: ("fallback",),
    Compressed: ("documents", "tokens"),
    Comparison: ("exact", "f1", "cosine"),
}


def print_json(result: Answer | Comparison | Compressed) -> None:
    """Print a whole result on one line."""
    print(json.dumps(result, default=list_fields, ensure_ascii=False))


def list_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and those by which scripts may know them from before."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in (*names, *OLDER_NAMES.get(type(value), ()))}


def describe_citation(citation: Citation) -> str:
    """Return the line that shows a passage: score, id, the beginning of its text."""
    score = format_score(citation.relevance_score)
    return f"  {score}  {citation.id}  {shorten_line(citation.text)}"


def describe_compression(compression: Compression) -> str:
    """Return the line that says what compression did."""
    reason = f" ({compression.reason})" if compression.reason else ""
    if compression.status == "off":
        return f"compression: off{reason}"
    others = ""
    if compression.fallback_docs:
        others += f", {len(compression.fallback_docs)} read as text"
    if compression.left_out:
        others += f", {len(compression.left_out)} left out"
    return (
        f"compression: {compression.status}{reason}, {compression.docs} passages{others}, "
        f"{compression.tokens_in:,} tokens read, {compression.vectors_out:,} vectors kept "
        f"({compression.ratio:.1f} tokens a vector), {compression.compress_ms:.0f} ms"
    )


def describe_flops(compression: Compression) -> str:
    """Return the line that shows how much of the generator's work compression saved, or added."""
    saved, plain = compression.flops_saved / 1e9, compression.flops_plain / 1e9
    difference = f"{saved:.2f} saved of" if saved >= 0 else f"{-saved:.2f} more than"
    return f"GFLOPs, analytic: {difference} plain's {plain:.2f}"


COMPRESS_COLUMNS = ("PLACE", "SCORE", "TOKENS", "VECTORS", "WINDOWS", "STATUS", "ID")


def add_compress(parsers: Parsers) -> None:
    """Add ``compress``."""
    parser = parsers.add_parser(
        "compress",
        help="compress documents for a question, to answer it later",
        description="Compress and score documents for a question in one pass, and print what became"
        " of each. The server keeps the vectors for a while: `condensery ask QUESTION --context"
        " HANDLE` answers from them.",
    )
    parser.add_argument("question", help="- reads it from standard input")
    add_document_arguments(parser, "files", nargs="+")
    parser.add_argument("--model", help="name of a pair; the server's default else")
    parser.add_argument(
        "--rate",
        type=int,
        metavar="N",
        help="tokens a vector, of the rates that the pair has (default: the finest)",
    )
    parser.add_argument(
        "--ttl",
        type=float,
        metavar="SECONDS",
        help="how long the server keeps the vectors (default: its own ten minutes)",
    )
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the vectors, and print their handle (default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    ask_server(parser, run_compress)


def run_compress(args: argparse.Namespace, client: AnyClient) -> None:
    """Compress documents; print the outcome of each, and the handle."""
    question = read_text(args.question)
    documents: list[Document] = []
    for file in args.files:
        with open_documents(file, args.format) as read:
            documents += [document for document, _ in read]
    result = client.compress(
        question,
        documents,
        model=args.model,
        rate=args.rate,
        ttl_seconds=args.ttl,
        keep=args.keep,
    )
    if args.json:
        print_json(result)
        return
    print(format_table([COMPRESS_COLUMNS, *map(describe_document, result.results)]))
    print(describe_compression(result.compression))
    if result.context is not None:
        print(describe_context(result))


def describe_document(document: CompressedDocument) -> tuple[str, ...]:
    """Return a document's row."""
    score = "-" if document.relevance_score is None else f"{document.relevance_score:.3f}"
    status = f"{document.status} ({document.reason})" if document.reason else document.status
    counts = (document.tokens_in, document.vectors_out, document.windows)
    return (str(document.index), score, *map(str, counts), status, document.id)


def describe_context(result: Compressed) -> str:
    """Return the line that shows the handle, and until when it is kept."""
    until = ""
    if result.expires_at is not None:
        until = f" (until {time.strftime('%H:%M:%S', time.localtime(result.expires_at))})"
    return f"context: {result.context}{until}"
