"""Measure what vectors lose in fewer bytes: recall@10 and nDCG@10 of each encoding.

And, with --weights, what those lose whose encoder's own weights are rounded.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from condensery.capacity.machine import kind_of, read_cpu
from condensery.encodings import (
    BINARY_ENCODINGS,
    ENCODINGS,
    Encoding,
    decode,
    encode,
    encoded_width,
    int8_range,
)
from condensery.index.prompts import make_index_prompts
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.parts import check_out, publish_report, report_with, write_part
from condensery.methods.ranking.retrieval import embed, running, titled_text
from condensery.methods.ranking.sets import RankingSet, add_sets, read_sets
from condensery.methods.trainer.arguments import open_model
from condensery.methods.trainer.reports import bootstrap, command_line
from condensery.networks.quantised import EncoderWeights
from condensery.parsers import Parser
from condensery.runtime.device import (
    check_weights,
    choose_device,
    choose_dtype,
    prepare_process,
)
from condensery.runtime.encoder import Encoder
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, shipped_store
from condensery.values import Floats

log = logging.getLogger(__name__)
PART = "encodings"  # of a report
DEPTH, SEED = 10, 17
EXACT: Encoding = "float32"
# uint8 and binary hold the very numbers of int8 and ubinary.
SAME: dict[Encoding, Encoding] = {"uint8": "int8", "binary": "ubinary"}
MEASURED = tuple(encoding for encoding in ENCODINGS if encoding not in SAME)
BLOCK = 64  # queries scored at once
MEASURES = ("recall@10", "ndcg@10", "kept@10")

Wide = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Form:
    """A way to give vectors.

    Attributes:
        name: In the report.
        encoding: Of their numbers.
        dims: First numbers that are kept.
    """

    name: str
    encoding: Encoding
    dims: int


@dataclass(frozen=True, slots=True)
class Rounded:
    """Vectors of an encoder whose weights are rounded.

    Attributes:
        weights: To what.
        queries: (queries, dims), of length 1.
        passages: (passages, dims), of length 1.
    """

    weights: EncoderWeights
    queries: Floats
    passages: Floats


def forms(dims: int, lengths: Sequence[int]) -> list[Form]:
    """Return what is measured: every encoding, and float32 at each length that is declared."""
    whole = [Form(encoding, encoding, dims) for encoding in MEASURED]
    return whole + [
        Form(f"{EXACT}_{length}", EXACT, length) for length in lengths if length != dims
    ]


def vectors_of(encoder: Encoder, ranking_set: RankingSet) -> tuple[Floats, Floats]:
    """Return the vectors of a set's queries and passages, of length 1, (texts, dims) each.

    Passages are read with their titles; what is too long is cut.
    """
    prompts = make_index_prompts(encoder)
    queries = embed(encoder, list(ranking_set.queries.values()), prompts.query)
    passages = embed(
        encoder, [titled_text(passage) for passage in ranking_set.passages], prompts.passage
    )
    return _unit(queries), _unit(passages)


def nearest(queries: Floats, passages: Floats, form: Form, depth: int = DEPTH) -> NDArray[np.int64]:
    """Return each query's best passages by inner product, both given in a form.

    Of equal ones, of which bits make many, the earlier passage comes first.

    Args:
        queries: (queries, dims), of length 1.
        passages: (passages, dims), of length 1.
        form: What both go through.
        depth: How many.

    Returns:
        Places of passages, best first, (queries, depth).
    """
    wanted, corpus = (
        _numbers(_unit(vectors[:, : form.dims]), form) for vectors in (queries, passages)
    )
    places = [
        np.argsort(-(wanted[start : start + BLOCK] @ corpus.T), axis=1, kind="stable")[:, :depth]
        for start in range(0, len(wanted), BLOCK)
    ]
    return np.concatenate(places)


def measure(
    ranking_set: RankingSet,
    queries: Floats,
    passages: Floats,
    lengths: Sequence[int] = (),
    *,
    rounded: Rounded | None = None,
    seed: int = SEED,
) -> dict[str, Any]:
    """Measure every form on a set.

    Args:
        ranking_set: The set.
        queries: Vectors of its queries, (queries, dims), of length 1.
        passages: Of its passages.
        lengths: To which vectors may be cut.
        rounded: The same texts' vectors where the encoder's weights are rounded.
        seed: Of the bootstrap.

    Returns:
        For each form ``recall@10`` (mean share of a query's judged passages among its ten best),
        ``ndcg@10``, ``kept@10`` (share of float32's ten best that are among its own), bytes of a
        vector, and under ``loss`` float32's figures less its own with 95% intervals, paired over
        queries. ``weights_*`` are forms by rounded weights, and ``*_queries`` those of them whose
        passages are by the exact ones, as an index has them that was there before; the
        former's ``cosine`` is to the exact vectors, the least and the mean.
    """
    dims = queries.shape[1]
    tried = [(form, queries, passages) for form in forms(dims, lengths)]
    if rounded is not None:
        name = f"weights_{rounded.weights}"
        tried += [
            (Form(name, EXACT, dims), rounded.queries, rounded.passages),
            (Form(f"{name}_queries", EXACT, dims), rounded.queries, passages),
        ]
    columns = _columns_of(ranking_set, tried)
    figures: dict[str, Any] = {}
    for form, *_ in tried:
        own = columns[form.name]
        means = zip(MEASURES, own.mean(axis=0), strict=True)
        figures[form.name] = {
            "bytes": len(encode(_unit(passages[:1, : form.dims]), form.encoding).tobytes()),
            **{name: round(float(mean), 4) for name, mean in means},
        }
        if form.name != EXACT:
            figures[form.name]["loss"] = _loss(columns[EXACT], own, seed)
    for encoding, like in SAME.items():
        figures[encoding] = {"same_as": like}
    if rounded is not None:
        both = np.concatenate([queries, passages])
        cosines = (both * np.concatenate([rounded.queries, rounded.passages])).sum(axis=1)
        pair = [round(float(cosine), 5) for cosine in (cosines.min(), cosines.mean())]
        figures[name]["cosine"] = pair
    over = float((np.abs(passages) > int8_range(dims)).mean())
    return {
        "queries": len(ranking_set.queries),
        "passages": len(ranking_set.passages),
        "seed": seed,
        "dims": dims,
        "int8_range": round(int8_range(dims), 6),
        "int8_cut_share": round(over, 8),
        "forms": figures,
    }


def _columns_of(
    ranking_set: RankingSet, tried: Sequence[tuple[Form, Floats, Floats]]
) -> dict[str, Wide]:
    """Return each query's measures by form; the first form is what the others are kept of.

    Args:
        ranking_set: The set.
        tried: Forms, and the queries' and passages' vectors that go through each.
    """
    names = [passage.id for passage in ranking_set.passages]
    columns: dict[str, Wide] = {}
    exact: list[set[str]] = []
    for form, queries, passages in tried:
        places = nearest(queries, passages, form)
        hits = {
            query: [names[i] for i in row]
            for query, row in zip(ranking_set.queries, places, strict=True)
        }
        exact = exact or [set(ranked) for ranked in hits.values()]
        columns[form.name] = _columns(ranking_set, hits, exact)
    return columns


def _loss(exact: Wide, own: Wide, seed: int) -> dict[str, list[float]]:
    """Return what a form loses of recall and nDCG: mean and 95% interval."""
    lost = bootstrap(exact[:, :2] - own[:, :2], seed=seed)
    return {
        name: [round(float(x), 4) + 0.0 for x in row]  # 0, never -0
        for name, row in zip(
            MEASURES, zip(lost.mean, lost.low, lost.high, strict=True), strict=False
        )
    }


def publish(store: ModelStore, stored: StoredModel, part: Mapping[str, Any]) -> StoredModel:
    """Put the next version of a model into the store, whose report has these sets too."""
    return publish_report(store, stored, report_with(stored, PART, part))


def _columns(
    ranking_set: RankingSet, hits: Mapping[str, Sequence[str]], exact: Sequence[set[str]]
) -> Wide:
    """Return each query's measures, (queries, measures)."""
    gains = ndcg(hits, ranking_set.judged, DEPTH)
    rows = []
    for (query, best), before in zip(hits.items(), exact, strict=True):
        judged = ranking_set.judged[query].keys()
        recall = len(judged & set(best)) / len(judged)
        rows.append((recall, gains[query], len(before & set(best)) / max(1, len(before))))
    return np.array(rows)


def _numbers(vectors: Floats, form: Form) -> Wide:
    """Return what a search compares; of bits whole numbers, so that equal scores are equal."""
    encoded = encode(vectors, form.encoding)
    assert encoded.shape[1] == encoded_width(form.encoding, form.dims)
    back = decode(encoded, form.encoding, form.dims)
    return (np.sign(back) if form.encoding in BINARY_ENCODINGS else back).astype(np.float64)


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval encodings``."""
    parser = Parser(prog="condensery eval encodings", description=__doc__)
    parser.add_argument("--model", required=True, help="a stored encoder's name")
    parser.add_argument("--store", type=Path, required=True, help="root of the stored models")
    add_sets(parser, seed=SEED)
    parser.add_argument("--workers", type=int, default=1, help="threads of one each on a CPU")
    parser.add_argument(
        "--weights",
        choices=get_args(EncoderWeights),
        default="float",
        help="what the encoder's weights are held as, measured beside the exact ones (%(default)s)",
    )
    parser.add_argument(
        "--publish", action="store_true", help="put it into the model's report: a new version"
    )
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    check_out(args.out)
    prepare_process()
    sets = read_sets(dict.fromkeys(args.sets), queries=args.queries, seed=args.seed)
    store = ModelStore(shipped_store(), args.store)
    stored = open_model(store, args.model, "encoder")
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    weights: EncoderWeights = args.weights
    check_weights("weights", device, weights)
    part = {}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        encoder = stack.enter_context(running(stored, args.workers, device, dtype))
        coarse = None
        if weights != "float":
            coarse = stack.enter_context(running(stored, args.workers, device, dtype, weights))
        about = {
            "fingerprint": encoder.info.fingerprint,
            "dtype": encoder.info.dtype,
            "cpu": kind_of(read_cpu()[1]),
            "command": command_line("eval encodings", words),
        }
        for ranking_set in sets:
            log.info(
                "%s: %d passages, %d queries",
                ranking_set.name,
                len(ranking_set.passages),
                len(ranking_set.queries),
            )
            vectors, rounded = vectors_of(encoder, ranking_set), None
            if coarse is not None:
                rounded = Rounded(weights, *vectors_of(coarse, ranking_set))
            lengths = encoder.info.dimensions
            figures = measure(ranking_set, *vectors, lengths, rounded=rounded, seed=args.seed)
            part[ranking_set.name] = {**figures, **about}
    sys.stdout.write(write_part({PART: part}, args.out))
    if args.publish:
        new = publish(store, stored, part)
        log.info("%s: version %s", new.name, new.version)


if __name__ == "__main__":
    main()
