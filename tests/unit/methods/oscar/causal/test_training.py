import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.methods.conftest import interrupted
from tiny_causal_training import some_rows, write_rows

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import PairSources
from condensery.methods.oscar.causal.data import Files
from condensery.methods.oscar.causal.items import Item
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.oscar.causal.training import main, train
from condensery.methods.trainer.checkpoints import TrainingStopped, latest
from condensery.methods.trainer.method import TrainingSetup, learning_state
from condensery.methods.trainer.progress import read_log
from condensery.networks.oscar_causal import CausalPair

RECIPE = CausalRecipe(
    batch=4, rows=2, steps=4, passages=3, label_tokens=12, lora_rank=2, generator_rate=1e-2,
    compressor_rate=1e-3, plain=0.3,
)  # fmt: skip
TEXT = "The mill stands by the river, where the old bread market was; nobody knows who built it. "


@pytest.fixture(autouse=True)
def no_plot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no log but where it is looked at: a plot takes longer than the training."""
    if "tells" not in request.node.name:
        monkeypatch.setattr("condensery.methods.trainer.trainer.plot", lambda out: None)


def weights(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = latest(out)
    assert checkpoint is not None
    return checkpoint.weights()


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    documents = [TEXT * 3 + f"Chapter {i}. " + TEXT * 3 for i in range(8)]
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.mark.parametrize("kind", ["first layers", "a BERT"])
def test_an_interrupted_run_that_is_resumed_gives_the_same_bits(
    kind: str,
    kinds: dict[str, PairSources],
    rows_file: Path,
    tmp_path: Path,
) -> None:
    def run(out: Path) -> CausalPair:
        recipe, files = replace(RECIPE, steps=3), Files([rows_file])
        return train(
            kinds[kind],
            files,
            out,
            recipe,
            answers=0,
            setup=TrainingSetup(every=2, dtype=torch.bfloat16),
        )

    wanted = learning_state(run(tmp_path / "whole"))
    with interrupted(tmp_path / "cut", 2):
        run(tmp_path / "cut")
    resumed = learning_state(run(tmp_path / "cut"))
    assert resumed.keys() == wanted.keys() == weights(tmp_path / "cut").keys()
    assert all(torch.equal(wanted[name], resumed[name]) for name in wanted)
    assert {weight.dtype for weight in resumed.values()} == {torch.bfloat16}


def test_a_run_tells_how_it_does(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path
) -> None:
    train(
        kinds["first layers"],
        Files([rows_file], share=0.2),
        tmp_path,
        RECIPE,
        answers=3,
        setup=TrainingSetup(every=2),
    )
    rows = read_log(tmp_path)
    (first, last) = (row["validation"] for row in rows if "validation" in row)
    assert first.keys() == last.keys() == {"label", "rerank", "first", "em", "f1", "samples"}
    assert len(last["samples"]) == 3
    assert first["label"] != last["label"] > 0  # four steps later; whether lower, so few don't say
    steps = [row for row in rows if "loss" in row]
    assert {"label", "rerank", "norm", "rate"} <= steps[-1].keys()
    assert steps[-1]["items"] == 16
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["data"]["questions"] == 16
    assert content["data"]["with_scores"] == 16
    assert content["reranks"] is True
    assert (tmp_path / "log.png").stat().st_size > 1000


def test_fine_tuning_begins_with_what_pretraining_learnt(
    kinds: dict[str, PairSources], rows_file: Path, text_file: Path, tmp_path: Path
) -> None:
    first = replace(RECIPE, stage="pretrain")
    train(
        kinds["another model"],
        Files([text_file], share=0.2),
        tmp_path / "pre",
        first,
        setup=TrainingSetup(every=4),
    )
    learnt = weights(tmp_path / "pre")
    still = replace(RECIPE, generator_rate=0.0, compressor_rate=1e-12, steps=1)
    train(None, Files([rows_file]), tmp_path / "fine", still, begin=tmp_path / "pre", answers=0)
    state = weights(tmp_path / "fine")
    assert state.keys() == learnt.keys()
    for name, weight in learnt.items():
        torch.testing.assert_close(state[name], weight, rtol=0, atol=1e-6)
    content = json.loads((tmp_path / "fine" / "run.json").read_text())
    assert content["begun"]["stage"] == "pretrain"
    assert content["begun"]["data"]["files"] == ["text.txt"]
    # Not with other adapters, another pair, or from what is no run.
    wider = replace(RECIPE, lora_rank=3)
    with pytest.raises(InputError, match=r"other weights learn than here.*lora_rank"):
        train(None, Files([rows_file]), tmp_path / "b", wider, begin=tmp_path / "pre")
    other = kinds["first layers"]
    with pytest.raises(InputError, match=r"from: the pair of .* is built otherwise"):
        train(other, Files([rows_file]), tmp_path / "b", RECIPE, begin=tmp_path / "pre")
    with pytest.raises(InputError, match=r"run: .* holds no run of a pair"):
        train(None, Files([rows_file]), tmp_path / "b", RECIPE, begin=tmp_path)
    assert not (tmp_path / "b").exists()


def test_a_base_that_changed_is_not_begun_from(
    bases: dict[str, Path], rows_file: Path, text_file: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(bases["mistral"], tmp_path / "base")
    built = PairSources(folder, layers=1, memory_tokens=2, passage_tokens=24)
    first = replace(RECIPE, stage="pretrain", steps=1)
    train(built, Files([text_file]), tmp_path / "pre", first, answers=0)
    moved = folder.rename(tmp_path / "elsewhere")
    begin: dict[str, Any] = {"begin": tmp_path / "pre", "answers": 0}
    short = replace(RECIPE, steps=1)
    with pytest.raises(InputError, match=r"generator: .* is not a directory"):
        train(None, Files([rows_file]), tmp_path / "fine", short, **begin)
    other = {"generator": bases["tied"]}
    with pytest.raises(InputError, match=r"generator: the directory holds another model"):
        train(None, Files([rows_file]), tmp_path / "fine", short, **begin, moved=other)
    with pytest.raises(InputError, match=r"bert: the pair of .* is not built from one"):
        train(None, Files([rows_file]), tmp_path / "f", short, **begin, moved={"bert": moved})
    train(None, Files([rows_file]), tmp_path / "fine", short, **begin, moved={"generator": moved})


BAD_ROWS = [
    ({"passages": []}, "line 1: passages: .* holds no text"),
    ({"label": "word " * 40}, r"line 1: label: .* has \d+ tokens, more than 12"),
    ({"label": "", "answers": []}, "line 1: answers: .* holds no answer"),
    ({"scores": [1.0]}, "line 1: scores: "),
    ({"question": " "}, "line 1: question: .* is empty"),
    ({"scores": [1.0, float("nan"), 0.0]}, "line 1: scores: "),
]


@pytest.mark.parametrize(("change", "says"), BAD_ROWS)
def test_rows_that_can_not_be_learnt_are_named_before_the_first_step(
    change: dict[str, Any], says: str, kinds: dict[str, PairSources], tmp_path: Path
) -> None:
    rows = some_rows(4)
    rows[0] = {**rows[0], **change}
    file = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=says):
        train(kinds["first layers"], Files([file]), out, RECIPE)
    assert not out.exists()


def test_scores_are_learnt_only_where_there_are_some(
    kinds: dict[str, PairSources], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", some_rows(4, scores=False))
    kind = kinds["first layers"]
    with pytest.raises(InputError, match=r"rerank_weight=0\.05: no row has scores"):
        train(kind, Files([file]), tmp_path / "a", replace(RECIPE, rerank_weight=0.05))
    scored = write_rows(tmp_path / "scored.jsonl", some_rows(4))
    bare = replace(kind, rerank=False)
    with pytest.raises(InputError, match=r"rerank_weight=0\.1: the compressor has no rerank token"):
        train(bare, Files([scored]), tmp_path / "a", replace(RECIPE, rerank_weight=0.1))
    train(kind, Files([file], share=0.0), tmp_path / "b", replace(RECIPE, steps=1))
    assert "no row has scores: the rerank head is not trained" in caplog.text
    assert json.loads((tmp_path / "b" / "run.json").read_text())["reranks"] is False


def test_a_loss_that_is_not_finite_names_the_rows(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import condensery.methods.oscar.causal.training as module

    whole = module.loss

    def poisoned(pair: CausalPair, items: Sequence[Item], *rest: Any) -> Any:
        result = whole(pair, items, *rest)
        bad = any("line 7:" in item.name for item in items)
        return replace(result, total=result.total * float("nan")) if bad else result

    monkeypatch.setattr(module, "loss", poisoned)
    files, recipe = Files([rows_file], share=0.0), replace(RECIPE, steps=6)
    with pytest.raises(TrainingStopped, match=r"the loss is not finite, in the batch .*line 7: "):
        train(kinds["first layers"], files, tmp_path, recipe)


def test_another_recipe_pair_or_file_does_not_resume_a_run(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    short = replace(RECIPE, steps=1)
    kind, files = kinds["first layers"], Files([rows_file], share=0.0)
    train(kind, files, run, short)
    with pytest.raises(TrainingStopped, match=r"recipe.plain: 0.3, not 0.2"):
        train(kind, files, run, replace(short, plain=0.2))
    with pytest.raises(TrainingStopped, match=r"shape.compressor.memory_tokens: 4, not 3"):
        train(replace(kind, memory_tokens=3), files, run, short)
    other = write_rows(tmp_path / "other.jsonl", some_rows(9))
    with pytest.raises(TrainingStopped, match="data: "):
        train(kind, Files([other], share=0.0), run, short)
    train(kind, files, run, replace(short, checkpoint_layers=True))  # changes no number


def test_the_command_trains_and_says_what_is_missing(
    bases: dict[str, Path], rows_file: Path, text_file: Path, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")]
    short = [
        "--batch",
        "2",
        "--rows",
        "2",
        "--steps",
        "1",
        "--lora-rank",
        "2",
        "--answers",
        "0",
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    data = ["--data", str(rows_file), "--licence", "CC0 1.0"]
    built = ["--generator", str(bases["mistral"]), "--every-nth", "2", "--memory-tokens", "2"]
    main([*out, *short, *data, *built, "--no-separator", "--dtype", "float32"])
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["built"]["every_nth"] == 2
    assert content["built"]["separator"] is False
    assert content["command"].startswith("condensery train oscar-causal --out ")
    assert content["data"]["licence"] == "CC0 1.0"
    for flags, says in (
        ([*data], "generator: name its directory"),
        ([*built], "data: is what stage='finetune' reads"),
        ([*built, "--stage", "pretrain", *data], "text: is what stage='pretrain' reads"),
        ([*data, "--from", "x", "--memory-tokens", "3"], "memory_tokens=3: the run of --from"),
        ([*data, *built, "--layers", "2"], "give one of"),
    ):
        with pytest.raises(InputError, match=says):
            main([*out, *short, *flags])


@pytest.mark.slow
def test_a_small_pair_learns_what_its_passages_say(bases: dict[str, Path], tmp_path: Path) -> None:
    """Thirty rows, five questions of six answers each: without the passages 1 in 3 is right."""
    rows = write_rows(tmp_path / "rows.jsonl", some_rows(30))
    built = PairSources(
        bases["small"],
        layers=2,
        memory_tokens=4,
        passage_tokens=32,
        query_tokens=16,
        prompt="plain",
    )
    recipe = CausalRecipe(
        batch=30, rows=30, steps=60, passages=3, generator_tuning="full", generator_rate=1e-3,
        compressor_rate=1e-3, plain=0.0,
    )  # fmt: skip
    files = Files([rows], [rows])
    train(
        built,
        files,
        tmp_path / "run",
        recipe,
        answers=30,
        setup=TrainingSetup(dtype=torch.float32, every=20),
    )
    measured = [row["validation"] for row in read_log(tmp_path / "run") if "validation" in row]
    assert measured[-1]["em"] > 90
    assert measured[-1]["label"] < 0.1
    assert measured[-1]["rerank"] < 0.25 * measured[0]["rerank"]
    assert measured[-1]["first"] == 1
