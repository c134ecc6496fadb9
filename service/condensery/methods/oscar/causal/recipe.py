"""How a pair of causal language models is trained: the defaults are the paper's.

OSCAR (arXiv:2504.07109), Table 7 and section 4.1; what the paper leaves open says so.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from condensery.methods.trainer.recipe import TrainerRecipe, check_field, trainer_recipe

Stage = Literal["finetune", "pretrain"]
Tuning = Literal["lora", "full", "none"]
LAYERS_RATE, WHOLE_RATE = 5e-5, 1e-4  # Table 7: N-layers compressors, and llama's
RERANK_WEIGHT = 0.05  # section 4.1
CHOICES = {"stage": get_args(Stage), "generator_tuning": get_args(Tuning)}


@dataclass(frozen=True, slots=True)
class CausalRecipe:
    """How a pair is trained.

    Attributes:
        stage: ``finetune`` on questions, or ``pretrain`` on plain text.
        epochs: Times that the rows are seen.
        steps: Optimizer steps in all; 0: as many as the epochs take.
        batch: Rows of an optimizer step, over all processes.
        rows: Of them, in one forward pass.
        passages: Most passages read for a question, the row's first.
        label_tokens: Longest label, tokens of the generator's.
        generator_tuning: ``lora``, ``full`` or ``none``.
        lora_rank: Of the adapters on all of the generator's linear layers but its head.
        lora_alpha: Their product is scaled by ``lora_alpha / lora_rank``.
        lora_dropout: Of what they read.
        generator_rate: The generator's learning rate.
        compressor_rate: The compressor's; 0: 1e-4, and 5e-5 where it is layers of the generator.
        warmup: Share of the steps.
        schedule: How the rates fall after it, ``linear`` or ``cosine``.
        weight_decay: AdamW's, on matrices.
        clip: Largest norm of the gradient.
        rerank_weight: Weight of the rerank head's loss (lambda); None: 0.05 where rows have
            scores.
        plain: Share of the questions whose passages the generator reads as text, so that it goes
            on reading both. No figure of the paper's.
        continuation: Of pretraining's chunks, the share that is continued; the rest are said again.
        checkpoint_layers: Whether layers are computed again in the backward pass, which takes a
            third longer and far less memory.
        seed: All chance comes from it.
    """

    stage: str = "finetune"
    epochs: float = 1.0
    steps: int = 0
    batch: int = 128
    rows: int = 8
    passages: int = 5
    label_tokens: int = 128
    generator_tuning: str = "lora"
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.1
    generator_rate: float = 1e-4
    compressor_rate: float = 0.0
    warmup: float = 0.05
    schedule: str = "linear"
    weight_decay: float = 0.1
    clip: float = 1.0
    rerank_weight: float | None = None
    plain: float = 0.1
    continuation: float = 0.5
    checkpoint_layers: bool = False
    seed: int = 13

    def __post_init__(self) -> None:
        """Refuse what can't be trained with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        for name, choices in CHOICES.items():
            check_field(self, name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        for name in ("batch", "rows", "passages", "label_tokens", "lora_rank"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        check_field(self, "batch", self.batch % self.rows == 0, f"a multiple of rows={self.rows}")
        check_field(self, "steps", self.steps >= 0, "at least 0")
        for name in ("epochs", "lora_alpha"):
            check_field(self, name, 0 < getattr(self, name) < math.inf, "above 0")
        for name in ("generator_rate", "compressor_rate", "weight_decay"):
            check_field(self, name, 0 <= getattr(self, name) < math.inf, "at least 0")
        for name in ("warmup", "plain", "continuation"):
            check_field(self, name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        check_field(self, "lora_dropout", 0 <= self.lora_dropout < 1, "from 0 to below 1")
        weight = self.rerank_weight
        check_field(self, "rerank_weight", weight is None or 0 <= weight < math.inf, "at least 0")

    def weight(self) -> float:
        """Return lambda."""
        return RERANK_WEIGHT if self.rerank_weight is None else self.rerank_weight

    def rate(self, *, layers: bool) -> float:
        """Return the compressor's learning rate, told whether it is layers of the generator."""
        return self.compressor_rate or (LAYERS_RATE if layers else WHOLE_RATE)

    def count(self, rows: int) -> int:
        """Return the optimizer steps for so many rows."""
        return self.steps or max(1, math.ceil(self.epochs * rows / self.batch))

    def trainer(self, rows: int, every: int, processes: int = 1) -> TrainerRecipe:
        """Return what the trainer needs of it.

        Args:
            rows: Rows trained on.
            every: Steps between checkpoints.
            processes: That share a step's rows.

        Raises:
            InputError: A step's rows can't be shared evenly.
        """
        parts = self.batch // self.rows
        check_field(
            self, "batch", parts % processes == 0, f"shared by {processes} processes evenly"
        )
        steps = self.count(rows)
        return trainer_recipe(
            self,
            steps=steps,
            accumulate=parts // processes,
            warmup=math.ceil(self.warmup * steps),
            betas=(0.9, 0.999),  # the paper names none: torch's own
            every=every,
            log_every=min(50, every),
        )
