"""``condensery embed`` and ``condensery rerank``: texts from the command line or a file."""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from condensery.commands.common import (
    AnyClient,
    Parsers,
    ask_server,
    open_lines,
    print_note,
)
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
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--file", metavar="PATH", help="one text a line; - reads standard input")
    parser.add_argument("--out", metavar="FILE.npy", help="write an array (texts, dims), float32")
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
    parser.add_argument("query")
    parser.add_argument("passages", nargs="*", metavar="PASSAGE")
    parser.add_argument("--file", metavar="PATH", help="one passage a line; - is standard input")
    parser.add_argument("--top-n", type=int, metavar="N", help="print the best N only")
    parser.add_argument("--model", help="name of a reranker or pair; the server's default else")
    ask_server(parser, run_rerank)


def run_embed(args: argparse.Namespace, client: AnyClient) -> None:
    """Embed, batch by batch, and print or write."""
    texts = read_texts(args.texts, args.file)
    parts: list[Floats] = []
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
                print(json.dumps({"text": text, "vector": vector.tolist()}, ensure_ascii=False))
    if args.out:
        array = np.concatenate(parts)
        with Path(args.out).open("wb") as file:  # np.save would add a suffix to a bare name
            np.save(file, array, allow_pickle=False)
        print_note(
            f"wrote {args.out}: {array.shape[0]} vectors of {array.shape[1]} dimensions, float32"
        )


def run_rerank(args: argparse.Namespace, client: AnyClient) -> None:
    """Rerank, and print."""
    passages = read_texts(args.passages, args.file)
    for ranked in client.rerank(args.query, passages, model=args.model, top_n=args.top_n):
        print(f"{ranked.score:.4f}\t{ranked.index}\t{' '.join(ranked.text.split())}")


def read_texts(arguments: list[str], file: str | None) -> list[str]:
    """Return the texts of the command line, then the lines of the file."""
    texts = list(arguments)
    if file is not None:
        with open_lines(file) as lines:
            texts += [line.text for line in lines]
    if not texts:
        raise InputError("no texts: give some, or --file PATH (- is standard input)")
    return texts


def batch_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of up to ``size``."""
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
