"""``condensery embed`` and ``condensery rerank``: texts from the command line or a file."""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_format_argument,
    add_json_argument,
    ask_server,
    print_entry,
    print_note,
    print_result,
)
from condensery.documents.records import STDIN, read_text, read_texts
from condensery.errors import InputError
from condensery.values import Floats

BATCH_TEXTS = 256  # texts a request: well under the server's limit, and enough to fill its batches


def add_embed_and_rerank(parsers: Parsers) -> None:
    """Add ``embed`` and ``rerank``."""
    parser = parsers.add_parser(
        "embed",
        help="texts to vectors",
        description="Print one JSON object a text, with its vector; or write them all with --out.",
    )
    add_text_arguments(parser, "TEXT")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--out", metavar="FILE.npy", help="write an array (texts, dims), float32")
    add_json_argument(instead, "the vectors as embedding, with the texts' index,")
    parser.add_argument("--model", help="name of an encoder; the server's default else")
    parser.add_argument("--prompt-name", metavar="NAME", help="one of the model's prompts")
    parser.add_argument(
        "--input-type",
        metavar="TYPE",
        help="in its place, what the texts are for: search_query, search_document, classification"
        " or clustering",
    )
    parser.add_argument(
        "--instruction", metavar="TEXT", help="in place of both, for models that read one"
    )
    ask_server(parser, run_embed)

    parser = parsers.add_parser(
        "rerank",
        help="order passages by relevance to a query",
        description="Print the passages, the most relevant first: score, number, text.",
    )
    parser.add_argument("query", help="- reads it from standard input")
    add_text_arguments(parser, "PASSAGE")
    parser.add_argument("--top-n", type=int, metavar="N", help="print the best N only")
    parser.add_argument("--model", help="name of a reranker or pair; the server's default else")
    add_json_argument(parser, "one JSON object a passage")
    ask_server(parser, run_rerank)


def add_text_arguments(parser: argparse.ArgumentParser, metavar: str) -> None:
    """Add the arguments that ``gather_texts`` reads."""
    parser.add_argument(
        "texts", nargs="*", metavar=metavar, help="- reads them from standard input"
    )
    parser.add_argument(
        "--file",
        metavar="PATH",
        help="plain text, one a line; or JSON lines (.jsonl, .ndjson), each a string or an object"
        " with text; - is standard input",
    )
    add_format_argument(parser)


def run_embed(args: argparse.Namespace, client: AnyClient) -> None:
    """Embed, batch by batch, and print or write."""
    if args.out:
        check_writable(args.out)
    texts = gather_texts(args)
    parts: list[Floats] = []
    places = itertools.count()
    hidden = None if len(texts) > BATCH_TEXTS else True
    with tqdm(total=len(texts), unit=" texts", disable=hidden) as bar:
        for batch in batch_texts(texts, BATCH_TEXTS):
            vectors = client.embed(
                batch,
                model=args.model,
                prompt_name=args.prompt_name,
                input_type=args.input_type,
                instruction=args.instruction,
            )
            bar.update(len(batch))
            if args.out:
                parts.append(vectors)
                continue
            for text, vector in zip(batch, vectors, strict=True):
                if args.json:
                    print_entry(object="embedding", index=next(places), embedding=vector)
                else:
                    print_entry(text=text, vector=vector)
    if args.out:
        write_array(args.out, np.concatenate(parts))


def write_array(out: str, array: Floats) -> None:
    """Write vectors, and print how many.

    Raises:
        InputError: The file can't be written.
    """
    try:
        with Path(out).open("wb") as file:  # np.save would add a suffix to a bare name
            np.save(file, array, allow_pickle=False)
    except OSError as error:
        raise refuse_out(out, error) from error
    print_note(f"wrote {out}: {array.shape[0]} vectors of {array.shape[1]} dimensions, float32")


def check_writable(out: str) -> None:
    """Refuse a file that can't be written, before the work is done; what it holds stays.

    Raises:
        InputError: It can't be written.
    """
    path = Path(out)
    try:
        new = not path.exists()
        if not path.is_fifo():  # whoever reads a pipe would take this for the end
            path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        raise refuse_out(out, error) from error


def refuse_out(out: str, error: OSError) -> InputError:
    """Return the error that names the file and says why it can't be written."""
    return InputError(f"--out: {out} can't be written: {error.strerror or error}", field="out")


def run_rerank(args: argparse.Namespace, client: AnyClient) -> None:
    """Rerank, and print."""
    query, passages = read_text(args.query), gather_texts(args)
    for ranked in client.rerank(query, passages, model=args.model, top_n=args.top_n):
        text = f"{ranked.score:.4f}\t{ranked.index}\t{' '.join(ranked.text.split())}"
        fields = {"index": ranked.index, "relevance_score": ranked.relevance_score}
        print_result(args, text, {**fields, "document": {"text": ranked.text}})


def gather_texts(args: argparse.Namespace) -> list[str]:
    """Return the texts of the command line, then those of the file.

    Raises:
        InputError: There are none, or a file can't be read.
    """
    texts: list[str] = []
    for argument in args.texts:
        texts += read_texts(STDIN, args.format) if argument == STDIN else [argument]
    if args.file is not None:
        texts += read_texts(args.file, args.format)
    if not texts:
        raise InputError("no texts: give some, or --file PATH (- is standard input)")
    return texts


def batch_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of up to ``size``."""
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
