"""A pair's card: what it is, how well it answers, what it was made from.

Sections without figures are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from condensery.methods.oscar import tables
from condensery.methods.oscar.measured import Abstention, Passages, Report, WeightsMeasured
from condensery.methods.oscar.reporting import wrong_at
from condensery.methods.oscar.sources import COUNTS, KEPT_OUT_OF, SHARE_ALIKE, Source, family
from condensery.methods.trainer.reports import table
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.networks.oscar_shape import BertShape, OscarShape
from condensery.store.manifest import Manifest

PLOTS = {
    "cost": "F1 against what a question costs",
    "passages": "F1 against the number of passages retrieved",
    "training": "figures on validation questions against training",
    "abstention": "what a least relevance keeps and stops",
}
WALL = "wall clock "
TWO_WAY = ", sees a prompt from both sides"
# What sets.load_sets keeps out, whatever the questions are, of a folder of data sets.
KEPT_OUT = (
    "Kept out by each run: questions that SQuAD's dev set asks too or that are of its articles,",
    "passages that share ten words in a row with its paragraphs, Wikipedia passages of its titles;",
    "and the same for the articles of SQuAD's train part, drawn by the run's seed, that the run is",
    "validated on. What else is measured on is compared with nothing that it read.",
)


def what_it_is(manifest: Manifest) -> list[str]:
    """Say what a pair is: how it reads, what it becomes, how large it is."""
    parameters = manifest.cost.get("parameters")
    size = f"{parameters / 1e6:.1f} million" if isinstance(parameters, int) else "unknown"
    base = f"; it shares files with `{manifest.base}`" if manifest.base else ""
    return [
        "A pair that answers questions from compressed passages (OSCAR, arXiv:2504.07109).",
        *_halves(dict(manifest.shape), manifest.base),
        f"Parameters of its own: {size}, stored as {manifest.dtype}{base}.",
    ]


def _halves(shape: dict[str, Any], base: str | None) -> list[str]:
    if "family" in shape:
        causal = CausalShape.from_dict(shape)
        kind = _CAUSAL[causal.family, getattr(causal.compressor, "shared", False)]
        compressor, generator = causal.compressor, "is a causal language model"
        positions = causal.generator.positions
        copies = ""
    else:
        own = OscarShape.from_dict(shape)
        kind = f"The compressor, started from {base}," if base else "The compressor"
        compressor, generator = own, f"has {own.generator_layers} layers{TWO_WAY * own.two_way}"
        positions = own.generator_positions
        copies = ""
        if own.copy:
            what = "the words of its likeliest answer" if own.sharp else "a mix of its words"
            copies = f"A vector also carries what a pointer found in the passage, {what}"
    lines = [f"{kind} {_compresses(compressor)}"]
    if copies:
        lines.append(f"{copies}: it leans to copying.")
    if "family" not in shape and own.quote:
        lines.append(
            "Its answers are held to the passages read: each is one stretch of one of them."
        )
    lines.append(
        f"The generator {generator} and reads up to {positions} positions, answer included."
    )
    return lines


_CAUSAL = {
    ("causal", True): "The compressor, the generator with adapters of its own,",
    ("causal", False): "The compressor, a causal language model,",
    ("bert-causal", False): "The compressor, an encoder of BERT's size,",
}


def _compresses(shape: BertShape | CompressorShape) -> str:
    question = not isinstance(shape, CompressorShape) or shape.question
    most, *fewer = shape.vectors
    also = f" ({' or '.join(map(str, fewer))} on request)" if fewer else ""
    tokens = (
        f"up to {shape.passage_tokens} tokens"
        if isinstance(shape, BertShape)
        else f"up to {shape.text_tokens} tokens in all"
    )
    scores = " and a relevance score, in one forward pass" if shape.rerank else ""
    reads = "a question with a passage" if question else "a passage"
    return (
        f"turns {reads} of {tokens} into {most} vectors{also}{scores}; longer passages are windows."
    )


def what_it_cannot(manifest: Manifest) -> list[str]:
    """Say what a pair can't, whatever its figures are."""
    shape = dict(manifest.shape)
    small = OscarShape.from_dict(shape) if "family" not in shape else None
    query = (small or CausalShape.from_dict(shape).compressor).query_tokens
    lines = [f"A question of over {query} tokens leaves less of a window to the passage."]
    if small is not None and small.copy:
        lines.append(
            "Its words are its base encoder's, and it leans to copying those of the passages: "
            "long, composed or yes/no answers are not to be expected."
        )
    return lines


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a pair was made from.

    Attributes:
        manifest: What the store will say of it; its files do not matter.
        sources: The data sets.
        others: What else the run says of its data.
        trained: Steps that were done.
        base_licence: Of the stored model that it shares files with.
    """

    manifest: Manifest
    sources: Sequence[Source]
    others: Mapping[str, Any]
    trained: int | None = None
    base_licence: str = ""


def card(made: CardFacts, report: Report | None, plots: Sequence[str] = ()) -> str:
    """Write the card as Markdown.

    Args:
        made: What it was made from.
        report: What was measured, if anything was.
        plots: Names of the pictures that lie in ``plots/`` beside the card.
    """
    manifest = made.manifest
    parts = [f"# {manifest.name}", "", *what_it_is(manifest), ""]
    if report is not None:
        parts += measured(report, plots, manifest, made.sources)
    parts += [*_limits(manifest, report), *_made(made)]
    return "\n".join(parts).rstrip("\n") + "\n"


def measured(
    report: Report, plots: Sequence[str], manifest: Manifest, sources: Sequence[Source] = ()
) -> list[str]:
    """Return the lines that say how well a pair answers, of any kind of pair.

    Args:
        report: What was measured.
        plots: Names of the pictures that lie in ``plots/`` beside the card.
        manifest: What the store says of it: its defaults are told.
        sources: What it was trained on, so that rankings of the same data are called so.
    """
    on = report.measured_on
    about = [f"{on.questions} questions" + (f" of `{on.file}`" if on.file else "")]
    if report.seed is not None:
        about.append(f"seed {report.seed}")
    if on.passages_in_corpus:
        about.append(f"{on.passages_in_corpus} passages to retrieve from")
    if on.retrieval:
        about.append(f"retrieval: {on.retrieval}")
    if report.machine:
        about.append(f"machine: {report.machine}")
    whose = f"what is stored ({report.fingerprint})" if report.fingerprint else "the trained pair"
    parts = [
        *("## How well it answers", ""),
        f"{'; '.join(about)}. Measured on {whose}, run by the service's own code.",
        _legend(report),
        "",
        *tables.fixed_settings(report),
    ]
    retrieved = tables.retrieved_settings(report)
    if retrieved:
        parts += ["### From retrieved passages", ""]
        if any(setting.gold_found is not None for setting in report.settings.values()):
            parts += ["Found: percent of the questions whose own passage was retrieved.", ""]
        parts += retrieved
    parts += _pictures(plots, "cost", "passages")
    if report.gold_ranked_first_among_five is not None:
        share = report.gold_ranked_first_among_five
        parts += [
            f"The right one of the five is scored best for {share:.1f}% of the questions.",
            "",
        ]
    parts += tables.differences(report)
    for name in report.baselines:
        title = name.replace("_", " ")
        parts += [f"### Beside: {title}", ""]
        parts += [f"The share is this pair's EM as a percentage of the {title}'s, on the same"]
        parts += ["questions with the same passages.", "", *tables.baseline(report, name)]
    if report.rerank:
        parts += ["### Reranking", "", "nDCG@10 of what BM25 found, reordered by each.", ""]
        parts += [*tables.rerank(report), *_in_domain(report, sources)]
        parts += tables.rerank_differences(report)
    if report.passages is not None:
        parts += _passages(report.passages)
    return [*parts, *_behaviour(report, plots, manifest)]


def _passages(measured: Passages) -> list[str]:
    found = f"the {measured.depth or ''} passages that the {measured.search} search finds"
    return [
        *("### What an answer reads", ""),
        f"nDCG@10 of {' '.join(found.split())}: as found, by this pair, and by its logit less",
        f"{measured.rank_weight:g} times the logarithm of the place found, as the service orders",
        f"them (`rank_weight`, learnt on {', '.join(measured.learnt_on) or 'nothing here'}).",
        *("", *tables.passages(measured)),
        *(_near_misses(measured.near_misses, measured) if measured.near_misses else ()),
    ]


def _near_misses(measured: Abstention, passages: Passages) -> list[str]:
    rule = f" {measured.threshold:.4g} is {measured.rule}." if measured.threshold else ""
    asked = passages.near_misses_of or ", ".join(passages.learnt_on) or "its collections"
    return [
        *("### When the passage is not there", ""),
        f"Percent of questions of {asked}, on which this was learnt: their passage found, and",
        f"the same with it taken away, by the score under which nothing is answered.{rule}",
        *("", *tables.abstention(measured.curve)),
    ]


def _in_domain(report: Report, sources: Sequence[Source]) -> list[str]:
    """Say of which measured sets training read a part."""
    lines = []
    for name in report.rerank:
        read = [source for source in sources if family(name) in source.families]
        for source in read:
            counts = ", ".join(f"{source.counts[n]:,} {n}" for n in COUNTS if source.counts.get(n))
            lines.append(f"- `{name}` is in-domain: training read {counts} of {source.title}.")
        if sources and not read:
            lines.append(f"- `{name}`: no set of this name was trained on here.")
    return [*lines, ""] if lines else []


def _weights(measured: WeightsMeasured) -> list[str]:
    floats = f"floats ({measured.dtype})" if measured.dtype else "floats"
    return [
        "### Fewer bits a weight",
        "",
        f"The generator's weights rounded (`--generator-weights`), {measured.questions} questions",
        f"of {measured.file or 'a file without a name'}, the passage alone; against {floats}.",
        "",
        *tables.weights(measured),
    ]


def _legend(report: Report) -> str:
    """Say what the columns are that the tables have."""
    settings = report.settings.values()
    match = (
        " and match (the answer holds a right one)"
        if any(setting.match for setting in settings)
        else ""
    )
    words = f"EM, F1{match} in percent, SQuAD's normalisation"
    if any(setting.f1.low is not None for setting in settings):
        words += ", with 95% intervals (bootstrap over questions)"
    costs = [
        what
        for name, what in (
            ("tflops", "TFLOPs from the models' dimensions"),
            ("vectors", "memory vectors"),
            ("tokens", "prompt positions"),
            ("seconds", f"seconds {(report.measured_on.seconds or '').removeprefix(WALL)}".strip()),
        )
        if any(getattr(setting, name) is not None for setting in settings)
    ]
    return f"{words}; of a question: {', '.join(costs)}." if costs else f"{words}."


def _behaviour(report: Report, plots: Sequence[str], manifest: Manifest) -> list[str]:
    parts: list[str] = []
    if report.abstention is not None and report.abstention.curve:
        default = manifest.defaults.min_relevance
        threshold, rule = report.abstention.threshold, report.abstention.rule
        parts += [
            *("### When to say nothing", ""),
            "Percent of questions, by the score under which nothing is answered (`min_relevance`):",
            f"by default {'none' if default is None else f'{default:.4g}'}.",
            *([f"The report's {threshold:.4g} is, {rule}."] if rule and threshold else []),
            *(["It was chosen on the questions that it is reported for."] if threshold else []),
            "",
            *tables.abstention(report.abstention.curve),
            *_pictures(plots, "abstention"),
        ]
    if report.replaced is not None and report.replaced.follows_em is not None:
        swapped = report.replaced
        parts += [
            f"Where the answer's string is replaced in its passage ({swapped.questions} questions",
            f"answered right), {swapped.follows_em:.1f}% of the answers become the new string, and",
            f"{swapped.keeps_old_answer or 0:.1f}% stay the old one.",
            "",
        ]
    if report.weights is not None:
        parts += _weights(report.weights)
    if "training" in plots:
        parts += ["### Against training", "", *_pictures(plots, "training")]
    if report.examples:
        parts += ["### Examples", "", *tables.examples(report.examples)]
    if report.command:
        parts += ["Measured by", "", f"    {report.command}", ""]
    return parts


def _pictures(plots: Sequence[str], *names: str) -> list[str]:
    lines = [f"![{PLOTS[name]}](plots/{name}.png)" for name in names if name in plots]
    return [*lines, ""] if lines else []


def _limits(manifest: Manifest, report: Report | None) -> list[str]:
    """Say what it can't, from its dimensions and its figures."""
    lines = what_it_cannot(manifest)
    if report is None:
        lines.append("It was not measured.")
    else:
        lines += _measured_limits(report, manifest.defaults.min_relevance)
    return ["## Limits", "", *(f"- {line}" for line in lines), ""]


