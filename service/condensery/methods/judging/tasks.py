"""mteb's own tasks and measures over local rows: nothing is fetched.

Of each set the main measure is one of mteb's scores: Spearman's correlation of cosines (STS), a
linear probe's accuracy, average precision of cosines (pairs), V-measure, nDCG@10, mean average
precision. Beside it come resamples, by the function that mteb measures with, for intervals.

Source: Muennighoff et al., MTEB, arXiv:2210.07316; Enevoldsen et al., MMTEB, arXiv:2502.13595.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from datasets import Dataset, disable_progress_bars
from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.model_meta import ModelMeta
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import average_precision_score

from condensery.methods.judging.encoders import PASSAGE, PURPOSES, JudgedEncoder
from condensery.methods.judging.sets import (
    Candidates,
    JudgedSet,
    JudgingRecipe,
    Kind,
    LabelledTexts,
    PairRows,
)
from condensery.methods.ranking.sets import RankingSet
from condensery.values import Floats

Numbers = NDArray[np.float64]
Embed = Callable[[list[str], str], Floats]

SPLIT, SUBSET = "test", "default"
RESAMPLES = 1000
DRAWN = 16_384  # most rows of a clustering, as mteb has it
TYPES: Mapping[Kind, str] = {
    "sts": "STS",
    "classification": "Classification",
    "pairs": "PairClassification",
    "clustering": "Clustering",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
}
MAIN: Mapping[Kind, str] = {
    "sts": "cosine_spearman",
    "classification": "accuracy",
    "pairs": "cosine_ap",
    "clustering": "v_measure",
    "retrieval": "ndcg_at_10",
    "reranking": "map_at_1000",
}
# What trec_eval calls those of each query.
OF_A_QUERY: Mapping[Kind, str] = {"retrieval": "ndcg_cut_10", "reranking": "map_cut_1000"}


@dataclass(frozen=True, slots=True)
class Score:
    """What an encoder was measured at on a set.

    Attributes:
        value: The main measure, 0 to 1.
        resamples: The same over rows drawn anew, with the same draws for every encoder.
        others: More of mteb's scores.
    """

    value: float
    resamples: list[float]
    others: dict[str, float]


def judge(item: JudgedSet, encoder: JudgedEncoder, embed: Embed, recipe: JudgingRecipe) -> Score:
    """Measure an encoder on a set.

    Args:
        item: The set.
        encoder: That is judged: its prompts.
        embed: Makes its vectors.
        recipe: How tasks measure.
    """
    disable_progress_bars()
    task, model = TASKS[item.kind](item, recipe), _Model(encoder, embed, item.kind)
    quiet = {"show_progress_bar": False}
    with TemporaryDirectory(prefix="condensery-") as folder, warnings.catch_warnings():
        # Precision of a label that no probe chose: not a measure of ours.
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        path = Path(folder)
        scores = task.evaluate(model, SPLIT, encode_kwargs=quiet, prediction_folder=path)[SUBSET]
        found = list(path.glob("*.json"))
        predicted = json.loads(found[0].read_text())[SUBSET][SPLIT] if found else None
    resamples = task.resample(scores, predicted)
    others = {
        name: float(value)
        for name, value in scores.items()
        if isinstance(value, int | float) and np.isfinite(value) and name != "main_score"
    }
    return Score(float(scores["main_score"]), [round(float(x), 6) for x in resamples], others)


def instruction_of(kind: Kind) -> str:
    """Return what mteb tells encoders of a kind of task that read an instruction."""
    return str(TASKS[kind].abstask_prompt)


class _Model:
    """An encoder as mteb asks it: ``EncoderProtocol``."""

    def __init__(self, encoder: JudgedEncoder, embed: Embed, kind: Kind) -> None:
        self.mteb_model_meta = ModelMeta.create_empty({"name": f"condensery/{kind}"})
        self._encoder, self._embed, self._kind = encoder, embed, kind

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> Floats:
        texts = [text for batch in inputs for text in batch["text"]]
        if prompt_type == PromptType.document:
            prompt = self._encoder.prompt(PASSAGE, "")
        else:
            prompt = self._encoder.prompt(PURPOSES[self._kind], instruction_of(self._kind))
        return self._embed(texts, prompt)

    def similarity(self, left: Any, right: Any) -> Any:
        return cos_sim(left, right)

    def similarity_pairwise(self, left: Any, right: Any) -> Any:
        return pairwise_cos_sim(left, right)


def _describe(item: JudgedSet) -> Any:
    return TaskMetadata(
        name="".join(c if c.isalnum() else "_" for c in item.name),
        description=item.key,
        dataset={"path": "local", "revision": item.content},
        type=TYPES[item.kind],
        category="t2t",
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],  # must be one; no measure asks for it
        main_score=MAIN[item.kind],
    )


class Local:
    """A task whose rows are there already; beside one of mteb's."""

    def __init__(self, item: JudgedSet, recipe: JudgingRecipe) -> None:
        self.metadata = _describe(item)
        self.kind, self.rows, self.recipe = item.kind, cast(Any, item.rows), recipe
        super().__init__(seed=recipe.seed)  # type: ignore[call-arg]  # mteb's
        self.dataset = self.make_dataset(self.rows)
        self.data_loaded = True

    def make_dataset(self, rows: Any) -> Any:
        """Return the rows as mteb's task reads them."""
        raise NotImplementedError

    def rows_drawn(self, count: int) -> list[NDArray[np.int64]]:
        """Return the rows of each resample, equal ones for every encoder."""
        rng = np.random.default_rng(self.recipe.seed)
        return [rng.integers(count, size=count) for _ in range(RESAMPLES)]


