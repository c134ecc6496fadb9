import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.methods.conftest import interrupted
from tiny_pair import WORDS, write_base
from transformers import AutoModelForCausalLM

from condensery.errors import InputError, ModelNotFound
from condensery.methods.lm.model import LmShape, open_lm_tokenizer, read_table
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Texts, split_documents
from condensery.methods.lm.training import find_source, main, train
from condensery.methods.trainer.checkpoints import TrainingStopped, latest
from condensery.methods.trainer.method import TrainingSetup
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore

SHAPE = LmShape(width=16, layers=1, heads=2, mlp_width=24, length=24)
RECIPE = LmRecipe(steps=8, rows=4, warmup=2, rate=1e-2, vocabulary=300, held_out=0.1)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    known = [word for word in WORDS.split() if len(word) > 1]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n\n".join(" ".join(rng.choices(known, k=30)) for _ in range(60)) + "\n")
    return path


@pytest.fixture(scope="module")
def made(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command line, with a tokenizer of its own."""
    out = tmp_path_factory.mktemp("run")
    flags = "--steps 30 --rows 4 --warmup 2 --rate 1e-2 --vocabulary 300 --held-out 0.1 --every 15"
    shape = "--width 16 --layers 1 --heads 2 --mlp-width 24 --length 24 --threads 1 --device cpu"
    licence = ["--licence", "CC0 1.0"]
    main(["--text", str(text), "--out", str(out), *flags.split(), *shape.split(), *licence])
    return out


@pytest.mark.tiny_run
def test_a_run_leaves_a_model_that_learnt_its_card_and_a_plot(made: Path) -> None:
    folder = made / "model"
    card = json.loads((folder / "card.json").read_text())
    curve = [row["perplexity"] for row in card["figures"]["while_training"]]
    assert curve[1] < curve[0] < 300  # 300 tokens: what knowing nothing gives
    assert card["figures"]["held_out"]["perplexity"] < curve[0]
    assert card["data"]["documents"] + card["data"]["held_out_documents"] == 60
    assert card["data"]["tokens_seen"] == 30 * 4 * 24
    assert (card["data"]["licence"], card["data"]["train"]) == ("CC0 1.0", ["words.txt"])
    assert card["command"].startswith("condensery train lm --text ")
    assert card["seed"] == 13
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert sum(p.numel() for p in model.parameters()) == card["parameters"]
    assert (made / "log.png").stat().st_size > 1000
    assert sorted(p.name for p in made.iterdir()) == [
        "checkpoints", "log.jsonl", "log.png", "model", "tokenizer.json",
    ]  # fmt: skip
    checkpoint = latest(made)
    assert checkpoint is not None
    assert "lm_head.weight" not in checkpoint.weights()  # tied to the input's


def test_an_interrupted_run_that_is_resumed_gives_the_same_bits(text: Path, tmp_path: Path) -> None:
    def run(out: Path) -> Path:
        return train(
            Texts([text]), out, SHAPE, RECIPE, setup=TrainingSetup(every=4, dtype=torch.bfloat16)
        )

    whole = run(tmp_path / "whole")
    with interrupted(tmp_path / "cut", 4):
        run(tmp_path / "cut")
    wanted, resumed_weights = (
        load_file(folder / "model.safetensors") for folder in (whole, run(tmp_path / "cut"))
    )
    assert all(torch.equal(wanted[name], resumed_weights[name]) for name in wanted)
    assert wanted["model.norm.weight"].dtype == torch.bfloat16


def test_another_text_or_tokenizer_does_not_resume_a_run(
    text: Path, made: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(Texts([text]), run, SHAPE, RECIPE)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text() + "\nmore mill\n")
    with pytest.raises(TrainingStopped, match="text: "):
        train(Texts([other]), run, SHAPE, RECIPE)
    with pytest.raises(TrainingStopped, match="tokenizer: "):
        train(Texts([text]), run, SHAPE, RECIPE, tokenizer=write_base(tmp_path / "base"))
    with pytest.raises(TrainingStopped, match=r"recipe.rows: 4, not 5"):
        train(Texts([text]), run, SHAPE, replace(RECIPE, rows=5))


def test_a_loss_that_is_not_finite_names_the_text(text: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, rate=float("inf"))
    with pytest.raises(TrainingStopped, match=r"step 1: the loss is not finite.* token \d+, '"):
        train(Texts([text]), tmp_path, SHAPE, recipe)


def test_held_out_documents_are_not_trained_on(tmp_path: Path) -> None:
    train_text, held_text = tmp_path / "train.txt", tmp_path / "held.txt"
    train_text.write_text("a\n\nb\n\nc\n")
    held_text.write_text("b\n")
    assert split_documents(Texts([train_text], [held_text]), RECIPE) == (["a\n", "c\n"], ["b\n"])
    kept, held = split_documents(Texts([train_text]), RECIPE)
    assert sorted(kept + held) == ["a\n", "b\n", "c\n"]
    assert len(held) == 1
    with pytest.raises(InputError, match="text: holds no document"):
        split_documents(Texts([held_text]), RECIPE)


def test_what_is_like_that_which_others_are_measured_on_is_not_trained_on(tmp_path: Path) -> None:
    long = "one two three four five six seven eight nine ten"
    measured = tmp_path / "dev.jsonl"
    measured.write_text(json.dumps({"context": f"so: {long}!", "title": "The_Mill"}) + "\n")
    rows = tmp_path / "text.jsonl"
    texts = [{"text": f"and {long.upper()} more"}, {"text": "b", "title": "the mill"}]
    texts += [{"text": "c", "title": "A mill"}, {"text": long[:-4]}]
    rows.write_text("".join(json.dumps(value) + "\n" for value in texts))
    held = tmp_path / "held.txt"
    held.write_text("h\n")
    kept, _ = split_documents(Texts([rows], [held], not_like=[measured]), RECIPE)
    assert kept == ["c", long[:-4]]
    measured.write_text('{"question": "Why?"}\n')
    with pytest.raises(InputError, match=r"dev\.jsonl, line 1: has neither context nor text"):
        split_documents(Texts([rows], [held], not_like=[measured]), RECIPE)


def test_a_shared_word_table_stays_what_it_is(text: Path, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    table = read_table(base)
    shape = replace(SHAPE, width=table.shape[1])
    recipe = replace(RECIPE, steps=2)
    made = train(Texts([text]), tmp_path / "run", shape, recipe, tokenizer=base, table=table)
    state = load_file(made / "model.safetensors")
    kept = state["model.embed_tokens.weight"]
    assert torch.equal(kept, table.to(kept.dtype))
    assert "lm_head.weight" not in state
    state = load_file(base / "model.safetensors")
    (raw,) = (value for name, value in state.items() if name.endswith("word_embeddings.weight"))
    centred = raw - raw.mean(0)
    torch.testing.assert_close(table, centred / centred.square().mean(1, keepdim=True).sqrt())
    wrong = replace(shape, width=shape.width + 4)
    with pytest.raises(InputError, match=f"width={wrong.width}: the word embed"):
        train(Texts([text]), tmp_path / "a", wrong, recipe, tokenizer=base, table=table)
    with pytest.raises(InputError, match="words: 3 rows for a tokenizer of"):
        train(Texts([text]), tmp_path / "b", shape, recipe, tokenizer=base, table=table[:3])
    with pytest.raises(InputError, match=r"^words: "):
        read_table(text.parent)


@pytest.mark.parametrize("name", ["LICENSE.safetensors", ".a.safetensors"])
def test_a_stored_models_words_are_of_the_files_that_its_manifest_lists(
    tmp_path: Path, name: str
) -> None:
    manifest = Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    files, root = write_base(tmp_path / "base"), tmp_path / "store"
    stored = ModelStore(None, root).publish(files, manifest)
    table = read_table(files)
    source = find_source("tiny-base", root)
    words = torch.ones(table.shape)
    save_file({"embeddings.word_embeddings.weight": words}, stored.path / name)
    assert torch.equal(read_table(source), table)


def test_a_tokenizer_is_found_by_path_or_by_a_stored_models_name(tmp_path: Path) -> None:
    files = write_base(tmp_path / "base")
    store = ModelStore(None, tmp_path / "store")
    stored = store.publish(
        files, Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    )
    assert find_source(str(files), None).path == files
    path = find_source("tiny-base", tmp_path / "store").path
    assert path == stored.path
    assert open_lm_tokenizer(path).start == open_lm_tokenizer(files).start
    with pytest.raises(InputError, match=r"'no-such' is no file or folder; .* --store"):
        find_source("no-such", None)
    with pytest.raises(ModelNotFound, match="no-such"):
        find_source("no-such", tmp_path / "store")
