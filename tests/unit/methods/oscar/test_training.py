import json
import logging
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pair import SPECIALS, tiny_config, tiny_pair, tiny_shape
from transformers import BertForQuestionAnswering

from condensery.errors import InputError, Overloaded
from condensery.methods.oscar import training
from condensery.methods.oscar.batches import Layout, collate
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.preparing import Origins, prepare
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix, Sampler
from condensery.methods.oscar.starting import new_pair
from condensery.methods.oscar.training import groups, train
from condensery.methods.trainer.checkpoints import Checkpoint, TrainingStopped, latest
from condensery.methods.trainer.method import TrainingSetup
from condensery.networks.oscar import WORDS, OscarPair

SHAPE = tiny_shape(query_tokens=24, passage_tokens=48)
RECIPE = Recipe(steps=6, tokens=300, warmup=2, cloze_only=2, cloze=20, new_rate=3e-3)
MIX = Mix(smallest=16, spelled=0)
pytestmark = pytest.mark.usefixtures("one_thread")


def beginning(base: Path, data: Path, recipe: Recipe = RECIPE, mix: Mix = MIX) -> Start:
    return prepare(Origins(base), data, SHAPE, recipe, mix=mix)


@pytest.fixture(scope="module")
def finished(
    base_folder: Path, data_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[OscarPair, Path]:
    """A run that nothing interrupted, with a checkpoint every two steps."""
    out = tmp_path_factory.mktemp("whole")
    return train(
        beginning(base_folder, data_folder),
        out,
        limit=20,
        setup=TrainingSetup(every=2, dtype=torch.bfloat16),
    ), out


def last(out: Path) -> Checkpoint:
    checkpoint = latest(out)
    assert checkpoint is not None
    return checkpoint


class Interrupt(logging.Handler):
    """Press Ctrl-C when the run tells of a step."""

    def __init__(self, step: int) -> None:
        super().__init__(logging.INFO)
        self.step = step

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith(f"step {self.step}/") and "validation" in message:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [2, 4])
def test_an_interrupted_run_that_is_resumed_gives_the_same_bits(
    base_folder: Path,
    data_folder: Path,
    tmp_path: Path,
    finished: tuple[OscarPair, Path],
    caplog: pytest.LogCaptureFixture,
    step: int,
) -> None:
    logger, handler = logging.getLogger("condensery.methods.trainer.progress"), Interrupt(step)
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(
                beginning(base_folder, data_folder),
                tmp_path,
                limit=20,
                setup=TrainingSetup(every=2, dtype=torch.bfloat16),
            )
    finally:
        logger.removeHandler(handler)
    assert last(tmp_path).step == step

    resumed = train(
        beginning(base_folder, data_folder),
        tmp_path,
        limit=20,
        setup=TrainingSetup(every=2, dtype=torch.bfloat16),
    )
    whole, out = finished
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for file in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        wanted, again = (last(run).path / file for run in (out, tmp_path))
        assert wanted.read_bytes() == again.read_bytes()


def test_a_finished_run_has_nothing_left_to_do(
    base_folder: Path, data_folder: Path, finished: tuple[OscarPair, Path]
) -> None:
    whole, out = finished
    lines = (out / "log.jsonl").read_text()
    again = train(
        beginning(base_folder, data_folder),
        out,
        limit=20,
        setup=TrainingSetup(every=2, dtype=torch.bfloat16),
    )
    assert (out / "log.jsonl").read_text() == lines
    for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_run_leaves_a_checkpoint_its_log_and_what_data_it_saw(
    finished: tuple[OscarPair, Path], base_folder: Path, data_folder: Path
) -> None:
    pair, out = finished
    state = last(out).state()
    assert state["step"] == 6
    assert state["shape"] == SHAPE.to_dict()
    assert Recipe(**state["recipe"]) == RECIPE
    saved = last(out).weights()
    assert WORDS not in saved
    assert all(torch.equal(saved[name], value) for name, value in pair.own_state().items())
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 6, 6]
    figures = [row["validation"] for row in rows if "validation" in row]
    assert len(figures) == 3
    assert all(0 <= row["gold"]["em"] <= 100 for row in figures)
    assert json.loads((out / "data.json").read_text())["cloze_examples"] == 20
    items = [row["items"] for row in rows]
    assert items == sorted(items)  # figures too are by items seen
    assert state["mix"] == asdict(MIX)
    assert state["data"] == beginning(base_folder, data_folder).sets.fingerprint
    names = {path.name for path in out.iterdir()}
    assert names == {"checkpoints", "command.txt", "data.json", "log.jsonl", "log.png"}


