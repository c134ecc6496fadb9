"""Train a cross-encoder from a BERT: queries with passages that answer them and some that don't."""

import json
import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from transformers import BertForSequenceClassification

from condensery.atomic_files import write_atomically
from condensery.errors import CondenseryError
from condensery.methods.ranking.sets import parse_set
from condensery.methods.rerank.batches import Batch, Batches, RankLoss
from condensery.methods.rerank.model import PairTokenizer, fingerprint, open_base, write_model
from condensery.methods.rerank.negatives import Mined, load_or_mine, open_encoder
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.rerank.sets import RankingSets, load_sets
from condensery.methods.rerank.sources import Sources
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.progress import validation_curve
from condensery.methods.trainer.publishing import MODEL, recipe_identity, training_facts
from condensery.methods.trainer.questions import Wrong
from condensery.methods.trainer.reports import paired_bootstrap
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.parsers import Parser
from condensery.store.layouts import read_licence

log = logging.getLogger(__name__)
DATA = "data.json"
WHILE_TRAINING = 40  # held-out queries measured at each checkpoint; all of them at the end
Scorer = Callable[[str, Sequence[str]], list[float]]


class RerankTraining(Method[BertForSequenceClassification, Batch]):
    """The training of a cross-encoder, measured on held-out queries; see ``train``."""

    def __init__(
        self,
        sources: Sources,
        base: Path,
        sets: RankingSets,
        mined: Mined,
        model: BertForSequenceClassification,
        pair_tokenizer: PairTokenizer,
        recipe: RerankRecipe,
        setup: TrainingSetup,
    ) -> None:
        self._sources, self._base, self._sets, self._mined = sources, base, sets, mined
        self._pair_tokenizer, self._own_recipe, self._setup = pair_tokenizer, recipe, setup
        self.module, self.recipe = model, recipe.trainer(setup.every)
        setup.place(model)
        rows = [row for row, negatives in enumerate(mined.negatives) if negatives]
        self.report = {**sets.report, "left out: too few negatives": len(sets.train) - len(rows)}
        self._rank_loss = RankLoss(pair_tokenizer, recipe.objective)
        self._batches = Batches(
            sets.passages,
            [sets.train[row] for row in rows],
            [mined.negatives[row] for row in rows],
            pair_tokenizer,
            recipe,
        )
        self.identity = {
            "base": fingerprint(base),
            "recipe": recipe_identity(recipe),
            "data": sets.fingerprint(),
            "dtype": dtype_name(setup.dtype),
        }

    def batch(self, draw: Draw) -> Batch:
        """Return queries with a passage that answers them and some that don't."""
        return self._batches(draw)

    def loss(self, batch: Batch) -> Loss:
        """Return the recipe's objective."""
        return self._rank_loss(self.module, batch)

    def groups(self) -> list[Group]:
        """Return the base's parameters and the head's."""
        recipe = self._own_recipe

        def rate(name: str) -> float:
            return recipe.head_rate if name.startswith("classifier.") else recipe.rate

        return split_groups(self.module, rate, recipe.weight_decay)

    def evaluate(self) -> dict[str, object]:
        """Return how well each order ranks some of the held-out queries."""
        figures = self._measure(WHILE_TRAINING)
        return {n: figures[n] for n in ("bm25", "encoder", "cross_encoder") if n in figures}

    def write(self, out: Path) -> None:
        """Write the model as transformers reads it, with figures on all held-out queries."""
        card = make_card(self._sources, self._base, self._own_recipe, self._setup)
        card["data"] |= {"sha256": self.identity["data"], **self.report}
        card["dtype"] = self.identity["dtype"]
        card["base"]["sha256"] = self.identity["base"]
        card["figures"] = {"held_out": self._measure(), "while_training": validation_curve(out)}
        write_model(out, self.module, self._pair_tokenizer.tokenizer, card)

    def _measure(self, most: int | None = None) -> dict[str, object]:
        scorer = CrossEncoder(self.module, self._pair_tokenizer)
        return measure(scorer.scores, self._sets, self._mined, most)


def train(
    sources: Sources,
    base: Path,
    out: Path,
    recipe: RerankRecipe,
    *,
    setup: TrainingSetup | None = None,
) -> Path:
    """Train, and write the model as transformers reads it; resumes from ``out``.

    Args:
        sources: What to train and measure on.
        base: A BERT's directory; it also finds negatives by its vectors, so it should be a
            sentence encoder, unless the recipe searches by words only.
        out: Folder for negatives, checkpoints, log, and the model in ``model/``.
        recipe: How to train.
        setup: Where, and how often it saves; default: the CPU.

    Returns:
        The model's folder.

    Raises:
        InputError: The data, the base or the recipe is of no use; names field and value.
        StoreError: The base is no encoder.
        TrainingStopped: As ``run_training`` says.
    """
    setup = setup or TrainingSetup()
    model, pair_tokenizer = open_base(base, recipe.length, recipe.seed)
    queries = recipe.steps * recipe.accumulate * setup.processes.count * recipe.queries
    sets = load_sets(sources, recipe, most=queries)
    out.mkdir(parents=True, exist_ok=True)
    mined = find_negatives(out, sets, recipe, base, setup)
    method = RerankTraining(sources, base, sets, mined, model, pair_tokenizer, recipe, setup)
    if setup.is_first:
        report = {**method.report, "sha256": sets.fingerprint()}
        write_atomically(out / DATA, json.dumps(report, indent=1) + "\n")
    run_training(method, out, setup.processes)
    return out / MODEL