def _measured_limits(report: Report, min_relevance: float | None) -> list[str]:
    lines = []
    for better, worse, words in (
        ("gold_plain", "gold", "the right passage costs"),
        ("gold_among_five_plain", "gold_among_five", "five passages costs"),
    ):
        text, vectors = report.f1(better), report.f1(worse)
        if text is not None and vectors is not None and text > vectors:
            lines.append(
                f"Reading vectors instead of the text of {words} {text - vectors:.1f} points of F1."
            )
    curve = report.abstention.curve if report.abstention is not None else []
    wrong = wrong_at(curve, min_relevance or 0.0)
    if wrong is not None:
        lines.append(
            f"By default it still says something to {wrong:.1f}% of the questions whose passages "
            "do not hold the answer."
        )
    on = [f"answers of {report.measured_on.file or 'one file'}"]
    if report.rerank:
        on.append(f"rankings of {', '.join(report.rerank)}")
    if report.training:
        on.append("figures against training of questions that its run was validated on")
    lines.append(f"Measured were {'; '.join(on)}; on other text the figures may be others.")
    return lines


def _made(made: CardFacts) -> list[str]:
    manifest = made.manifest
    parts = ["## What it was made from", ""]
    parts += table(
        ("data", "licence", *COUNTS, "left out"),
        [_counted(source) for source in made.sources],
        left=2,
    )
    if made.sources and KEPT_OUT_OF not in made.others:
        parts += [*KEPT_OUT, ""]
    if made.others:
        others = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in made.others.items()
        )
        parts += [f"Also: {others}.", ""]
    if manifest.provenance.notes:
        parts += [*(f"- {note}" for note in manifest.provenance.notes), ""]
    command, seed = manifest.provenance.command, manifest.provenance.seed
    steps = f", {made.trained:,} steps done" if made.trained is not None else ""
    parts += [*(f"    {line}" for line in command.splitlines()), "", f"Seed {seed}{steps}.", ""]
    parts += ["## Licence", "", f"{manifest.licence}{_because(made)}"]
    if made.base_licence:
        parts.append(f"{manifest.base}: {made.base_licence}.")
    return parts


def _counted(source: Source) -> list[str]:
    counts = [f"{count:,}" if (count := source.counts.get(n)) else "" for n in COUNTS]
    reasons = [f"{why} {count:,}".strip() for why, count in source.left_out.items() if count]
    return [source.title, source.licence, *counts, "; ".join(reasons)]


def _because(made: CardFacts) -> str:
    if made.manifest.licence != SHARE_ALIKE:
        return "."
    asking = [source.title for source in made.sources if "BY-SA" in source.licence]
    return f", as {asking[0]} asks of work based on it." if asking else "."