def test_another_seed_trains_other_weights(
    base_folder: Path, data_folder: Path, tmp_path: Path, finished: tuple[OscarPair, Path]
) -> None:
    recipe = replace(RECIPE, seed=14, steps=2)
    other = train(beginning(base_folder, data_folder, recipe), tmp_path)
    assert not torch.equal(other.compressor.slots.weight, finished[0].compressor.slots.weight)


def test_training_lowers_the_loss(base_folder: Path, data_folder: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=60, tokens=600)
    start = beginning(base_folder, data_folder, recipe, replace(MIX, slips=0.0))
    items = Sampler(start.sets.sets[:1], SHAPE, MIX, random.Random(0)).batch(2000)
    layout = Layout(SHAPE, SPECIALS, start.pair.compressor.slot_positions)
    batch = collate(items, layout)

    @torch.no_grad()
    def measure(pair: OscarPair) -> dict[str, float]:
        result = losses(pair.float().eval(), batch)
        return {k: float(getattr(result, k)) for k in ("answer", "relevance", "pointer")}

    before = measure(start.pair)
    after = measure(train(start, tmp_path, setup=TrainingSetup(every=100, dtype=torch.bfloat16)))
    assert after["answer"] < 0.8 * before["answer"]
    assert after["pointer"] < 0.9 * before["pointer"]
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 50
    # 50 steps' mean lies between where the losses began and where they ended, about.
    assert after["answer"] < rows[0]["answer"] < before["answer"]


def test_a_new_pair_starts_from_the_encoder_and_the_words_are_shared(base_folder: Path) -> None:
    pair = new_pair(base_folder, SHAPE)
    base = load_file(base_folder / "model.safetensors")
    state = pair.compressor.backbone.state_dict()
    assert all(torch.equal(state[name], value) for name, value in base.items())
    words = base["embeddings.word_embeddings.weight"]
    assert torch.equal(
        torch.cosine_similarity(pair.generator.words, words - words.mean(0)).round(decimals=4),
        torch.ones(len(words)),
    )


def test_every_trained_weight_is_in_one_group_and_the_encoders_learn_slower(
    base_folder: Path,
) -> None:
    pair, recipe = new_pair(base_folder, SHAPE), replace(RECIPE, generator_rate=2e-4)
    grouped = groups(pair, recipe)
    rate = {id(p): group for group in grouped for p in group.parameters}
    assert sum(len(group.parameters) for group in grouped) == len(rate)
    for name, parameter in pair.named_parameters():
        assert (id(parameter) in rate) == parameter.requires_grad == (name != WORDS)
        if parameter.requires_grad:
            group = rate[id(parameter)]
            wanted = recipe.new_rate
            if name.startswith("compressor.backbone."):
                wanted = recipe.backbone_rate
            elif name.startswith(("generator.backbone.", "generator.output")):
                wanted = recipe.generator_rate
            assert group.learning_rate == wanted, name
            assert group.weight_decay == (recipe.weight_decay if parameter.ndim > 1 else 0)


def test_a_run_goes_on_only_with_the_mix_and_the_data_it_began_with(
    base_folder: Path, data_folder: Path, tmp_path: Path, finished: tuple[OscarPair, Path]
) -> None:
    out = shutil.copytree(finished[1], tmp_path / "run")
    with pytest.raises(TrainingStopped, match=r"mix\.plain: 0\.2, not 0\.3"):
        train(beginning(base_folder, data_folder, mix=replace(MIX, plain=0.3)), out)
    start = beginning(base_folder, data_folder)
    start.sets.sets[0][0].examples.pop()
    with pytest.raises(TrainingStopped, match="data: "):
        train(start, out)