def make_card(
    sources: Sources, base: Path, recipe: RerankRecipe, setup: TrainingSetup
) -> dict[str, Any]:
    """Say what a model was made from and how; of files only the names are told."""
    return {
        "architecture": "BERT, sequence classification, one logit: relevance of a passage",
        "base": {"name": base.name, "licence": read_licence(base / "README.md")},
        **training_facts(recipe, setup),
        "data": {
            "questions": [path.name for path in sources.questions],
            "retrieval_sets": [f"{path.name}:{split}" for path, split in sources.retrieval],
            "corpus": [path.name for path in sources.corpus],
            "kept_out": [f"{path.parent.name}/{path.name}" for path in sources.not_like],
            "licence": sources.licence,
        },
    }


def find_negatives(
    out: Path,
    sets: RankingSets,
    recipe: RerankRecipe,
    base: Path,
    setup: TrainingSetup,
) -> Mined:
    """Let the first process mine, or read what was mined; then all read the same.

    Raises:
        InputError: As ``load_or_mine`` does.
        TrainingStopped: In other processes, when the first could not.
    """

    def load() -> Mined:
        with ExitStack() as stack:
            words_only = recipe.search == "bm25"
            encoder = (
                None
                if words_only
                else stack.enter_context(open_encoder(base, setup.device, setup.dtype))
            )
            return load_or_mine(out, sets, recipe, encoder)

    failed: CondenseryError | None = None
    mined: Mined | None = None
    if setup.is_first:
        try:
            mined = load()
        except CondenseryError as error:
            failed = error
    if not setup.processes.agree(failed is None, setup.device):
        raise failed or TrainingStopped("the first process could not find negatives")
    return mined or load()


def order_of(scores: Sequence[float]) -> list[int]:
    """Return places by falling score; what is as good as another stays behind it."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def reciprocal_rank(order: Sequence[int], gold: Sequence[int]) -> float:
    """Return 1 / the place of the first gold passage, counted from 1; 0 if there is none."""
    ranks = [rank for rank, passage in enumerate(order, start=1) if passage in gold]
    return 1 / ranks[0] if ranks else 0.0


def measure(
    scorer: Scorer, sets: RankingSets, mined: Mined, most: int | None = None
) -> dict[str, object]:
    """Measure the held-out queries.

    A query's candidates are BM25's best and the gold passages that are not among them, which
    come last in BM25's order. Others that hold an answer count as wrong for all orders alike.

    Args:
        scorer: Scores of passages for a query.
        sets: Queries and passages.
        mined: The candidates and the encoder's similarities.
        most: Queries measured, None for all.

    Returns:
        Of each order (``bm25``, ``encoder``, ``cross_encoder``) ``mrr`` and ``gold_first``, both
        0 to 100; and for the cross-encoder's MRR less another's the mean and its 95% interval by
        bootstrap over queries.
    """
    queries = sets.held_out[:most]
    ranks: dict[str, list[float]] = {"bm25": []}
    for row, query in enumerate(queries):
        candidates = mined.candidates[row]
        orders = {"bm25": candidates}
        if mined.encoder:
            orders["encoder"] = [candidates[i] for i in order_of(mined.encoder[row])]
        scores = scorer(query.text, [sets.passages[i] for i in candidates])
        orders["cross_encoder"] = [candidates[i] for i in order_of(scores)]
        for name, order in orders.items():
            ranks.setdefault(name, []).append(100 * reciprocal_rank(order, query.gold))
    figures: dict[str, object] = {name: _mean(values) for name, values in ranks.items()}
    for name, values in ranks.items():
        if name != "cross_encoder":
            mean, low, high = paired_bootstrap(ranks["cross_encoder"], values)
            figures[f"cross_encoder_minus_{name}"] = {"mrr": mean, "low_95": low, "high_95": high}
    figures["queries"] = len(queries)
    figures["candidates"] = sum(map(len, mined.candidates[:most])) / len(queries)
    return figures


def _mean(ranks: Sequence[float]) -> Mapping[str, float]:
    first = [rank for rank in ranks if rank == 100]
    return {"mrr": sum(ranks) / len(ranks), "gold_first": 100 * len(first) / len(ranks)}


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train cross-encoder``."""
    parser = Parser(prog="condensery train cross-encoder", description=__doc__)
    parser.add_argument(
        "--base", type=Path, required=True, help="a BERT's directory, e.g. MiniLM's"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    parser.add_argument(
        "--data", type=Path, nargs="+", default=(), help="questions: JSONL, datasets"
    )
    parser.add_argument(
        "--retrieval-set",
        nargs="+",
        default=(),
        metavar="DIR:SPLIT",
        help="corpora with judgements",
    )
    parser.add_argument("--corpus", type=Path, nargs="+", default=(), help="more passages: JSONL")
    parser.add_argument("--not-like", type=Path, nargs="+", default=(), help="text kept out: JSONL")
    parser.add_argument("--wrong", choices=get_args(Wrong), default="refuse", help="rows (refuse)")
    parser.add_argument("--licence", default="not stated", help="the data's, for the card")
    add_machine(parser, every=500)
    add_fields(parser, RerankRecipe())
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    recipe = read_fields(args, RerankRecipe)
    sources = Sources(
        args.data,
        [parse_set(text) for text in args.retrieval_set],
        args.corpus,
        args.not_like,
        args.wrong,
        args.licence,
    )
    with open_setup(args, f"{parser.prog} {shlex.join(argv)}") as setup:
        folder = train(sources, args.base, args.out, recipe, setup=setup)
    log.info("the model is in %s", folder)


if __name__ == "__main__":
    main()
