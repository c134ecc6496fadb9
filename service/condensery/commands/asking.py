"""``condensery ask``: a question, its answer as it is generated, and where it comes from."""

import argparse
import dataclasses
import json
from collections.abc import Iterable
from typing import Any, get_args

from condensery.answers import Answer, AnswerEvent, Citation, Comparison, Compression, Delta
from condensery.client.asking import Asking
from condensery.commands.connecting import add_server, connect
from condensery.commands.printing import Parsers, shorten_line
from condensery.errors import shorten
from condensery.questions import SearchMode

INDEX = "samples"


def add_parser(parsers: Parsers) -> None:
    """Add ``ask``."""
    parser = parsers.add_parser(
        "ask",
        help="answer a question from an index",
        description="Answer a question from the passages of an index, or from those that"
        " `condensery compress` read for it, and cite them.",
    )
    parser.add_argument("question")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--index", help=f"default: {INDEX}")
    where.add_argument(
        "--context", metavar="HANDLE", help="answer from what `condensery compress` kept instead"
    )
    add_search(parser)
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
    add_server(parser)
    parser.set_defaults(run=run)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says how an index is searched."""
    parser.add_argument(
        "--search",
        choices=get_args(SearchMode),
        help="find passages by vectors (dense), by words (bm25) or by both (hybrid); default: the"
        " server's own",
    )
    add_filter(parser)


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which documents an index is asked about."""
    parser.add_argument(
        "--filter",
        metavar="JSON",
        type=read_filter,
        help="which documents: must, should and must_not over match, range and has_id; as"
        """ '{"must": [{"key": "year", "range": {"gte": 1900}}]}'""",
    )


def read_filter(text: str) -> dict[str, Any]:
    """Read a filter from the command line; what it means the server says."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a JSON object")
    return found


def run(args: argparse.Namespace) -> int:
    """Ask, and print the answer, its passages and what compression did."""
    how: Asking = {
        "index": args.index or (None if args.context else INDEX),
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
    with connect(args) as client:
        if args.compare:
            comparison = client.compare(args.question, **how)
            print_json(comparison) if args.json else print_comparison(comparison)
            return 0
        if args.json or not args.stream:
            answer = client.answer(args.question, **how)
            print_json(answer) if args.json else print(answer.text)
        else:
            answer = print_stream(client.answer_stream(args.question, **how))
    if not args.json:
        print()
        print_sources(answer)
    return 0


def print_stream(events: Iterable[AnswerEvent]) -> Answer:
    """Print each stretch of the answer as it comes; returns the whole."""
    whole: Answer | None = None
    for event in events:
        if isinstance(event, Delta):
            print(event.text, end="", flush=True)
        elif isinstance(event, Answer):
            whole = event
    print()
    assert whole is not None  # a stream without its last event is an error of the client's
    return whole


def print_comparison(comparison: Comparison) -> None:
    """Print both answers, the passages, and how the two ways compare."""
    compressed, plain = comparison.compressed, comparison.plain
    print(f"compressed: {compressed.text}")
    print(f"plain:      {plain.text}\n")
    print_sources(compressed)
    agreement = f"F1 {comparison.f1:.2f}"
    if comparison.cosine is not None:
        agreement += f", cosine {comparison.cosine:.2f}"
    print(f"agreement: {'the same answer, ' if comparison.exact else ''}{agreement}")
    print(f"speedup: {comparison.speedup:.2f} (plain's time over compressed's)")
    print(describe_flops(compressed.compression))


def print_sources(answer: Answer) -> None:
    """Print the passages in context, and what compression did."""
    for citation in answer.citations:
        print(describe_citation(citation))
    print(describe_compression(answer.compression))


def print_json(found: Answer | Comparison) -> None:
    """Print all that came, on one line."""
    print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))


def describe_citation(citation: Citation) -> str:
    """Return the line that shows a passage: score, id, the beginning of its text."""
    score = "  -  " if citation.relevance_score is None else f"{citation.relevance_score:.3f}"
    return f"  {score}  {citation.id}  {shorten_line(citation.text)}"


def describe_compression(compression: Compression) -> str:
    """Return the line that says what compression did."""
    reason = f" ({compression.reason})" if compression.reason else ""
    if compression.status == "off":
        return f"compression: off{reason}"
    others = ""
    if compression.fallback:
        others += f", {len(compression.fallback)} read as text"
    if compression.left_out:
        others += f", {len(compression.left_out)} left out"
    return (
        f"compression: {compression.status}{reason}, {compression.docs} passages{others}, "
        f"{compression.tokens_in:,} tokens read, {compression.vectors_out:,} vectors kept "
        f"({compression.ratio:.1f} tokens a vector), {compression.compress_ms:.0f} ms"
    )


def describe_flops(compression: Compression) -> str:
    """Return the line that says what compression saved of the generator's work, or cost."""
    saved, plain = compression.flops_saved / 1e9, compression.flops_plain / 1e9
    said = f"{saved:.2f} saved of" if saved >= 0 else f"{-saved:.2f} more than"
    return f"GFLOPs, analytic: {said} plain's {plain:.2f}"
