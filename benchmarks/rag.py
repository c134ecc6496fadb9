"""The shipped pair judged as a whole, over the sample index and technical documentation.

A server of its own on loopback, on a fresh data directory, with the defaults of `condensery serve`;
one question at a time. Each set's table, figures, picture and rows go into a folder of --out, and
README.md there tells of both, of one that was not run what the folder has of it:

    OMP_NUM_THREADS=1 python benchmarks/rag.py --out docs/benchmarks/rag
"""

import argparse
import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recording import Recording, tell_machine, tell_others, tell_versions

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "service" / "condensery" / "samples" / "questions.jsonl"
PACKAGES = ("condensery", "torch", "transformers", "faiss-cpu", "tokenizers")
SHOWN = (
    "answered",
    "right",
    "f1",
    "wrong_but_answered",
    "not_found_but_answerable",
    "right_and_verbatim",
    "verbatim_of_right",
    "grounded",
    "citation_first",
    "citation_by_offsets",
    "unanswerable_but_answered",
)
SECONDS = 900  # for a server to be ready
SETS = ("samples", "technical")
# Above either, times say nothing: processes a core that wait or run before the run, and cores that
# others took during it.
BUSY, TAKEN = 2.0, 0.5


def command(*words: str) -> list[str]:
    """Return a command of ours, of this Python's environment."""
    return [str(Path(sys.executable).with_name("condensery")), *words]


@contextlib.contextmanager
def serving(folder: Path, flags: Sequence[str]) -> Iterator[str]:
    """Serve on a data directory in ``folder``; yields the URL."""
    log = folder / "log"
    home = {**os.environ, "HOME": str(folder)}
    words = command(
        "serve", "--port", "0", "--grpc-port", "0", "--data-dir", str(folder / "data"), *flags
    )
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=home)
    try:
        ends = time.monotonic() + SECONDS
        while not (found := re.search(r"REST on (http\S+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"the server does not serve:\n{log.read_text()}")
            time.sleep(0.2)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def evaluate(url: str, index: str, questions: Path, work: Path, more: Sequence[str]) -> Path:
    """Run `condensery eval rag`; returns its folder. Questions that fail are in its figures."""
    out = work / f"of-{index}"
    words = ("--index", index, "--questions", str(questions), "--out", str(out))
    asked = subprocess.run(
        command("eval", "rag", "--url", url, *words, "--without-passage", *more), check=False
    )
    if not (out / "report.json").exists():
        raise SystemExit(asked.returncode)
    return out


def keep(made: Path, folder: Path, about: Mapping[str, Any]) -> None:
    """Copy what was made, with the machine in its figures and the rows compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    report = json.loads((made / "report.json").read_text(encoding="utf-8"))
    # The command that makes it again is the benchmark's: this one's port and folder are gone.
    again = {key: value for key, value in report.items() if key != "command"}
    report = {**about, **again}
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    page = (made / "report.md").read_text(encoding="utf-8").rpartition("\n```\n")[0]
    page = page.rpartition("\n```\n")[0].rstrip("\n")
    (folder / "report.md").write_text(f"{page}\n\n![plot](plot.png)\n", encoding="utf-8")
    (folder / "plot.png").write_bytes((made / "plot.png").read_bytes())
    rows = gzip.compress((made / "rows.jsonl").read_bytes(), mtime=0)
    (folder / "rows.jsonl.gz").write_bytes(rows)


def render(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page that tells of all sets."""
    columns = {
        (name, setting): figures
        for name, report in reports.items()
        for setting, figures in report["settings"].items()
    }
    heads = [
        f"{name}, without its passage" if setting == "without_passage" else name
        for name, setting in columns
    ]
    lines = [
        "# The shipped pair, judged as a whole",
        "",
        "As `condensery serve` ships it, one question at a time; below is which version, and when.",
        "What each figure is: [evaluation](../../evaluation.md#a-service-as-a-whole).",
        "",
        f"| percent, with 95% intervals | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for name in SHOWN:
        cells = [tell_share(figures.get(name)) for figures in columns.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    times = [
        f"{f['ms']['p50']:.0f} / {f['ms']['p95']:.0f}"
        if "ms" in f and not busy(reports[n])
        else "–"
        for (n, _), f in columns.items()
    ]
    lines += [f"| ms, p50 / p95 | {' | '.join(times)} |", ""]
    for name, report in reports.items():
        at = report["server"]
        lines += [
            (
                f"- **{name}**: `{at['pair']}` {at['version']} ({at['dtype']}, `min_relevance`"
                f" {at['min_relevance']:g}); {report['settings']['as_it_is']['questions']}"
                f" questions over {at['documents']:,} documents in {at['passages']:,} passages:"
                f" [table and examples]({name}/report.md), [figures]({name}/report.json),"
                f" [rows]({name}/rows.jsonl.gz). Made on {report['date']} by"
                f" `{report['command']}` on {tell_machine(report)}; {tell_versions(report)};"
                f" {tell_others(report)}."
            )
            + (" Its times are left out: the machine was busy." if busy(report) else "")
        ]
    return "\n".join([*lines, ""])


def busy(report: Mapping[str, Any]) -> bool:
    """Whether the machine had so much else to do that times say nothing."""
    others = report["others"]
    waited = others["load_before"] > BUSY * report["machine"]["cores"]
    return bool(waited or others["cores"] > TAKEN)


def tell_share(figure: Mapping[str, float] | None) -> str:
    """Return a share with its interval."""
    if figure is None:
        return "–"
    return f"{figure['mean']:.1f} ({figure['low']:.1f} to {figure['high']:.1f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sets and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--count", type=int, metavar="N", help="only so many questions of each set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="default: both")
    parser.add_argument(
        "--serve", nargs="*", default=[], metavar="FLAG", help="more for the server"
    )
    args = parser.parse_args(argv)
    more = ["--count", str(args.count)] if args.count else []
    recording = Recording("benchmarks/rag.py", *PACKAGES)
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        technical = work / "technical"
        if "technical" in args.sets:
            script = ROOT / "benchmarks" / "technical" / "collection.py"
            subprocess.run([sys.executable, str(script), "--out", str(technical)], check=True)
        with serving(work, args.serve) as url:
            if "technical" in args.sets:
                documents = str(technical / "documents.jsonl")
                subprocess.run(
                    command("index", "add", "technical", documents, "--url", url), check=True
                )
            questions = {"samples": SAMPLES, "technical": technical / "questions.jsonl"}
            for name in args.sets:
                folder = evaluate(url, name, questions[name], work, more)
                keep(folder, args.out / name, recording.about())
    write_page(args.out)


def write_page(out: Path) -> None:
    """Write the page of all sets that a folder has."""
    paths = {name: out / name / "report.json" for name in SETS}
    reports = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }
    (out / "README.md").write_text(render(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
