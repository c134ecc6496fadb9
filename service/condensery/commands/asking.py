"""``condensery ask``: a question, its answer as it is generated, and where it comes from."""

import argparse
import dataclasses
import json
from collections.abc import Iterable

from condensery.commands.connecting import add_server, connect
from condensery.commands.printing import Parsers, shorten_line
from condensery.values import Answer, AnswerEvent, Citation, Compression, Delta


def add_parser(parsers: Parsers) -> None:
    """Add ``ask``."""
    parser = parsers.add_parser(
        "ask",
        help="answer a question from an index",
        description="Answer a question from the passages of an index, and cite them.",
    )
    parser.add_argument("question")
    parser.add_argument("--index", default="samples", help="default: %(default)s")
    parser.add_argument(
        "--top-k", type=int, default=20, metavar="N", help="passages to find (default: %(default)s)"
    )
    parser.add_argument(
        "--top-n",
        type=int,
        default=1,
        metavar="N",
        # oscar-mini answers a fifth more of its questions from the best one than from five.
        help="passages to read, the best scored (default: %(default)s)",
    )
    parser.add_argument("--model", help="name of a pair; the server's default else")
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--no-compress", action="store_true", help="read the passages' own tokens instead"
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


def run(args: argparse.Namespace) -> int:
    """Ask, and print the answer, its passages and what compression did."""
    with connect(args) as client:
        arguments = {
            "index": args.index,
            "top_k": args.top_k,
            "top_n": args.top_n,
            "model": args.model,
            "mode": "off" if args.no_compress else "auto",
            "max_tokens": args.max_tokens,
        }
        if args.json or not args.stream:
            answer = client.answer(args.question, **arguments)
            print(json.dumps(to_json(answer), ensure_ascii=False) if args.json else answer.text)
        else:
            answer = print_stream(client.answer_stream(args.question, **arguments))
    if not args.json:
        print()
        for citation in answer.citations:
            print(describe_citation(citation))
        print(describe_compression(answer.compression))
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


def describe_citation(citation: Citation) -> str:
    """Return the line that shows a passage: score, id, the beginning of its text."""
    return f"  {citation.relevance_score:.3f}  {citation.id}  {shorten_line(citation.text)}"


def describe_compression(compression: Compression) -> str:
    """Return the line that says what compression did."""
    reason = f" ({compression.reason})" if compression.reason else ""
    if compression.status == "off":
        return f"compression: off{reason}"
    return (
        f"compression: {compression.status}{reason}, {compression.docs} passages, "
        f"{compression.tokens_in:,} tokens read, {compression.vectors_out:,} vectors kept "
        f"({compression.ratio:.1f} tokens a vector), {compression.compress_ms:.0f} ms"
    )


def to_json(answer: Answer) -> dict[str, object]:
    """Return the answer as plain data."""
    return dataclasses.asdict(answer)
