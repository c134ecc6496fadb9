"""How a network is converted, tuned and pruned, and what with."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from condensery.methods.retriever.publishing import Storing
from condensery.methods.trainer.recipe import TrainerRecipe, check_field

if TYPE_CHECKING:
    from condensery.methods.ranking.sets import RankingSet
    from condensery.methods.ranking.similarities import Similarities
    from condensery.methods.retriever.batches import Example as Row
    from condensery.methods.shrp.classification import Example

Order = Literal["last", "first", "spread"]
ADAM_BETAS = (0.9, 0.999)  # AdamW's own; the paper names no others


@dataclass(frozen=True, slots=True)
class ShrpRecipe:
    """How a network is converted and tuned; defaults are the paper's (section 4.1).

    An epoch converts one more layer; ``extra_epochs`` follow, without the balance loss.

    Attributes:
        batch: Texts (pairs, queries with their passages) a step, over all processes.
        accumulate: Parts that a step's batch is computed in, in each process.
        rate: Learning rate.
        new_rate: Learning rate of expanders and gates, which start from random weights; 0: rate.
        warmup_share: Of the steps, with a linear warm-up; then the rate falls as a cosine.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        balance: Weight of the balance loss while layers are converted.
        extra_epochs: After the last layer's.
        settle_epochs: Of the static network, after pruning; the paper has none.
        tune_epochs: Of an encoder that is to become a classifier, before anything is converted.
        epoch_steps: Steps of an epoch; 0: every row once.
        top_k: Experts that attend for a text in training; the paper's method has 1.
        expander_scale: Weight of an expander's norm when it is new. At 1, the norm's own start and
            the paper's as far as it says, a new layer adds noise as large as what it is added to;
            at 0.1 it begins near the layer's input.
        straight_through: Whether gates learn from the task; see ``networks.shrp.ExpertLayer``.
        length: Most tokens of a text, or pair.
        distil: Embeddings, rerankers: weight of the distance to the parent's vectors (scores).
        relation: Embeddings: weight of how texts of a batch resemble each other; rerankers: of
            how the parent ranks a query's passages.
        hidden: Embeddings: weight of the distance to the parent's last hidden states, token by
            token.
        contrast: Embeddings: weight of the contrastive loss, on rows of queries and passages.
        temperature: Of similarities, in both of these.
        seed: All chance comes from it.
    """

    batch: int = 64
    accumulate: int = 1
    rate: float = 2e-5
    new_rate: float = 0.0
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    balance: float = 0.1
    extra_epochs: int = 2
    settle_epochs: int = 0
    tune_epochs: int = 3
    epoch_steps: int = 0
    top_k: int = 1
    expander_scale: float = 1.0
    straight_through: bool = True
    length: int = 128
    distil: float = 1.0
    relation: float = 1.0
    hidden: float = 0.0
    contrast: float = 0.0
    temperature: float = 0.05
    seed: int = 13

    def __post_init__(self) -> None:
        """Refuse what can't be trained with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        for name in ("batch", "accumulate", "top_k"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("extra_epochs", "settle_epochs", "tune_epochs", "epoch_steps"):
            check_field(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("rate", "temperature", "expander_scale"):
            check_field(self, name, getattr(self, name) > 0, "above 0")
        weights = ("balance", "distil", "relation", "hidden", "contrast")
        for name in ("new_rate", "weight_decay", *weights):
            check_field(self, name, getattr(self, name) >= 0, "at least 0")
        check_field(self, "warmup_share", 0 <= self.warmup_share < 1, "from 0 to below 1")
        check_field(self, "length", self.length >= 4, "at least 4")
        whole = self.batch % self.accumulate == 0
        check_field(self, "accumulate", whole, f"a divisor of the batch, {self.batch}")

    def trainer(self, epochs: int, epoch_steps: int, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it for so many epochs of so many steps.

        Args:
            epochs: All of a run's.
            epoch_steps: Steps of one.
            every: Steps between checkpoints; 0: an epoch's.
        """
        steps = epochs * epoch_steps
        return TrainerRecipe(
            steps=steps,
            accumulate=self.accumulate,
            warmup=round(self.warmup_share * steps),
            schedule="cosine",
            clip=self.clip,
            betas=ADAM_BETAS,
            seed=self.seed,
            every=every or epoch_steps,
        )

    def identity(self) -> Mapping[str, Any]:
        """Return what a resumed stage must share; how long other stages are is free."""
        free = ("accumulate", "tune_epochs", "settle_epochs")
        return {name: value for name, value in asdict(self).items() if name not in free}


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is made of a parent.

    Attributes:
        convert: How many layers.
        order: Which, and in which order; see ``conversion.choose_layers``.
        layers: Their numbers instead, in the order in which they are converted.
        keep: Experts that stay of each.
        recipe: How it is trained.
        storing: What weights are stored in, and whether the parent's embeddings are kept.
    """

    convert: int = 1
    order: Order = "last"
    layers: Sequence[int] = ()
    keep: int = 1
    recipe: ShrpRecipe = field(default_factory=ShrpRecipe)
    storing: Storing = field(default_factory=Storing)


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What it is made with; which of it counts, the parent's kind says.

    Attributes:
        train: Labelled rows to learn from.
        validation: Labelled rows on which experts are counted.
        test: Labelled rows that the report is of; none: the validation rows.
        texts: For embeddings.
        rows: Queries with passages, for reranking and the contrastive loss.
        similarities: Scored pairs that embeddings are measured on.
        sets: Retrieval sets that they are measured on.
        licence: Of the weights; the parent's, if empty.
        data: What the card calls the data.
        command: For the card.
    """

    train: Sequence["Example"] = ()
    validation: Sequence["Example"] = ()
    test: Sequence["Example"] = ()
    texts: Sequence[str] = ()
    rows: Sequence["Row"] = ()
    similarities: Sequence["Similarities"] = ()
    sets: Sequence["RankingSet"] = ()
    licence: str = ""
    data: tuple[str, ...] = ()
    command: str = ""
