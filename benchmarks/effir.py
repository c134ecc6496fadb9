"""What dropping MLPs, attentions or layers costs a retriever, and what slimming adds (EffiR).

Makes each variant of a stored encoder by ``condensery effir build``, untuned and tuned on the same
rows, and puts nDCG@10, size and speed into one table. What is made is kept in --work: run again to
go on.

    python benchmarks/effir.py --model minilm-l6 --store STORE --work WORK --text TEXT...
        [--rows ROWS...] --set SCIFACT MEDQUAD --out docs/benchmarks/effir-minilm-l6
        [flags of condensery effir build, e.g. --steps 300]

Writes OUT.json and OUT.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from condensery.methods.effir.command import main as build
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore, shipped_store

DROPS = tuple((kind, count) for kind in ("mlp", "attention", "blocks") for count in (1, 2, 3))
WIDTH = 0.3
PAGE = """# EffiR on `{model}`

Made on {date} by `{command}`; {versions}. nDCG@10 over whole corpora, difference from the parent
with 95% intervals (paired bootstrap over queries); speed-up in process on passages, in brackets
what the parent's own profile predicts.

{table}
"""


def variants(tuned: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each variant's name and flags; tuned ones are made after the untuned."""
    for tuning in (False, True) if tuned else (False,):
        end = ", tuned" if tuning else ""
        if tuning:
            yield "whole, tuned", []
        for kind, count in DROPS:
            yield f"{count} {kind} dropped{end}", [f"--drop-{kind}", str(count)]
        if tuning:
            yield (
                f"2 mlp dropped, {WIDTH:.0%} slimmed, tuned",
                [
                    *("--drop-mlp", "2"),
                    *("--width", str(WIDTH)),
                ],
            )


def make(args: argparse.Namespace, rest: Sequence[str]) -> list[dict[str, Any]]:
    """Make and measure what is not there yet."""
    found = []
    own = ModelStore(shipped_store(), args.store)
    for name, flags in variants(bool(args.rows)):
        slug = f"{args.model}-{'-'.join(name.replace(',', '').replace('%', '').split())}"
        if slug not in own.names():
            given = ["--model", args.model, "--store", str(args.store), "--name", slug]
            given += ["--out", str(args.work / slug), "--work", str(args.work / "quality")]
            given += ["--text", *map(str, args.text), "--set", *args.sets, *flags, *rest]
            if "tuned" in name:
                given += ["--rows", *map(str, args.rows)]
            build(given)
        report = StoredReport(own.open(slug)).report().report
        found.append({"variant": name, **report})
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write the table."""
    sets = list(rows[0]["retrieval"])
    head = ["variant", "parameters", *sets, "speed-up"]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    parent = rows[0]["cost"]["parent"]["parameters"]
    figures = [f"{rows[0]['retrieval'][one]['parent']['ndcg@10']:.3f}" for one in sets]
    lines.append(f"| parent | {parent / 1e6:.1f} M | {' | '.join(figures)} | 1.00x |")
    for row in rows:
        cells = []
        for one in sets:
            child = row["retrieval"][one]["model"]
            low, high = child["interval"]
            difference = f"{child['minus_parent']:+.3f}, {low:+.3f} to {high:+.3f}"
            cells.append(f"{child['ndcg@10']:.3f} ({difference})")
        speed = row["speed"]["passages"]
        size = row["cost"]["model"]["parameters"] / 1e6
        ratio = f"{speed['speed_up']:.2f}x ({speed['predicted']:.2f}x)"
        lines.append(f"| {row['variant']} | {size:.1f} M | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Make all, and write both files."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="the parent's name")
    parser.add_argument("--store", type=Path, required=True, help="receives what is made")
    parser.add_argument("--work", type=Path, required=True, help="what is trained and measured")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="calibration text")
    parser.add_argument("--rows", type=Path, nargs="+", default=(), help="to tune on")
    parser.add_argument("--set", dest="sets", nargs="+", required=True, metavar="DIR[:SPLIT]")
    parser.add_argument("--out", type=Path, required=True, help="without its ending")
    args, rest = parser.parse_known_args(given)
    rows = make(args, rest)
    words = ["/".join(Path(word).parts[-2:]) if "/" in word else word for word in given]
    about = {
        "model": args.model,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/effir.py {' '.join(words)}",
        "versions": ", ".join(f"{one} {version(one)}" for one in ("torch", "transformers")),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    page = PAGE.format(**about, table=table(rows))
    args.out.with_suffix(".md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
