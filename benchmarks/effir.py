"""What dropping MLPs, attentions or layers costs a retriever, and what slimming adds (EffiR).

Makes each variant of a stored encoder by ``condensery effir build``, untuned and tuned on the same
rows, then times all shapes by turns in one run, and puts nDCG@10, size and speed into one table.
What is made and measured is kept in --work: run again to go on. Rows of an earlier OUT.json stay
if they are not made again, where its parent was measured on the same sets and samples.

    python benchmarks/effir.py --model minilm-l6 --store STORE --work WORK --text TEXT...
        [--rows ROWS...] --set SCIFACT MEDQUAD --out docs/benchmarks/effir-minilm-l6
        [--make-only | --time-only | --page-only] [--steps 300 ...]

Further flags are those of condensery effir build. Writes OUT.json and OUT.md.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.atomic_files import write_atomically
from condensery.methods.effir.command import main as build
from condensery.methods.effir.measuring import times_of
from condensery.methods.effir.speed import ROUNDS
from condensery.methods.ranking.sets import read_sets
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.trainer.reports import table, without_folders
from condensery.networks.effir_shape import Pruning
from condensery.networks.loading import pruning_of
from condensery.runtime.device import choose_device, choose_dtype
from condensery.store.manifest import StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore, shipped_store
from condensery.store.writing import read_json

DROPS = tuple((kind, count) for kind in ("mlp", "attention", "blocks") for count in (1, 2, 3))
WIDTH = 0.3
SAME = 0.003  # nDCG@10 of one model on one sample, on two machines or in two dtypes
PAGE = """# EffiR on `{model}`

Timed on {timed_on}; {others}.
Made on {date} by `{command}`;
{versions}.

nDCG@10, difference from the parent as it came with 95% intervals (paired bootstrap over
queries); the command of each row is in the JSON. {searched}


{quality}

Speed-up in process over the parent, all shapes by turns, medians of {rounds} rounds; in brackets
the speed-up that the parent's own profile predicts, and the share of it that is reached:

{speed}
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


def make(args: argparse.Namespace, rest: Sequence[str]) -> dict[str, StoredModel]:
    """Make and measure what is not there yet; the variants by name."""
    own = ModelStore(shipped_store(), args.store)
    made = {}
    for name, flags in variants(bool(args.rows)):
        slug = f"{args.model}-{'-'.join(name.replace(',', '').replace('%', '').split())}"
        if slug not in own.names() and not (args.time_only or args.page_only):
            words = ["--model", args.model, "--store", str(args.store), "--name", slug]
            words += ["--out", str(args.work / slug), "--work", str(args.work / "quality")]
            words += ["--text", *map(str, args.text), "--set", *args.sets, "--rounds", "0"]
            if name.endswith("tuned"):
                words += ["--rows", *map(str, args.rows)]
            build([*words, *flags, *rest])
        if slug in own.names():
            made[name] = own.open(slug)
    return made


