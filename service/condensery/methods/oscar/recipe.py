"""How a small pair is trained."""

from dataclasses import dataclass

from condensery.methods.oscar.losses import Weights
from condensery.methods.trainer.recipe import TrainerRecipe, trainer_recipe


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a pair is trained.

    Attributes:
        steps: Optimizer steps in all.
        tokens: Positions a batch, about (sets the batch size).
        accumulate: Batches a step, in each process.
        warmup: Steps of linear warm-up.
        schedule: ``linear`` or ``cosine``, how the learning rates fall.
        decay: Share of the steps, at the end, over which they fall to zero.
        cloze_only: First steps that see cloze questions alone.
        backbone_rate: Learning rate of the compressor's pretrained weights.
        generator_rate: The generator's; lower where it starts from a language model.
        new_rate: Learning rate of everything else.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        relevance_weight: Weight of the rerank head's loss where it is cross-entropy.
        score_weight: Its weight where it is the squared error to a teacher's logit (the paper's
            lambda).
        pointer_weight: Weight of the pointer's loss.
        taught_weight: Weight of what a teacher (``--teacher``) says of passages.
        keep_weight: Weight of staying with where the pair that a run goes on from finds answers.
        copy_weight: Weight of the loss that teaches attention where the answer's next word stands,
            for passages read as text.
        repeat_weight: Weight of the unlikelihood of saying again what was said.
        cloze: Cloze questions made.
        cloze_share: Share of the steps that is cloze questions.
        label_tokens: Most tokens of a label; longer ones are left out.
        wording: Field of another wording of a question, which is read where a row has it: where
            unanswerable questions are reworded, the others have to be, or the wording tells.
        seed: All chance comes from it.
    """

    steps: int = 3600
    tokens: int = 4096
    accumulate: int = 1
    warmup: int = 100
    schedule: str = "linear"
    decay: float = 0.5
    cloze_only: int = 300
    backbone_rate: float = 1.5e-4
    generator_rate: float = 8e-4
    new_rate: float = 8e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    relevance_weight: float = 0.3
    score_weight: float = 0.05
    pointer_weight: float = 1.0
    taught_weight: float = 1.0
    keep_weight: float = 0.0
    copy_weight: float = 0.0
    repeat_weight: float = 0.1
    cloze: int = 30_000
    cloze_share: float = 0.3
    label_tokens: int = 48
    wording: str = ""
    seed: int = 13

    @property
    def weights(self) -> Weights:
        """What each term of the loss counts."""
        return Weights(
            self.relevance_weight,
            self.score_weight,
            self.pointer_weight,
            self.repeat_weight,
            self.copy_weight,
            self.taught_weight,
            self.keep_weight,
        )

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return trainer_recipe(self, every=every)
