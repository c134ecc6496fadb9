"""The three stages of a memory encoder, on the shared trainer: pretext, and twice contrast."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.llm2comp.analysis import (
    Analysis,
    analyse,
    correlations,
    draw_similarity,
    draw_spectra,
)
from condensery.methods.llm2comp.data import (
    LEAST,
    ContrastBatch,
    RankedBatches,
    SplitBatches,
    TextRows,
    ViewBatches,
    Words,
    hold_out,
    read_tokens,
    room,
    with_instructions,
)
from condensery.methods.llm2comp.network import MemoryNetwork, open_base
from condensery.methods.llm2comp.objectives import SplitTexts, contrast_loss, pretext_loss
from condensery.methods.llm2comp.recipe import (
    ContrastRecipe,
    NetworkShape,
    PretextRecipe,
    StageRecipe,
    SupervisedRecipe,
)
from condensery.methods.llm2comp.sources import Base
from condensery.methods.llm2comp.weights import StageResult, load_stage, save_weights
from condensery.methods.ranking.similarities import Similarities
from condensery.methods.retriever.batches import Example
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup, learning_state
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.publishing import (
    model_folder,
    recipe_identity,
    training_facts,
)
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name

log = logging.getLogger(__name__)
B = TypeVar("B", SplitTexts, ContrastBatch)
SPECTRUM, SIMILARITY = "spectrum.png", "similarity.png"
HELD_OUT = 512  # texts
HELD_BATCH = 8  # texts whose objective is measured together


@dataclass(frozen=True, slots=True)
class StageData:
    """What a stage is trained and watched on.

    Attributes:
        texts: Of the first two stages.
        examples: Queries with passages, of the third.
        instruction: Of queries that have none of their own.
        held_out: Texts to look at embeddings of; none: some of the stage's own, which it then
            does not train on.
        held: How many of its own, if so.
        similarities: Scored pairs to measure on.
    """

    texts: Sequence[str] = ()
    examples: Sequence[Example] = ()
    instruction: str = ""
    held_out: Sequence[str] = ()
    held: int = HELD_OUT
    similarities: Sequence[Similarities] = ()


class Monitor:
    """What is measured of a network while it is trained: room used, and scored pairs.

    Args:
        texts: Held out.
        similarities: Scored pairs.
        words: Of the base.
        shape: Of the network.
        recipe: Its length is that of texts.
    """

    def __init__(
        self,
        texts: Sequence[str],
        similarities: Sequence[Similarities],
        words: Words,
        shape: NetworkShape,
        recipe: StageRecipe,
    ) -> None:
        most = room(words, shape, recipe, recipe.length, "length")
        least = words.begins + 1
        self.rows = read_tokens(texts, words, least=least, most=most) if texts else None
        self._alike = []
        for item in similarities:
            sides = [pair[side] for side in (0, 1) for pair in item.pairs]
            encoded = words.tokenizer.encode_batch(sides)
            self._alike.append((item, [row.ids[:most] for row in encoded]))

    def figures(self, network: MemoryNetwork) -> dict[str, float]:
        """Return what the log shows of a network in evaluation mode."""
        looked = self.analyse(network)
        return {**(looked.figures() if looked else {}), **correlations(network, self._alike)}

    def analyse(self, network: MemoryNetwork) -> Analysis | None:
        """Look at held-out texts' embeddings; None without such texts."""
        rows = self.rows
        return None if rows is None else analyse(network, rows.ids(range(len(rows))))


