"""``condensery train``, ``distil``, ``eval`` and more: the methods' own command lines."""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

from condensery.commands.common import Parsers, require_extra

COMMAND_HELP = (
    ("train", "make a model"),
    ("distil", "make training data with models that know more"),
    ("eval", "measure a model"),
    ("publish", "put a model that was made into a store"),
    ("export", "write a stored model as transformers reads it"),
    ("effir", "drop and slim the layers of a retriever"),
    ("llm2comp", "make an encoder of a causal language model"),
    ("shrp", "make heads of a BERT experts, and prune them to a static network"),
)
# (command, method): the module whose main(arguments) runs it, and its help
METHOD_MODULES = {
    ("train", "oscar"): ("condensery.methods.oscar.command", "train a compressor and a generator"),
    ("train", "oscar-causal"): (
        "condensery.methods.oscar.causal.training",
        "train a pair of causal language models",
    ),
    ("train", "lm"): ("condensery.methods.lm.training", "train a small causal language model"),
    ("train", "cross-encoder"): (
        "condensery.methods.rerank.training",
        "train a model that scores passages",
    ),
    ("train", "extractive-reader"): (
        "condensery.methods.reader.training",
        "train a span head, which pairs are measured against",
    ),
    ("train", "llm2comp"): (
        "condensery.methods.llm2comp.train_command",
        "train a stage of an encoder made of a causal language model",
    ),
    ("train", "plot"): ("condensery.methods.trainer.progress", "draw the log of a training run"),
    ("distil", "oscar"): (
        "condensery.methods.distil.oscar",
        "find passages, and have labels and scores made",
    ),
    ("distil", "documentation"): (
        "condensery.methods.distil.documentation",
        "make questions about packages' documentation",
    ),
    ("distil", "questions"): (
        "condensery.methods.distil.asked",
        "have a language model write questions about passages",
    ),
    ("eval", "oscar"): ("condensery.methods.oscar.report", "measure a pair's answers"),
    ("eval", "weights"): (
        "condensery.methods.oscar.weights",
        "measure what fewer bits a weight cost a pair's answers",
    ),
    ("eval", "rag"): ("condensery.commands.rag", "judge a running service's answers"),
    ("eval", "rerank"): (
        "condensery.methods.ranking.evaluation",
        "measure how well models rerank what BM25 finds",
    ),
    ("eval", "embeddings"): (
        "condensery.methods.judging.command",
        "judge encoders side by side, by mteb's measures on rows of your own",
    ),
    ("eval", "encodings"): (
        "condensery.methods.ranking.encodings",
        "measure what an encoder's vectors lose in fewer bytes",
    ),
    ("eval", "extractive-reader"): (
        "condensery.methods.reader.evaluation",
        "measure a span head on a pair's questions and passages",
    ),
    ("publish", "lm"): ("condensery.methods.lm.publishing", "put a language model in a store"),
    ("export", "lm"): ("condensery.methods.lm.exporting", "write a stored language model"),
    ("export", "compressor"): (
        "condensery.methods.oscar.exporting",
        "write a stored pair's compressor as a BERT",
    ),
    ("distil", "retriever"): (
        "condensery.methods.retriever.mining",
        "find passages that don't answer queries, and have all scored",
    ),
    ("effir", "build"): (
        "condensery.methods.effir.command",
        "make a smaller retriever: drop, slim, tune, measure, publish",
    ),
    ("effir", "analyse"): (
        "condensery.methods.effir.analysis",
        "measure how much each layer changes what passes through it",
    ),
    ("llm2comp", "build"): (
        "condensery.methods.llm2comp.build_command",
        "compress, contrast, measure, publish",
    ),
    ("shrp", "build"): (
        "condensery.methods.shrp.command",
        "make a static encoder, classifier or reranker: convert, prune, measure, publish",
    ),
    ("publish", "oscar"): ("condensery.methods.oscar.publishing", "put a trained pair in a store"),
    ("publish", "oscar-causal"): (
        "condensery.methods.oscar.causal.publishing",
        "put a trained pair of causal language models in a store",
    ),
}


def add_methods(parsers: Parsers) -> None:
    """Add the commands and their methods, without importing any."""
    for command, text in COMMAND_HELP:
        parser = parsers.add_parser(command, help=text, description=f"{text.capitalize()}.")
        methods = parser.add_subparsers(dest="method", metavar="METHOD", required=True)
        for (owner, method), (module, method_help) in METHOD_MODULES.items():
            if owner == command:
                # Without help of its own: --help goes to the method, like every other argument.
                method_parser = methods.add_parser(method, help=method_help, add_help=False)
                method_parser.set_defaults(run=run_method, module=module, takes_rest=True)


def run_method(args: argparse.Namespace) -> int:
    """Hand over to the method's own command line."""
    with require_extra("methods"):
        main: Callable[[Sequence[str]], int | None] = import_module(args.module).main
    return main(args.rest) or 0