def test_the_recipe_is_the_trainers() -> None:
    recipe = Recipe(steps=100, warmup=10, decay=0.4, clip=0.5, seed=3, accumulate=2).trainer(7)
    values = (recipe.steps, recipe.clip, recipe.seed, recipe.accumulate, recipe.every)
    assert values == (100, 0.5, 3, 2, 7)
    rates = [recipe.scale(step) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[9:61] == pytest.approx([1.0] * 52)
    assert rates[80] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(1 / 40)


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved_and_names_questions(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, new_rate=float("inf"))
    with pytest.raises(TrainingStopped, match=r"step 1: the loss is not finite.*'.*no checkpoint"):
        train(
            beginning(base_folder, data_folder, recipe),
            tmp_path,
            setup=TrainingSetup(every=4, dtype=torch.bfloat16),
        )
    assert not (tmp_path / "checkpoints").exists()


def test_too_few_questions_to_validate_are_refused_before_the_first_step(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="limit=19: must be 0 or at least 20"):
        train(beginning(base_folder, data_folder), tmp_path, limit=19)
    assert not list(tmp_path.iterdir())


def test_a_validation_that_fails_is_told_and_the_run_goes_on(
    base_folder: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **named: object) -> dict[str, object]:
        raise Overloaded("it would wait 11 s")

    monkeypatch.setattr(training, "validate", refuse)
    train(
        beginning(base_folder, data_folder, replace(RECIPE, steps=2)),
        tmp_path,
        setup=TrainingSetup(every=1, dtype=torch.bfloat16),
    )
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    figures = [row["validation"] for row in rows if "validation" in row]
    assert figures == [{"failed": "it would wait 11 s"}] * 2


def test_a_run_may_go_without_validation(
    base_folder: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "validate", None)
    train(beginning(base_folder, data_folder, replace(RECIPE, steps=1)), tmp_path, limit=0)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [sorted(row) for row in rows if "validation" in row] == []


def test_of_several_runs_the_mean_goes_on(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    sizes = {"query_tokens": 24, "passage_tokens": 48}
    states = [tiny_pair(seed=seed, **sizes).own_state() for seed in (8, 9, 10)]
    files = tuple(tmp_path / f"{number}.safetensors" for number in range(3))
    for state, file in zip(states, files, strict=True):
        save_file(state, file)
    start = prepare(Origins(base_folder, starts=files), data_folder, SHAPE, RECIPE, mix=MIX)
    for name, value in start.pair.own_state().items():
        torch.testing.assert_close(value, sum(state[name] for state in states) / 3)
    assert start.origin["start"] == "0.safetensors, 1.safetensors, 2.safetensors"
    states[1].pop("compressor.rerank.bias")
    save_file(states[1], files[1])
    with pytest.raises(InputError, match=r"different pairs: compressor\.rerank\.bias is missing"):
        prepare(Origins(base_folder, starts=files), data_folder, SHAPE, RECIPE, mix=MIX)


def test_what_names_a_part_goes_before_what_names_a_pair(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    shape = replace(SHAPE, walk=True)
    sizes = {"query_tokens": 24, "passage_tokens": 48, "walk": True}
    whole, other = (tiny_pair(seed=seed, **sizes).own_state() for seed in (8, 9))
    save_file(whole, tmp_path / "whole.safetensors")
    save_file(other, tmp_path / "other.safetensors")
    reader = BertForQuestionAnswering(tiny_config())
    words = new_pair(base_folder, shape).compressor.backbone.embeddings.word_embeddings.weight
    reader.bert.embeddings.word_embeddings.weight.data.copy_(words)
    reader.save_pretrained(tmp_path / "reader")
    origins = Origins(
        base_folder,
        readers=(tmp_path / "reader",),
        starts=(tmp_path / "whole.safetensors",),
        start_generator=tmp_path / "other.safetensors",
    )
    start = prepare(origins, data_folder, shape, RECIPE, mix=MIX)
    layers = dict(reader.bert.named_parameters())
    head = reader.qa_outputs
    for name, value in start.pair.own_state().items():
        if name.startswith("generator."):
            expected = other[name]
        elif name.startswith("compressor.backbone."):
            expected = layers[name.removeprefix("compressor.backbone.")]
        elif name == "compressor.pointer.span.weight":
            expected = head.weight
        elif name == "compressor.pointer.span.bias":
            continue  # its end is shifted
        else:
            expected = whole[name]
        assert torch.equal(value, expected), name