class StageTraining(Method[MemoryNetwork, B]):
    """What the stages have in common.

    Args:
        recipe: How.
        network: Begun, or of the stage before.
        monitor: What is measured meanwhile.
        identity: What a resumed run must share beside the recipe.
        card: What the result says of itself.
        setup: Where.
        begin_step: Called with the number of each step, from 0.
    """

    def __init__(
        self,
        recipe: StageRecipe,
        network: MemoryNetwork,
        monitor: Monitor,
        identity: Mapping[str, Any],
        card: Mapping[str, Any],
        setup: TrainingSetup,
        begin_step: Callable[[int], None] | None = None,
    ) -> None:
        self.module, self._monitor, self._card = network, monitor, card
        self._begin_step = begin_step
        self.recipe, self._own_recipe = recipe.trainer(setup.every), recipe
        self._setup = setup
        if recipe.recompute:
            network.recompute()
        self.identity = {**identity, "recipe": recipe_identity(recipe, "recompute")}

    def groups(self) -> list[Group]:
        """Return adapters, and what rows learn, at one rate."""
        return split_groups(self.module, self._own_recipe.rate, self._own_recipe.weight_decay)

    def prepare_step(self, step: int) -> None:
        """Tell whoever follows several stages."""
        if self._begin_step is not None:
            self._begin_step(step)

    def weights(self) -> dict[str, Tensor]:
        """Return what learns."""
        return learning_state(self.module)

    def evaluate(self) -> dict[str, object] | None:
        """Return the effective dimension, how alike memory tokens are, and correlations."""
        return dict(self._monitor.figures(self.module)) or None

    def write(self, out: Path) -> None:
        """Write what was trained, its card, and the plots of its embeddings."""
        looked = self._monitor.analyse(self.module)
        card = {**self._card, **training_facts(self._own_recipe, self._setup)}
        if looked is not None:
            card["analysis"] = looked.to_json()
            stage = self._own_recipe.stage
            draw_spectra({stage: looked.values.tolist()}, out / SPECTRUM)
            if looked.similarity.size:
                draw_similarity({stage: looked.similarity.tolist()}, out / SIMILARITY)
        with model_folder(out, card) as folder:
            save_weights(folder, self.module.trained(), self.module.table_name)


class PretextTraining(StageTraining[SplitTexts]):
    """Texts compressed so that the frozen language model reads on from them."""

    def __init__(self, batches: SplitBatches, recipe: PretextRecipe, *arguments: Any) -> None:
        super().__init__(recipe, *arguments)
        self._batches, self._objective = batches, recipe.objective
        rows = self._monitor.rows
        places = [n for n in range(len(rows or ())) if rows and len(rows.rows[n]) >= LEAST]
        self._held = _held_batches(rows, places[:64]) if rows else []

    def batch(self, draw: Draw) -> SplitTexts:
        """Return texts, split somewhere."""
        return self._batches(draw)

    def loss(self, batch: SplitTexts) -> Loss:
        """Return the objective's loss."""
        return pretext_loss(self.module, batch, self._objective)

    def evaluate(self) -> dict[str, object] | None:
        """Return the objective on held-out texts too."""
        figures: dict[str, object] = {}
        losses = [pretext_loss(self.module, batch, self._objective) for batch in self._held]
        if losses:
            weight = sum(loss.weight for loss in losses)
            total = sum(float(loss.total) * loss.weight for loss in losses)
            figures["loss"] = total / weight
        return figures | (super().evaluate() or {}) or None


