"""Train an OSCAR pair whose compressor starts from a sentence encoder."""

import argparse
import json
import logging
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig, BertModel

from condensery.methods.oscar.batches import collate
from condensery.methods.oscar.checkpoint import load_checkpoint, save_checkpoint
from condensery.methods.oscar.evaluation import validate
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.optimizer import Group, MasterAdamW
from condensery.methods.oscar.sampling import Mix, Sampler
from condensery.methods.oscar.sets import load_sets
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
        tokens: Compressor positions a step, about (sets the batch size).
        warmup: Steps of linear warm-up.
        decay: Share of the steps, at the end, over which the learning rate falls to zero.
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
    warmup: int = 100
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

    def rate(self, step: int) -> float:
        """Return the share of the learning rate at ``step``: warm-up, plateau, linear decay."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, (step + 1) / self.warmup, left)


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
) -> OscarPair:
    """Train, with a checkpoint and a validation every ``every`` steps; resumes from ``out``.

    Args:
        base: Directory of the encoder that the compressor starts from.
        data: Folder of the data sets (``sets.load_sets``).
        out: Folder for the checkpoint and ``log.jsonl``.
        shape: The pair's dimensions.
        recipe: How to train.
        mix: What the items look like.
        every: Steps between checkpoints.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    specials = Specials.of(tokenizer)
    sets = load_sets(data, tokenizer, cloze=recipe.cloze, seed=recipe.seed)
    log.info("data %s", json.dumps(sets.report))
    (out / "data.json").write_text(json.dumps(sets.report, indent=1))
    pair = new_pair(base, shape, torch.bfloat16)
    positions = pair.compressor.backbone.config.max_position_embeddings
    optimizer = MasterAdamW(groups(pair, recipe))
    start = load_checkpoint(out, optimizer)
    mix = mix or Mix()
    started, seen, sums, shown = time.monotonic(), 0, torch.zeros(4), start
    for step in range(start, recipe.steps):
        # Chance depends on the step alone: a resumed run sees what the first would have seen.
        rng = random.Random(f"{recipe.seed} {step}")
        torch.manual_seed(recipe.seed * 1_000_003 + step)
        chosen = sets.sets[-1:] if step < recipe.cloze_only else sets.sets
        items = Sampler(chosen, shape, mix, rng).batch(recipe.tokens)
        pair.train()
        terms = losses(pair, collate(items, shape, specials, positions))
        total: Tensor = terms.total(recipe.relevance_weight, recipe.pointer_weight)
        total.backward()
        norm = optimizer.step(recipe.rate(step), recipe.clip)
        if not math.isfinite(norm):
            raise FloatingPointError(f"step {step}: gradient norm {norm}")
        seen += len(items)
        sums += torch.stack(
            [t.detach().float() for t in (total, terms.answer, terms.relevance, terms.pointer)]
        )
        if (step + 1) % 50 == 0:
            means = (sums / (step + 1 - shown)).tolist()
            row = dict(zip(("total", "answer", "relevance", "pointer"), means, strict=True))
            rate = seen / (time.monotonic() - started)
            record(
                out, {"step": step + 1, **row, "norm": norm, "examples": seen, "per_second": rate}
            )
            sums.zero_()
            shown = step + 1
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            save_checkpoint(
                out, step + 1, pair, optimizer, {"shape": shape.to_dict(), "recipe": asdict(recipe)}
            )
            pair.eval()
            record(out, {"step": step + 1, **validate(pair, base, sets.validation, limit=60)})
    return pair


def record(out: Path, row: dict[str, object]) -> None:
    """Append a row to the run's log and show it."""
    text = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    with (out / "log.jsonl").open("a") as file:
        file.write(text + "\n")
    log.info("%s", text)


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
    train(base, data, out, OscarShape(), Recipe(**args), every=every)


if __name__ == "__main__":
    main()