def comparable(reports: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier run's reports whose parent did as well on the same queries."""

    def parents(report: Any) -> dict[str, tuple[int, float]]:
        retrieval = report["retrieval"]
        return {
            name: (it["parent"]["queries"], it["parent"]["ndcg@10"])
            for name, it in retrieval.items()
        }

    def alike(report: Any, other: Any) -> bool:
        ours, theirs = parents(report), parents(other)
        return ours.keys() == theirs.keys() and all(
            ours[key][0] == theirs[key][0] and abs(ours[key][1] - theirs[key][1]) < SAME
            for key in ours
        )

    return {
        name: report
        for name, report in reports.items()
        if all(alike(report, it) for it in made.values())
    }


def timing(args: argparse.Namespace, made: Mapping[str, StoredModel]) -> dict[str, Any]:
    """Time the parent and one model of each shape by turns; by kind of text and variant."""
    parent = ModelStore(shipped_store(), args.store).open(args.model)
    shapes: dict[str, tuple[StoredModel, Pruning]] = {}
    for name, stored in made.items():
        pruning = pruning_of(read_json(stored.path / "config.json"))
        if pruning is not None and pruning not in (shape for _, shape in shapes.values()):
            shapes[name] = stored, pruning
    device = choose_device("auto")
    where = MeasuringSetup(device, choose_dtype(device, "auto"), workers=1, rounds=args.rounds)
    neurons = int(read_json(parent.path / "config.json")["intermediate_size"])
    return times_of(parent, shapes, read_sets(args.sets), where, neurons=neurons)


def quality_table(reports: Mapping[str, Any]) -> str:
    """Write the table of sizes and nDCG@10."""
    first = next(iter(reports.values()))
    sets = list(first["retrieval"])
    whole = [first["cost"]["parent"]["parameters"] / 1e6]
    rows = [
        ["parent", f"{whole[0]:.1f} M"]
        + [f"{first['retrieval'][set_name]['parent']['ndcg@10']:.3f}" for set_name in sets]
    ]
    for name, report in reports.items():
        cells = [name, f"{report['cost']['model']['parameters'] / 1e6:.1f} M"]
        for set_name in sets:
            child = report["retrieval"][set_name]["model"]
            low, high = child["interval"]
            difference = f"{child['minus_parent']:+.3f}, {low:+.3f} to {high:+.3f}"
            cells.append(f"{child['ndcg@10']:.3f} ({difference})")
        rows.append(cells)
    return "\n".join(table(["variant", "parameters", *sets], rows)).rstrip()


def speed_table(timed: Mapping[str, Any]) -> str:
    """Write the table of speeds."""
    if not timed:
        return "Not measured."
    rows = []
    for name in next(iter(timed.values()))["models"]:
        cells = [name]
        for figures in timed.values():
            own = figures["models"][name]
            share = own["speed_up"] / own["predicted"]
            cells.append(f"{own['speed_up']:.2f}x ({own['predicted']:.2f}x; {share:.2f} of it)")
        rows.append(cells)
    return "\n".join(table(["shape", *timed], rows)).rstrip()


def say_searched(rest: Sequence[str]) -> str:
    """Say which passages are searched: fewer than all make a figure look better than it is."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--set-queries", type=int, default=0)
    parser.add_argument("--set-others", type=int)
    sample = parser.parse_known_args(rest)[0]
    asked = (
        f"at most {sample.set_queries} queries of a set" if sample.set_queries else "all queries"
    )
    if sample.set_others is None:
        return f"Asked are {asked}; the whole corpus is searched."
    return (
        f"Asked are {asked}. Searched are the passages that are relevant to these and "
        f"{sample.set_others:,} others at random, **not the whole corpus**: over that, all figures "
        "are lower. Compare them with each other, not with what others report."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Make all, and write both files."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="the parent's name")
    parser.add_argument("--store", type=Path, required=True, help="receives what is made")
    parser.add_argument("--work", type=Path, required=True, help="what is trained and measured")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="calibration text")
    parser.add_argument("--rows", type=Path, nargs="+", default=(), help="to tune on")
    parser.add_argument("--set", dest="sets", nargs="+", required=True, metavar="DIR[:SPLIT]")
    parser.add_argument("--out", type=Path, required=True, help="without its ending")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of timing ({ROUNDS})")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--make-only", action="store_true", help="keep the timing of an earlier run")
    part.add_argument("--time-only", action="store_true", help="make nothing; time what is there")
    part.add_argument("--page-only", action="store_true", help="make and time nothing; write both")
    args, rest = parser.parse_known_args(words)
    command = without_folders(f"python benchmarks/effir.py {shlex.join(words)}")
    packages = ("condensery", "torch", "transformers")
    recording = Recording("benchmarks/effir.py", *packages, command=command)
    made = make(args, rest)
    kept = args.work / "speed.json"
    if not (args.make_only or args.page_only):
        timer = Recording("benchmarks/effir.py", *packages, command=command)  # its own neighbours
        timed = timing(args, made)
        times = {"speed": timed, "timed": timer.about() | {"rounds": args.rounds}}
        write_atomically(kept, json.dumps(times, indent=1) + "\n")
    record = args.out.with_suffix(".json")
    earlier = json.loads(record.read_text()) if record.is_file() else {"quality": {}, "speed": {}}
    # What was timed says on which machine that was: making the page again moves nothing.
    last = json.loads(kept.read_text()) if kept.is_file() else earlier
    timed = last.get("speed", last)  # alone in the file, in older ones
    on = last.get("timed") or {key: earlier[key] for key in ("machine", "rounds") if key in earlier}
    new = {name: StoredReport(stored).report().report for name, stored in made.items()}
    known = comparable(earlier["quality"], new) | new
    reports = {name: known[name] for name, _ in variants(tuned=True) if name in known}
    about = {
        **recording.about(),
        "model": args.model,
        "rounds": on.get("rounds", args.rounds),
        "searched": say_searched(rest),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    whole = {**about, "quality": reports, "speed": timed, "timed": on}
    record.write_text(raw(whole))
    context = {
        "versions": tell_versions(about),
        "timed_on": tell_machine(on) if "machine" in on else "a machine that was not noted",
        "others": tell_others(on),
    }
    page = PAGE.format(
        **(about | context), quality=quality_table(reports), speed=speed_table(timed)
    )
    args.out.with_suffix(".md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