def _held_batches(rows: TextRows, places: Sequence[int]) -> list[SplitTexts]:
    """Split held-out texts in their middle, for ever."""
    batches = []
    for at in range(0, len(places), HELD_BATCH):
        ids = rows.ids(places[at : at + HELD_BATCH])
        batches.append(SplitTexts(ids, [len(row) // 2 for row in ids], [""] * len(ids)))
    return batches


class ContrastTraining(StageTraining[ContrastBatch]):
    """Texts told from others: two views of one, or queries and their passages."""

    def __init__(
        self, batches: ViewBatches | RankedBatches, recipe: ContrastRecipe, *arguments: Any
    ) -> None:
        super().__init__(recipe, *arguments)
        self._batches, self._temperature = batches, recipe.temperature
        self.module.drop_attention(recipe.attention_dropout)

    def batch(self, draw: Draw) -> ContrastBatch:
        """Return queries and what they are to find."""
        return self._batches(draw)

    def loss(self, batch: ContrastBatch) -> Loss:
        """Return InfoNCE over the passages of all processes."""
        vectors = self.module.embed([*batch.queries, *batch.passages])
        return contrast_loss(
            vectors,
            len(batch.queries),
            temperature=self._temperature,
            keys=batch.keys,
            answers=batch.answers,
            processes=self._setup.processes,
        )


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """A stage whose settings and data are of use: all that is checked before work is done.

    Attributes:
        base: The language model.
        shape: How texts are read.
        recipe: Of the stage.
        start_token: Id of what texts begin with, if anything.
        monitor: What is measured meanwhile.
        begin: Makes the training of a network, and of the rest that ``StageTraining`` takes.
        fingerprint: Of the data.
        short: Texts that were left out for being too short.
        work: Tokens that are read in a step, forward or back, about.
    """

    base: Base
    shape: NetworkShape
    recipe: StageRecipe
    start_token: int | None
    monitor: Monitor
    begin: Callable[..., StageTraining[Any]]
    fingerprint: str
    short: int
    work: float

    def train(
        self,
        out: Path,
        earlier: StageResult | None,
        setup: TrainingSetup,
        begin_step: Callable[[int], None] | None = None,
    ) -> MemoryNetwork:
        """Train it to its last step, or go on from what ``out`` holds; see ``train``."""
        base, recipe, shape = self.base, self.recipe, self.shape
        network = new_network(base, shape, recipe, self.start_token, earlier, setup)
        facts = {
            "stage": recipe.stage,
            "base": base.fingerprint,
            "shape": asdict(shape),
            "start_token": self.start_token,
            "dtype": dtype_name(setup.dtype),
            "data": self.fingerprint,
        }
        about = {"scale": shape.scale, "texts_too_short": self.short, "base_name": base.name}
        identity = {**facts, "begun": earlier and digest_of(earlier)}
        method = self.begin(network, self.monitor, identity, {**facts, **about}, setup, begin_step)
        log.info("%s: %d steps of %d", recipe.stage, recipe.steps, recipe.batch)
        return run_training(method, out, setup.processes)


def prepare_stage(
    base: Base, shape: NetworkShape, recipe: StageRecipe, data: StageData
) -> PreparedStage:
    """Tokenise a stage's data, and check that it can be trained on.

    Raises:
        InputError: The data or the shape is of no use; the field is named.
    """
    if isinstance(recipe, PretextRecipe) and not shape.k:
        raise InputError(
            f"pooling={shape.pooling!r}: the pretext stage needs memory tokens",
            field="pooling",
            value=shape.pooling,
        )
    words = base.words(shape)
    texts, held = _held_out(recipe, data)
    monitor = Monitor(held, data.similarities, words, shape, recipe)
    prepared = partial(PreparedStage, base, shape, recipe, words.start, monitor)
    if isinstance(recipe, SupervisedRecipe):
        if not data.examples:
            raise InputError("rows: the supervised stage learns from rows", field="rows")
        asked = with_instructions(data.examples, recipe.query_format, data.instruction)
        ranked = RankedBatches(asked, words, shape, recipe)
        begin_ranked = partial(ContrastTraining, ranked, recipe)
        return prepared(begin_ranked, ranked.fingerprint, 0, ranked.work)
    if not texts:
        raise InputError(f"text: the {recipe.stage} stage learns from texts", field="text")
    most = room(words, shape, recipe, recipe.length, "length")
    if isinstance(recipe, PretextRecipe):
        rows = read_tokens(texts, words, least=LEAST, most=most)
        begin = partial(PretextTraining, SplitBatches(rows, recipe.batch), recipe)
        # Half is compressed, half read on; each forth and back, and all of it by the teacher.
        work = recipe.batch * (6 * shape.k + 4 * rows.mean_length)
        return prepared(begin, rows.fingerprint, rows.short, work)
    assert isinstance(recipe, ContrastRecipe)
    rows = read_tokens(texts, words, least=words.begins + 1, most=most)
    views = partial(ContrastTraining, ViewBatches(rows, recipe.batch), recipe)
    work = 2 * recipe.batch * 3 * (rows.mean_length + shape.k)
    return prepared(views, rows.fingerprint, rows.short, work)


def train(
    base: Base,
    shape: NetworkShape,
    recipe: StageRecipe,
    data: StageData,
    out: Path,
    *,
    start: Path | None = None,
    setup: TrainingSetup | None = None,
) -> MemoryNetwork:
    """Train a stage to its last step, or go on from what ``out`` holds.

    Args:
        base: The language model.
        shape: How texts are read.
        recipe: Of the stage.
        data: What it is trained on.
        out: Folder for checkpoints, log, plots and, at the end, ``model``.
        start: Folder of the stage before, finished; None: the base itself.
        setup: Where, and how often it saves; default: the CPU.

    Returns:
        The network, in evaluation mode.

    Raises:
        InputError: The data, the shape or the stage before is of no use; nothing was trained.
        CorruptModel: The base can't be loaded.
        TrainingStopped: As ``run_training`` says.
    """
    earlier = None if start is None else load_stage(start)
    if earlier is not None:
        _check_start(base, shape, recipe, earlier)
    stage = prepare_stage(base, shape, recipe, data)
    return stage.train(out, earlier, setup or TrainingSetup())


def new_network(
    base: Base,
    shape: NetworkShape,
    recipe: StageRecipe,
    start: int | None,
    earlier: StageResult | None,
    setup: TrainingSetup,
) -> MemoryNetwork:
    """Build the network of a stage, placed.

    Raises:
        InputError: The stage before is of another shape.
        CorruptModel: The base can't be loaded.
    """
    network = MemoryNetwork(
        open_base(base.folder, device=setup.device, dtype=setup.dtype),
        shape,
        start,
        embeddings=recipe.embeddings,  # type: ignore[arg-type]  # checked by the recipe
        weights=None if earlier is None else (earlier.weights, earlier.scale),
        adapters=recipe.adapters if isinstance(recipe, ContrastRecipe) else "fresh",  # type: ignore[arg-type]
        seed=recipe.seed,
    )
    network.place(setup)
    return network


def _check_start(
    base: Base, shape: NetworkShape, recipe: StageRecipe, earlier: StageResult
) -> None:
    """Check that a stage can begin from another.

    Raises:
        InputError: It can't; the field is named.
    """
    if isinstance(recipe, PretextRecipe):
        raise InputError("start: the pretext stage begins from the base", field="start")
    if earlier.card.get("base") != base.fingerprint:
        raise InputError(
            f"start: it was trained on {earlier.card.get('base_name')} "
            f"({earlier.card.get('base')}), not on {base.name} ({base.fingerprint})",
            field="start",
        )
    before = earlier.card.get("shape", {})
    for name in ("memory_tokens", "pooling", "attention", "start_token"):
        if before.get(name) != getattr(shape, name):
            raise InputError(
                f"{name}={getattr(shape, name)!r}: the stage before has {before.get(name)!r}",
                field=name,
                value=getattr(shape, name),
            )


def _held_out(recipe: StageRecipe, data: StageData) -> tuple[Sequence[str], Sequence[str]]:
    """Return texts to train on, and texts to look at."""
    if data.held_out:
        apart = set(data.held_out)
        return [text for text in data.texts if text not in apart], data.held_out
    if isinstance(recipe, SupervisedRecipe):
        passages = [text for example in data.examples for text in example.positives]
        return (), [*dict.fromkeys(passages)][: data.held]
    return hold_out(data.texts, data.held, recipe.seed)


def digest_of(earlier: StageResult) -> str:
    """Return a fingerprint of an earlier stage's weights."""
    tensors = {n: t.contiguous() for n, t in earlier.weights.tensors("table").items()}
    return hashlib.sha256(save(tensors)).hexdigest()
