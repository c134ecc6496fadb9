"""How a memory encoder reads, and how each stage trains it; defaults are the paper's.

Where paper and released code differ, or say nothing, a line here says what was taken.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from condensery.methods.trainer.recipe import TrainerRecipe, check_field

Stage = Literal["pretext", "unsupervised", "supervised"]
Objective = Literal["ctkd", "nll", "reconstruction"]
Pooling = Literal["memory", "last", "weighted", "mean", "echo"]
Attention = Literal["auto", "both", "causal"]
Embeddings = Literal["all", "memory", "none"]
AdapterStart = Literal["fresh", "continued"]
STAGES: tuple[Stage, ...] = get_args(Stage)
ADAM_BETAS = (0.9, 0.999)  # AdamW's own; neither paper nor code names others
SPLIT = 10  # tokens at least before and after the place where a text is split
CHOICES: dict[str, tuple[str, ...]] = {
    "objective": get_args(Objective),
    "pooling": get_args(Pooling),
    "attention": get_args(Attention),
    "embeddings": get_args(Embeddings),
    "adapters": get_args(AdapterStart),
}


def check_choice(recipe: object, name: str) -> None:
    """Raise InputError, with field and value, if a field's word is none of its choices."""
    allowed = CHOICES[name]
    check_field(recipe, name, getattr(recipe, name) in allowed, f"one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """How texts are read, and where adapters are.

    Attributes:
        memory_tokens: How many follow a text (k).
        pooling: What of the last hidden states makes the vector: the mean over the memory tokens
            (``memory``, the method's); or, for comparison, without any: the ``last`` token, the
            mean over all tokens (``mean``), that weighted by place (``weighted``,
            arXiv:2202.08904), or over a second copy of the text (``echo``, arXiv:2402.15449).
        attention: ``both`` ways or ``causal``; ``auto``: both for memory and mean, else causal.
        start_token: What texts begin with; empty: what the tokenizer puts there; ``none``.
        lora_rank: Of the adapters.
        lora_alpha: Their products count ``alpha / rank`` times.
        lora_dropout: Of what they read.
        lora_layers: Linear layers that have one, by the ends of their names. No key projection.
    """

    memory_tokens: int = 8
    pooling: str = "memory"
    attention: str = "auto"
    start_token: str = ""
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_layers: str = "q_proj,v_proj,o_proj,up_proj,down_proj,gate_proj"

    def __post_init__(self) -> None:
        """Refuse what is no shape.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        check_choice(self, "pooling")
        check_choice(self, "attention")
        memory = self.memory_tokens >= 1 or self.pooling != "memory"
        check_field(self, "memory_tokens", memory, "at least 1")
        for name in ("lora_rank", "lora_alpha"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        check_field(self, "lora_dropout", 0 <= self.lora_dropout < 1, "from 0 to below 1")
        check_field(self, "lora_layers", bool(self.adapted), "names, with commas between")

    @property
    def k(self) -> int:
        """Memory tokens that follow a text: none where another pooling needs none."""
        return self.memory_tokens if self.pooling == "memory" else 0

    @property
    def causal(self) -> bool:
        """Whether a position sees only those before it."""
        if self.attention == "auto":
            return self.pooling not in ("memory", "mean")
        return self.attention == "causal"

    @property
    def adapted(self) -> tuple[str, ...]:
        """Names of the layers that have adapters."""
        return tuple(name.strip() for name in self.lora_layers.split(",") if name.strip())

    @property
    def scale(self) -> float:
        """What adapters' products are scaled by."""
        return self.lora_alpha / self.lora_rank


@dataclass(frozen=True, slots=True)
class StageRecipe:
    """What all stages have.

    The learning rate rises from ``warm_from`` times itself (the paper's 1e-5) over a tenth of the
    steps, as in the released configuration, and falls to 0, both linearly.

    Attributes:
        steps: Optimizer steps in all.
        batch: Texts (queries) a batch, in each process.
        accumulate: Batches a step, in each process.
        rate: Learning rate.
        warmup_share: Of the steps, with a warm-up.
        warm_from: Share of the rate at which it begins.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm; stated for the pretext stage, and taken for all.
        length: Most tokens of a text, memory tokens included.
        embeddings: Which rows of the embedding table learn: ``all``, those of the ``memory``
            tokens, or ``none``.
        recompute: Compute activations again in the backward pass, for large models.
        seed: All chance comes from it.
    """

    steps: int = 8000
    batch: int = 4
    accumulate: int = 1
    rate: float = 1e-4
    warmup_share: float = 0.1
    warm_from: float = 0.1
    weight_decay: float = 1e-5
    clip: float = 2.0
    length: int = 512
    embeddings: str = "all"
    recompute: bool = False
    seed: int = 42

    stage: ClassVar[Stage]

    def __post_init__(self) -> None:
        """Refuse what can't be trained with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        check_choice(self, "embeddings")
        check_field(self, "batch", self.batch >= 1, "at least 1")
        check_field(self, "rate", self.rate > 0, "above 0")
        check_field(self, "weight_decay", self.weight_decay >= 0, "at least 0")
        check_field(self, "warmup_share", 0 <= self.warmup_share < 1, "from 0 to below 1")
        check_field(self, "length", self.length >= 2, "at least 2")
        self.trainer(1)  # which checks the rest

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return TrainerRecipe(
            steps=self.steps,
            accumulate=self.accumulate,
            warmup=round(self.warmup_share * self.steps),
            warm_from=self.warm_from,
            schedule="linear",
            clip=self.clip,
            betas=ADAM_BETAS,
            seed=self.seed,
            every=every,
        )


@dataclass(frozen=True, slots=True)
class PretextRecipe(StageRecipe):
    """How a text is learnt to be compressed (paper, section 3 and appendix 2.1).

    Attributes:
        objective: The frozen language model, given memory tokens for a text's beginning, is to
            predict its continuation as it does given the text (``ctkd``), or to say it (``nll``),
            or the beginning itself (``reconstruction``).
    """

    objective: str = "ctkd"

    stage: ClassVar[Stage] = "pretext"

    def __post_init__(self) -> None:
        """Refuse what can't be trained with; raises InputError, with field and value."""
        StageRecipe.__post_init__(self)
        check_choice(self, "objective")


@dataclass(frozen=True, slots=True)
class ContrastRecipe(StageRecipe):
    """What both contrastive stages have (paper, section 5, appendix 2.1).

    Attributes:
        temperature: Of the cosines.
        attention_dropout: Of attention weights.
        adapters: Whether the stage has adapters of its own over the earlier ones (``fresh``, as
            the released code), or trains those (``continued``), which keeps their rank.
    """

    batch: int = 128
    embeddings: str = "none"
    temperature: float = 0.05
    attention_dropout: float = 0.0
    adapters: str = "fresh"

    def __post_init__(self) -> None:
        """Refuse what can't be trained with; raises InputError, with field and value."""
        StageRecipe.__post_init__(self)
        check_choice(self, "adapters")
        check_field(self, "temperature", self.temperature > 0, "above 0")
        check_field(self, "attention_dropout", 0 <= self.attention_dropout < 1, "from 0 to below 1")


@dataclass(frozen=True, slots=True)
class UnsupervisedRecipe(ContrastRecipe):
    """How a text is told from others by two views of it, which dropout makes."""

    steps: int = 1000
    rate: float = 3e-5
    warm_from: float = 1 / 3
    weight_decay: float = 1e-3
    attention_dropout: float = 0.2

    stage: ClassVar[Stage] = "unsupervised"

    def __post_init__(self) -> None:
        """Refuse what can't be trained with; raises InputError, with field and value."""
        ContrastRecipe.__post_init__(self)
        check_field(self, "batch", self.batch >= 2, "at least 2, so that there are others")


@dataclass(frozen=True, slots=True)
class SupervisedRecipe(ContrastRecipe):
    """How queries learn to find their passages.

    The paper's batch is 1024 queries, 128 in each of eight processes, whose passages are all
    candidates.

    Attributes:
        negatives: Hard negatives a query.
        passage_length: Most tokens of a passage, memory tokens included.
        query_format: What a query with an instruction is read as.
    """

    steps: int = 200
    weight_decay: float = 3e-4
    negatives: int = 1
    passage_length: int = 1024
    query_format: str = "{instruction}:{query}\n"

    stage: ClassVar[Stage] = "supervised"

    def __post_init__(self) -> None:
        """Refuse what can't be trained with; raises InputError, with field and value."""
        ContrastRecipe.__post_init__(self)
        check_field(self, "negatives", self.negatives >= 0, "at least 0")
        check_field(self, "passage_length", self.passage_length >= 2, "at least 2")
        others = self.batch > 1 or self.negatives > 0
        check_field(self, "batch", others, "above 1 without negatives")
        try:
            read = self.query_format.format(instruction="", query="query")
        except (KeyError, IndexError, ValueError):
            read = ""
        check_field(self, "query_format", "query" in read, "a text with {query} in it")


RECIPES: dict[Stage, type[StageRecipe]] = {
    "pretext": PretextRecipe,
    "unsupervised": UnsupervisedRecipe,
    "supervised": SupervisedRecipe,
}