class Similarity(Local, AbsTaskSTS):
    """STS."""

    min_score, max_score = 0, 1  # a scale; correlations know none

    def make_dataset(self, rows: PairRows) -> Any:
        """Return pairs and scores."""
        columns = {"sentence1": rows.left, "sentence2": rows.right, "score": rows.figures}
        return {SPLIT: Dataset.from_dict(columns)}

    def resample(self, _: Any, predicted: Any) -> list[float]:
        """Return Spearman's correlation over drawn pairs."""
        cosines, scores = np.array(predicted["cosine_scores"]), np.array(self.rows.figures)
        return [
            float(spearmanr(scores[drawn], cosines[drawn])[0])
            for drawn in self.rows_drawn(len(scores))
        ]


class SamePair(Local, AbsTaskPairClassification):
    """Pair classification."""

    def make_dataset(self, rows: PairRows) -> Any:
        """Return pairs and labels."""
        labels = [int(figure) for figure in rows.figures]
        columns = {"sentence1": rows.left, "sentence2": rows.right, "labels": labels}
        return {SPLIT: Dataset.from_dict(columns)}

    def resample(self, _: Any, predicted: Any) -> list[float]:
        """Return average precision over drawn pairs."""
        cosines, labels = np.array(predicted["cosine_scores"]), np.array(self.rows.figures)
        return [
            float(average_precision_score(labels[drawn], cosines[drawn]))
            for drawn in self.rows_drawn(len(labels))
            if labels[drawn].any()
        ]


class Probe(Local, AbsTaskClassification):
    """Classification: logistic regression on few rows of each label, several times."""

    def __init__(self, item: JudgedSet, recipe: JudgingRecipe) -> None:
        super().__init__(item, recipe)
        self.n_experiments = recipe.experiments
        self.samples_per_label = recipe.samples_per_label

    def make_dataset(self, rows: LabelledTexts) -> Any:
        """Return what is learnt from, and what is measured on."""
        return {
            "train": Dataset.from_dict({"text": rows.train_texts, "label": rows.train_labels}),
            SPLIT: Dataset.from_dict({"text": rows.texts, "label": rows.labels}),
        }

    def resample(self, _: Any, predicted: Any) -> list[float]:
        """Return accuracy over drawn rows and drawn probes."""
        hits = np.array(predicted) == np.array(self.rows.labels)  # (experiments, rows)
        probes = np.random.default_rng(self.recipe.seed + 1)
        return [
            float(hits[probes.integers(len(hits), size=len(hits))][:, drawn].mean())
            for drawn in self.rows_drawn(hits.shape[1])
        ]


class Clusters(Local, AbsTaskClustering):
    """Clustering: mini-batch k-means on rows drawn with replacement, several times."""

    max_fraction_of_documents_to_embed = None
    max_document_to_embed = None

    def __init__(self, item: JudgedSet, recipe: JudgingRecipe) -> None:
        super().__init__(item, recipe)
        self.n_clusters = recipe.experiments  # mteb calls the experiments so
        # As many as there are: each experiment is a resample of the rows.
        self.max_documents_per_cluster = min(DRAWN, item.count)

    def make_dataset(self, rows: LabelledTexts) -> Any:
        """Return texts and labels."""
        return {SPLIT: Dataset.from_dict({"sentences": rows.texts, "labels": rows.labels})}

    def resample(self, scores: Any, _: Any) -> list[float]:
        """Return the V-measure of each experiment."""
        return [float(value) for level in scores["v_measures"].values() for value in level]


class Search(Local, AbsTaskRetrieval):
    """Retrieval over a whole corpus, and reranking of each query's own passages."""

    def make_dataset(self, rows: RankingSet | tuple[Candidates, ...]) -> Any:
        """Return corpus, queries, judgements and, for reranking, each query's passages."""
        if isinstance(rows, RankingSet):
            corpus = [{"id": p.id, "title": p.title, "text": p.text} for p in rows.passages]
            queries = [{"id": name, "text": text} for name, text in rows.queries.items()]
            judged = {query: dict(grades) for query, grades in rows.judged.items()}
            ranked = None
        else:
            corpus, queries, judged, ranked = [], [], {}, {}
            for number, row in enumerate(rows):
                query = f"q{number}"
                names = [f"{query}-{place}" for place in range(len(row.passages))]
                queries.append({"id": query, "text": row.query})
                corpus += [
                    {"id": name, "title": "", "text": text}
                    for name, text in zip(names, row.passages, strict=True)
                ]
                ranked[query] = names
                judged[query] = {
                    name: int(relevant) for name, relevant in zip(names, row.relevant, strict=True)
                }
        split = {
            "corpus": Dataset.from_list(corpus),
            "queries": Dataset.from_list(queries),
            "relevant_docs": judged,
            "top_ranked": ranked,
        }
        return {SUBSET: {SPLIT: split}}

    def task_specific_scores(self, scores: Any, *_: Any, **__: Any) -> dict[str, float]:
        """Keep each query's measures, of which mteb's are the means."""
        name = OF_A_QUERY[self.kind]
        self.by_query = {query: float(row[name]) for query, row in scores.items()}
        return {}

    def resample(self, _: Any, __: Any) -> list[float]:
        """Return the mean over drawn queries."""
        values = np.array([self.by_query[query] for query in sorted(self.by_query)])
        return [float(values[drawn].mean()) for drawn in self.rows_drawn(len(values))]


TASKS: Mapping[Kind, Any] = {
    "sts": Similarity,
    "classification": Probe,
    "pairs": SamePair,
    "clustering": Clusters,
    "retrieval": Search,
    "reranking": Search,
}
