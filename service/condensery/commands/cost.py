"""``condensery cost``: what a method costs by its dimensions; needs no model, server or torch."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from condensery.commands.common import Parsers, format_table
from condensery.documents.records import STDIN, read_text
from condensery.errors import InputError
from condensery.networks.effir_paper import BILLION, counts
from condensery.networks.llm2comp_cost import LENGTHS, PAPER_COUNTS, MemoryCost, paper_costs
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.oscar_paper import (
    ANSWER,
    PASSAGE,
    PASSAGES,
    QUESTION,
    TERA,
    Flops,
    Printed,
    Row,
)
from condensery.networks.oscar_paper import table as paper_table
from condensery.networks.shrp_paper import PAPER_TOKENS
from condensery.networks.shrp_paper import rows as shrp_rows

OSCAR_HELP = "What OSCAR's compression and generation cost, in FLOPs."
EFFIR_HELP = "How many parameters EffiR leaves."
SHRP_HELP = "What SHRP leaves of parameters and FLOPs."
COMP_HELP = "Parameters of a memory encoder (LLM2Comp), and FLOPs of a text with k tokens more."
COLUMNS = ("inference", "compression", "total")
OSCAR_TEXT = f"""\
TFLOPs of one question: {QUESTION} tokens of question and prompt, {PASSAGES} passages of \
{PASSAGE} tokens, {ANSWER} generated.
paper: as printed in Table 1 of arXiv:2504.07109; after it, ours counted as the paper counts
(matrices only, and a compressor that reads passages without the question), and the difference.
true: ours with attention scores, separators, and the question in the compressor's input.
x: how many times less than without compression; first as the paper counts, then true."""

EFFIR_TEXT = """\
Billions of parameters, the head left out. paper: as printed in Tables 1 to 3 and 5 of "Making Large
Language Models Efficient Dense Retrievers" (EffiR); after it, ours from the dimensions."""

SHRP_TEXT = f"""\
Percent of BERT-base's parameters that are gone (embeddings left out), and of its FLOPs that are
left. paper: as printed in Table 1 of arXiv:2512.20635; after it, ours counted as the paper counts
(of FLOPs: matrices only, and an output projection that the converted layer does not have). true:
ours with attention scores at {PAPER_TOKENS} tokens, and without that projection. faster: as the
paper measured it; at most: what true FLOPs allow."""

COMP_TEXT = """\
GFLOPs of a text of so many tokens, start token included, with K memory tokens behind it: matrices
and attention scores, and of the last layer's MLP the memory tokens alone. more: than the same
network takes for the text alone, the mean of all of its states."""


def add_cost(parsers: Parsers) -> None:
    """Add ``cost`` and its methods."""
    cost = parsers.add_parser(
        "cost",
        help="FLOPs or parameters of a method, from dimensions alone",
        description="Work out what a method costs, from dimensions alone.",
    )
    methods = cost.add_subparsers(dest="method", metavar="METHOD", required=True)
    table, models = "Table 1 of the paper, and our figures", "the paper's models, and our figures"
    for name, run, help, description, paper, unit in (
        ("oscar", run_oscar, "compressing and answering", OSCAR_HELP, table, "FLOPs"),
        ("effir", run_effir, "dropping and slimming layers", EFFIR_HELP, models, "parameters"),
        ("shrp", run_shrp, "heads as experts, pruned to one a layer", SHRP_HELP, table, "percent"),
    ):
        method = methods.add_parser(name, help=help, description=description)
        method.add_argument("--paper", action="store_true", required=True, help=paper)
        method.add_argument("--json", action="store_true", help=f"print JSON, in {unit}")
        method.set_defaults(run=run)
    _add_llm2comp(methods)


def _add_llm2comp(methods: Parsers) -> None:
    """Add the cost of memory encoders: the paper's, or one of any backbone."""
    method = methods.add_parser(
        "llm2comp", help="reading a text with memory tokens behind it", description=COMP_HELP
    )
    which = method.add_mutually_exclusive_group(required=True)
    which.add_argument("--paper", action="store_true", help="the paper's model, Llama-2-7B")
    which.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a language model's config.json; - is standard input",
    )
    method.add_argument(
        "--memory-tokens",
        type=int,
        nargs="+",
        default=PAPER_COUNTS,
        metavar="K",
        help=f"how many, one row each ({' '.join(map(str, PAPER_COUNTS))})",
    )
    method.add_argument("--json", action="store_true", help="print JSON, in FLOPs")
    method.set_defaults(run=run_llm2comp)


def run_llm2comp(args: argparse.Namespace) -> int:
    """Print a row for each number of memory tokens."""
    costs = _memory_costs(args.config, args.memory_tokens)
    if args.json:
        records = [
            {
                "memory_tokens": cost.memory.memory_tokens,
                "parameters": cost.parameters,
                "flops": {str(n): cost.read(n) for n in LENGTHS},
                "flops_without_memory": {str(n): cost.read_alone(n) for n in LENGTHS},
            }
            for cost in costs
        ]
        print(json.dumps(records, indent=2))
        return 0
    head = ["K", "PARAMETERS"]
    for length in LENGTHS:
        head += [f"{length} TOKENS", "more"]
    cells = [tuple(head)]
    for cost in costs:
        row = [str(cost.memory.memory_tokens), f"{cost.parameters:,}"]
        for length in LENGTHS:
            more = 100 * (cost.read(length) / cost.read_alone(length) - 1)
            row += [f"{cost.read(length) / BILLION:,.2f}", f"{more:+.1f}%"]
        cells.append(tuple(row))
    print(f"{format_table(cells)}\n\n{COMP_TEXT}")
    return 0


