"""``condensery classify`` and ``condensery tokenize``: what a model makes of each text.

Over REST alone: these are routes of TEI's, whose rows condensery's own gRPC service does not have.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from condensery.client.transports import Call, Operation, call
from condensery.commands.common import Parsers, add_json_argument, ask_server, print_result
from condensery.commands.embed import (
    BATCH_TEXTS,
    add_text_arguments,
    batch_texts,
    gather_texts,
)
from condensery.values import Prediction, TextToken

if TYPE_CHECKING:
    from condensery.client.rest import Client


def make_prediction(
    _client: Any, texts: Sequence[str], pair: str | None, model: str | None, raw_scores: bool
) -> Call[list[list[Prediction]]]:
    """Describe a request for the labels of texts, each alone or before the same second one."""
    second = [] if pair is None else [pair]
    return call(inputs=[[text, *second] for text in texts], model=model, raw_scores=raw_scores)


def make_tokens(
    _client: Any, texts: Sequence[str], model: str | None, add_special_tokens: bool
) -> Call[list[list[TextToken]]]:
    """Describe a request for the tokens of texts."""
    return call(inputs=list(texts), model=model, add_special_tokens=add_special_tokens)


PREDICT = Operation(make_prediction, "POST /predict", "", None)
TOKENIZE = Operation(make_tokens, "POST /tokenize", "", None)


def add_classify_and_tokenize(parsers: Parsers) -> None:
    """Add ``classify`` and ``tokenize``."""
    parser = parsers.add_parser(
        "classify",
        help="texts to labels",
        description="Print of each text its likeliest label: score, label, text; with --json all.",
    )
    add_text_arguments(parser, "TEXT")
    parser.add_argument(
        "--pair", metavar="TEXT", help="judge each text together with this one, which comes second"
    )
    parser.add_argument("--model", help="name of a classifier; the server's default else")
    parser.add_argument("--raw-scores", action="store_true", help="logits in place of likelihoods")
    add_json_argument(parser, "one JSON object a text, with its predictions,")
    ask_server(parser, run_classify, grpc=False)
    parser = parsers.add_parser(
        "tokenize",
        help="texts to the tokens that a model reads",
        description="Print of each text how many tokens a model reads of it, and which.",
    )
    add_text_arguments(parser, "TEXT")
    parser.add_argument("--model", help="name of an encoder; the server's default else")
    parser.add_argument(
        "--no-special-tokens", action="store_true", help="leave out what the tokenizer adds"
    )
    add_json_argument(parser, "one JSON object a text, with its tokens and their characters,")
    ask_server(parser, run_tokenize, grpc=False)


def run_classify(args: argparse.Namespace, client: "Client") -> None:
    """Classify, batch by batch, and print."""
    for batch in batch_texts(gather_texts(args), BATCH_TEXTS):
        found = client.send(PREDICT, batch, args.pair, args.model, args.raw_scores)
        for text, predictions in zip(batch, found, strict=True):
            best = predictions[0]
            line = f"{best.score:.4f}\t{best.label}\t{' '.join(text.split())}"
            print_result(args, line, {"text": text, "predictions": predictions})


def run_tokenize(args: argparse.Namespace, client: "Client") -> None:
    """Tokenize, batch by batch, and print."""
    for batch in batch_texts(gather_texts(args), BATCH_TEXTS):
        found = client.send(TOKENIZE, batch, args.model, not args.no_special_tokens)
        for text, tokens in zip(batch, found, strict=True):
            line = f"{len(tokens)}\t{' '.join(token.text for token in tokens)}"
            print_result(args, line, {"text": text, "tokens": tokens})
