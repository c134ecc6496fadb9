import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.methods.conftest import interrupted
from tiny_pair import write_base

from condensery.errors import InputError
from condensery.methods.ranking.sets import parse_set
from condensery.methods.rerank.negatives import Mined
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.rerank.sets import load_sets
from condensery.methods.rerank.sources import Sources
from condensery.methods.rerank.training import find_negatives, main, train
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.processes import Processes

CPU = torch.device("cpu")
RECIPE = RerankRecipe(
    steps=4, queries=2, negatives=2, warmup=2, search="bm25", held_out=4, candidates=4, length=48
)


@pytest.fixture(scope="module")
def made(base: Path, data: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command line, with negatives by words and by vectors."""
    out = tmp_path_factory.mktemp("run")
    questions, corpus = data
    flags = "--steps 60 --queries 6 --negatives 4 --warmup 5 --rate 2e-3 --every 30 --length 48"
    main(
        ["--base", str(base), "--data", str(questions), "--corpus", str(corpus), "--out", str(out),
         "--licence", "CC0 1.0", "--dtype", "float32", "--device", "cpu", "--threads", "1",
         "--held-out", "8", "--candidates", "6", "--depth", "6", *flags.split()]
    )  # fmt: skip
    return out


@pytest.mark.tiny_run
def test_a_run_leaves_a_model_that_learnt_its_card_a_report_and_a_plot(made: Path) -> None:
    card = json.loads((made / "model" / "card.json").read_text())
    held_out = card["figures"]["held_out"]
    # BM25 finds what shares words with a question, which here no passage that answers it does.
    assert held_out["bm25"]["gold_first"] == 0
    assert held_out["cross_encoder"]["gold_first"] > 80
    assert held_out["cross_encoder_minus_bm25"]["low_95"] > 20
    assert held_out["queries"] == 8
    assert [row["step"] for row in card["figures"]["while_training"]] == [30, 60]
    assert card["data"]["licence"] == "CC0 1.0"
    assert card["data"]["queries to train on"] == 32
    assert card["command"].startswith("condensery train cross-encoder --base ")
    report = json.loads((made / "data.json").read_text())
    assert report["queries read"] == 40
    assert report["left out: too few negatives"] == 0
    assert report["sha256"] == card["data"]["sha256"]
    assert (made / "log.png").stat().st_size > 1000
    assert sorted(p.name for p in made.iterdir()) == [
        "checkpoints", "data.json", "log.jsonl", "log.png", "model", "negatives.jsonl",
    ]  # fmt: skip


def test_the_model_scores_as_it_was_measured(made: Path) -> None:
    opened = CrossEncoder.open(made / "model", device=CPU, dtype=torch.float32)
    right, wrong = opened.scores("who is old", ["mill mill ab cd 7", "who is new town"])
    assert right > wrong
    assert opened.pair_tokenizer.length == 48


def test_an_interrupted_run_that_is_resumed_gives_the_same_bits(
    base: Path, data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources([data[0]], corpus=[data[1]])

    def run(out: Path) -> Path:
        return train(sources, base, out, RECIPE, setup=TrainingSetup(every=2, dtype=torch.bfloat16))

    whole = run(tmp_path / "whole")
    with interrupted(tmp_path / "cut", 2):
        run(tmp_path / "cut")

    def mined(*_: object, **__: object) -> Any:
        raise AssertionError("what was mined is read again")

    with monkeypatch.context() as patched:
        patched.setattr("condensery.methods.rerank.negatives.Retriever.build", mined)
        resumed = run(tmp_path / "cut")
    wanted, resumed_weights = (
        load_file(folder / "model.safetensors") for folder in (whole, resumed)
    )
    assert all(torch.equal(wanted[name], resumed_weights[name]) for name in wanted)
    assert wanted["classifier.weight"].dtype == torch.bfloat16


def test_another_recipe_base_or_data_does_not_resume_a_run(
    base: Path, data: tuple[Path, Path], tmp_path: Path
) -> None:
    sources = Sources([data[0]], corpus=[data[1]])
    train(sources, base, tmp_path, RECIPE)
    with pytest.raises(TrainingStopped, match=r"recipe\.rate: 5e-05, not 0.001"):
        train(sources, base, tmp_path, replace(RECIPE, rate=1e-3))
    with pytest.raises(InputError, match=r"negatives\.jsonl was mined with other data"):
        train(Sources([data[0]]), base, tmp_path, RECIPE)
    other = write_base(tmp_path / "other", seed=9)
    with pytest.raises(TrainingStopped, match="base: "):
        train(sources, other, tmp_path, RECIPE)


def test_wrong_data_and_bases_are_refused_before_anything_is_written(
    base: Path, data: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"question": " ", "context": "mill"}) + "\n")
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1: question: ' ' is empty"):
        train(Sources([bad]), base, out, RECIPE)
    with pytest.raises(InputError, match="base: "):
        train(Sources([data[0]]), tmp_path, out, RECIPE)
    with pytest.raises(InputError, match="no query to train on"):
        train(Sources([data[0]], not_like=[data[0]]), base, out, RECIPE)
    assert not out.exists()


def test_a_loss_that_is_not_finite_names_the_questions(
    base: Path, data: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe = replace(RECIPE, rate=float("inf"))
    with pytest.raises(TrainingStopped, match=r"not finite.*questions\.jsonl, line \d+: '"):
        train(Sources([data[0]], corpus=[data[1]]), base, tmp_path, recipe)


def test_processes_beside_the_first_read_what_it_mined_or_stop_with_it(
    base: Path, data: tuple[Path, Path], tmp_path: Path
) -> None:
    @dataclass(frozen=True, slots=True)
    class StandIn(Processes):
        well: bool = True

        def agree(self, well: bool, device: torch.device) -> bool:
            return well and self.well

    sets = load_sets(Sources([data[0]], corpus=[data[1]]), RECIPE)

    def find(processes: Processes) -> Mined:
        return find_negatives(
            tmp_path, sets, RECIPE, base, TrainingSetup(CPU, torch.float32, processes=processes)
        )

    mined = find(StandIn(rank=0, count=2))
    assert find(StandIn(rank=1, count=2)) == mined
    with pytest.raises(TrainingStopped, match="the first process could not find negatives"):
        find(StandIn(rank=1, count=2, well=False))


def test_a_retrieval_set_is_named_with_its_split() -> None:
    assert parse_set("a:b/c:train") == (Path("a:b/c"), "train")
    for text in ("scifact", ":train", "scifact:"):
        with pytest.raises(InputError, match="is not DIR:SPLIT"):
            parse_set(text)