def _memory_costs(file: Path | None, counts: Sequence[int]) -> list[MemoryCost]:
    """Return the costs of the paper's model, or of a configuration's.

    Raises:
        InputError: The file can't be read, a dimension in it is wrong, or a count is.
    """
    try:
        if file is None:
            return list(paper_costs(counts))
        text = read_text(STDIN) if str(file) == STDIN else file.read_text(encoding="utf-8")
        config: dict[str, Any] = json.loads(text)
        return [
            MemoryCost.of({**config, "vocab_size": config["vocab_size"] + k}, MemoryShape(k))
            for k in counts
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        where = "--memory-tokens" if file is None else f"--config {file}"
        raise InputError(f"{where}: {error!s}", field="config") from error


def run_oscar(args: argparse.Namespace) -> int:
    """Print the table."""
    rows = list(paper_table())
    if args.json:
        print(json.dumps([_record(row) for row in rows], indent=2))
        return 0
    dense = {row.backbone: row for row in rows if row.method == "none"}
    head = ["GENERATOR", "COMPRESSOR"]
    for column in COLUMNS:
        head += [column.upper(), "ours", "diff", "true"]
    cells = [(*head, "x", "true")]
    for row in rows:
        ours, true, without = row.as_counted(), row.true(), dense[row.backbone]
        times = (
            f"{plain.total / mine.total:.1f}"
            for plain, mine in ((without.as_counted(), ours), (without.true(), true))
        )
        figures = (_cells(row.paper, ours, true, column) for column in COLUMNS)
        cells.append((row.backbone, row.method, *(c for group in figures for c in group), *times))
    print(format_table(cells))
    print(f"\n{OSCAR_TEXT}")
    for row in rows:
        if row.note:
            print(f"{row.backbone}, {row.method}: {row.note}.")
    return 0


def run_effir(args: argparse.Namespace) -> int:
    """Print the paper's parameter counts and ours."""
    rows = list(counts())
    if args.json:
        records = [
            {
                "backbone": row.backbone,
                "variant": row.variant,
                "paper": row.paper * BILLION,
                "ours": row.parameters,
            }
            for row in rows
        ]
        print(json.dumps(records, indent=2))
        return 0
    cells = [("BACKBONE", "VARIANT", "PAPER", "OURS", "SHARE")]
    full = {row.backbone: row.parameters for row in rows if row.pruning.dense}
    for row in rows:
        ours = f"{row.parameters / BILLION:.2f}"
        share = f"{100 * row.parameters / full[row.backbone]:.1f}%"
        cells.append((row.backbone, row.variant, f"{row.paper:.1f}", ours, share))
    print(f"{format_table(cells)}\n\n{EFFIR_TEXT}")
    return 0


def run_shrp(args: argparse.Namespace) -> int:
    """Print Table 1's parameters and FLOPs, and ours."""
    rows = list(shrp_rows())
    if args.json:
        records = [
            {
                "converted": row.converted,
                "parameters_gone": {"paper": row.paper_parameters, "ours": row.parameters_gone},
                "flops_left": {
                    "paper": row.paper_flops,
                    "as_counted": row.flops_as_counted,
                    "true": row.true_flops(),
                },
                "times_faster": {
                    "paper": row.paper_throughput,
                    "allowed": 100 / row.true_flops(),
                },
            }
            for row in rows
        ]
        print(json.dumps(records, indent=2))
        return 0
    head = ("CONVERTED", "PARAMETERS", "ours", "FLOPS", "ours", "true", "FASTER", "at most")
    cells = [
        (
            f"{row.converted} of {row.shape.layers}",
            f"-{row.paper_parameters:.1f}%",
            f"-{row.parameters_gone:.1f}%",
            f"{row.paper_flops:.2f}%",
            f"{row.flops_as_counted:.2f}%",
            f"{row.true_flops():.2f}%",
            f"{row.paper_throughput:.2f}x",
            f"{100 / row.true_flops():.2f}x",
        )
        for row in rows
    ]
    cells.insert(0, head)
    print(f"{format_table(cells)}\n\n{SHRP_TEXT}")
    return 0


def _cells(paper: Printed, ours: Flops, true: Flops, column: str) -> tuple[str, str, str, str]:
    printed, mine = getattr(paper, column), getattr(ours, column) / TERA
    if not printed:
        return ("-", "-", "-", "-")
    difference = f"{100 * (mine / printed - 1):+.1f}%"
    return (f"{printed:.4g}", f"{mine:.3f}", difference, f"{getattr(true, column) / TERA:.3f}")


def _record(row: Row) -> dict[str, object]:
    ours, true = row.as_counted(), row.true()
    return {
        "generator": row.backbone,
        "compressor": row.method,
        "prompt": {"as_counted": row.prompt, "true": row.true_prompt},
        **{
            column: {
                "paper": getattr(row.paper, column) * TERA,
                "as_counted": getattr(ours, column),
                "true": getattr(true, column),
            }
            for column in COLUMNS
        },
        "note": row.note,
    }
