"""``condensery eval embeddings``: encoders, stored or served elsewhere, judged side by side.

On folders of rows, by mteb's tasks and measures; nothing is fetched.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, urlsplit

from condensery.atomic_files import write_atomically
from condensery.errors import CondenseryError, InputError, ReportNotFound, StorageError, shorten
from condensery.index.prompts import PROMPT_PURPOSES
from condensery.methods.judging.encoders import (
    DEFAULT,
    KEY,
    PASSAGE,
    PURPOSES,
    EmbeddingServer,
    JudgedEncoder,
    KeptVectors,
    ServedEncoder,
    StoredEncoder,
    time_texts,
)
from condensery.methods.judging.figures import Measured, make_report, part_of
from condensery.methods.judging.report import draw_quality, draw_sets, write_page
from condensery.methods.judging.sets import (
    Cap,
    JudgedSet,
    JudgingRecipe,
    Kind,
    read_judged_sets,
    texts_of,
)
from condensery.methods.oscar.evaluating.parts import machine
from condensery.methods.ranking.parts import held, publish_report, report_with
from condensery.methods.trainer.arguments import open_model
from condensery.methods.trainer.reports import command_line
from condensery.parsers import Parser
from condensery.runtime.device import choose_device, choose_dtype, prepare_process
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore, shipped_store

PART = "judged"  # of a stored model's report
REPORT, PAGE, QUALITY, SETS = "report.json", "report.md", "quality.png", "sets.png"
TIMED, ROUNDS = 256, 5  # texts that are timed, and how often
HELP: Mapping[Kind, str] = {
    "sts": "rows of text1, text2, score: Spearman's correlation",
    "classification": "rows of text, label, and train rows beside them: a linear probe's accuracy",
    "pairs": "rows of text1, text2, label 1 or 0: average precision",
    "clustering": "rows of text, label: V-measure",
    "retrieval": "in BEIR's form: nDCG@10",
    "reranking": "rows of text1, a query, text2, a passage, label 1 or 0: mean average precision",
}
log = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = Parser(prog="condensery eval embeddings", description=__doc__)
    models = parser.add_argument_group("encoders; the others are compared with the first")
    add = models.add_argument
    add("--model", action="append", default=[], metavar="NAME", help="a stored one; again for more")
    add("--store", type=Path, help="root of your own stored models")
    add(
        "--url",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a model of an OpenAI-compatible server (http://HOST/v1); again for more. Its key, if"
        f" it wants one, is in {KEY}",
    )
    add(
        "--url-prompt",
        action="append",
        default=[],
        metavar="NAME:PURPOSE=TEXT",
        help=f"what texts of {', '.join(PROMPT_PURPOSES)} or {DEFAULT} begin with at a URL",
    )
    add("--characters", type=int, default=0, help="cut texts for URLs to so many (0: sent whole)")
    sets = parser.add_argument_group("sets: folders of JSONL (plain, .gz, .xz); again for more")
    for kind in get_args(Kind):
        sets.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="DIR[:SPLIT]",
            help=f"{HELP[kind]} (SPLIT: test)",
        )
    sets.add_argument("--most", type=int, default=0, help="rows or queries of a set (0: all)")
    sets.add_argument(
        "--most-passages", type=int, help="of a corpus, beside the relevant ones (all)"
    )
    recipe, how = JudgingRecipe(), parser.add_argument_group("how")
    add = how.add_argument
    add("--experiments", type=int, default=recipe.experiments, help="probes, and clusterings (10)")
    add(
        "--samples-per-label",
        type=int,
        default=recipe.samples_per_label,
        help="rows of each label that a probe learns from (8)",
    )
    add("--seed", type=int, default=recipe.seed, help="of all draws (42)")
    add("--device", default="auto", help="cpu, cuda (auto)")
    add("--dtype", default="auto", help="float32, bfloat16 (auto: as it would serve here)")
    add("--workers", type=int, help="threads of one each on a CPU (a core each)")
    add("--rounds", type=int, default=ROUNDS, help=f"of timing, medians; 0: untimed ({ROUNDS})")
    add("--out", type=Path, required=True, help="folder for all that comes of it; the same command"
        " goes on there, so does one with more encoders or sets")  # fmt: skip
    add(
        "--publish",
        action="store_true",
        help="put the figures into the stored models' own reports: a new version of each",
    )
    return parser


def read_servers(args: argparse.Namespace, key: str) -> list[EmbeddingServer]:
    """Return the URLs that the flags name.

    Raises:
        InputError: One is of another form, there is no such purpose, or the key would go to
            several servers.
    """
    prompts: dict[str, dict[str, str]] = {}
    named = [text.partition("=") for text in args.url]
    for text in args.url_prompt:
        place, found, prompt = text.partition("=")
        name, _, purpose = place.rpartition(":")
        if not found or name not in [name for name, _, _ in named]:
            raise InputError.at("url-prompt", f"{shorten(text)} names no --url's NAME", text)
        if purpose not in (*PROMPT_PURPOSES, DEFAULT):
            there = ", ".join((*PROMPT_PURPOSES, DEFAULT))
            raise InputError.at("url-prompt", f"{shorten(purpose)} is none of {there}", purpose)
        prompts.setdefault(name, {})[purpose] = prompt
    if bad := next((name for name, _, url in named if not name or not url), None):
        raise InputError.at("url", f"{shorten(bad)} is not NAME=URL", bad)
    if args.characters < 0:
        raise InputError.at("characters", f"{args.characters} is less than 0", args.characters)
    servers = [
        EmbeddingServer(name, url, key, prompts.get(name), args.characters)
        for name, _, url in named
    ]
    if key and len({urlsplit(server.url).netloc for server in servers}) > 1:
        raise InputError.at(
            "url",
            f"several servers, and the one key of {KEY} would go to all of them: judge each in a"
            " run of its own, with the same --out",
        )
    return servers


def open_encoders(args: argparse.Namespace) -> list[JudgedEncoder]:
    """Return the encoders that the flags name; none is loaded yet.

    Raises:
        ModelNotFound: The store has no such model.
        InputError: A model is no encoder, there is none, or two have one name.
    """
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    workers = workers_of(args)
    store = ModelStore(shipped_store(), args.store)
    encoders: list[JudgedEncoder] = [
        StoredEncoder(open_model(store, name, "encoder"), workers, device, dtype)
        for name in args.model
    ]
    encoders += [ServedEncoder(server) for server in read_servers(args, os.environ.get(KEY, ""))]
    names = [encoder.name for encoder in encoders]
    if not names:
        raise InputError("no encoder to judge: --model or --url", field="model")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError.at("model", f"{shorten(twice[0])} is named twice", twice[0])
    return encoders


def workers_of(args: argparse.Namespace) -> int:
    """Return how many threads stored encoders run on, on a CPU."""
    return args.workers or len(os.sched_getaffinity(0))


def kept(path: Path, about: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> Any:
    """Return what a file holds, or make it and keep it there.

    Args:
        path: Of the file; what it depends on is in it before it is made.
        about: What it depends on.
        make: Makes it.

    Raises:
        InputError: The file is damaged, or holds what depends on something else; names what.
    """
    wanted = json.loads(json.dumps(about))
    if path.exists():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            before = content["about"]
            names = sorted({*before, *wanted})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError.at(
                "out", f"{path} is damaged ({error!r}); remove it", str(path)
            ) from error
        differing = [
            f"{name}: {shorten(before.get(name))}, not {shorten(wanted.get(name))}"
            for name in names
            if before.get(name) != wanted.get(name)
        ]
        if differing:
            raise InputError.at(
                "out",
                f"{path} is of something else ({'; '.join(differing)}): give another folder, or"
                " remove the file and what is beside it",
                str(path),
            )
        if "made" in content:
            return content["made"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"about": wanted}) + "\n")
    made = make()
    write_atomically(path, json.dumps({"about": wanted, "made": made}) + "\n")
    return made


@dataclass(frozen=True, slots=True)
class Timing:
    """What is timed, and how.

    Attributes:
        texts: Embedded all at once.
        rounds: Of each encoder; 0: none is timed.
        workers: Threads that it runs on, on a CPU.
    """

    texts: list[str]
    rounds: int
    workers: int


def measure(
    encoder: JudgedEncoder,
    sets: Sequence[JudgedSet],
    recipe: JudgingRecipe,
    timing: Timing,
    folder: Path,
) -> Measured:
    """Judge an encoder on all sets, and time it; what is in its folder is not made again."""
    scores: dict[str, Any] = {}
    for number, item in enumerate(sets, start=1):
        log.info("%s, set %d of %d: %s", encoder.name, number, len(sets), item.key)
        scores[item.key] = judge_kept(encoder, item, recipe, folder)
        log.info("%s, %s: %.4f", encoder.name, item.key, scores[item.key]["value"])
    facts = kept(folder / "facts.json", encoder.about, encoder.facts)
    speed: dict[str, Any] = {}
    if timing.rounds:
        # Of other texts, or otherwise, it is another figure, and no contradiction.
        digest = hashlib.sha256(json.dumps(asdict(timing)).encode()).hexdigest()[:16]
        speed = kept(
            folder / f"speed-{digest}.json",
            encoder.about,
            lambda: time_texts(encoder, timing.texts, timing.rounds),
        )
        log.info("%s: %.0f texts a second", encoder.name, speed["texts_a_second"])
    return Measured(encoder.name, encoder.about, facts, scores, speed)


def judge_kept(
    encoder: JudgedEncoder, item: JudgedSet, recipe: JudgingRecipe, folder: Path
) -> dict[str, Any]:
    """Return an encoder's score on a set, which is kept; until then its vectors are.

    Raises:
        InputError: What is kept is of another model, other data or another recipe.
    """
    from condensery.methods.judging import tasks  # mteb: seconds, and an extra of its own

    name = quote(item.key, safe="")
    vectors = KeptVectors(
        encoder,
        folder / f"{name}.vectors",
        lambda done: log.info("%s, %s: %d texts embedded", encoder.name, item.key, done),
    )
    about = {
        **encoder.about,
        "prompt": encoder.prompt(PURPOSES[item.kind], tasks.instruction_of(item.kind)),
        "passage_prompt": encoder.prompt(PASSAGE, ""),
        "data": item.content,
        **asdict(recipe),
        "resamples": tasks.RESAMPLES,
        "mteb": version("mteb"),
    }
    score: dict[str, Any] = kept(
        folder / f"{name}.json",
        about,
        lambda: asdict(tasks.judge(item, encoder, vectors.embed, recipe)),
    )
    vectors.remove()
    return score


def timed_texts(sets: Sequence[JudgedSet], most: int = TIMED) -> list[str]:
    """Return what is timed: each set's first texts, as many of each."""
    share = max(1, most // len(sets))
    return [text for item in sets for text in texts_of(item)[:share]]


def publish(
    store: ModelStore, encoder: StoredEncoder, report: Mapping[str, Any], plots: Mapping[str, Path]
) -> None:
    """Put what a comparison says of a stored encoder into its report; nothing if it is there."""

    def figures(entry: Any) -> Any:
        named = entry.items() if isinstance(entry, dict) else ()
        return {name: value for name, value in named if name not in ("date", "command")}

    stored = store.open(encoder.name)
    part = part_of(report, encoder.name)
    try:
        before = StoredReport(stored).report().report.get(PART, {})
    except ReportNotFound:
        before = {}
    if all(figures(entry) == figures(before.get(name)) for name, entry in part.items()):
        log.info("%s: its report says so already", encoder.name)
        return
    new = publish_report(store, stored, report_with(stored, PART, part), plots)
    log.info("%s: version %s", new.name, new.version)


def run(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Judge all, and write report, page and plots; returns the page."""
    if args.rounds < 0:
        raise InputError.at("rounds", f"{args.rounds} is less than 0", args.rounds)
    recipe = JudgingRecipe(args.experiments, args.samples_per_label, args.seed)
    encoders = open_encoders(args)
    cap = Cap(args.most, args.most_passages, args.seed)
    named = [(kind, text) for kind in get_args(Kind) for text in getattr(args, kind)]
    sets = read_judged_sets(named, cap)
    timing = Timing(timed_texts(sets), args.rounds, workers_of(args))
    models = []
    for encoder in encoders:
        with closing(encoder):
            folder = args.out / "encoders" / quote(encoder.name, safe="")
            models.append(measure(encoder, sets, recipe, timing, folder))
    device = choose_device(args.device)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": command_line("eval embeddings", words),
        "machine": machine(device, choose_dtype(device, args.dtype)),
        "versions": {name: version(name) for name in ("condensery", "mteb", "torch")},
        "recipe": {**asdict(recipe), **asdict(cap), "workers": timing.workers},
        **make_report(
            models,
            {item.key: {"count": item.count, "content": item.content} for item in sets},
        ),
    }
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(args.out / REPORT, text + "\n")
    draw_quality(report, args.out / QUALITY)
    draw_sets(report, args.out / SETS)
    page = write_page(report)
    write_atomically(args.out / PAGE, page)
    if args.publish:
        store = ModelStore(shipped_store(), args.store)
        plots = {
            "plots/judged-quality.png": args.out / QUALITY,
            "plots/judged-sets.png": args.out / SETS,
        }
        for encoder in encoders:
            if isinstance(encoder, StoredEncoder):
                publish(store, encoder, report, plots)
    return page


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval embeddings``."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(words)
    if args.publish and args.store is None:
        raise InputError.at("publish", "needs --store, the root that takes the new versions")
    try:
        version("mteb")
    except PackageNotFoundError:
        raise CondenseryError(
            "the package mteb is missing: pip install 'condensery[bench]'"
        ) from None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for library in ("mteb", "httpx", "datasets"):
        logging.getLogger(library).setLevel(logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # rows are here; nothing is looked for elsewhere
    prepare_process()
    try:
        with held(args.out):
            page = run(args, words)
    except OSError as error:
        raise StorageError(f"{args.out}: {error.strerror or error}") from error
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
