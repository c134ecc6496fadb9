"""Train an OSCAR pair whose compressor starts from a sentence encoder."""

import argparse
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from condensery.errors import shorten
from condensery.methods.oscar.batches import Item, collate
from condensery.methods.oscar.evaluation import validate
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.sampling import Mix, Sampler
from condensery.methods.oscar.sets import load_sets
from condensery.methods.trainer.draws import Draw, Loss
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.recipe import Schedule, TrainerRecipe
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import OscarShape
from condensery.runtime.device import tune_allocator

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a pair is trained.

    Attributes:
        steps: Optimizer steps in all.
        tokens: Compressor positions a batch, about (sets the batch size).
        accumulate: Batches a step, in each process.
        warmup: Steps of linear warm-up.
        schedule: ``linear`` or ``cosine``, how the learning rates fall.
        decay: Share of the steps, at the end, over which they fall to zero.
        cloze_only: First steps that see cloze questions alone.
        backbone_rate: Learning rate of the compressor's pretrained weights.
        new_rate: Learning rate of everything else.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        relevance_weight: Weight of the rerank head's loss.
        pointer_weight: Weight of the pointer's loss.
        cloze: Cloze questions made.
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
    new_rate: float = 8e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    relevance_weight: float = 0.3
    pointer_weight: float = 1.0
    cloze: int = 30_000
    seed: int = 13

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return TrainerRecipe(
            steps=self.steps,
            accumulate=self.accumulate,
            warmup=self.warmup,
            schedule=cast(Schedule, self.schedule),
            decay=self.decay,
            clip=self.clip,
            seed=self.seed,
            every=every,
        )


def new_pair(base: Path, shape: OscarShape, dtype: torch.dtype) -> OscarPair:
    """Build a pair whose compressor is the encoder at ``base`` and whose generator is random."""
    encoder = BertModel.from_pretrained(base, add_pooling_layer=False, local_files_only=True)
    config: BertConfig = encoder.config
    config._attn_implementation = "eager"  # SDPA's backward pass is slow in bf16 on a CPU
    config.attention_probs_dropout_prob = config.hidden_dropout_prob = 0.0  # crops vary enough
    pair = OscarPair(config, shape, encoder.embeddings.word_embeddings.weight.detach())
    pair.compressor.backbone.load_state_dict(encoder.state_dict())
    pair.compressor.backbone.embeddings.word_embeddings.weight.requires_grad_(False)
    pair.generator.backbone.config._attn_implementation = "eager"
    torch.nn.init.normal_(pair.compressor.slots.weight, std=config.initializer_range)
    return pair.to(dtype)


def groups(pair: OscarPair, recipe: Recipe) -> list[Group]:
    """Split the trained parameters: pretrained or new, matrices (decayed) or not."""
    chosen: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in pair.named_parameters():
        if parameter.requires_grad:
            old = name.startswith("compressor.backbone.")
            chosen.setdefault((old, parameter.ndim > 1), []).append(parameter)
    return [
        Group(
            parameters,
            recipe.backbone_rate if old else recipe.new_rate,
            recipe.weight_decay if matrix else 0.0,
        )
        for (old, matrix), parameters in chosen.items()
    ]


def train(
    base: Path,
    data: Path,
    out: Path,
    shape: OscarShape,
    recipe: Recipe,
    *,
    mix: Mix | None = None,
    every: int = 500,
    processes: Processes | None = None,
) -> OscarPair:
    """Train, with a checkpoint and a validation every ``every`` steps; resumes from ``out``.

    Args:
        base: Directory of the encoder that the compressor starts from.
        data: Folder of the data sets (``sets.load_sets``).
        out: Folder for checkpoints, ``log.jsonl`` and ``data.json``.
        shape: The pair's dimensions.
        recipe: How to train.
        mix: What the items look like.
        every: Steps between checkpoints.
        processes: Those that train together.

    Raises:
        TrainingStopped: As the trainer says.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    specials = Specials.of(tokenizer)
    sets = load_sets(data, tokenizer, cloze=recipe.cloze, seed=recipe.seed)
    log.info("data %s", json.dumps(sets.report))
    if processes is None or processes.rank == 0:
        (out / "data.json").write_text(json.dumps(sets.report, indent=1))
    pair = new_pair(base, shape, torch.bfloat16)
    positions = pair.compressor.backbone.config.max_position_embeddings
    chosen_mix = mix or Mix()

    def batches(draw: Draw) -> list[Item]:
        chosen = sets.sets[-1:] if draw.step < recipe.cloze_only else sets.sets
        return Sampler(chosen, shape, chosen_mix, draw.rng()).batch(recipe.tokens)

    def loss(pair: OscarPair, items: list[Item]) -> Loss:
        terms = losses(pair, collate(items, shape, specials, positions))
        return Loss(
            terms.total(recipe.relevance_weight, recipe.pointer_weight),
            items=len(items),
            terms={k: getattr(terms, k) for k in ("answer", "relevance", "pointer")},
        )

    def names(items: list[Item]) -> list[str]:
        return [shorten(tokenizer.decode(item.question.tolist())) for item in items]

    Trainer(
        pair,
        loss,
        batches,
        recipe.trainer(every),
        out,
        groups=groups(pair, recipe),
        names=names,
        weights=OscarPair.own_state,
        about={"shape": shape.to_dict(), "recipe": asdict(recipe)},
        validate=lambda pair: validate(pair, base, sets.validation, limit=60),
        processes=processes,
    ).run()
    if processes is None or processes.rank == 0:
        plot(out)
    return pair


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train oscar``."""
    parser = argparse.ArgumentParser(prog="condensery train oscar", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="encoder directory (BERT)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    for name, default in asdict(Recipe()).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, help=f"({default})")
    args = vars(parser.parse_args(argv))
    torch.set_num_threads(args.pop("threads"))
    tune_allocator()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    base, data, out, every = (args.pop(k) for k in ("base", "data", "out", "every"))
    with joined(torch.device("cpu")) as processes:
        recipe = Recipe(**args)
        train(base, data, out, OscarShape(), recipe, every=every, processes=processes)


if __name__ == "__main__":
    main()
